package messaging_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/topic"
)

func ackAll(context.Context, messaging.Delivery) error { return nil }

// C19: offsets 1 and 3 are acked, 2 is not, the process dies: exactly 2 comes
// again. And the first of a partition is acked last. Each partition is a case.
func firstAckedLast(s *stage) {
	acked := [][]int64{{0, 1, 3}, {3, 2, 1}, nil, {3, 2, 1, 0}}
	cfg := messaging.Config{Order: messaging.Unordered, Instance: "one"}
	k := s.desk()
	p := s.start("p1", cfg, k.handle)
	var again []string
	value := func(n int, o int64) string { return fmt.Sprintf("p%d-%d", n, o) }
	for n := range acked {
		s.publish(int32(n), "k", numbers(fmt.Sprintf("p%d-", n), 4)...)
	}
	s.until("all to be handed out", func() bool { return k.len() == 16 })
	for n, os := range acked {
		for _, o := range os {
			k.ack(value(n, o))
		}
		for o := range int64(4) {
			if !slices.Contains(os, o) {
				again = append(again, value(n, o))
			}
		}
	}
	for n, os := range acked {
		s.saved(int32(n), 4, func(o int64) bool { return slices.Contains(os, o) })
	}
	p.crash()
	s.forget()
	s.start("p2", cfg, ackAll)
	s.idle()
	s.came(again)
}

// Acks in any order, from many goroutines: what is committed stops at the one
// message that is not acked, whatever is acked above it, and reaches the end with
// it.
func acksInAnyOrder(s *stage) {
	const n, last = 1000, 300
	k := s.desk()
	s.start("p1", messaging.Config{Order: messaging.Unordered}, k.handle)
	var all []string
	for part := range s.partitions {
		vs := numbers(fmt.Sprint("p", part, "-"), n)
		s.publish(part, "k", vs...)
		all = append(all, vs...)
	}
	s.until("all to be handed out", func() bool { return k.len() == len(all) })
	kept := []string{fmt.Sprint("p0-", last), fmt.Sprint("p1-", last)}
	order := slices.DeleteFunc(slices.Clone(all), func(v string) bool { return slices.Contains(kept, v) })
	rand.New(rand.NewPCG(3, 5)).Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	var acking sync.WaitGroup
	for i := range 32 {
		acking.Go(func() {
			for ; i < len(order); i += 32 {
				k.ack(order[i])
			}
		})
	}
	acking.Wait()
	for part := range s.partitions {
		s.saved(part, n, func(o int64) bool { return o != last })
		if got := s.settled(part).below; got != last {
			s.t.Errorf("partition %d is committed to %d, want %d", part, got, last)
		}
	}
	for _, v := range kept {
		k.ack(v)
	}
	s.idle()
	s.came(all)
}

// After kill -9 with half of a span of 20,000 settled at random, only what was
// not settled at the last commit comes again.
func halfOfASpanSettled(s *stage) {
	const n = 20_000
	cfg := messaging.Config{Order: messaging.Unordered, MaxUnsettled: 2 * n, Instance: "one"}
	k := s.desk()
	p := s.start("p1", cfg, k.handle)
	s.publish(0, "k", numbers("m", n)...)
	s.until("all to be handed out", func() bool { return k.len() == n })
	rnd := rand.New(rand.NewPCG(1, 2))
	acked := make([]bool, n)
	var again []string
	for i := range n {
		if v := fmt.Sprint("m", i); i > 0 && rnd.IntN(2) == 0 { // the first stays
			acked[i] = true
			k.ack(v)
		} else {
			again = append(again, v)
		}
	}
	s.saved(0, n, func(o int64) bool { return acked[o] })
	p.crash()
	s.forget()
	s.start("p2", cfg, ackAll)
	s.idle()
	s.came(again)
}

// A window whose settled offsets don't fit the metadata loses none, redelivers
// what did not fit, and says how much that is.
func metadataOverflow(s *stage) {
	const n = 60_000
	s.account.forgetful = true
	cfg := messaging.Config{Order: messaging.Unordered, MaxUnsettled: 2 * n, MaxSpan: 2 * n, Instance: "one"}
	k := s.desk()
	p := s.start("p1", cfg, k.handle)
	s.publish(0, "k", numbers("m", n)...)
	s.until("all to be handed out", func() bool { return k.len() == n })
	for i := 1; i < n; i += 2 {
		k.ack(fmt.Sprint("m", i))
	}
	fit := func() (set settled, count int) {
		set = s.settled(0)
		for o := range int64(n) {
			if set.has(o) {
				count++
			}
		}
		return set, count
	}
	unsaved := 0
	s.until("a commit that says how much it has no room for", func() bool {
		ps := p.w.Stats().Partitions
		if len(ps) != 1 || ps[0].Unsaved == 0 {
			return false
		}
		unsaved = ps[0].Unsaved
		_, saved := fit()
		return saved+unsaved == n/2
	})
	if text := s.commits()[topic.Partition{Topic: s.work.Name()}].Metadata; len(text) > 4096 || len(text) < 3900 {
		s.t.Errorf("the commit's metadata has %d characters, want nearly 4,096", len(text))
	}
	if unsaved > n/2-12_000 {
		s.t.Errorf("%d settled messages did not fit, want at most %d", unsaved, n/2-12_000)
	}
	p.crash()
	set, _ := fit()
	var again []string
	for o := range int64(n) {
		if !set.has(o) {
			again = append(again, fmt.Sprint("m", o))
		}
	}
	s.forget()
	s.start("p2", cfg, ackAll)
	s.idle()
	s.came(again)
}

