package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawlstream/pawl/messaging"
)

// A partition that moves redelivers nothing that was settled at its last commit,
// and late acks of its old owner are fenced, and settle nothing.
func lateAcks(s *stage) {
	const n = 50
	old, moved := s.desk(), s.desk()
	cfg := messaging.Config{Order: messaging.Unordered, DrainTimeout: 200 * time.Millisecond}
	s.start("p1", cfg, old.handle)
	var kept []string
	for part := range s.partitions {
		vs := numbers(fmt.Sprint("p", part, "-"), n)
		s.publish(part, "k", vs...)
		for i := 1; i < n; i += 2 {
			kept = append(kept, vs[i])
		}
	}
	s.until("all to be handed out", func() bool { return old.len() == 2*n })
	first := make(map[string]messaging.Delivery)
	for _, v := range kept {
		first[v] = old.get(v)
	}
	for part := range s.partitions {
		for i := 0; i < n; i += 2 {
			old.ack(fmt.Sprint("p", part, "-", i))
		}
	}
	for part := range s.partitions {
		s.saved(part, n, func(o int64) bool { return o%2 == 0 })
	}
	s.forget()
	s.start("p2", cfg, moved.handle)
	s.until("what is left of a partition to be handed out by its new owner", func() bool { return moved.len() >= n/2 })
	for _, c := range s.calls() {
		if !slices.Contains(kept, c.value) {
			s.t.Errorf("%s was given to %s, and was settled before it moved", c.value, c.process)
		}
		if s.calm && c.process == "p1" {
			s.t.Errorf("%s was handled again by the process that kept its partition", c.value)
		}
	}
	for _, v := range kept {
		if moved.get(v) == nil {
			continue
		}
		// Where brokers are killed the old owner may not know yet that it is none.
		if err := first[v].Ack(); !errors.Is(err, messaging.ErrFenced) && (s.calm || err != nil && !isOver(err)) {
			s.t.Errorf("a late ack of %s: %v, want %v", v, err, messaging.ErrFenced)
		}
	}
	for part := range s.partitions {
		s.saved(part, n, func(o int64) bool { return o%2 == 0 })
	}
	for _, v := range kept {
		for _, k := range []*desk{old, moved} { // whoever has it
			if err := k.allow(v); err != nil && !isOver(err) {
				s.t.Errorf("ack %s: %v", v, err)
			}
		}
	}
	s.idle()
}

// Members that join and leave under load redeliver nothing that was settled.
func membersComeAndGo(s *stage) {
	cfg := messaging.Config{DrainTimeout: time.Second}
	p1 := s.start("p1", cfg, ackAll)
	var sent []string
	for round := range 4 {
		for part := range s.partitions {
			vs := numbers(fmt.Sprint("r", round, "p", part, "-"), 500)
			s.publish(part, "k", vs...)
			sent = append(sent, vs...)
		}
		p2 := s.start(fmt.Sprint("p2 of round ", round), cfg, ackAll)
		s.until("the partitions to be shared", func() bool {
			return len(p1.w.Stats().Partitions) == 2 && len(p2.w.Stats().Partitions) == 2
		})
		if err := p2.stop(); err != nil {
			s.t.Error(err)
		}
	}
	s.idle()
	s.came(sent)
}

// A member that joins beside a handler that is stuck for ever has its
// partitions within the drain deadline and a second, and nobody fails.
func joinBesideStuckHandlers(s *stage) {
	const drain = time.Second
	release := make(chan struct{})
	released := sync.OnceFunc(func() { close(release) })
	defer released()
	cfg := messaging.Config{DrainTimeout: drain}
	p1 := s.start("p1", cfg, func(context.Context, messaging.Delivery) error {
		<-release
		return nil
	})
	var sent []string
	for part := range s.partitions {
		sent = append(sent, fmt.Sprint("m", part))
		s.publish(part, "k", fmt.Sprint("m", part))
	}
	s.until("all to be handed out", func() bool { return len(s.values()) == len(sent) })
	p2 := s.start("p2", cfg, ackAll)
	s.until("the new member to be one", func() bool { return p2.w.Stats().Joined })
	start := time.Now()
	s.until("the new member to have its partitions", func() bool { return p2.w.Stats().Acked >= 2 })
	if took := time.Since(start); s.calm && took > drain+time.Second+s.slack {
		s.t.Errorf("that took %v, want at most the drain deadline of %v and 1 s", took, drain)
	}
	if err := p1.w.Health(); err != nil && s.calm {
		s.t.Errorf("health of the one with the stuck handlers: %v", err)
	}
	// Those that are stuck are replaced: the process goes on with what it has.
	released()
	s.idle()
}

// Stop returns within its deadline whatever handlers do, and fails nothing.
func stopBesideStuckHandlers(s *stage) {
	const n, drain = 30, 500 * time.Millisecond
	release := make(chan struct{})
	defer close(release)
	var busy atomic.Int32
	p1 := s.start("p1", messaging.Config{DrainTimeout: drain, Order: messaging.Unordered, Concurrency: 16}, func(ctx context.Context, d messaging.Delivery) error {
		switch d.Offset() % 3 {
		case 0:
			busy.Add(1)
			<-release // for ever, as far as anyone knows
		case 1:
			busy.Add(1)
			<-ctx.Done()
			return ctx.Err()
		}
		return messaging.Later // forgotten
	})
	var sent []string
	for part := range s.partitions {
		vs := numbers(fmt.Sprint("p", part, "-"), n)
		s.publish(part, "k", vs...)
		sent = append(sent, vs...)
	}
	s.until("all handlers to be busy", func() bool { return busy.Load() >= 16 })
	start := time.Now()
	if err := p1.stop(); err != nil {
		s.t.Error(err)
	}
	// The drain, a farewell of 2 s, and 2 s more where nobody answers.
	limit := drain + 2*time.Second
	if !s.calm {
		limit += 2 * time.Second
	}
	if took := time.Since(start); took > limit+s.slack {
		s.t.Errorf("the stop took %v, want at most %v", took, limit)
	}
	for _, name := range []string{s.letterTopic(), messaging.RetryTopic(s.app, "worker", 1)} {
		if n := len(s.read(name)); n != 0 {
			s.t.Errorf("%d messages are in %s after a stop", n, name)
		}
	}
	s.forget()
	s.start("p2", messaging.Config{}, ackAll)
	s.idle()
	s.came(sent)
}
