package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/messaging"
)

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
			time.Sleep(time.Millisecond) // virtual time
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
					time.Sleep(2 * time.Millisecond) // virtual time
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
