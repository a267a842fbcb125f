package broker

import (
	"context"
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
	read    int64 // how many bytes were read
	last    int64 // and the last offset among them
}

// fetch waits until there is enough, or time is up. It runs on the connection's
// writer, so that its reader notices a client that goes.
func (b *Broker) fetch(c *connection, req *kmsg.FetchRequest) answer {
	return answer{wait: func(ctx context.Context) answer {
		f, all, err := b.fetchWithin(ctx, c, req)
		if err != nil {
			return answer{}
		}
		return answer{resp: f, release: f.release, beside: func(ctx context.Context) { b.readAhead(ctx, c, all, req.IsolationLevel == 1) }}
	}}
}

// fetchWithin returns the answer, whose records are taken from the budget, and
// what it holds of each partition.
func (b *Broker) fetchWithin(ctx context.Context, c *connection, req *kmsg.FetchRequest) (_ *fetched, all []reading, err error) {
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
		return f, nil, nil
	}
	committed := req.IsolationLevel == 1
	w := newWaiter()
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
		f.records[i].from = b.answers
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
			size, err := b.readAll(ctx, c, all, limit, committed)
			if err != nil {
				return nil, nil, err
			}
			for _, r := range all {
				failed = failed || r.resp.ErrorCode != 0
			}
			if failed || last || size >= int64(req.MinBytes) {
				return f, all, nil
			}
			f.release() // it is read again when there is more
			for i := range all {
				all[i].resp.AbortedTransactions = nil
				f.records[i].from = b.answers // who comes back may have taken what was read ahead
			}
		} else if failed {
			return f, nil, nil
		}
		select {
		case <-w.wake:
		case <-timer.C:
			last = true
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-b.dead:
			return nil, nil, b.Err()
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

// readAll reads what fits, or takes what was read ahead. The first batch is read
// whatever its size, so that no client is stuck before it.
func (b *Broker) readAll(ctx context.Context, c *connection, all []reading, limit int64, committed bool) (size int64, err error) {
	defer c.ahead.drop() // what was not asked for now won't be
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
		room := min(r.max, limit-size)
		if !c.ahead.take(r, room, committed) {
			if err := b.readPartition(ctx, r, room, size == 0); err != nil {
				return 0, err
			}
		}
		r.read = r.records.size
		size += r.read
	}
	return size, nil
}

// readPartition reads batches from an offset on, and the aborted transactions
// that have records in them.
func (b *Broker) readPartition(ctx context.Context, r *reading, limit int64, first bool) (err error) {
	var gone *pebble.Iterator
	if r.aborts {
		// What is known of aborted transactions goes when their records go. It is
		// read as it was before the records are: whatever is deleted or compacted
		// meanwhile, none of those is without.
		if gone, err = b.db.NewIter(&pebble.IterOptions{
			LowerBound: offsetKey(prefixAborted, r.p.id, r.offset),
			UpperBound: after(partitionKey(prefixAborted, r.p.id)),
		}); err != nil {
			return fmt.Errorf("read aborted transactions of %s: %w", r.p, err)
		}
		defer b.doneReading(r, gone)
	}
	recent, err := b.readRecent(ctx, r, limit, first)
	if err == nil && !recent {
		err = b.readBatches(ctx, r, limit, first)
	}
	if err != nil || gone == nil || r.records.size == 0 {
		return err
	}
	b.readAborted(r, gone)
	return nil
}

func (b *Broker) readBatches(ctx context.Context, r *reading, limit int64, first bool) (err error) {
	it, err := b.db.NewIter(&pebble.IterOptions{
		LowerBound: offsetKey(prefixBatch, r.p.id, r.offset),
		UpperBound: offsetKey(prefixBatch, r.p.id, r.end),
	})
	if err != nil {
		return fmt.Errorf("read %s: %w", r.p, err)
	}
	defer b.doneReading(r, it)
	defer func() {
		if r.records.size > 0 {
			b.noteRead(r.p, r.offset, r.last)
		}
	}()
	from := direct{b: b}
	defer from.close()
	for ok := it.First(); ok; ok = it.Next() {
		_, last, err := partOfKey(it.Key())
		if err != nil {
			b.readFailed(r, r.next(), err)
			return nil
		}
		val := it.LazyValue()
		n := int64(val.Len())
		if room, err := r.take(ctx, n, limit, first); err != nil || !room {
			return err
		}
		if !from.read(ctx, val, r.records) {
			batch, err := it.ValueAndErr()
			if err != nil {
				r.records.from.give(n)
				b.readFailed(r, last, err)
				return nil
			}
			r.records.append(batch)
		}
		r.last = last
	}
	if err := it.Error(); err != nil {
		b.readFailed(r, r.next(), err)
	}
	return nil
}

// next is the offset that is read next.
func (r *reading) next() int64 {
	if r.records.size == 0 {
		return r.offset
	}
	return r.last + 1
}

// take takes what a batch needs from the budget, if the batch fits.
func (r *reading) take(ctx context.Context, n, limit int64, first bool) (fits bool, err error) {
	size := r.records.size
	if size+n > limit && (size > 0 || !first) {
		return false, nil
	}
	if size == 0 && first {
		err = r.records.from.take(ctx, n)
		return err == nil, err
	}
	return r.records.from.try(n), nil
}

// referMin is the size of a batch from which on it is sent by itself: smaller
// ones are cheaper to copy together.
const referMin = 16 << 10

// readFailed answers for one partition that its data can't be read. What was
// read before that is answered first: whoever goes on behind it hears of it.
func (b *Broker) readFailed(r *reading, at int64, err error) {
	b.noteUnreadable(r.p, at, err)
	if r.records.size == 0 {
		r.resp.ErrorCode = kerr.KafkaStorageError.Code
	}
}

// doneReading closes what a partition was read with. What could not be read
// comes up again there.
func (b *Broker) doneReading(r *reading, it *pebble.Iterator) {
	if err := it.Close(); err != nil && r.resp.ErrorCode == 0 && r.records.size == 0 {
		b.readFailed(r, r.offset, err)
	}
}

// entries is what readAborted needs of a pebble.Iterator.
type entries interface {
	First() bool
	Next() bool
	ValueAndErr() ([]byte, error)
	Error() error
}

// readAborted appends the aborted transactions that have records between an
// offset and the last one that was read.
func (b *Broker) readAborted(r *reading, it entries) {
	for ok := it.First(); ok; ok = it.Next() {
		val, err := it.ValueAndErr()
		if err == nil {
			var a aborted
			if a, err = decodeAborted(val); err == nil {
				if a.first <= r.last {
					ra := kmsg.NewFetchResponseTopicPartitionAbortedTransaction()
					ra.ProducerID, ra.FirstOffset = a.producer, a.first
					r.resp.AbortedTransactions = append(r.resp.AbortedTransactions, ra)
				}
				if a.stable > r.last {
					return
				}
			}
		}
		if err != nil {
			b.readWithout(r, err)
			return
		}
	}
	if err := it.Error(); err != nil {
		b.readWithout(r, err)
	}
}

// readWithout notes that it can't be told which of what was read is aborted: so
// nothing of it can be answered.
func (b *Broker) readWithout(r *reading, err error) {
	r.records.release()
	b.readFailed(r, r.offset, err)
}
