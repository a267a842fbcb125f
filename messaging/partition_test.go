package messaging

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// alone returns a partition that runs, of a worker that does not, with so many
// messages of one key in the input.
func alone(t *testing.T, order Order, messages int) *partition {
	t.Helper()
	cfg := Config{Topic: "t", Application: "a", Order: order, Cluster: cluster.Cluster{Brokers: []string{"127.0.0.1:9"}}}
	w, err := New(cfg, func(context.Context, Delivery) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	p := newPartition(w, topic.Partition{Topic: "t"}, "m")
	for tier, name := range []string{"t", "t.redrive", "t.retry.1"} {
		p.mu.streams = append(p.mu.streams, newStream(p, tier, name, topic.ID{byte(tier)}))
	}
	p.mu.phase = phaseRunning
	s := p.mu.streams[streamInput]
	for i := range messages {
		d := &delivery{s: s, key: []byte("k"), at: int64(i), order: int64(i), attempt: 1}
		if d.seq, err = s.window.add(d.at, d); err != nil {
			t.Fatal(err)
		}
		s.next, s.bytes = d.at+1, s.bytes+d.size()
		p.arriveLocked(d)
	}
	return p
}

// A probe that is given back before its handler was called ends.
func TestProbeGivenBack(t *testing.T) {
	p := alone(t, Unordered, 1)
	b := p.w.breaker
	b.mu.state, b.mu.since = breakerProbing, time.Now()
	most := b.allow()
	c, _ := p.take(most)
	if most != 1 || c == nil || len(c.hs) != 1 || b.allow() != 0 {
		t.Fatalf("%d messages are allowed and %+v taken, want one", most, c)
	}
	p.giveBack(c.hs)
	if got := b.allow(); got != 1 {
		t.Errorf("%d messages are allowed after the probe was given back, want 1", got)
	}
}

// What comes of a stream of a start that failed, once the start was begun again
// with streams of its own, changes nothing, and the stream is read no further.
func TestStreamOfAStartBefore(t *testing.T) {
	p := alone(t, ByKey, 0)
	old := newStream(p, streamTiers, "t.retry.1", topic.ID{2})
	old.scanEnd = 5
	p.mu.phase, p.mu.scanned = phaseStarting, make(chan struct{})
	if !p.push(old, &kafka.FetchedPart{PartBatch: kafka.PartBatch{Next: 5}}) {
		t.Error("a stream of the start before is to be read further when something comes of it")
	}
	if !p.passed(old, 0, 5) {
		t.Error("a stream of the start before is to be read further when it is passed")
	}
	select {
	case <-p.mu.scanned:
		t.Error("the scan of the start before has ended that of the new one")
	default:
	}
}

// Results of a chunk are taken in the order of its messages, whoever brings
// them.
func TestResultsInOrder(t *testing.T) {
	const rounds, size = 500, 64
	p := alone(t, Unordered, rounds*size)
	p.w.breaker.cfg.Failures = -1
	last := int64(-1)
	for range rounds {
		c, _ := p.take(size)
		for i := range c.hs {
			c.hs[i].err = errors.New("no")
		}
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for to := range size {
					p.finish(c, int64(to+1))
				}
			})
		}
		all.Wait()
		again := p.mu.delayed.h.all
		slices.SortFunc(again, func(a, b delayed) int { return cmp.Compare(a.n, b.n) })
		if len(again) != size {
			t.Fatalf("%d are to be handled again, want %d", len(again), size)
		}
		for _, a := range again {
			if a.d.at != last+1 {
				t.Fatalf("offset %d comes after %d", a.d.at, last)
			}
			last = a.d.at
		}
		p.mu.delayed.h.all = nil
	}
}
