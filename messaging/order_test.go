package messaging_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/topic"
)

// When the order is changed to that by partition, what waits in several topics at
// the same offset is not one message: all of it is handled, and all before the
// input. What is read behind a message that is not due yet keeps its place.
func TestOrderChangedToPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		cfg := messaging.Config{Retry: messaging.Retry{InPlace: 1, Tiers: []time.Duration{time.Minute, 2 * time.Minute}}}
		b.work("p1", cfg, func(_ context.Context, d messaging.Delivery) error {
			switch string(d.Value()) {
			case "dead":
				return messaging.DeadLetter(errNo)
			case "slow":
				return errNo
			case "slower":
				return messaging.RetryAfter(2*time.Minute, errNo)
			}
			return nil
		})
		b.publish(0, "a", "dead")
		b.publish(0, "b", "slow")
		b.publish(0, "c", "slower")
		b.Advance(5 * time.Second)
		if err := b.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		l := openLetters(t, b)
		if res, err := l.Redrive(t.Context(), messaging.Query{}, messaging.Options{}); err != nil || res.Moved != 1 {
			t.Fatalf("redriven: %+v, %v, want one letter", res, err)
		}
		for _, from := range []topic.Of[[]byte]{topic.Bytes("test.worker.redrive"), topic.Bytes("test.worker.retry.1"), topic.Bytes("test.worker.retry.2")} {
			if got := consumertest.CommittedEnvelopes(b.Cluster, from); len(got) != 1 || got[0].Offset != 0 {
				t.Fatalf("%s holds %v, want one message at offset 0", from.Name(), got)
			}
		}
		b.forget()
		b.publish(0, "d", numbers("m", 3)...)
		cfg.Order = messaging.ByPartition
		b.work("p2", cfg, nil)
		b.running(1, "p2")
		b.Advance(30 * time.Second) // the first that waits is not due
		if got, want := b.order(), []string{"dead"}; !slices.Equal(got, want) {
			t.Errorf("handled %v before the delay is over, want %v", got, want)
		}
		b.publish(0, "e", "late")
		b.Advance(5 * time.Minute)
		if got, want := b.order(), append([]string{"dead", "slow", "slower"}, "m0", "m1", "m2", "late"); !slices.Equal(got, want) {
			t.Errorf("handled %v, want %v", got, want)
		}
		b.idle("p2")
		if n := len(consumertest.CommittedEnvelopes(b.Cluster, topic.Bytes("test.worker.retry.1"))); n != 1 {
			t.Errorf("%d messages are in the delay topic, want the one: in this order everything keeps its place", n)
		}
	})
}

// No two messages of the streams of a partition share a place in its order.
func TestReturnPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		tiers := make([]time.Duration, 4)
		for i := range tiers {
			tiers[i] = time.Duration(i+1) * 10 * time.Second
		}
		cfg := messaging.Config{Retry: messaging.Retry{InPlace: 1, Tiers: tiers}}
		b.work("p1", cfg, func(_ context.Context, d messaging.Delivery) error {
			return messaging.RetryAfter(tiers[int(d.Offset())%len(tiers)], errNo)
		})
		want := make(map[string]int)
		for i := range 40 {
			v := numbers("m", 40)[i]
			b.publish(0, v, v)
			want[v] = 1
		}
		b.Advance(3 * time.Second)
		if err := b.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		b.forget()
		cfg.Order = messaging.ByPartition
		b.work("p2", cfg, nil)
		b.running(1, "p2")
		b.Advance(2 * time.Minute)
		b.idle("p2")
		if got := b.values(); !maps.Equal(got, want) {
			t.Errorf("handled %v, want each once", got)
		}
	})
}
