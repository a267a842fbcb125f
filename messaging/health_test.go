package messaging_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pawlstream/pawl/messaging"
)

// unready checks that a process is not ready for reasons that say all of want;
// with nothing wanted, that it is ready.
func (b *bench) unready(process string, want ...string) {
	b.t.Helper()
	err := b.worker(process).Health()
	if len(want) == 0 && err != nil {
		b.t.Errorf("health: %v, want nil", err)
	}
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) {
			b.t.Errorf("health: %v, want it to say %q", err, w)
		}
	}
}

// A handler that is stuck shows wherever its message is: also when the oldest
// unsettled one waits for a handler, and only for it.
func TestStuckBehindTheOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		r := prometheus.NewRegistry()
		release := make(chan struct{})
		cfg := messaging.Config{Concurrency: 1, StuckAfter: time.Minute, Registerer: r}
		b.work("p1", cfg, func(_ context.Context, d messaging.Delivery) error {
			switch {
			case string(d.Value()) == "first" && d.Attempt() == 1:
				return errNo
			case string(d.Value()) == "stuck":
				<-release
			}
			return nil
		})
		b.publish(0, "a", "first")
		b.publish(0, "b", "stuck")
		b.publish(0, "c", numbers("m", 100)...)
		b.Advance(30 * time.Second)
		b.unready("p1")
		b.Advance(40 * time.Second)
		b.unready("p1", "offset 1 with key \"b\" is unsettled in its handler", "at offset 0, makes no progress")
		o := b.stats("p1").Partitions[0].Oldest
		if o == nil || o.Offset != 0 || !o.Handed.IsZero() || time.Since(o.Since) < 65*time.Second {
			t.Errorf("the oldest unsettled is %+v, want offset 0, which waits, for 70 s", o)
		}
		if age := series(t, r)["pawl_messaging_oldest_unsettled_seconds partition=0"]; age < 65 || age > 75 {
			t.Errorf("the oldest unsettled message is %v s old, want 70", age)
		}
		close(release)
		b.Advance(2 * time.Second)
		b.unready("p1")
		b.idle("p1")
	})
}

// A forgotten ack shows though older messages come and go, and when the oldest is
// on its way through the delay topics.
func TestForgottenAckBehindRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		k := newKeep()
		cfg := messaging.Config{StuckAfter: time.Minute, Retry: messaging.Retry{InPlace: 100, BackoffMin: 20 * time.Second, BackoffMax: 20 * time.Second, Tiers: []time.Duration{}}}
		b.work("p1", cfg, func(ctx context.Context, d messaging.Delivery) error {
			switch string(d.Value()) {
			case "bad":
				return errNo
			case "forgotten":
				return k.handle(ctx, d)
			}
			return nil
		})
		b.publish(0, "a", "bad")
		b.publish(0, "b", numbers("m", 50)...)
		b.publish(0, "c", "forgotten")
		for i := range 10 {
			b.publish(0, "d", fmt.Sprint("n", i))
			b.Advance(10 * time.Second)
		}
		b.unready("p1", "offset 51")
		if err := k.get("forgotten").Ack(); err != nil {
			t.Fatal(err)
		}
		b.unready("p1") // a message that is tried again and again makes progress
	})
}

// What waits until it is due is as it should be, for however long.
func TestDelayedIsHealthy(t *testing.T) {
	for _, order := range []messaging.Order{messaging.ByKey, messaging.ByPartition, messaging.Unordered} {
		t.Run(string(order), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1)
				cfg := messaging.Config{Order: order, StuckAfter: time.Minute, Retry: messaging.Retry{InPlace: 1, Tiers: []time.Duration{2 * time.Minute, 3 * time.Minute}}}
				b.work("p1", cfg, func(_ context.Context, d messaging.Delivery) error {
					if strings.HasPrefix(string(d.Value()), "bad") && d.Attempt() < 3 {
						return errNo
					}
					return nil
				})
				b.publish(0, "k", "bad", "m1")
				b.publish(0, "o", "bad2", "m2")
				b.publish(0, "k", "m3")
				for range 12 {
					b.Advance(time.Minute)
					b.unready("p1")
				}
				b.idle("p1")
			})
		})
	}
}

// A consumer that somebody has paused is not stuck, for however long messages
// wait: it is ready, and shows that it is paused and the age of what waits. Nor is
// it when it goes on.
func TestPauseIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		r := prometheus.NewRegistry()
		release := make(chan struct{})
		b.work("p1", messaging.Config{Concurrency: 1, StuckAfter: time.Minute, Registerer: r}, func(context.Context, messaging.Delivery) error {
			<-release
			return nil
		})
		b.running(1, "p1")
		b.worker("p1").Pause()
		b.Advance(2 * time.Minute)
		b.unready("p1") // nothing waits
		b.publish(0, "k", "m0", "m1")
		b.Advance(30 * time.Second)
		b.unready("p1")
		b.Advance(time.Minute)
		b.unready("p1")
		if !b.stats("p1").Paused || series(t, r)["pawl_messaging_paused"] != 1 {
			t.Errorf("stats %+v, metrics %v; want both to say paused", b.stats("p1"), series(t, r))
		}
		if o := b.stats("p1").Partitions[0].Oldest; o == nil || o.Offset != 0 || string(o.Key) != "k" || time.Since(o.Since) < 85*time.Second {
			t.Errorf("the oldest unsettled is %+v, want offset 0 with its age", o)
		}
		if age := series(t, r)["pawl_messaging_oldest_unsettled_seconds partition=0"]; age < 85 {
			t.Errorf("the oldest unsettled message is %v s old, want 90", age)
		}
		b.worker("p1").Resume()
		b.unready("p1")
		b.Advance(30 * time.Second)
		b.unready("p1")
		b.worker("p1").Pause() // which ends nothing that a handler has
		b.Advance(time.Minute)
		b.unready("p1", "offset 0 with key \"k\" is unsettled in its handler")
		close(release)
		b.worker("p1").Resume()
		b.Advance(2 * time.Second)
		b.unready("p1")
		if n := series(t, r)["pawl_messaging_paused"]; n != 0 {
			t.Errorf("the metric says paused %v, want 0", n)
		}
	})
}

// A breaker that does not close shows: since when, and with what handlers fail.
func TestOpenBreakerIsUnready(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		down := true
		cfg := messaging.Config{StuckAfter: 10 * time.Minute, Breaker: messaging.Breaker{Failures: 10}, Retry: messaging.Retry{Tiers: []time.Duration{}, InPlace: 1000}}
		b.work("p1", cfg, func(context.Context, messaging.Delivery) error {
			if down {
				return errNo
			}
			return nil
		})
		b.running(1, "p1")
		start := time.Now()
		for i := range 50 {
			b.publish(0, fmt.Sprint("k", i), "m")
		}
		b.Advance(9 * time.Minute)
		b.unready("p1")
		b.Advance(2 * time.Minute)
		b.unready("p1", "breaker is open since "+start.UTC().Format("2006-01-02T15:04"), errNo.Error())
		st := b.stats("p1")
		if st.BreakerErr == nil || st.BreakerOpen.Sub(start) > 5*time.Second || st.Partitions[0].Oldest == nil {
			t.Errorf("open since %v with %v, the oldest %+v; want since %v, with the handler's error", st.BreakerOpen, st.BreakerErr, st.Partitions[0].Oldest, start)
		}
		if age := time.Since(st.Partitions[0].Oldest.Since); age < 650*time.Second {
			t.Errorf("the oldest message is %v old, want 11 min", age)
		}
		down = false
		b.Advance(2 * time.Minute)
		b.unready("p1")
		b.idle("p1")
	})
}
