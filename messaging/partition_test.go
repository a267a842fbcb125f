package messaging

import (
	"context"
	"testing"
	"time"

	"github.com/pawlstream/pawl/cluster"
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
	hs, _ := p.take(most)
	if most != 1 || len(hs) != 1 || b.allow() != 0 {
		t.Fatalf("%d messages are allowed and %d taken, want one", most, len(hs))
	}
	p.giveBack(hs)
	if got := b.allow(); got != 1 {
		t.Errorf("%d messages are allowed after the probe was given back, want 1", got)
	}
}
