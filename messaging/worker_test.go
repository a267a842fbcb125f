package messaging_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/messaging"
)

// Everything that is published is handled once and committed.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 3)
		b.work("p1", messaging.Config{}, nil)
		b.Publish(work, numbers("m", 300)...)
		b.idle("p1")
		for v, n := range b.values() {
			if n != 1 {
				t.Errorf("%s was handled %d times", v, n)
			}
		}
		if got := len(b.values()); got != 300 {
			t.Errorf("%d messages were handled, want 300", got)
		}
		if err := b.Stop("p1"); err != nil {
			t.Error(err)
		}
	})
}

// A message is tried in place, then in each tier, then it is a dead letter.
func TestRetryTiersAndDeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.work("p1", messaging.Config{}, func(_ context.Context, d messaging.Delivery) error {
			if string(d.Value()) == "bad" {
				return errors.New("no")
			}
			return nil
		})
		b.publish(0, "k", "good", "bad", "next")
		b.publish(0, "other", "beside")
		b.Advance(15 * time.Minute)
		b.idle("p1")
		if got, want := b.values()["bad"], 6; got != want {
			t.Errorf("the bad one was tried %d times, want %d", got, want)
		}
		if got, want := b.order(), []string{"bad", "bad", "bad", "bad", "next"}; !slices.Equal(got[len(got)-5:], want) {
			t.Errorf("handled in order %v, want it to end with %v: the key is held back", got, want)
		}
		all := consumertest.CommittedEnvelopes(b.Cluster, letters)
		if len(all) != 1 || string(all[0].Value) != "bad" || string(all[0].Key) != "k" {
			t.Fatalf("dead letters %v, want the bad one", all)
		}
		for k, want := range map[string]string{"pawl-topic": "work", "pawl-partition": "0", "pawl-offset": "1", "pawl-attempts": "6", "pawl-reason": "failed", "pawl-error": "no", "pawl-group": "test.worker"} {
			if got := header(all[0], k); got != want {
				t.Errorf("header %s is %q, want %q", k, got, want)
			}
		}
	})
}
