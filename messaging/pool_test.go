package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/messaging"
)

// Handlers that do nothing are given many messages at once. One that is slow
// amid them holds up no others, and not the acks of those before it; each is
// handled once, and nothing is acked that was not handled.
func TestSlowAmidFast(t *testing.T) {
	for _, order := range []messaging.Order{messaging.ByKey, messaging.Unordered} {
		t.Run(string(order), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1)
				const n, every = 4000, 331
				slow := func(v string) bool {
					var i int
					if _, err := fmt.Sscanf(v, "m%d", &i); err != nil {
						t.Error(err)
					}
					return i%every == every-1
				}
				done := make(chan string, n)
				b.work("p1", messaging.Config{Order: order, Concurrency: 4}, func(_ context.Context, d messaging.Delivery) error {
					if slow(string(d.Value())) {
						time.Sleep(30 * time.Second) // virtual time
					}
					done <- string(d.Value())
					return nil
				})
				b.running(1, "p1")
				for i, v := range numbers("m", n) {
					b.publish(0, fmt.Sprint(i%100), v)
				}
				b.Advance(5 * time.Second)
				st := b.stats("p1")
				if got := int(st.Acked); got != len(done) || got == 0 {
					t.Errorf("%d are acked and %d were handled", got, len(done))
				}
				if got := st.Partitions[0].InFlight; got != 4 {
					t.Errorf("%d are in flight while 4 handlers are busy", got)
				}
				b.idle("p1")
				for v, times := range b.values() {
					if times != 1 {
						t.Errorf("%s was handled %d times", v, times)
					}
				}
				if got := len(b.values()); got != n || len(done) != n {
					t.Errorf("%d were handled and %d ended, want %d", got, len(done), n)
				}
				if got := b.stats("p1").Partitions[0].InFlight; got != 0 {
					t.Errorf("%d are in flight when all are settled", got)
				}
				start := time.Now()
				if err := b.Stop("p1"); err != nil || time.Since(start) > time.Second {
					t.Errorf("Stop with nothing to wait for: %v after %v", err, time.Since(start))
				}
			})
		})
	}
}

// Fast handlers are timed several at once; all calls are counted.
func TestCallsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.work("p1", messaging.Config{Order: messaging.Unordered, Retry: messaging.Retry{InPlace: 2, Tiers: []time.Duration{}}}, func(_ context.Context, d messaging.Delivery) error {
			if d.Attempt() == 1 && d.Offset()%10 == 0 {
				return errors.New("no")
			}
			return nil
		})
		b.publish(0, "k", numbers("m", 1000)...)
		b.idle("p1")
		if got := len(b.calls()); got != 1100 {
			t.Errorf("%d calls, want 1100", got)
		}
		if st := b.stats("p1"); st.Acked != 1000 || st.Failed != 100 || st.BreakerOpened != 0 {
			t.Errorf("acked %d, failed %d, breaker opened %d times, want 1000, 100, 0", st.Acked, st.Failed, st.BreakerOpened)
		}
	})
}
