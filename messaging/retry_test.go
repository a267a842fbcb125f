package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/topic"
)

var errNo = errors.New("no")

// failing returns a handler that fails for values with a prefix so many times.
func failing(b *bench, prefix string, times int) messaging.Handler {
	return func(_ context.Context, d messaging.Delivery) error {
		if strings.HasPrefix(string(d.Value()), prefix) && d.Attempt() <= times {
			return errNo
		}
		return nil
	}
}

// C32: delays are never cut short, and late by little: tiers of 1, 2 and 4 s,
// one message each, no other traffic.
func TestDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		cfg := messaging.Config{Retry: messaging.Retry{InPlace: 1, Tiers: []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 10 * time.Minute}}}
		b.work("p1", cfg, failing(b, "bad", 4))
		b.publish(0, "k", "bad")
		b.Advance(12 * time.Minute)
		calls := b.calls()
		if len(calls) != 5 {
			t.Fatalf("%d attempts, want 5", len(calls))
		}
		for i, want := range cfg.Retry.Tiers {
			got := calls[i+1].at.Sub(calls[i].at)
			if got < want || got > want+100*time.Millisecond {
				t.Errorf("the delay of tier %d was %v, want %v", i+1, got, want)
			}
		}
	})
}

// C32: a wall clock that is set back or forward while messages wait, in place or
// in a tier, neither shortens nor lengthens their delays, nor has anything count
// as stuck or as late.
func TestClockSteps(t *testing.T) {
	for _, step := range []time.Duration{-time.Second, -2 * time.Hour, time.Second, time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1)
				cfg := messaging.Config{Retry: messaging.Retry{InPlace: 2, BackoffMin: 4 * time.Second, BackoffMax: 4 * time.Second,
					Tiers: []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 10 * time.Minute}}}
				b.work("p1", cfg, failing(b, "bad", 5))
				b.running(1, "p1")
				b.publish(0, "k", "bad")
				b.publish(0, "other", "good")
				for range 4 {
					n := len(b.calls())
					b.Until("another attempt", func() bool { return len(b.calls()) > n })
					b.Advance(300 * time.Millisecond)
					messaging.StepClock(b.worker("p1"), step)
				}
				if err := b.worker("p1").Health(); err != nil {
					t.Error(err)
				}
				b.Advance(12 * time.Minute)
				b.idle("p1")
				var at []time.Time
				for _, c := range b.calls() {
					if c.value == "bad" {
						at = append(at, c.at)
					}
				}
				if len(at) != 6 {
					t.Fatalf("%d attempts, want 6", len(at))
				}
				if got := at[1].Sub(at[0]); got < 2*time.Second || got > 4100*time.Millisecond {
					t.Errorf("the back-off was %v, want 2 to 4 s", got)
				}
				for i, want := range cfg.Retry.Tiers {
					if got := at[i+2].Sub(at[i+1]); got < want || got > want+100*time.Millisecond {
						t.Errorf("the delay of tier %d was %v, want %v", i+1, got, want)
					}
				}
			})
		})
	}
}

// One that is due in a long time does not keep back one on another tier.
func TestTiersDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		cfg := messaging.Config{Retry: messaging.Retry{InPlace: 1, BackoffMax: 500 * time.Millisecond, Tiers: []time.Duration{10 * time.Second, 5 * time.Minute}}}
		b.work("p1", cfg, func(_ context.Context, d messaging.Delivery) error {
			if d.Attempt() > 1 {
				return nil
			}
			if string(d.Value()) == "slow" {
				return messaging.RetryAfter(5*time.Minute, errNo)
			}
			return messaging.RetryAfter(10*time.Second, errNo)
		})
		b.publish(0, "a", "slow")
		b.publish(0, "b", "fast")
		b.Advance(11 * time.Second)
		if got, want := b.order(), []string{"slow", "fast", "fast"}; !slices.Equal(got, want) {
			t.Errorf("handled %v, want %v", got, want)
		}
		b.Advance(5 * time.Minute)
		b.idle("p1")
	})
}

