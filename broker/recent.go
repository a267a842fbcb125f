package broker

import (
	"context"
	"sort"

	"github.com/pawlstream/pawl/internal/invariants"
)

// recent is the batches that a partition got last, without a gap, as they came:
// who reads along is answered from here, and not from the storage.
type recent struct {
	batches []recentBatch
}

// recentBatch is one of them. Its bytes don't change; without any it was
// forgotten.
type recentBatch struct {
	base, last int64
	raw        []byte
}

// recentOverhead is what a batch takes besides its bytes.
const recentOverhead = 64

// recents bounds what all partitions have of them: the oldest go first. It is
// guarded by the broker's lock.
type recents struct {
	max   int64
	bytes int64
	queue []*partition // of each batch, in the order in which they came
}

// addLocked adds a batch that is on disk, and whose bytes are the recents' alone.
func (r *recents) addLocked(p *partition, bt batch) {
	if p.topic.deleted {
		return
	}
	if n := len(p.recent.batches); n > 0 {
		invariants.Check(p.recent.batches[n-1].last+1 == bt.base(), "%s: batch at %d comes after %d", p, bt.base(), p.recent.batches[n-1].last)
	}
	p.recent.batches = append(p.recent.batches, recentBatch{bt.base(), bt.last(), bt.raw})
	r.queue = append(r.queue, p)
	r.bytes += int64(len(bt.raw)) + recentOverhead
	for r.bytes > r.max {
		oldest := r.queue[0]
		r.queue = r.queue[1:]
		r.bytes -= int64(len(oldest.recent.batches[0].raw)) + recentOverhead
		oldest.recent.batches[0] = recentBatch{}
		oldest.recent.batches = oldest.recent.batches[1:]
	}
}

// dropLocked forgets what it has of a partition: something else takes its place,
// or nothing.
func (r *recents) dropLocked(p *partition) {
	for i := range p.recent.batches {
		e := &p.recent.batches[i]
		r.bytes -= int64(len(e.raw))
		e.raw = nil
	}
}

// recentFromLocked returns the recent batches from the one that holds an offset
// on. What is deleted is not recent, though it is still there: what is known of
// its aborted transactions may be gone.
func (p *partition) recentFromLocked(offset, end int64) []recentBatch {
	if offset < p.start {
		return nil
	}
	return p.recent.fromLocked(offset, end)
}

// fromLocked returns the batches from the one that holds an offset on, or nil
// if it isn't there.
func (r *recent) fromLocked(offset, end int64) []recentBatch {
	at := sort.Search(len(r.batches), func(i int) bool { return r.batches[i].last >= offset })
	if at == len(r.batches) || r.batches[at].base > offset {
		return nil
	}
	upTo := at
	for upTo < len(r.batches) && r.batches[upTo].raw != nil && r.batches[upTo].last < end {
		upTo++
	}
	return r.batches[at:upTo]
}

// readRecent reads a partition as readBatches does, if what is asked for is
// recent.
func (b *Broker) readRecent(ctx context.Context, r *reading, limit int64, first bool) (ok bool, err error) {
	var found []recentBatch
	b.mu.Lock()
	size := int64(0)
	for _, e := range r.p.recentFromLocked(r.offset, r.end) {
		if size += int64(len(e.raw)); size > limit && len(found) > 0 {
			break
		}
		found = append(found, e)
	}
	b.mu.Unlock()
	for _, e := range found {
		if fits, err := r.take(ctx, int64(len(e.raw)), limit, first); err != nil || !fits {
			return true, err
		}
		if len(e.raw) >= referMin {
			r.records.refer(e.raw)
		} else {
			r.records.append(e.raw)
		}
		r.last = e.last
	}
	return len(found) > 0, nil
}

// isRecent says whether a read at an offset is answered from what is recent.
func (b *Broker) isRecent(p *partition, offset int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(p.recentFromLocked(offset, p.visible.high)) > 0
}
