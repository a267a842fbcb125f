package messaging_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/topic"
)

// A message that is to wait for longer than its delay topic keeps it is there all
// the same when its time has come, once, no earlier than asked, and those of its
// key after it, whatever retention takes meanwhile and however often the process
// is killed.
func TestWaitLongerThanATopicKeeps(t *testing.T) {
	tier1 := topic.Bytes("test.worker.retry.1")
	const kept, wait, patience = 40 * time.Second, 5 * time.Minute, time.Minute
	for _, order := range []messaging.Order{messaging.ByKey, messaging.Unordered} {
		t.Run(string(order), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1)
				b.CreateTopic(tier1.With(topic.Configured("retention.ms", fmt.Sprint(kept.Milliseconds()))), 1)
				cfg := messaging.Config{Order: order, Retry: messaging.Retry{InPlace: 1, BackoffMax: time.Second, Tiers: []time.Duration{time.Second}}}
				begun := time.Now()
				handled := make(map[string][]time.Duration)
				var sequence []string
				b.work("p1", cfg, func(_ context.Context, d messaging.Delivery) error {
					v := string(d.Value())
					if v == "long" && d.Attempt() == 1 {
						return messaging.RetryAfter(wait, errNo)
					}
					handled[v] = append(handled[v], time.Since(begun))
					sequence = append(sequence, v)
					return nil
				})
				b.publish(0, "a", "long")
				b.Advance(2 * time.Second)
				b.publish(0, "a", "next")
				b.publish(0, "b", "other")
				retire(b, []topic.Of[[]byte]{tier1}, kept, wait+patience)
				if got := handled["long"]; len(got) != 1 || got[0] < wait || got[0] > wait+patience {
					t.Errorf("handled after %v, want once, after %v", got, wait)
				}
				if len(handled["next"]) == 0 || len(handled["other"]) == 0 {
					t.Errorf("handled %v, want all three", sequence)
				}
				if order == messaging.ByKey && slices.Index(sequence, "next") < slices.Index(sequence, "long") {
					t.Errorf("handled in the order %v, want that of the key", sequence)
				}
				if st := b.stats("p1"); st.Missed > 0 || len(st.DeadLetters) > 0 {
					t.Errorf("%d messages are missed, dead letters: %v", st.Missed, st.DeadLetters)
				}
			})
		})
	}
}

// A key whose first message waits for days in one delay topic: those of its key
// that wait for it in another are there still when its time has come.
func TestFollowersInAnotherTopicOutliveIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const kept, wait = 40 * time.Second, 5 * time.Minute
		b := newBench(t, 1)
		tiers := []topic.Of[[]byte]{topic.Bytes("test.worker.retry.1"), topic.Bytes("test.worker.retry.2")}
		for _, tier := range tiers {
			b.CreateTopic(tier.With(topic.Configured("retention.ms", fmt.Sprint(kept.Milliseconds()))), 1)
		}
		cfg := messaging.Config{Retry: messaging.Retry{InPlace: 1, BackoffMax: time.Second, Tiers: []time.Duration{2 * time.Second, 4 * time.Second}}}
		var sequence []string
		b.work("p1", cfg, func(_ context.Context, d messaging.Delivery) error {
			v := string(d.Value())
			switch {
			case v == "first" && d.Attempt() == 1:
				return errNo // to the first delay topic, where the next joins it
			case v == "first" && d.Attempt() == 2:
				return messaging.RetryAfter(wait, errNo) // to the second
			}
			sequence = append(sequence, v)
			return nil
		})
		b.publish(0, "a", "first", "next")
		retire(b, tiers, kept, wait+time.Minute)
		if want := []string{"first", "next"}; !slices.Equal(sequence, want) {
			t.Errorf("handled %v, want %v", sequence, want)
		}
		if st := b.stats("p1"); st.Missed > 0 {
			t.Errorf("%d messages are missed", st.Missed)
		}
	})
}

// A message that is written to its delay topic once more while it waits there is
// handled where it is then, after those of its key that are before it, and once.
func TestRenewedWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		tier1 := topic.Bytes("test.worker.retry.1")
		b.CreateTopic(tier1.With(topic.Configured("retention.ms", fmt.Sprint(time.Hour.Milliseconds()))), 1)
		cfg := messaging.Config{DrainTimeout: 20 * time.Second, Retry: messaging.Retry{InPlace: 1, BackoffMax: time.Second, Tiers: []time.Duration{2 * time.Second}}}
		var sequence []string
		b.work("p1", cfg, func(_ context.Context, d messaging.Delivery) error {
			v := string(d.Value())
			redriven := d.Attempt() == 1 && slices.Contains(sequence, "A is set aside")
			switch {
			case v == "A" && redriven:
				return messaging.RetryAfter(20*time.Minute, errNo)
			case v == "A" && d.Attempt() == 1:
				sequence = append(sequence, "A is set aside")
				return messaging.DeadLetter(errNo)
			case v == "B" && d.Attempt() == 1:
				return messaging.RetryAfter(10*time.Minute, errNo)
			}
			sequence = append(sequence, v)
			return nil
		})
		b.publish(0, "a", "A", "B")
		b.Advance(2 * time.Second)
		b.SetTopic(tier1.Name(), "retention.ms", fmt.Sprint((40 * time.Second).Milliseconds()))
		b.Crash("p1") // whose next start learns of it
		b.Restart("p1")
		l, err := messaging.OpenLetters(messaging.LettersConfig{Cluster: b.Host("dlq"), Application: "test", Consumer: "worker"})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if res, err := l.Redrive(t.Context(), messaging.Query{}, messaging.Options{}); err != nil || res.Moved != 1 {
			t.Fatalf("redrive: %+v, %v", res, err)
		}
		b.Advance(25 * time.Minute)
		if want := []string{"A is set aside", "A", "B"}; !slices.Equal(sequence, want) {
			t.Errorf("handled %v, want %v", sequence, want)
		}
		begun := time.Now()
		if err := b.Stop("p1"); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("the stop took %v: something is counted as being handled", took)
		}
	})
}

// retire lets time pass, and retention take what is old, and the process be killed
// now and then.
func retire(b *bench, topics []topic.Of[[]byte], kept, span time.Duration) {
	for elapsed := time.Duration(0); elapsed < span; elapsed += 5 * time.Second {
		b.Advance(5 * time.Second)
		for _, of := range topics {
			old := int64(0)
			for _, e := range consumertest.CommittedEnvelopes(b.Cluster, of) {
				if time.Since(e.Timestamp) > kept {
					old = e.Offset + 1
				}
			}
			if old > 0 {
				b.Trim(of.Name(), 0, old)
			}
		}
		if elapsed%(25*time.Second) == 0 {
			b.Crash("p1")
			b.Restart("p1")
		}
	}
}