// The order key-relaxed lets later ones of the key go on.
func TestKeyRelaxed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		cfg := messaging.Config{Order: messaging.KeyRelaxed, Retry: messaging.Retry{InPlace: 1}}
		b.work("p1", cfg, failing(b, "bad", 1))
		b.publish(0, "k", "bad", "a", "b")
		b.Advance(time.Minute)
		b.idle("p1")
		if got, want := b.order(), []string{"bad", "a", "b", "bad"}; !slices.Equal(got, want) {
			t.Errorf("handled %v, want %v", got, want)
		}
	})
}

// In the order by partition everything waits for a retry, also for a long one.
func TestPartitionOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		cfg := messaging.Config{Order: messaging.ByPartition}
		b.work("p1", cfg, failing(b, "bad", 5))
		b.publish(0, "k", "a", "bad")
		b.publish(0, "l", "b")
		b.Advance(20 * time.Minute)
		b.idle("p1")
		if got, want := b.order(), []string{"a", "bad", "bad", "bad", "bad", "bad", "bad", "b"}; !slices.Equal(got, want) {
			t.Errorf("handled %v, want %v", got, want)
		}
	})
}

// Messages of one key never run beside each other, and never out of order;
// those of others do.
func TestKeyOrderConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		busy := make(chan string, 1000)
		cfg := messaging.Config{Concurrency: 50}
		running := newKeep()
		most := 0
		b.work("p1", cfg, func(_ context.Context, d messaging.Delivery) error {
			running.mu.Lock()
			if running.ds[string(d.Key())] != nil {
				busy <- string(d.Key())
			}
			running.ds[string(d.Key())] = d
			most = max(most, len(running.ds))
			running.mu.Unlock()
			time.Sleep(time.Millisecond) // virtual time
			running.mu.Lock()
			delete(running.ds, string(d.Key()))
			running.mu.Unlock()
			return nil
		})
		for i := range 40 {
			b.publish(int32(i%2), fmt.Sprint("k", i), numbers(fmt.Sprint("k", i, "-"), 25)...)
		}
		b.idle("p1")
		if n := len(busy); n > 0 {
			t.Errorf("%d times two messages of one key ran beside each other, first of %s", n, <-busy)
		}
		if most < 20 {
			t.Errorf("at most %d keys ran beside each other, want nearly 40", most)
		}
		next := make(map[string]int)
		for _, c := range b.calls() {
			if want := fmt.Sprint(c.key, "-", next[c.key]); c.value != want {
				t.Fatalf("%s was handled, want %s first", c.value, want)
			}
			next[c.key]++
		}
	})
}

// C42: what a producer says of a message that is too large, and that it harms no
// other. Messages are not compressed: their size is what they have.
func TestPublishTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.SetTopic("work", "max.message.bytes", "10000")
		p, err := newClient(t, b, messaging.Config{}).NewProducer("test")
		if err != nil {
			t.Fatal(err)
		}
		defer p.(messaging.CloseableProducer).Close()
		publish := func(size int) error {
			return p.Publish(context.Background(), &topic.Envelope{Key: []byte("the key"), Value: make([]byte, size)})
		}
		most := 0 // the largest that is taken
		for size := 9800; size < 10_000 && publish(size) == nil; size++ {
			most = size
		}
		if most < 9850 || most > 9999 {
			t.Fatalf("%d bytes were taken, and the limit is 10,000 with what is around them", most)
		}
		var group sync.WaitGroup
		for i := range 30 {
			group.Go(func() {
				switch err := publish(most + 1); {
				case i%3 != 0:
					if err := publish(most - i); err != nil {
						t.Errorf("beside one that is too large: %v", err)
					}
				case !errors.Is(err, messaging.ErrTooLarge):
					t.Errorf("%d bytes: %v, want %v", most+1, err, messaging.ErrTooLarge)
				default:
					for _, want := range []string{"to work ", "the key", "10001 bytes", "10000"} {
						if !strings.Contains(err.Error(), want) {
							t.Errorf("%v, want it to name %q", err, want)
						}
					}
				}
			})
		}
		group.Wait()
	})
}

