package broker

import (
	"context"
	"sync"
)

// budget is a number of bytes that are given out and given back. A taker waits
// its turn when they are used up; one that wants more than there are in all
// gets all of them.
type budget struct {
	total int64
	mu    struct {
		sync.Mutex
		used    int64
		waiting []*taker // in the order in which they came
	}
}

type taker struct {
	n    int64
	have chan struct{}
}

func newBudget(total int64) *budget { return &budget{total: total} }

// try takes n bytes if they are there and nobody waits.
func (b *budget) try(n int64) bool {
	n = min(n, b.total)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.mu.waiting) > 0 || b.mu.used+n > b.total {
		return false
	}
	b.mu.used += n
	return true
}

// take takes n bytes as soon as they are there.
func (b *budget) take(ctx context.Context, n int64) error {
	if b.try(n) {
		return nil
	}
	w := &taker{n: min(n, b.total), have: make(chan struct{})}
	b.mu.Lock()
	b.mu.waiting = append(b.mu.waiting, w)
	b.serveLocked()
	b.mu.Unlock()
	select {
	case <-w.have:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, o := range b.mu.waiting {
		if o == w {
			b.mu.waiting = append(b.mu.waiting[:i], b.mu.waiting[i+1:]...)
			b.serveLocked()
			return context.Cause(ctx)
		}
	}
	b.mu.used -= w.n // it came at the same moment
	b.serveLocked()
	return context.Cause(ctx)
}

// give gives back what was taken.
func (b *budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.used -= min(n, b.total)
	b.serveLocked()
}

func (b *budget) serveLocked() {
	for len(b.mu.waiting) > 0 && b.mu.used+b.mu.waiting[0].n <= b.total {
		b.mu.used += b.mu.waiting[0].n
		close(b.mu.waiting[0].have)
		b.mu.waiting = b.mu.waiting[1:]
	}
}

func (b *budget) used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.used
}
