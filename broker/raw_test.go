package broker

import (
	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// rawProducer sends requests by hand, so that a test decides on each.
type rawProducer struct {
	k     *kit
	cl    *kgo.Client
	id    string // transactional, or empty
	pid   int64
	epoch int16
	seqs  map[offsetOf]int32
}

func (k *kit) rawProducer(id string) *rawProducer {
	k.Helper()
	p := &rawProducer{k: k, cl: k.client(), id: id, seqs: make(map[offsetOf]int32)}
	if err := p.init(); err != nil {
		k.Fatalf("init %q: %v", id, err)
	}
	return p
}

func (p *rawProducer) init() error {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionTimeoutMillis = 60_000
	req.ProducerID, req.ProducerEpoch = -1, -1
	if p.id != "" {
		req.TransactionalID = kmsg.StringPtr(p.id)
	}
	resp, err := p.cl.Request(p.k.ctx, req)
	if err != nil {
		return err
	}
	r := resp.(*kmsg.InitProducerIDResponse)
	if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
		return err
	}
	p.pid, p.epoch = r.ProducerID, r.ProducerEpoch
	clear(p.seqs)
	return nil
}

// encodeRecords encodes values as records of a batch, with keys like them.
func encodeRecords(values ...string) (records []byte) {
	for i, v := range values {
		var r []byte
		r = append(r, 0)
		r = kbin.AppendVarlong(r, 0)
		r = kbin.AppendVarint(r, int32(i))
		r = kbin.AppendVarintBytes(r, []byte("k"+v))
		r = kbin.AppendVarintBytes(r, []byte(v))
		r = kbin.AppendVarint(r, 0)
		records = kbin.AppendVarint(records, int32(len(r)))
		records = append(records, r...)
	}
	return records
}

// rawBatch returns a batch of values. Sequence -1: without a producer.
func rawBatch(pid int64, epoch int16, seq int32, transactional bool, values ...string) []byte {
	h := batch{lastDelta: int32(len(values) - 1), records: int32(len(values)), firstTime: now(), producer: pid, epoch: epoch, firstSeq: seq}
	h.maxTime = h.firstTime
	if seq < 0 {
		h.producer, h.epoch = noProducer, -1
	}
	if transactional {
		h.attributes |= attrTransactional
	}
	return appendBatch(nil, 0, h, encodeRecords(values...)).raw
}

// produceRaw sends a batch as it is.
func (k *kit) produceRaw(cl *kgo.Client, id, topic string, partition int32, raw []byte) (offset int64, err error) {
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, 10_000
	if id != "" {
		req.TransactionID = kmsg.StringPtr(id)
	}
	t := kmsg.NewProduceRequestTopic()
	t.Topic = topic
	if t.TopicID, err = k.topicID(cl, topic); err != nil {
		return -1, err
	}
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Partition, rp.Records = partition, raw
	t.Partitions = append(t.Partitions, rp)
	req.Topics = append(req.Topics, t)
	resp, err := cl.Request(k.ctx, req)
	if err != nil {
		return -1, err
	}
	got := resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]
	return got.BaseOffset, kerr.ErrorForCode(got.ErrorCode)
}

func (p *rawProducer) produce(topic string, partition int32, values ...string) (offset int64, err error) {
	of := offsetOf{topic, partition}
	seq := p.seqs[of]
	offset, err = p.produceAt(topic, partition, seq, values...)
	if err == nil {
		p.seqs[of] = seq + int32(len(values))
	}
	return offset, err
}

func (p *rawProducer) produceAt(topic string, partition, seq int32, values ...string) (offset int64, err error) {
	return p.k.produceRaw(p.cl, p.id, topic, partition, rawBatch(p.pid, p.epoch, seq, p.id != "", values...))
}

func (p *rawProducer) commitOffset(group, topic string, partition int32, offset int64) error {
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch, req.Generation = p.id, group, p.pid, p.epoch, -1
	t := kmsg.NewTxnOffsetCommitRequestTopic()
	t.Topic = topic
	rp := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	rp.Partition, rp.Offset = partition, offset
	t.Partitions = append(t.Partitions, rp)
	req.Topics = append(req.Topics, t)
	resp, err := p.cl.Request(p.k.ctx, req)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.(*kmsg.TxnOffsetCommitResponse).Topics[0].Partitions[0].ErrorCode)
}

// end ends the transaction, and takes the epoch that it is given.
func (p *rawProducer) end(commit bool) error {
	resp, err := p.tryEnd(commit)
	if err != nil {
		return err
	}
	if resp.ProducerID != p.pid || resp.ProducerEpoch != p.epoch {
		clear(p.seqs)
	}
	p.pid, p.epoch = resp.ProducerID, resp.ProducerEpoch
	return nil
}

// tryEnd ends the transaction, and goes on with the epoch that it has.
func (p *rawProducer) tryEnd(commit bool) (*kmsg.EndTxnResponse, error) {
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = p.id, p.pid, p.epoch, commit
	resp, err := p.cl.Request(p.k.ctx, req)
	if err != nil {
		return nil, err
	}
	r := resp.(*kmsg.EndTxnResponse)
	return r, kerr.ErrorForCode(r.ErrorCode)
}

// committedOffset asks for a group's offset.
func (k *kit) committedOffset(cl *kgo.Client, group, topic string, partition int32) int64 {
	k.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = group
	t := kmsg.NewOffsetFetchRequestGroupTopic()
	t.Topic, t.Partitions = topic, []int32{partition}
	g.Topics = append(g.Topics, t)
	req.Groups = append(req.Groups, g)
	resp := ask[*kmsg.OffsetFetchResponse](k, cl, req)
	return resp.Groups[0].Topics[0].Partitions[0].Offset
}

// commitPlain commits a group's offset without a transaction or a membership.
func (k *kit) commitPlain(cl *kgo.Client, group, topic string, partition int32, offset int64) error {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group = group
	t := kmsg.NewOffsetCommitRequestTopic()
	t.Topic = topic
	rp := kmsg.NewOffsetCommitRequestTopicPartition()
	rp.Partition, rp.Offset = partition, offset
	t.Partitions = append(t.Partitions, rp)
	req.Topics = append(req.Topics, t)
	resp, err := cl.Request(k.ctx, req)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode)
}

// topicID asks for a topic's ID.
func (k *kit) topicID(cl *kgo.Client, topic string) (id [16]byte, err error) {
	req := kmsg.NewPtrMetadataRequest()
	rt := kmsg.NewMetadataRequestTopic()
	rt.Topic = kmsg.StringPtr(topic)
	req.Topics = append(req.Topics, rt)
	resp, err := cl.Request(k.ctx, req)
	if err != nil {
		return id, err
	}
	t := resp.(*kmsg.MetadataResponse).Topics[0]
	return t.TopicID, kerr.ErrorForCode(t.ErrorCode)
}
