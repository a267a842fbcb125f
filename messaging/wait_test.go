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
				for elapsed := time.Duration(0); elapsed < wait+patience; elapsed += 5 * time.Second {
					b.Advance(5 * time.Second)
					old := int64(0)
					for _, e := range consumertest.CommittedEnvelopes(b.Cluster, tier1) {
						if time.Since(e.Timestamp) > kept {
							old = e.Offset + 1
						}
					}
					if old > 0 {
						b.Trim(tier1.Name(), 0, old) // as retention does
					}
					if elapsed%(25*time.Second) == 0 {
						b.Crash("p1")
						b.Restart("p1")
					}
				}
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
