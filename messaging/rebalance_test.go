package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/messaging"
)

// A partition that moves redelivers nothing that was settled, and late acks of
// its old epoch are fenced.
func TestMoveWithMessagesInHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		k := newKeep()
		cfg := messaging.Config{Order: messaging.Unordered, DrainTimeout: time.Second}
		b.work("p1", cfg, k.handle)
		for n := range int32(2) {
			b.publish(n, "k", numbers(fmt.Sprint("p", n, "-"), 50)...)
		}
		b.Until("all to be handed out", func() bool { return k.len() == 100 })
		for n := range 2 {
			for i := 0; i < 50; i += 2 {
				if err := k.get(fmt.Sprint("p", n, "-", i)).Ack(); err != nil {
					t.Fatal(err)
				}
			}
		}
		moved := newKeep()
		b.forget()
		b.work("p2", cfg, moved.handle)
		b.running(2, "p1", "p2")
		b.Advance(10 * time.Second)
		var got []string
		for _, c := range b.calls() {
			if c.process == "p2" {
				got = append(got, c.value)
			} else {
				t.Errorf("%s was handled again by the process that kept its partition", c.value)
			}
		}
		part := moved.get(got[0]).Partition()
		var want []string
		for i := 1; i < 50; i += 2 {
			want = append(want, fmt.Sprint("p", part, "-", i))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("the new owner was given %v\nwant %v", got, want)
		}
		if err := k.get(want[0]).Ack(); !errors.Is(err, messaging.ErrFenced) {
			t.Errorf("a late ack: %v, want %v", err, messaging.ErrFenced)
		}
		for n := range 2 {
			for i := 1; i < 50; i += 2 {
				v := fmt.Sprint("p", n, "-", i)
				if d := moved.get(v); d != nil {
					if err := d.Ack(); err != nil {
						t.Errorf("%s: %v", v, err)
					}
				} else if err := k.get(v).Ack(); err != nil {
					t.Errorf("%s: %v", v, err)
				}
			}
		}
		b.idle("p1", "p2")
	})
}

// C08: a partition that is lost and comes back to the same process is a new
// epoch: what was unsettled is delivered in it, once, and the old is fenced.
func TestSamePartitionComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		old := newKeep()
		calls := atomic.Int32{}
		var again messaging.Delivery
		b.work("p1", messaging.Config{Order: messaging.Unordered}, func(ctx context.Context, d messaging.Delivery) error {
			if calls.Add(1) <= 3 {
				return old.handle(ctx, d)
			}
			again = d
			return messaging.Later
		})
		b.Publish(work, numbers("m", 3)...)
		b.Until("all to be handed out", func() bool { return old.len() == 3 })
		if err := old.get("m0").Ack(); err != nil {
			t.Fatal(err)
		}
		if err := old.get("m2").Ack(); err != nil {
			t.Fatal(err)
		}
		b.Advance(2 * time.Second)
		b.Cut("p1")
		b.Advance(15 * time.Second) // the session ends
		b.Heal("p1")
		b.Advance(15 * time.Second)
		b.running(1, "p1")
		b.Advance(time.Second)
		if n := calls.Load(); n != 4 || again == nil || string(again.Value()) != "m1" {
			t.Fatalf("%d calls, the last %v; want m1 once more", n, b.order())
		}
		if err := old.get("m1").Ack(); !errors.Is(err, messaging.ErrFenced) {
			t.Errorf("an ack of the old epoch: %v, want %v", err, messaging.ErrFenced)
		}
		if got := b.committed()[0]; got != 1 {
			t.Errorf("committed %d, want 1", got)
		}
		if err := again.Ack(); err != nil {
			t.Errorf("an ack of the new epoch: %v", err)
		}
		b.idle("p1")
	})
}

