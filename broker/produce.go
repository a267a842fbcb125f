package broker

import (
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// incoming is what a produce request holds for one partition.
type incoming struct {
	resp    *kmsg.ProduceResponseTopicPartition
	number  int32
	records []byte
	batch   batch
	failed  *kerr.Error
	why     string
	record  int32 // the one that failed, or -1
	again   bool  // it was written before
}

func (in *incoming) fail(err *kerr.Error, why string) {
	in.failed, in.why = err, why
	in.resp.ErrorCode = err.Code
	in.resp.BaseOffset = -1
	if why != "" {
		in.resp.ErrorMessage = kmsg.StringPtr(why)
	}
	if in.record >= 0 {
		re := kmsg.NewProduceResponseTopicPartitionErrorRecord()
		re.RelativeOffset, re.ErrorMessage = in.record, kmsg.StringPtr(why)
		in.resp.ErrorRecords = append(in.resp.ErrorRecords, re)
	}
}

// versionAddsPartition is the first version of Produce that adds the partition
// to the transaction by itself.
const versionAddsPartition = 12

func (b *Broker) produce(_ *connection, req *kmsg.ProduceRequest) answer {
	resp := req.ResponseKind().(*kmsg.ProduceResponse)
	byTopic := make([][]incoming, len(req.Topics))
	resp.Topics = make([]kmsg.ProduceResponseTopic, len(req.Topics))
	at := now()

	// What a batch says about itself is checked without the lock, by the
	// settings that its topic has now.
	policies := make([]policy, len(req.Topics))
	b.mu.Lock()
	for i := range req.Topics {
		if t := b.topicOfLocked(req.Topics[i].Topic, req.Topics[i].TopicID); t != nil {
			policies[i] = t.policy
		}
	}
	b.mu.Unlock()
	full := b.outOfSpace()
	transactional := false
	for i := range req.Topics {
		t, rt := &req.Topics[i], &resp.Topics[i]
		*rt = kmsg.NewProduceResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		rt.Partitions = make([]kmsg.ProduceResponseTopicPartition, len(t.Partitions))
		byTopic[i] = make([]incoming, len(t.Partitions))
		for j := range t.Partitions {
			in := &byTopic[i][j]
			rt.Partitions[j] = kmsg.NewProduceResponseTopicPartition()
			*in = incoming{resp: &rt.Partitions[j], number: t.Partitions[j].Partition, records: t.Partitions[j].Records, record: -1}
			in.resp.Partition, in.resp.LogAppendTime, in.resp.LogStartOffset = in.number, -1, -1
			switch {
			case req.Acks < -1 || req.Acks > 1:
				in.fail(kerr.InvalidRequiredAcks, "")
			case full:
				in.fail(kerr.KafkaStorageError, "the broker's disk is full")
			case policies[i].messageMax > 0:
				in.check(policies[i], at)
			}
			transactional = transactional || in.failed == nil && in.batch.transactional()
		}
	}
	if transactional && req.TransactionID == nil {
		for i := range byTopic {
			for j := range byTopic[i] {
				byTopic[i][j].fail(kerr.TransactionalIDAuthorizationFailed, "")
			}
		}
		return answer{resp: resp, silent: req.Acks == 0}
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	var o op
	var x *transaction
	changed := false
	if req.TransactionID != nil {
		x = b.mu.transactions[*req.TransactionID]
	}
	for i := range req.Topics {
		t := b.topicOfLocked(req.Topics[i].Topic, req.Topics[i].TopicID)
		for j := range byTopic[i] {
			in := &byTopic[i][j]
			switch {
			case in.failed != nil:
			case t == nil && req.Version >= 13:
				in.fail(kerr.UnknownTopicID, "")
			case t == nil || in.number < 0 || int(in.number) >= len(t.partitions):
				in.fail(kerr.UnknownTopicOrPartition, "")
			case in.batch.raw == nil:
				in.fail(kerr.NotLeaderForPartition, "") // the topic came into being just now
			default:
				changed = b.writeLocked(t.partitions[in.number], x, in, req.Version, at, &o) || changed
			}
		}
	}
	if changed {
		x.stageLocked(at, &o)
	}
	if len(o.changes) == 0 {
		a := answer{resp: resp, silent: req.Acks == 0}
		for i := range byTopic {
			if slices.ContainsFunc(byTopic[i], func(in incoming) bool { return in.again }) {
				a.round = b.barrierLocked()
			}
		}
		return a // what is refused is refused at once, whatever the disk does
	}
	return answer{resp: resp, round: b.stageLocked(&o), silent: req.Acks == 0}
}

// writeLocked decides on a batch and stages it. It says whether the transaction
// changed.
func (b *Broker) writeLocked(p *partition, x *transaction, in *incoming, version int16, at int64, o *op) (changed bool) {
	in.resp.LogStartOffset = p.start
	bt := &in.batch
	if !bt.idempotent() {
		p.appendLocked(*bt, at, o)
		p.stageLocked(o)
		in.written(bt)
		return false
	}
	s := p.producers[bt.producer]
	if again := s.find(bt); again != nil {
		// It is answered when the first one is on disk.
		in.resp.BaseOffset, in.resp.LogAppendTime = again.base, again.time
		in.again = true
		return false
	}
	var err *kerr.Error
	if bt.transactional() {
		err = x.admit(p, bt, version)
	} else if y := b.mu.byProducer[bt.producer]; y != nil && y.epoch > bt.epoch {
		err = kerr.InvalidProducerEpoch
	}
	if err == nil {
		err = s.admit(bt)
	}
	if err != nil {
		in.fail(err, "")
		return false
	}
	if bt.transactional() {
		changed = x.addPartitionLocked(p, at)
	}
	if s == nil {
		s = newProducerState(bt.epoch)
		p.producers[bt.producer] = s
	}
	p.appendLocked(*bt, at, o)
	s.wrote(bt, at)
	if bt.transactional() && s.txnFirst < 0 {
		s.txnFirst = bt.base()
		producer, first := bt.producer, s.txnFirst
		o.whenApplied(func() { p.visible.open[producer] = first })
	}
	o.set(offsetKey(prefixProducer, p.id, bt.producer), s.encode())
	p.stageLocked(o)
	in.written(bt)
	return changed
}

func (in *incoming) written(bt *batch) {
	in.resp.BaseOffset = bt.base()
	if bt.appendTime() {
		in.resp.LogAppendTime = bt.maxTime
	}
}

// admit decides whether a transactional batch belongs to the transaction that
// is going on: the partition by itself can't know, if the producer has never
// written to it.
func (x *transaction) admit(p *partition, bt *batch, version int16) *kerr.Error {
	switch {
	case x == nil || x.producer != bt.producer:
		return kerr.InvalidProducerIDMapping
	case x.epoch != bt.epoch:
		return kerr.InvalidProducerEpoch
	}
	if _, added := x.partitions[p]; (!added || x.state != stateOngoing) && version < versionAddsPartition {
		return kerr.InvalidTxnState
	}
	return nil
}

// check makes sure that the bytes for a partition are one sound batch that its
// topic takes.
func (in *incoming) check(rules policy, at int64) {
	bt, err := readBatch(in.records)
	switch {
	case err != nil:
		in.fail(kerr.CorruptMessage, err.Error())
		return
	case len(bt.raw) != len(in.records):
		in.fail(kerr.InvalidRecord, "there is more than one batch for a partition")
		return
	case int64(len(bt.raw)) > rules.messageMax:
		in.fail(kerr.MessageTooLarge, fmt.Sprintf("the batch has %d bytes, more than max.message.bytes, %d", len(bt.raw), rules.messageMax))
		return
	case !bt.intact():
		in.fail(kerr.CorruptMessage, "the batch's checksum is wrong")
		return
	case bt.control():
		in.fail(kerr.InvalidRecord, "clients may not write control records")
		return
	case bt.attributes&attrHorizon != 0 || bt.codec() > codecMax:
		in.fail(kerr.InvalidRecord, fmt.Sprintf("the batch's attributes, %#x, are not a client's", bt.attributes))
		return
	case bt.records < 1 || bt.lastDelta != bt.records-1:
		in.fail(kerr.InvalidRecord, fmt.Sprintf("the batch has %d records, and offsets up to %d", bt.records, bt.lastDelta))
		return
	case bt.transactional() && !bt.idempotent(), bt.idempotent() && (bt.epoch < 0 || bt.firstSeq < 0):
		in.fail(kerr.InvalidRecord, "the batch has a producer without an epoch or a sequence")
		return
	}
	v := validator{keys: rules.compact, min: -1 << 62, max: 1 << 62, append: rules.appendTime}
	if !rules.appendTime {
		v.min, v.max = at-min(rules.timeBefore, 1<<61), at+min(rules.timeAfter, 1<<61)
	}
	if n, code, why := v.check(&bt); code != nil {
		in.record = n
		in.fail(code, why)
		return
	}
	if rules.appendTime {
		bt.stamp(at)
	} else if bt.appendTime() {
		in.fail(kerr.InvalidTimestamp, "clients may not set the append time")
		return
	}
	in.batch = bt
}
