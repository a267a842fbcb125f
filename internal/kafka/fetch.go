package kafka

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// NextOffset returns the first offset, at or after the given one, at which
// there may be a message: it passes markers, aborted messages and batches that
// compaction has left without a record, up to the last stable offset. It is for
// a reader that stands below the end and whose polls bring nothing: an answer
// about this partition alone that is empty says that there is nothing up to the
// end, which one about several does not. It asks the leader once.
func (r *reading) NextOffset(ctx context.Context, p topic.Partition, at int64) (int64, error) {
	next, err := nextOffset(ctx, r.cl, p, at)
	if err != nil {
		return 0, fmt.Errorf("look for the next offset of %s after %d: %w", p, at, err)
	}
	return next, nil
}

func nextOffset(ctx context.Context, cl *kgo.Client, p topic.Partition, at int64) (int64, error) {
	leader, id, err := leaderOf(ctx, cl, p)
	if err != nil {
		return 0, err
	}
	req := kmsg.NewPtrFetchRequest()
	req.MinBytes = 0
	req.MaxWaitMillis = 0
	req.MaxBytes = fetchMaxPartitionBytes
	req.IsolationLevel = 1 // read committed: the answer names what was aborted
	req.SessionEpoch = -1  // no fetch session
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = p.Topic, id
	fp := kmsg.NewFetchRequestTopicPartition()
	fp.Partition = p.Number
	fp.FetchOffset = at
	fp.PartitionMaxBytes = fetchMaxPartitionBytes
	t.Partitions = append(t.Partitions, fp)
	req.Topics = append(req.Topics, t)
	kresp, err := cl.Broker(int(leader)).RetriableRequest(ctx, req)
	if err != nil {
		return 0, err
	}
	resp, ok := kresp.(*kmsg.FetchResponse)
	if !ok {
		return 0, fmt.Errorf("a fetch was answered with %T", kresp)
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return 0, classed(err)
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return 0, fmt.Errorf("a fetch of one partition was answered with %d topics", len(resp.Topics))
	}
	a := &resp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(a.ErrorCode); err != nil {
		return 0, classed(err)
	}
	return passEmpty(a.RecordBatches, at, a.LastStableOffset, abortedIn(a.AbortedTransactions))
}

// passEmpty walks over record batches from the offset at. It returns where it
// met the first batch that may hold a message, or the offset after the last
// batch, or the stable end if there is no batch at all below it.
func passEmpty(b []byte, at, stableEnd int64, aborted []abortedFrom) (int64, error) {
	if len(b) == 0 {
		return max(at, stableEnd), nil
	}
	next := at
	for len(b) >= batchOverhead {
		first := int64(binary.BigEndian.Uint64(b))
		length := int64(int32(binary.BigEndian.Uint32(b[batchLength:])))
		if b[batchMagic] != 2 {
			return max(next, first), nil // older than batches: messages
		}
		if length < batchOverhead-12 {
			return 0, fmt.Errorf("batch at offset %d has length %d", first, length)
		}
		attributes := binary.BigEndian.Uint16(b[batchAttributes:])
		last := first + int64(int32(binary.BigEndian.Uint32(b[batchLastDelta:])))
		producer := int64(binary.BigEndian.Uint64(b[batchProducer:]))
		count := int32(binary.BigEndian.Uint32(b[batchCount:]))
		switch {
		case last < first:
			return 0, fmt.Errorf("batch at offset %d ends at %d", first, last)
		case last < at:
			// before the position: an answer may begin with the batch around it
		case attributes&batchControl != 0:
			// A marker ends what its producer had aborted.
			aborted = slices.DeleteFunc(aborted, func(t abortedFrom) bool { return t.producer == producer && t.first <= first })
			next = max(next, last+1)
		case count == 0,
			attributes&batchTransactional != 0 && slices.ContainsFunc(aborted, func(t abortedFrom) bool { return t.producer == producer && t.first <= first }):
			next = max(next, last+1)
		default:
			return max(next, first), nil
		}
		if int64(len(b)) < 12+length {
			break // cut off by the limit in bytes
		}
		b = b[12+length:]
	}
	return next, nil
}

// leaderOf asks the cluster for a partition's leader and its topic's ID.
func leaderOf(ctx context.Context, cl *kgo.Client, p topic.Partition) (leader int32, id topic.ID, err error) {
	topics, err := metadata(ctx, cl, p.Topic)
	if err != nil {
		return 0, id, err
	}
	for _, t := range topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return 0, id, classed(err)
		}
		for _, tp := range t.Partitions {
			if tp.Partition == p.Number {
				if tp.Leader < 0 {
					return 0, id, kerr.LeaderNotAvailable
				}
				return tp.Leader, t.TopicID, nil
			}
		}
	}
	return 0, id, ErrUnknownTopic
}

// metadata asks a broker about topics, creating none.
func metadata(ctx context.Context, cl *kgo.Client, names ...string) ([]kmsg.MetadataResponseTopic, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = false
	for _, name := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	if len(names) == 0 {
		req.Topics = nil // all
	}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	return resp.Topics, nil
}