// A member that joins beside a handler that is stuck for ever has its
// partitions within the drain deadline and a second, and nobody fails.
func TestJoinBesideStuckHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 4)
		release := make(chan struct{})
		cfg := messaging.Config{DrainTimeout: 3 * time.Second}
		b.work("p1", cfg, func(context.Context, messaging.Delivery) error {
			<-release
			return nil
		})
		for n := range int32(4) {
			b.publish(n, "k", fmt.Sprint("m", n))
		}
		b.Until("all to be handed out", func() bool { return len(b.calls()) == 4 })
		b.forget()
		start := time.Now()
		b.work("p2", cfg, nil)
		b.Until("the new member to have its partitions", func() bool { return b.stats("p2").Acked == 2 })
		if took := time.Since(start); took > 4*time.Second {
			t.Errorf("that took %v, want at most the drain deadline of 3 s and 1 s", took)
		}
		if err := b.worker("p1").Health(); err != nil {
			t.Errorf("health of the one with the stuck handler: %v", err)
		}
		// Those that are stuck are replaced: the process goes on with what it has.
		close(release)
		b.idle("p1", "p2")
	})
}

// Stop returns within its deadline whatever handlers do, and fails nothing.
func TestStopWithStuckHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		release := make(chan struct{})
		defer close(release)
		cfg := messaging.Config{DrainTimeout: 2 * time.Second, Order: messaging.Unordered}
		b.work("p1", cfg, func(ctx context.Context, d messaging.Delivery) error {
			switch d.Offset() % 3 {
			case 0:
				<-release // for ever, as far as anyone knows
			case 1:
				<-ctx.Done()
				return ctx.Err()
			}
			return messaging.Later // forgotten
		})
		for n := range int32(2) {
			b.publish(n, "k", numbers("m", 30)...)
		}
		b.Advance(time.Second)
		start := time.Now()
		if err := b.Stop("p1"); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 4100*time.Millisecond {
			t.Errorf("the stop took %v, want at most the drain deadline of 2 s and 2 s", took)
		}
		if n := len(consumertest.CommittedEnvelopes(b.Cluster, letters)) + len(consumertest.CommittedEnvelopes(b.Cluster, tier1)); n != 0 {
			t.Errorf("%d messages were retried or dead-lettered by a stop", n)
		}
	})
}

// C55: a stop at a random moment amid 10,000 messages, again and again: only
// what was unsettled comes again, and a stop takes no longer than a handler.
func TestStopsAmidMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 10_000
		b := newBench(t, 3)
		b.Publish(work, numbers("m", n)...)
		acked := make(map[string]int)
		k := newKeep()
		h := func(_ context.Context, d messaging.Delivery) error {
			time.Sleep(time.Millisecond)
			k.mu.Lock()
			defer k.mu.Unlock()
			acked[string(d.Value())]++
			return nil
		}
		rnd := rand.New(rand.NewPCG(3, 4))
		total := 0
		for round := 0; total < n && round < 100; round++ {
			b.work("p1", messaging.Config{}, h)
			b.Advance(time.Duration(rnd.IntN(int(40 * time.Millisecond))))
			start := time.Now()
			if err := b.Stop("p1"); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took > 200*time.Millisecond {
				t.Fatalf("round %d: the stop took %v", round, took)
			}
			k.mu.Lock()
			total = len(acked)
			k.mu.Unlock()
		}
		b.work("p1", messaging.Config{}, h)
		b.idle("p1")
		for v, times := range acked {
			if times != 1 {
				t.Fatalf("%s was handled %d times: it was settled before the stop", v, times)
			}
		}
		if len(acked) != n {
			t.Errorf("%d messages were handled, want %d", len(acked), n)
		}
	})
}

// C56: partitions that are added are consumed, from their beginning, and have
// their retries and dead letters.
func TestPartitionsAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		cfg := messaging.Config{Start: messaging.Latest, Retry: messaging.Retry{InPlace: 1, Tiers: []time.Duration{time.Second}}, Breaker: messaging.Breaker{Failures: -1}}
		b.publish(0, "k", "before the group began")
		b.work("p1", cfg, failing(b, "bad", 9))
		b.running(1, "p1")
		b.AddPartitions("work", 3)
		b.publish(1, "k", "bad1", "m1")
		b.publish(2, "k", "bad2", "m2")
		b.Advance(2 * time.Minute)
		b.idle("p1")
		n := b.values()
		if n["before the group began"] != 0 || n["m1"] != 1 || n["m2"] != 1 || n["bad1"] != 2 || n["bad2"] != 2 {
			t.Errorf("handled %v", n)
		}
		if got := len(consumertest.CommittedEnvelopes(b.Cluster, letters)); got != 2 {
			t.Errorf("%d dead letters, want 2", got)
		}
	})
}

