package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// reading is what a fetch reads of one partition.
type reading struct {
	resp    *kmsg.FetchResponseTopicPartition
	records *blocks
	p       *partition // nil if there is an error
	offset  int64
	max     int64 // bytes
	end     int64 // up to where, of this try
	aborts  bool  // there may be aborted transactions at or above offset
}

// fetch waits until there is enough, or time is up. It runs on the connection's
// writer, so that its reader notices a client that goes.
func (b *Broker) fetch(_ *connection, req *kmsg.FetchRequest) answer {
	return answer{wait: func(ctx context.Context) answer {
		f, err := b.fetchWithin(ctx, req)
		if err != nil {
			return answer{}
		}
		return answer{resp: f, release: func() {
			b.answers.give(f.size())
			f.release()
		}}
	}}
}

// fetchWithin returns the answer, whose records are taken from the budget.
func (b *Broker) fetchWithin(ctx context.Context, req *kmsg.FetchRequest) (_ *fetched, err error) {
	resp := req.ResponseKind().(*kmsg.FetchResponse)
	f := &fetched{FetchResponse: resp}
	defer func() {
		if err != nil {
			f.release()
		}
	}()
	if req.SessionID != 0 {
		// Sessions are declined: a client that is told 0 sends whole requests.
		resp.ErrorCode = kerr.FetchSessionIDNotFound.Code
		return f, nil
	}
	committed := req.IsolationLevel == 1
	w := newWaiter()
	var all []reading
	resp.Topics = make([]kmsg.FetchResponseTopic, len(req.Topics))
	failed := false

	b.mu.Lock()
	for i := range req.Topics {
		ft, rt := &req.Topics[i], &resp.Topics[i]
		*rt = kmsg.NewFetchResponseTopic()
		rt.Topic, rt.TopicID = ft.Topic, ft.TopicID
		rt.Partitions = make([]kmsg.FetchResponseTopicPartition, len(ft.Partitions))
		t := b.topicOfLocked(ft.Topic, ft.TopicID)
		for j := range ft.Partitions {
			fp, rp := &ft.Partitions[j], &rt.Partitions[j]
			*rp = kmsg.NewFetchResponseTopicPartition()
			rp.Partition, rp.HighWatermark, rp.LastStableOffset, rp.LogStartOffset = fp.Partition, -1, -1, -1
			r := reading{resp: rp, offset: fp.FetchOffset, max: int64(fp.PartitionMaxBytes)}
			switch {
			case t == nil && req.Version >= 13:
				rp.ErrorCode = kerr.UnknownTopicID.Code
			case t == nil || fp.Partition < 0 || int(fp.Partition) >= len(t.partitions):
				rp.ErrorCode = kerr.UnknownTopicOrPartition.Code
			case fp.CurrentLeaderEpoch > leaderEpoch:
				rp.ErrorCode = kerr.UnknownLeaderEpoch.Code
			default:
				r.p = t.partitions[fp.Partition]
				r.p.waiting[w] = struct{}{}
			}
			failed = failed || r.p == nil
			all = append(all, r)
		}
	}
	b.mu.Unlock()
	f.records = make([]blocks, len(all))
	for i := range all {
		all[i].records = &f.records[i]
	}
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, r := range all {
			if r.p != nil {
				delete(r.p.waiting, w)
			}
		}
	}()

	wait := time.Duration(max(0, req.MaxWaitMillis)) * time.Millisecond
	timer := time.NewTimer(wait)
	defer timer.Stop()
	limit := min(int64(req.MaxBytes), b.settings.number("fetch.max.bytes"))
	if req.MaxBytes <= 0 {
		limit = b.settings.number("fetch.max.bytes")
	}
	for last := wait == 0; ; {
		ready := b.lookLocked(all, committed)
		if ready || last {
			size, err := b.readAll(ctx, all, limit, committed)
			if err != nil {
				return nil, err
			}
			for _, r := range all {
				failed = failed || r.resp.ErrorCode != 0
			}
			if failed || last || size >= int64(req.MinBytes) {
				return f, nil
			}
			b.answers.give(f.size()) // read again when there is more
			f.release()
			for _, r := range all {
				r.resp.AbortedTransactions = nil
			}
		} else if failed {
			return f, nil
		}
		select {
		case <-w.wake:
		case <-timer.C:
			last = true
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-b.dead:
			return nil, b.Err()
		}
	}
}

