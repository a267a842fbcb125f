package messaging

import (
	"container/heap"
	"sync/atomic"
	"time"
)

// queue is messages that are to be handled, first in, first out.
type queue struct {
	ds   []*delivery
	head int
}

func (q *queue) len() int { return len(q.ds) - q.head }

func (q *queue) push(d *delivery) { q.ds = append(q.ds, d) }

// pop returns the first, or nil.
func (q *queue) pop() *delivery {
	if q.head == len(q.ds) {
		return nil
	}
	d := q.ds[q.head]
	q.ds[q.head] = nil
	q.head++
	switch {
	case q.head == len(q.ds):
		q.ds, q.head = q.ds[:0], 0
	case q.head >= 1024 && q.head >= len(q.ds)/2:
		n := copy(q.ds, q.ds[q.head:])
		clear(q.ds[n:])
		q.ds, q.head = q.ds[:n], 0
	}
	return d
}

// unpop puts one back in front.
func (q *queue) unpop(d *delivery) {
	if q.head > 0 {
		q.head--
		q.ds[q.head] = d
		return
	}
	q.ds = append(q.ds, nil)
	copy(q.ds[1:], q.ds)
	q.ds[0] = d
}

// delays is messages that are to be handled later, the next one first.
type delays struct{ h delayHeap }

type delayed struct {
	d  *delivery
	at time.Time
	n  uint64 // of two that are due at once, the one that came first goes first
}

// push adds one, and says whether it is now the first.
func (q *delays) push(d *delivery, at time.Time) bool {
	q.h.n++
	heap.Push(&q.h, delayed{d, at, q.h.n})
	return q.h.all[0].d == d
}

func (q *delays) len() int { return len(q.h.all) }

func (q *delays) first() (*delivery, time.Time) {
	if len(q.h.all) == 0 {
		return nil, time.Time{}
	}
	return q.h.all[0].d, q.h.all[0].at
}

func (q *delays) pop() { heap.Pop(&q.h) }

type delayHeap struct {
	all []delayed
	n   uint64
}

func (h *delayHeap) Len() int { return len(h.all) }
func (h *delayHeap) Less(i, j int) bool {
	a, b := &h.all[i], &h.all[j]
	if !a.at.Equal(b.at) {
		return a.at.Before(b.at)
	}
	return a.n < b.n
}
func (h *delayHeap) Swap(i, j int) { h.all[i], h.all[j] = h.all[j], h.all[i] }
func (h *delayHeap) Push(x any)    { h.all = append(h.all, x.(delayed)) }
func (h *delayHeap) Pop() any {
	n := len(h.all) - 1
	d := h.all[n]
	h.all[n] = delayed{}
	h.all = h.all[:n]
	return d
}

// wallClock is the time of day, which goes into messages and is read from them.
// It can be set: what waits in this process goes by the monotonic clock.
type wallClock struct {
	step atomic.Int64 // by how much it was set in a test
}

func (c *wallClock) now() time.Time {
	return time.Now().Round(0).Add(time.Duration(c.step.Load()))
}
