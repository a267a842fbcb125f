package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// ahead is what was read for a client while it looks at its last answer: where
// that was cut short by a limit, the client is about to ask for what follows.
// Reading takes as long as decoding, so a client that is behind gets on twice
// as fast. One goroutine at a time uses it, the connection's writer.
type ahead struct {
	parts map[*partition]*readAhead
}

// readAhead is what was read of a partition.
type readAhead struct {
	committed bool  // for whom it was read
	offset    int64 // from which on
	last      int64
	records   blocks
	aborted   []kmsg.FetchResponseTopicPartitionAbortedTransaction
}

// aheadMin is how much the last answer held of a partition of which more is
// read: who takes less is not behind, or wants little.
const aheadMin = 64 << 10

// readAhead reads what follows on what was answered.
func (b *Broker) readAhead(ctx context.Context, c *connection, all []reading, committed bool) {
	for _, r := range all {
		if r.p == nil || r.resp.ErrorCode != 0 || r.read < aheadMin || r.last+1 >= r.end || b.isRecent(r.p, r.last+1) {
			continue
		}
		if c.ahead.parts[r.p] != nil {
			continue // it was asked for twice
		}
		next := &readAhead{committed: committed, offset: r.last + 1, records: blocks{from: b.ahead}}
		q := reading{resp: &kmsg.FetchResponseTopicPartition{}, records: &next.records, p: r.p, offset: next.offset, max: r.max, end: r.end, aborts: r.aborts}
		if err := b.readPartition(ctx, &q, q.max, false); err != nil || q.resp.ErrorCode != 0 || next.records.size == 0 {
			// It is read again when it is asked for, and what is wrong is said then.
			next.records.release()
			continue
		}
		next.last, next.aborted = q.last, q.resp.AbortedTransactions
		if c.ahead.parts == nil {
			c.ahead.parts = make(map[*partition]*readAhead)
		}
		c.ahead.parts[r.p] = next
	}
}

// take fills in what is asked for, if it was read ahead and fits.
func (a *ahead) take(r *reading, room int64, committed bool) bool {
	next := a.parts[r.p]
	if next == nil || next.offset != r.offset || next.committed != committed || next.records.size > room {
		return false
	}
	delete(a.parts, r.p)
	*r.records, r.last = next.records, next.last
	r.resp.AbortedTransactions = append(r.resp.AbortedTransactions, next.aborted...)
	return true
}

// drop forgets what was read ahead and not asked for.
func (a *ahead) drop() {
	for _, next := range a.parts {
		next.records.release()
	}
	clear(a.parts)
}