// lookLocked notes how far each partition can be read, and says whether there
// is anything to read or to complain about.
func (b *Broker) lookLocked(all []reading, committed bool) (ready bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range all {
		r := &all[i]
		if r.p == nil {
			continue
		}
		p := r.p
		rp := r.resp
		rp.HighWatermark, rp.LastStableOffset, rp.LogStartOffset = p.visible.high, p.visible.stable, p.visible.start
		r.end = p.endLocked(committed)
		r.aborts = committed && p.abortLast >= r.offset
		rp.ErrorCode = 0
		switch {
		case p.topic.deleted:
			rp.ErrorCode = kerr.UnknownTopicOrPartition.Code
			ready = true
		case r.offset < p.visible.start || r.offset > p.next:
			rp.ErrorCode = kerr.OffsetOutOfRange.Code
			rp.HighWatermark, rp.LastStableOffset, rp.LogStartOffset = -1, -1, -1
			ready = true
		case r.offset < r.end:
			ready = true
		}
	}
	return ready
}

// readAll reads what fits. The first batch is read whatever its size, so that
// no client is stuck before it.
func (b *Broker) readAll(ctx context.Context, all []reading, limit int64, committed bool) (size int64, err error) {
	for i := range all {
		r := &all[i]
		if r.p == nil || r.resp.ErrorCode != 0 {
			continue
		}
		if committed {
			r.resp.AbortedTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{}
		}
		if r.offset >= r.end || size > 0 && size >= limit {
			continue
		}
		n, last, err := b.readPartition(ctx, r, min(r.max, limit-size), size == 0)
		size += n
		if err == nil && r.aborts && n > 0 {
			err = b.readAborted(r, last)
		}
		if err != nil {
			b.answers.give(size)
			return 0, err
		}
	}
	return size, nil
}

// readPartition appends batches from an offset on to the answer, and returns
// their size and the last offset among them.
func (b *Broker) readPartition(ctx context.Context, r *reading, limit int64, first bool) (size, last int64, err error) {
	it, err := b.db.NewIter(&pebble.IterOptions{
		LowerBound: offsetKey(prefixBatch, r.p.id, r.offset),
		UpperBound: offsetKey(prefixBatch, r.p.id, r.end),
	})
	if err != nil {
		return 0, 0, fmt.Errorf("read %s: %w", r.p, err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		var val []byte
		if val, err = it.ValueAndErr(); err != nil {
			b.readFailed(r, err)
			return size, last, nil
		}
		n := int64(len(val))
		if size+n > limit && (size > 0 || !first) {
			break
		}
		if size == 0 && first {
			err = b.answers.take(ctx, n)
		} else if !b.answers.try(n) {
			break
		}
		if err != nil {
			return size, last, err
		}
		r.records.append(val)
		size += n
		if _, last, err = partOfKey(it.Key()); err != nil {
			b.readFailed(r, err)
			return size, last, nil
		}
	}
	if err := it.Error(); err != nil {
		b.readFailed(r, err)
	}
	return size, last, nil
}

// readFailed answers for one partition that its data can't be read.
func (b *Broker) readFailed(r *reading, err error) {
	b.config.Logger.Error("read", "dir", b.dir, "partition", r.p.String(), "error", err)
	r.resp.ErrorCode = kerr.KafkaStorageError.Code
}

// readAborted appends the aborted transactions that have records between an
// offset and the last one that was read.
func (b *Broker) readAborted(r *reading, last int64) (err error) {
	it, err := b.db.NewIter(&pebble.IterOptions{
		LowerBound: offsetKey(prefixAborted, r.p.id, r.offset),
		UpperBound: after(partitionKey(prefixAborted, r.p.id)),
	})
	if err != nil {
		return fmt.Errorf("read aborted transactions of %s: %w", r.p, err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		val, err := it.ValueAndErr()
		if err == nil {
			var a aborted
			if a, err = decodeAborted(val); err == nil {
				if a.first <= last {
					ra := kmsg.NewFetchResponseTopicPartitionAbortedTransaction()
					ra.ProducerID, ra.FirstOffset = a.producer, a.first
					r.resp.AbortedTransactions = append(r.resp.AbortedTransactions, ra)
				}
				if a.stable > last {
					return nil
				}
			}
		}
		if err != nil {
			b.readFailed(r, err)
			b.answers.give(r.records.size)
			r.records.release() // they can't be read without
			return nil
		}
	}
	return it.Error()
}
