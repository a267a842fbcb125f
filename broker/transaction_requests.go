package broker

import (
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func (b *Broker) initProducerID(_ *connection, req *kmsg.InitProducerIDRequest) answer {
	resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
	resp.ProducerID, resp.ProducerEpoch = -1, -1
	fail := func(err *kerr.Error) answer {
		resp.ErrorCode = err.Code
		return answer{resp: resp}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var o op
	if req.TransactionalID == nil {
		resp.ProducerID, resp.ProducerEpoch = b.mu.producers.nextLocked(&o), 0
		return answer{resp: resp, round: b.stageLocked(&o)}
	}
	id := *req.TransactionalID
	switch {
	case id == "" || len(id) > nameMax:
		return fail(kerr.InvalidRequest)
	case req.TransactionTimeoutMillis <= 0, int64(req.TransactionTimeoutMillis) > b.settings.number("transaction.max.timeout.ms"):
		return fail(kerr.InvalidTransactionTimeout)
	}
	x := b.mu.transactions[id]
	renewed := int16(-1)
	if req.ProducerID >= 0 {
		// A producer goes on, with the epoch that it has.
		switch {
		case x == nil || x.producer != req.ProducerID && x.previous != req.ProducerID:
			return fail(kerr.InvalidProducerIDMapping)
		case x.renewed >= 0 && x.renewed == req.ProducerEpoch:
			// It did not get the answer to this.
			resp.ProducerID, resp.ProducerEpoch = x.producer, x.epoch
			return answer{resp: resp, round: b.barrierLocked()}
		case x.producer != req.ProducerID || x.epoch != req.ProducerEpoch:
			return fail(kerr.ProducerFenced)
		}
		renewed = req.ProducerEpoch
	}
	if x == nil {
		x = newTransaction(id)
		b.mu.transactions[id] = x
	}
	at := now()
	x.timeout = int64(req.TransactionTimeoutMillis)
	if x.state == stateOngoing {
		b.endLocked(x, false, true, at, &o)
	} else {
		b.nextEpochLocked(x, &o)
	}
	x.state, x.fenced, x.renewed = stateEmpty, false, renewed
	x.stageLocked(at, &o)
	resp.ProducerID, resp.ProducerEpoch = x.producer, x.epoch
	return answer{resp: resp, round: b.stageLocked(&o)}
}

func (b *Broker) addPartitionsToTxn(_ *connection, req *kmsg.AddPartitionsToTxnRequest) answer {
	resp := req.ResponseKind().(*kmsg.AddPartitionsToTxnResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	x := b.mu.transactions[req.TransactionalID]
	failed := x.check(req.ProducerID, req.ProducerEpoch)
	missing := false
	for _, t := range req.Topics {
		for _, number := range t.Partitions {
			missing = missing || b.partitionLocked(t.Topic, number) == nil
		}
	}
	at := now()
	changed := false
	for _, t := range req.Topics {
		rt := kmsg.NewAddPartitionsToTxnResponseTopic()
		rt.Topic = t.Topic
		for _, number := range t.Partitions {
			rp := kmsg.NewAddPartitionsToTxnResponseTopicPartition()
			rp.Partition = number
			p := b.partitionLocked(t.Topic, number)
			switch {
			case failed != nil:
				rp.ErrorCode = failed.Code
			case p == nil:
				rp.ErrorCode = kerr.UnknownTopicOrPartition.Code
			case missing:
				rp.ErrorCode = kerr.OperationNotAttempted.Code
			default:
				changed = x.addPartitionLocked(p, at) || changed
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	if !changed {
		return answer{resp: resp, round: b.barrierLocked()}
	}
	var o op
	x.stageLocked(at, &o)
	return answer{resp: resp, round: b.stageLocked(&o)}
}

func (b *Broker) addOffsetsToTxn(_ *connection, req *kmsg.AddOffsetsToTxnRequest) answer {
	resp := req.ResponseKind().(*kmsg.AddOffsetsToTxnResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	x := b.mu.transactions[req.TransactionalID]
	failed := x.check(req.ProducerID, req.ProducerEpoch)
	if failed == nil && (req.Group == "" || len(req.Group) > nameMax) {
		failed = kerr.InvalidGroupID
	}
	if failed != nil {
		resp.ErrorCode = failed.Code
		return answer{resp: resp}
	}
	at := now()
	if !x.addGroupLocked(req.Group, at) {
		return answer{resp: resp, round: b.barrierLocked()}
	}
	var o op
	x.stageLocked(at, &o)
	return answer{resp: resp, round: b.stageLocked(&o)}
}

// implicitVersion is the first version of TxnOffsetCommit that adds the group
// to the transaction by itself.
const implicitVersion = 5

func (b *Broker) txnOffsetCommit(_ *connection, req *kmsg.TxnOffsetCommitRequest) answer {
	resp := req.ResponseKind().(*kmsg.TxnOffsetCommitResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	x := b.mu.transactions[req.TransactionalID]
	failed := x.check(req.ProducerID, req.ProducerEpoch)
	if failed == kerr.ProducerFenced {
		failed = kerr.InvalidProducerEpoch
	}
	switch {
	case failed != nil:
	case req.Group == "" || len(req.Group) > nameMax:
		failed = kerr.InvalidGroupID
	default:
		if _, added := x.groups[req.Group]; !added && req.Version < implicitVersion {
			failed = kerr.InvalidTxnState
			break
		}
		member, instance := req.MemberID, req.InstanceID
		if member != "" || instance != nil || req.Generation >= 0 {
			failed = b.mu.groups[req.Group].mayCommitLocked(member, instance, req.Generation)
		}
	}
	at := now()
	var o op
	changed := false
	metadataMax := int(b.settings.number("offset.metadata.max.bytes"))
	for _, t := range req.Topics {
		rt := kmsg.NewTxnOffsetCommitResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewTxnOffsetCommitResponseTopicPartition()
			rp.Partition = p.Partition
			metadata := ""
			if p.Metadata != nil {
				metadata = *p.Metadata
			}
			switch {
			case failed != nil:
				rp.ErrorCode = failed.Code
			case b.partitionLocked(t.Topic, p.Partition) == nil:
				rp.ErrorCode = kerr.UnknownTopicOrPartition.Code
			case len(metadata) > metadataMax:
				rp.ErrorCode = kerr.OffsetMetadataTooLarge.Code
			default:
				changed = x.addGroupLocked(req.Group, at) || changed
				k := pendingOffset{req.Group, offsetOf{t.Topic, p.Partition}}
				c := committed{p.Offset, p.LeaderEpoch, metadata, at}
				if _, ok := x.offsets[k]; !ok {
					b.groupLocked(req.Group).addPendingLocked(k.offsetOf)
				}
				x.offsets[k] = c
				o.set(pendingKey(x.id, k.group, k.topic, k.partition), c.encode())
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	if changed {
		x.stageLocked(at, &o)
	}
	return answer{resp: resp, round: b.stageLocked(&o)}
}

// bumpVersion is the first version of EndTxn that gives the producer a new
// epoch with every end: the second version of the transaction protocol.
const bumpVersion = 5

func (b *Broker) endTxn(_ *connection, req *kmsg.EndTxnRequest) answer {
	resp := req.ResponseKind().(*kmsg.EndTxnResponse)
	resp.ProducerID, resp.ProducerEpoch = -1, -1
	b.mu.Lock()
	defer b.mu.Unlock()
	x := b.mu.transactions[req.TransactionalID]
	bump := req.Version >= bumpVersion
	does, err := x.end(req.ProducerID, req.ProducerEpoch, req.Commit, bump)
	if err != nil {
		resp.ErrorCode = err.Code
		return answer{resp: resp, round: b.barrierLocked()}
	}
	round := b.barrierLocked()
	if does {
		var o op
		b.endLocked(x, req.Commit, bump, now(), &o)
		round = b.stageLocked(&o)
	}
	if bump {
		resp.ProducerID, resp.ProducerEpoch = x.producer, x.epoch
	}
	return answer{resp: resp, round: round}
}

// end decides on a request to end the transaction: does says whether there is
// something to do, rather than that it was done before. With bump every end
// raised the epoch, so that a request of the epoch before is one that is sent
// again, and one of this epoch is about the next transaction.
func (x *transaction) end(producer int64, epoch int16, commit, bump bool) (does bool, err *kerr.Error) {
	if x == nil || producer < 0 {
		return false, kerr.InvalidProducerIDMapping
	}
	overflow := bump && x.previous == producer && epoch == epochMax && x.epoch == 0
	again := bump && (overflow || x.producer == producer && x.epoch == epoch+1)
	ended := x.state == stateCommitted || x.state == stateAborted
	switch {
	case x.producer != producer && !overflow:
		return false, kerr.InvalidProducerIDMapping
	case !(x.producer == producer && x.epoch == epoch) && !(again && ended):
		return false, kerr.ProducerFenced
	case again && ended && x.fenced && commit:
		// The coordinator aborted by itself. The producer is not wrong, it is
		// late: it is told what it takes for having been fenced.
		return false, kerr.ProducerFenced
	case x.state == stateOngoing:
		return true, nil
	case again:
		if commit != (x.state == stateCommitted) {
			return false, kerr.InvalidTxnState
		}
		return false, nil
	case bump:
		// There is no transaction. To abort it is allowed, since a client can't
		// know; to commit it is a mistake.
		if commit {
			return false, kerr.InvalidTxnState
		}
		return true, nil
	case ended && commit == (x.state == stateCommitted):
		return false, nil
	}
	return false, kerr.InvalidTxnState
}

func (b *Broker) describeTransactions(_ *connection, req *kmsg.DescribeTransactionsRequest) answer {
	resp := req.ResponseKind().(*kmsg.DescribeTransactionsResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range req.TransactionalIDs {
		rs := kmsg.NewDescribeTransactionsResponseTransactionState()
		rs.TransactionalID = id
		x := b.mu.transactions[id]
		if x == nil {
			rs.ErrorCode = kerr.TransactionalIDNotFound.Code
			rs.ProducerID, rs.ProducerEpoch, rs.StartTimestamp = -1, -1, -1
			resp.TransactionStates = append(resp.TransactionStates, rs)
			continue
		}
		rs.State, rs.TimeoutMillis = x.state.String(), int32(x.timeout)
		rs.ProducerID, rs.ProducerEpoch, rs.StartTimestamp = x.producer, x.epoch, -1
		if x.state == stateOngoing {
			rs.StartTimestamp = x.started
		}
		byTopic := make(map[string][]int32)
		for p := range x.partitions {
			byTopic[p.topic.name] = append(byTopic[p.topic.name], p.number)
		}
		for _, name := range slices.Sorted(maps.Keys(byTopic)) {
			rt := kmsg.NewDescribeTransactionsResponseTransactionStateTopic()
			rt.Topic, rt.Partitions = name, slices.Sorted(slices.Values(byTopic[name]))
			rs.Topics = append(rs.Topics, rt)
		}
		resp.TransactionStates = append(resp.TransactionStates, rs)
	}
	return answer{resp: resp, round: b.barrierLocked()}
}

func (b *Broker) listTransactions(_ *connection, req *kmsg.ListTransactionsRequest) answer {
	resp := req.ResponseKind().(*kmsg.ListTransactionsResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range req.StateFilters {
		if !slices.Contains([]string{"Empty", "Ongoing", "CompleteCommit", "CompleteAbort", "PrepareCommit", "PrepareAbort", "Dead", "PrepareEpochFence"}, s) {
			resp.UnknownStateFilters = append(resp.UnknownStateFilters, s)
		}
	}
	at := now()
	for _, x := range slices.SortedFunc(maps.Values(b.mu.transactions), func(a, b *transaction) int { return strings.Compare(a.id, b.id) }) {
		switch {
		case len(req.StateFilters) > 0 && !slices.Contains(req.StateFilters, x.state.String()),
			len(req.ProducerIDFilters) > 0 && !slices.Contains(req.ProducerIDFilters, x.producer),
			req.DurationFilterMillis >= 0 && req.Version >= 1 && (x.state != stateOngoing || at-x.started < req.DurationFilterMillis):
			continue
		}
		rs := kmsg.NewListTransactionsResponseTransactionState()
		rs.TransactionalID, rs.ProducerID, rs.TransactionState = x.id, x.producer, x.state.String()
		resp.TransactionStates = append(resp.TransactionStates, rs)
	}
	return answer{resp: resp, round: b.barrierLocked()}
}

func (b *Broker) describeProducers(_ *connection, req *kmsg.DescribeProducersRequest) answer {
	resp := req.ResponseKind().(*kmsg.DescribeProducersResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range req.Topics {
		rt := kmsg.NewDescribeProducersResponseTopic()
		rt.Topic = t.Topic
		for _, number := range t.Partitions {
			rp := kmsg.NewDescribeProducersResponseTopicPartition()
			rp.Partition = number
			p := b.partitionLocked(t.Topic, number)
			if p == nil {
				rp.ErrorCode = kerr.UnknownTopicOrPartition.Code
				rt.Partitions = append(rt.Partitions, rp)
				continue
			}
			for _, id := range slices.Sorted(maps.Keys(p.producers)) {
				s := p.producers[id]
				ra := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
				ra.ProducerID, ra.ProducerEpoch, ra.LastSequence, ra.LastTimestamp = id, int32(s.epoch), s.lastSeq(), s.used
				ra.CoordinatorEpoch, ra.CurrentTxnStartOffset = coordinatorEpoch, s.txnFirst
				rp.ActiveProducers = append(rp.ActiveProducers, ra)
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return answer{resp: resp, round: b.barrierLocked()}
}