// One stuck key among thousands of messages: the rest of the partition is
// settled, across a crash too.
func oneStuckKey(s *stage) {
	release := make(chan struct{})
	h := func(ctx context.Context, d messaging.Delivery) error {
		if string(d.Key()) == "stuck" {
			select {
			case <-release:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	const n = 10_000
	cfg := messaging.Config{Instance: "one", MaxUnsettled: 2 * n}
	p := s.start("p1", cfg, h)
	s.publish(0, "stuck", "s")
	outs := make([]topic.Out, n)
	for i := range outs {
		outs[i] = topic.Out{Key: fmt.Append(nil, "k", i/10%50), Value: fmt.Append(nil, "m", i)}
	}
	s.publishRecords(outs...)
	s.saved(0, n+1, func(o int64) bool { return o > 0 })
	ps := p.w.Stats().Partitions
	if len(ps) != 1 || ps[0].Oldest == nil || ps[0].Oldest.Offset != 0 || string(ps[0].Oldest.Key) != "stuck" {
		s.t.Errorf("%+v, want the oldest unsettled at offset 0", ps)
	}
	p.crash()
	s.forget()
	close(release)
	s.start("p2", cfg, h)
	s.idle()
	s.came([]string{"s"})
}

// Stop with nobody who reads the channel, and with messages that nobody acks,
// returns within its deadline; what was not settled comes again.
func stopWithFullChannel(s *stage) {
	const n, drain = 100, 500 * time.Millisecond
	p := &program{name: "channel"}
	cl, _ := s.mortal(p)
	c := s.channel(cl, messaging.Config{DrainTimeout: drain, CommitInterval: 50 * time.Millisecond})
	s.publish(0, "k", numbers("m", n)...)
	take := func() messaging.Delivery {
		d := (<-c.Messages()).(messaging.Delivery)
		s.record(p, d)
		return d
	}
	for saved := false; !saved; {
		first := take()
		if err := first.Ack(); err != nil && s.calm {
			s.t.Fatal(err)
		}
		take() // forgotten
		// Where brokers are killed the assignment may end before the commit.
		s.until("a commit of the first", func() bool {
			saved = s.settled(0).has(first.Offset())
			return saved || first.Context().Err() != nil
		})
	}
	start := time.Now()
	c.Stop()
	// The drain, a farewell of 2 s, and 2 s more where nobody answers.
	limit := drain + 2*time.Second
	if !s.calm {
		limit += 2 * time.Second
	}
	if took := time.Since(start); took > limit+s.slack {
		s.t.Errorf("the stop took %v, want at most %v", took, limit)
	}
	if _, open := <-c.Messages(); open {
		s.t.Error("the channel gave a message after the stop")
	}
	again, set := []string{}, s.settled(0)
	for o := range int64(n) {
		if !set.has(o) {
			again = append(again, fmt.Sprint("m", o))
		}
	}
	if s.calm && len(again) != n-1 {
		s.t.Errorf("%d messages are not settled after the stop, want %d", len(again), n-1)
	}
	s.forget()
	s.start("p1", messaging.Config{}, ackAll)
	s.idle()
	s.came(again)
}

// channel starts a consumer that gives messages by its channel.
func (s *stage) channel(cl cluster.Cluster, cfg messaging.Config) messaging.Consumer {
	s.t.Helper()
	client, err := messaging.NewClient(messaging.ClientConfig{
		Clusters:     map[string]cluster.Cluster{"main": cl},
		Applications: map[string]messaging.Application{s.app: {Topic: s.work.Name(), Cluster: "main", Options: cfg}},
		Logger:       slog.New(slog.NewTextHandler(testWriter{s.t}, nil)),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	c, err := client.NewConsumer(s.app, "worker")
	if err != nil {
		s.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Stop)
	return c
}
