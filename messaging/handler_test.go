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

// Deciding by what a handler returned.
func TestHandlerResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.work("p1", messaging.Config{Order: messaging.Unordered}, func(_ context.Context, d messaging.Delivery) error {
			switch v := string(d.Value()); {
			case v == "reject":
				return fmt.Errorf("wrapped: %w", messaging.DeadLetter(errNo))
			case v == "panic" && d.Attempt() == 1:
				panic("oh")
			case v == "soon" && d.Attempt() == 1:
				return messaging.RetryAfter(3*time.Second, errNo)
			case v == "later":
				go d.Ack() // nothing else settles it
				return messaging.Later
			}
			return nil
		})
		b.Publish(work, "reject", "panic", "soon", "later", "fine")
		b.Advance(time.Minute)
		b.idle("p1")
		all := consumertest.CommittedEnvelopes(b.Cluster, letters)
		if len(all) != 1 || string(all[0].Value) != "reject" || header(all[0], "pawl-reason") != "rejected" {
			t.Errorf("dead letters %v, want the rejected one", all)
		}
		n := b.values()
		if n["panic"] != 2 || n["soon"] != 2 || n["later"] != 1 {
			t.Errorf("handled %v", n)
		}
		var at []time.Time
		for _, c := range b.calls() {
			if c.value == "soon" {
				at = append(at, c.at)
			}
		}
		if got := at[1].Sub(at[0]); got < 3*time.Second || got > 3100*time.Millisecond {
			t.Errorf("retried after %v, want 3 s", got)
		}
	})
}

// C40 and bad input: what a JSON handler can't decode is dead-lettered whole; a
// null value never becomes a zero struct.
func TestJSONHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type order struct{ N int }
		b := newBench(t, 1)
		var got, pointers []string
		h := messaging.JSON(func(_ context.Context, o order, d messaging.Delivery) error {
			got = append(got, fmt.Sprint(o.N))
			return nil
		})
		nullable := messaging.JSON(func(_ context.Context, o *order, d messaging.Delivery) error {
			pointers = append(pointers, fmt.Sprint(o == nil))
			return nil
		})
		b.work("p1", messaging.Config{Order: messaging.ByPartition}, func(ctx context.Context, d messaging.Delivery) error {
			if string(d.Key()) == "p" {
				return nullable(ctx, d)
			}
			return h(ctx, d)
		})
		rec := func(key string, value []byte) topic.Out {
			return topic.Out{Topic: work.Description, Key: []byte(key), Value: value}
		}
		b.PublishRecord(rec("k", []byte(`{"N":7}`)), rec("k", []byte(`{`)), rec("k", nil), rec("k", []byte{}), rec("k", []byte("null")), rec("p", nil), rec("p", []byte(`{"N":1}`)))
		b.idle("p1")
		if !slices.Equal(got, []string{"7"}) || !slices.Equal(pointers, []string{"true", "false"}) {
			t.Errorf("decoded %v and %v", got, pointers)
		}
		all := consumertest.CommittedEnvelopes(b.Cluster, letters)
		if len(all) != 4 {
			t.Fatalf("%d dead letters, want 4", len(all))
		}
		for i, want := range [][]byte{[]byte(`{`), nil, {}, []byte("null")} {
			if !same(all[i].Value, want) || header(all[i], "pawl-reason") != "decode" {
				t.Errorf("dead letter %d: %q with reason %q, want %q", i, all[i].Value, header(all[i], "pawl-reason"), want)
			}
		}
	})
}

// A batch has a result for each of its messages.
func TestRunBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.batch("p1", messaging.Config{Order: messaging.Unordered, BatchMax: 10}, func(_ context.Context, ds []messaging.Delivery) []error {
			if len(ds) > 10 {
				t.Errorf("a batch of %d, want at most 10", len(ds))
			}
			errs := make([]error, len(ds))
			for i, d := range ds {
				if string(d.Value()) == "m13" && d.Attempt() == 1 {
					errs[i] = errNo
				}
			}
			return errs
		})
		b.Publish(work, numbers("m", 100)...)
		b.idle("p1")
		for v, n := range b.values() {
			if want := map[bool]int{false: 1, true: 2}[v == "m13"]; n != want {
				t.Errorf("%s was handled %d times, want %d", v, n, want)
			}
		}
	})
}
