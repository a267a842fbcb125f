package messaging_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/messaging"
)

// The one message that is tried while the breaker is probing may end without
// having said anything of what handlers call. Then another is tried.
func TestProbeThatSaysNothing(t *testing.T) {
	decode := messaging.JSON(func(context.Context, int, messaging.Delivery) error { return nil })
	for _, tt := range []struct {
		name  string
		probe messaging.Handler
		then  func(b *bench)
	}{
		{"rejected", func(context.Context, messaging.Delivery) error { return messaging.DeadLetter(errNo) }, nil},
		{"not decoded", decode, nil},
		{"never settled, and fenced", func(context.Context, messaging.Delivery) error { return messaging.Later }, func(b *bench) {
			b.Cut("p1")
			b.Advance(15 * time.Second) // the session ends
			b.Heal("p1")
		}},
		{"not returned, and fenced", func(ctx context.Context, _ messaging.Delivery) error {
			<-ctx.Done()
			return ctx.Err()
		}, func(b *bench) {
			b.Cut("p1")
			b.Advance(15 * time.Second)
			b.Heal("p1")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 2)
				const failures = 3
				var calls atomic.Int64
				cfg := messaging.Config{Order: messaging.Unordered, Concurrency: 1, Breaker: messaging.Breaker{Failures: failures, Cooldown: time.Second}}
				b.work("p1", cfg, func(ctx context.Context, d messaging.Delivery) error {
					switch n := calls.Add(1); {
					case n <= failures:
						return errNo
					case n == failures+1:
						return tt.probe(ctx, d)
					}
					return nil
				})
				b.running(2, "p1")
				b.publish(0, "k", numbers("a", 10)...)
				b.publish(1, "k", numbers("b", 10)...)
				b.Until("the probe", func() bool { return calls.Load() > failures })
				if tt.then != nil {
					tt.then(b)
				}
				b.idle("p1")
				if st := b.stats("p1"); st.BreakerOpened != 1 || st.Breaker != "closed" {
					t.Errorf("the breaker opened %d times and is %s, want once and closed", st.BreakerOpened, st.Breaker)
				}
			})
		})
	}
}

// A probe that returns since its partition is revoked does not keep the others
// from the handlers until that has drained.
func TestProbeThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		const failures = 3
		var calls atomic.Int64
		later := newKeep()
		cfg := messaging.Config{Order: messaging.Unordered, Concurrency: 1, DrainTimeout: time.Minute, Breaker: messaging.Breaker{Failures: failures, Cooldown: time.Second}}
		b.work("p1", cfg, func(ctx context.Context, d messaging.Delivery) error {
			if string(d.Key()) == "later" {
				return later.handle(ctx, d)
			}
			switch n := calls.Add(1); {
			case n <= failures:
				return errNo
			case n == failures+1:
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		b.running(2, "p1")
		b.publish(1, "later", "the drain waits for it")
		b.publish(1, "k", numbers("b", 10)...)
		b.Until("the probe", func() bool { return calls.Load() > failures })
		b.publish(0, "k", numbers("a", 10)...)
		b.work("p2", cfg, nil) // is given the partition of the probe
		b.Advance(10 * time.Second)
		n := 0
		for _, c := range b.calls() {
			if c.process == "p1" && c.partition == 0 {
				n++
			}
		}
		if n != 10 {
			t.Errorf("%d messages of the other partition were handled while the probe's drains, want 10", n)
		}
		for _, p := range b.stats("p1").Partitions {
			if want := map[int32]string{0: "running", 1: "draining"}[p.Partition]; p.Phase != want {
				t.Errorf("partition %d is %s, want %s: the test tests nothing", p.Partition, p.Phase, want)
			}
		}
	})
}
