package broker

import (
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What ListOffsets asks for instead of a time.
const (
	listLatest        = -1
	listEarliest      = -2
	listMaxTime       = -3
	listEarliestLocal = -4
	listLatestTiered  = -5
)

func (b *Broker) listOffsets(_ *connection, req *kmsg.ListOffsetsRequest) answer {
	resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
	for _, t := range req.Topics {
		rt := kmsg.NewListOffsetsResponseTopic()
		rt.Topic = t.Topic
		for _, rp := range t.Partitions {
			rt.Partitions = append(rt.Partitions, b.listOffset(req, t.Topic, rp))
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return answer{resp: resp}
}

func (b *Broker) listOffset(req *kmsg.ListOffsetsRequest, name string, rq kmsg.ListOffsetsRequestTopicPartition) kmsg.ListOffsetsResponseTopicPartition {
	rp := kmsg.NewListOffsetsResponseTopicPartition()
	rp.Partition, rp.Offset, rp.Timestamp = rq.Partition, -1, -1
	b.mu.Lock()
	p := b.partitionLocked(name, rq.Partition)
	switch {
	case p == nil:
		rp.ErrorCode = kerr.UnknownTopicOrPartition.Code
	case rq.CurrentLeaderEpoch > leaderEpoch:
		rp.ErrorCode = kerr.UnknownLeaderEpoch.Code
	}
	if rp.ErrorCode != 0 {
		b.mu.Unlock()
		return rp
	}
	start, end := p.visible.start, p.endLocked(req.IsolationLevel == 1)
	chunks := append([]chunk(nil), p.chunks...)
	b.mu.Unlock()

	var err error
	switch rq.Timestamp {
	case listLatest:
		rp.Offset, rp.LeaderEpoch = end, leaderEpoch
	case listEarliest, listEarliestLocal:
		rp.Offset, rp.LeaderEpoch = start, leaderEpoch
	case listLatestTiered:
		// Nothing is tiered, which is no error.
	case listMaxTime:
		if req.Version < 7 {
			rp.ErrorCode = kerr.UnsupportedVersion.Code
			break
		}
		top := int64(noTime)
		for _, c := range chunks {
			if c.next > start && c.base < end {
				top = max(top, c.maxTime)
			}
		}
		if top >= 0 {
			err = b.findTime(p, chunks, start, end, func(t int64) bool { return t >= top }, func(c chunk) bool { return c.maxTime >= top }, &rp)
			if err == nil && rp.Offset < 0 {
				err = b.findMax(p, start, end, &rp)
			}
		}
	default:
		if rq.Timestamp < 0 {
			rp.ErrorCode = kerr.UnsupportedVersion.Code
			break
		}
		err = b.findTime(p, chunks, start, end, func(t int64) bool { return t >= rq.Timestamp }, func(c chunk) bool { return c.maxTime >= rq.Timestamp }, &rp)
	}
	if err != nil {
		b.config.Logger.Error("search by time", "dir", b.dir, "partition", p.String(), "error", err)
		rp.ErrorCode = kerr.KafkaStorageError.Code
	}
	return rp
}

// findTime finds the first record from start on, below end, whose timestamp is
// wanted. Chunks tell where there can be one.
func (b *Broker) findTime(p *partition, chunks []chunk, start, end int64, wanted func(int64) bool, in func(chunk) bool, rp *kmsg.ListOffsetsResponseTopicPartition) error {
	for _, c := range chunks {
		if c.next <= start || c.base >= end || !in(c) {
			continue
		}
		found, err := b.scan(p, max(start, c.base), min(end, c.next), func(bt batch) (bool, error) {
			if !wanted(bt.maxTime) {
				return false, nil
			}
			offset, at, err := firstRecord(bt, start, wanted)
			if offset < 0 || err != nil {
				return false, err
			}
			rp.Offset, rp.Timestamp, rp.LeaderEpoch = offset, at, leaderEpoch
			return true, nil
		})
		if found || err != nil {
			return err
		}
	}
	return nil
}

// findMax finds the record with the highest timestamp by looking at all of them:
// the one that the chunks speak of is beyond the end, or not there any more.
func (b *Broker) findMax(p *partition, start, end int64, rp *kmsg.ListOffsetsResponseTopicPartition) error {
	top := int64(noTime)
	_, err := b.scan(p, start, end, func(bt batch) (bool, error) {
		if bt.maxTime <= top {
			return false, nil
		}
		offset, at, err := firstRecord(bt, start, func(t int64) bool { return t >= bt.maxTime })
		if offset >= 0 {
			top = at
			rp.Offset, rp.Timestamp, rp.LeaderEpoch = offset, at, leaderEpoch
		}
		return false, err
	})
	return err
}

// firstRecord finds the first record of a batch from start on whose timestamp
// is wanted; -1 if there is none.
func firstRecord(bt batch, start int64, wanted func(int64) bool) (offset, at int64, err error) {
	if bt.appendTime() {
		return max(bt.base(), start), bt.maxTime, nil
	}
	r, err := bt.open()
	if err != nil {
		return -1, -1, err
	}
	defer r.release()
	for {
		switch err := r.next(keepNothing); {
		case errors.Is(err, io.EOF):
			return -1, -1, nil
		case err != nil:
			return -1, -1, err
		case r.offset >= start && wanted(r.time):
			return r.offset, r.time, nil
		}
	}
}

// scan calls fn with the batches that have records from start on and end below
// end, until it says that it has found what it looks for.
func (b *Broker) scan(p *partition, start, end int64, fn func(batch) (found bool, err error)) (found bool, err error) {
	it, err := b.db.NewIter(&pebble.IterOptions{
		LowerBound: offsetKey(prefixBatch, p.id, start),
		UpperBound: offsetKey(prefixBatch, p.id, end),
	})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		val, err := it.ValueAndErr()
		if err != nil {
			if _, last, keyErr := partOfKey(it.Key()); keyErr == nil {
				b.noteUnreadable(p, last, err)
			}
			return false, err
		}
		bt, err := readBatch(val)
		if err != nil {
			return false, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		if found, err := fn(bt); found || err != nil {
			return found, err
		}
	}
	return false, it.Error()
}

func (b *Broker) offsetForLeaderEpoch(_ *connection, req *kmsg.OffsetForLeaderEpochRequest) answer {
	resp := req.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range req.Topics {
		rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
		rt.Topic = t.Topic
		for _, q := range t.Partitions {
			rp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
			rp.Partition, rp.LeaderEpoch, rp.EndOffset = q.Partition, -1, -1
			switch p := b.partitionLocked(t.Topic, q.Partition); {
			case p == nil:
				rp.ErrorCode = kerr.UnknownTopicOrPartition.Code
			case q.CurrentLeaderEpoch > leaderEpoch:
				rp.ErrorCode = kerr.UnknownLeaderEpoch.Code
			case q.LeaderEpoch == leaderEpoch:
				rp.LeaderEpoch, rp.EndOffset = leaderEpoch, p.visible.high
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return answer{resp: resp}
}

func (b *Broker) deleteRecords(_ *connection, req *kmsg.DeleteRecordsRequest) answer {
	resp := req.ResponseKind().(*kmsg.DeleteRecordsResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	var o op
	for _, t := range req.Topics {
		rt := kmsg.NewDeleteRecordsResponseTopic()
		rt.Topic = t.Topic
		for _, q := range t.Partitions {
			rp := kmsg.NewDeleteRecordsResponseTopicPartition()
			rp.Partition, rp.LowWatermark = q.Partition, -1
			p := b.partitionLocked(t.Topic, q.Partition)
			to := q.Offset
			if p != nil && to == -1 {
				to = p.visible.high
			}
			switch {
			case p == nil:
				rp.ErrorCode = kerr.UnknownTopicOrPartition.Code
			case !p.topic.policy.delete:
				rp.ErrorCode = kerr.PolicyViolation.Code
			case to < 0 || to > p.visible.high:
				rp.ErrorCode = kerr.OffsetOutOfRange.Code
			default:
				if to > p.start {
					p.raiseStartLocked(to, &o)
					b.reclaim(p)
				}
				rp.LowWatermark = p.start
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return answer{resp: resp, round: b.stageLocked(&o)}
}