// When everything fails the breaker opens, and a message is tried now and then
// until one succeeds; little is dead-lettered meanwhile.
func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		down := true
		k := newKeep()
		cfg := messaging.Config{Order: messaging.Unordered, Breaker: messaging.Breaker{Failures: 20, Cooldown: time.Second}}
		b.work("p1", cfg, func(context.Context, messaging.Delivery) error {
			k.mu.Lock()
			defer k.mu.Unlock()
			if down {
				return errNo
			}
			return nil
		})
		b.Publish(work, numbers("m", 1000)...)
		b.Advance(10 * time.Minute)
		if got := len(b.calls()); got > 60 {
			t.Errorf("handlers were called %d times while everything failed, want few", got)
		}
		if st := b.stats("p1"); st.BreakerOpened == 0 {
			t.Errorf("the breaker has not opened")
		}
		k.mu.Lock()
		down = false
		k.mu.Unlock()
		b.Advance(20 * time.Minute)
		b.idle("p1")
		if st := b.stats("p1"); st.Acked+st.DeadLetters["failed"] != 1000 || st.DeadLetters["failed"] > 10 || st.Breaker != "closed" {
			t.Errorf("acked %d, dead letters %v, breaker %s", st.Acked, st.DeadLetters, st.Breaker)
		}
	})
}

// Pause keeps messages from handlers until Resume; a rate limit spaces them.
func TestPauseAndRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.work("p1", messaging.Config{RateLimit: 10}, nil)
		b.running(1, "p1")
		b.worker("p1").Pause()
		b.Publish(work, numbers("m", 100)...)
		b.Advance(time.Minute)
		if got := len(b.calls()); got != 0 {
			t.Errorf("%d messages were handled while it was paused", got)
		}
		b.worker("p1").Resume()
		b.Advance(5 * time.Second)
		if got := len(b.calls()); got < 48 || got > 52 {
			t.Errorf("%d messages were handled in 5 s at 10 a second", got)
		}
		b.idle("p1")
	})
}

// C37: a crash is not a failed attempt; but a message that ends the process
// every time is a dead letter in the end, by a counter of its own, and its
// neighbours are not.
func TestCrashLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		poison := make(chan int, 100)
		cfg := messaging.Config{Retry: messaging.Retry{InPlace: 1, Tiers: []time.Duration{}}, DeadLetters: messaging.DeadLetters{MaxCrashes: 3}}
		b.work("p1", cfg, func(ctx context.Context, d messaging.Delivery) error {
			if string(d.Value()) == "poison" {
				poison <- d.Attempt()
				<-ctx.Done() // the test ends the process here
				return ctx.Err()
			}
			return nil
		})
		b.publish(0, "a", "m1", "m2")
		b.publish(0, "b", "poison")
		b.publish(0, "c", "m3", "m4")
		crashes := 0
		for range 12 {
			select {
			case attempt := <-poison:
				if attempt != 1 {
					t.Errorf("after %d crashes it is attempt %d, want 1: a crash is none that failed", crashes, attempt)
				}
				crashes++
				b.Crash("p1")
				b.Restart("p1")
			case <-time.After(time.Minute):
			}
		}
		b.idle("p1")
		all := consumertest.CommittedEnvelopes(b.Cluster, letters)
		if len(all) != 1 || string(all[0].Value) != "poison" || header(all[0], "pawl-reason") != "crash" {
			t.Errorf("dead letters %v after %d crashes, want the poison", all, crashes)
		}
		if crashes < 3 || crashes > 6 {
			t.Errorf("%d crashes, want 3 to 6", crashes)
		}
		for _, v := range []string{"m1", "m2", "m3", "m4"} {
			if b.values()[v] == 0 {
				t.Errorf("%s was not handled", v)
			}
		}
		if got := b.stats("p1").Crashed; got != 1 {
			t.Errorf("counted %d crashed messages, want 1", got)
		}
	})
}
