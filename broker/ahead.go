package broker

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// ahead is what was read for a client while it looks at its last answer: where
// that was cut short by a limit, the client is about to ask for what follows.
// Reading takes as long as decoding, so a client that is behind gets on twice
// as fast, and reading goes on while the last answer is sent. One goroutine at a
// time uses it: the connection's writer, or what that waits for.
type ahead struct {
	parts map[*partition]*readAhead
}

// readAhead is what was read of a partition.
type readAhead struct {
	committed bool // it is for a reader of committed records
	*reading
}

// aheadMin is how much the last answer held of a partition of which more is
// read: who takes less is not behind, or wants little.
const aheadMin = 64 << 10

// readAhead reads what follows on what was answered, several partitions at a
// time.
func (b *Broker) readAhead(ctx context.Context, c *connection, all []reading, committed bool) {
	var behind []reading
	for _, r := range all {
		if r.p == nil || r.resp.ErrorCode != 0 || r.read < aheadMin || r.last+1 >= r.end || b.isRecent(r.p, r.last+1) {
			continue
		}
		if slices.ContainsFunc(behind, func(o reading) bool { return o.p == r.p }) {
			continue // it was asked for twice
		}
		behind = append(behind, reading{resp: &kmsg.FetchResponseTopicPartition{}, records: &blocks{from: b.ahead}, p: r.p, offset: r.last + 1, max: r.max, end: r.end, aborts: r.aborts})
	}
	whole := make([]bool, len(behind))
	var next atomic.Int64
	var readers sync.WaitGroup
	// One processor is left for sending the last answer, which the client waits for.
	for range min(len(behind), max(1, runtime.GOMAXPROCS(0)-1)) {
		readers.Go(func() {
			c.guard(int16(kmsg.Fetch), func() {
				for n := int(next.Add(1) - 1); n < len(behind); n = int(next.Add(1) - 1) {
					r := &behind[n]
					err := b.readPartition(ctx, r, r.max, false)
					whole[n] = err == nil && r.resp.ErrorCode == 0
				}
			})
		})
	}
	readers.Wait()
	for i := range behind {
		r := &behind[i]
		if !whole[i] || r.records.size == 0 {
			// It is read again when it is asked for, and what is wrong is said then.
			r.records.release()
			continue
		}
		if c.ahead.parts == nil {
			c.ahead.parts = make(map[*partition]*readAhead)
		}
		c.ahead.parts[r.p] = &readAhead{committed, r}
	}
}

// take fills in what is asked for, if it was read ahead and fits.
func (a *ahead) take(r *reading, room int64, committed bool) bool {
	next := a.parts[r.p]
	if next == nil || next.offset != r.offset || next.committed != committed || next.records.size > room {
		return false
	}
	delete(a.parts, r.p)
	*r.records, r.last = *next.records, next.last
	r.resp.AbortedTransactions = append(r.resp.AbortedTransactions, next.resp.AbortedTransactions...)
	return true
}

// drop forgets what was read ahead and not asked for.
func (a *ahead) drop() {
	for _, next := range a.parts {
		next.records.release()
	}
	clear(a.parts)
}