// Zero lost, whatever goes wrong on the way of a produce, a commit or a
// rebalance: every message is acked or a dead letter in the end.
func TestNothingLostUnderFaults(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(seed, 1))
				b := newBench(t, 3)
				cfg := messaging.Config{Retry: messaging.Retry{InPlace: 1, Tiers: []time.Duration{time.Second, 2 * time.Second}}, DrainTimeout: time.Second,
					WriteTimeout: 2 * time.Second, SessionTimeout: 6 * time.Second, Breaker: messaging.Breaker{Failures: -1}, MaxUnsettled: 200}
				acked := make(map[string]bool)
				k := newKeep()
				h := func(_ context.Context, d messaging.Delivery) error {
					time.Sleep(2 * time.Millisecond)
					v := string(d.Value())
					if n := d.Offset() % 10; n < 3 && d.Attempt() <= int(n)+1 {
						return errNo // of these, n = 2 becomes a dead letter
					}
					k.mu.Lock()
					defer k.mu.Unlock()
					acked[v] = true
					return nil
				}
				b.work("p1", cfg, h)
				b.work("p2", cfg, h)
				var all []string
				faults := []func(p string){
					func(p string) { b.Fail(p, "Produce", "NOT_LEADER_OR_FOLLOWER", 3) },
					func(p string) { b.Fail(p, "Produce", "REQUEST_TIMED_OUT", 2) },
					func(p string) { b.Fail(p, "OffsetCommit", "COORDINATOR_NOT_AVAILABLE", 3) },
					func(p string) { b.Fail(p, "OffsetCommit", "", 2) },
					func(p string) { b.Fail(p, "OffsetFetch", "COORDINATOR_LOAD_IN_PROGRESS", 2) },
					func(p string) { b.Fail(p, "JoinGroup", "", 1) },
					func(p string) { b.Fail(p, "SyncGroup", "REBALANCE_IN_PROGRESS", 1) },
					func(p string) { b.Fail(p, "Heartbeat", "UNKNOWN_MEMBER_ID", 1) },
					func(p string) { b.Fail(p, "Heartbeat", "ILLEGAL_GENERATION", 1) },
					func(p string) { b.Fail(p, "Fetch", "", 2) },
					func(p string) { b.DropReply(p, "Produce", 1) },
					func(p string) { b.DropReply(p, "OffsetCommit", 1) },
					func(p string) { b.Cut(p); b.Advance(time.Duration(rnd.IntN(5000)) * time.Millisecond); b.Heal(p) },
					func(p string) {
						b.Freeze(p)
						b.Advance(time.Duration(rnd.IntN(5000)) * time.Millisecond)
						b.Thaw(p)
					},
					// Not amid a join: the in-process broker never counts out a
					// member whose connection ended while it waited for that.
					func(p string) { b.Advance(8 * time.Second); b.Crash(p); b.Restart(p) },
					func(p string) {
						b.Advance(8 * time.Second)
						if err := b.Stop(p); err != nil {
							t.Error(err)
						}
						b.Restart(p)
					},
				}
				for round := range 25 {
					for n := range int32(3) {
						vs := numbers(fmt.Sprint("r", round, "p", n, "-"), 10)
						all = append(all, vs...)
						b.publish(n, fmt.Sprint("k", rnd.IntN(5)), vs...)
					}
					faults[rnd.IntN(len(faults))]([]string{"p1", "p2"}[rnd.IntN(2)])
					b.Advance(time.Duration(rnd.IntN(1500)) * time.Millisecond)
				}
				b.Advance(2 * time.Minute)
				b.idle("p1", "p2")
				dead := make(map[string]bool)
				for _, e := range consumertest.CommittedEnvelopes(b.Cluster, letters) {
					dead[string(e.Value)] = true
				}
				lost := 0
				for _, v := range all {
					if !acked[v] && !dead[v] {
						lost++
						t.Errorf("seed %d: %s is lost", seed, v)
					}
				}
				if len(dead) == 0 || len(acked) == 0 {
					t.Errorf("seed %d: %d acked, %d dead letters: the test tests nothing", seed, len(acked), len(dead))
				}
			})
		})
	}
}
