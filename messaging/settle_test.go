package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/topic"
)

// keep collects deliveries that are settled later, by value.
type keep struct {
	mu sync.Mutex
	ds map[string]messaging.Delivery
}

func newKeep() *keep { return &keep{ds: make(map[string]messaging.Delivery)} }

func (k *keep) handle(_ context.Context, d messaging.Delivery) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ds[string(d.Value())] = d
	return messaging.Later
}

func (k *keep) get(value string) messaging.Delivery {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ds[value]
}

func (k *keep) len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.ds)
}

// Metadata of others, or damaged, is reported and ignored: nothing is skipped.
func TestForeignMetadata(t *testing.T) {
	for _, text := range []string{"someone else's", "pawl1.AAAAAAAAAAAA", "pawl9.x", "pawl1.!!"} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1)
				b.Publish(work, numbers("m", 10)...)
				consumertest.SetGroupOffset(b.Cluster, "test.worker", topic.Partition{Topic: "work"}, 4, text)
				b.work("p1", messaging.Config{Order: messaging.ByPartition}, nil)
				b.idle("p1")
				if got, want := b.order(), numbers("m", 10)[4:]; !slices.Equal(got, want) {
					t.Errorf("handled %v, want %v", got, want)
				}
			})
		})
	}
}

// The first settlement wins; a second says so; after a revoke both are fenced.
func TestSettleTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		k := newKeep()
		b.work("p1", messaging.Config{}, k.handle)
		b.Publish(work, "m0", "m1")
		b.Until("both to be handed out", func() bool { return k.len() == 2 })
		d := k.get("m0")
		if err := d.Ack(); err != nil {
			t.Fatal(err)
		}
		if err := d.Ack(); !errors.Is(err, messaging.ErrSettled) {
			t.Errorf("a second ack: %v, want %v", err, messaging.ErrSettled)
		}
		if err := d.Nack(); !errors.Is(err, messaging.ErrSettled) {
			t.Errorf("a nack after the ack: %v, want %v", err, messaging.ErrSettled)
		}
		late := k.get("m1")
		if err := b.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		if err := late.Ack(); !errors.Is(err, messaging.ErrFenced) {
			t.Errorf("an ack after the stop: %v, want %v", err, messaging.ErrFenced)
		}
		if err := late.Nack(); !errors.Is(err, messaging.ErrFenced) {
			t.Errorf("a nack after the stop: %v, want %v", err, messaging.ErrFenced)
		}
		if got, want := b.committed()[0], int64(1); got != want {
			t.Errorf("committed %d, want %d", got, want)
		}
	})
}

// C22: whatever happens, a committed offset is never above the end and never
// above the lowest unsettled one; on partitions that are empty or hold one
// message, through many rebalances.
func TestCommittedNeverBeyond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 4)
		cfg := messaging.Config{OnOffsetOutOfRange: messaging.Fail, CommitInterval: 20 * time.Millisecond}
		b.publish(1, "k", "one")
		b.work("p1", cfg, nil)
		b.running(4, "p1")
		for round := range 30 {
			b.work("p2", cfg, nil)
			if round%3 == 0 {
				b.publish(2, "k", fmt.Sprint("r", round))
			}
			b.Advance(time.Duration(50*round) * time.Millisecond)
			ends := consumertest.EndOffsets(b.Cluster, work)
			for n, o := range b.committed() {
				if o > ends[n] {
					t.Fatalf("round %d: partition %d is committed to %d and ends at %d", round, n, o, ends[n])
				}
			}
			if err := b.Stop("p2"); err != nil {
				t.Fatal(err)
			}
		}
		b.idle("p1")
		for v, n := range b.values() {
			if n != 1 {
				t.Errorf("%s was handled %d times: a partition that moves redelivers nothing that is settled", v, n)
			}
		}
	})
}

// C24: the committed offset fell out of retention: the level jumps to where
// there is something, and reaches the end.
func TestCommittedOutOfRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.work("p1", messaging.Config{}, nil)
		b.Publish(work, numbers("a", 100)...)
		b.idle("p1")
		if err := b.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		b.Publish(work, make([]string, 9_900)...)
		b.Trim("work", 0, 10_000)
		b.forget()
		b.Restart("p1")
		b.Publish(work, numbers("b", 10)...)
		b.idle("p1")
		if got, want := b.committed()[0], int64(10_010); got != want {
			t.Errorf("committed %d, want %d", got, want)
		}
		if got := b.order(); len(got) != 10 {
			t.Errorf("%d messages were handled, want the 10 that are there", len(got))
		}
		if got := b.stats("p1").Missed; got != 9_900 {
			t.Errorf("%d offsets were missed, want 9,900", got)
		}
	})
}

// C26: messages that retention removes while they are in flight leave the
// window when they are settled or revoked.
func TestRemovedWhileInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		k := newKeep()
		cfg := messaging.Config{Order: messaging.Unordered}
		b.work("p1", cfg, k.handle)
		b.Publish(work, numbers("m", 100)...)
		b.Until("all to be handed out", func() bool { return k.len() == 100 })
		b.Publish(work, "last")
		b.Trim("work", 0, 100)
		for i := range 50 {
			if err := k.get(fmt.Sprint("m", i)).Ack(); err != nil {
				t.Fatal(err)
			}
		}
		b.Advance(time.Second)
		b.Crash("p1")
		b.work("p2", cfg, nil)
		b.Advance(30 * time.Second)
		b.idle("p2")
		if st := b.stats("p2").Partitions[0]; st.InFlight != 0 || st.Backlog != 0 {
			t.Errorf("in flight %d, backlog %d at rest, want 0", st.InFlight, st.Backlog)
		}
		if got := b.values()["last"]; got < 1 {
			t.Errorf("the message after the gap was not handled")
		}
	})
}

// C27: messages that wait in the client's buffer do not use up their time.
func TestDeadlineCountsFromHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		cfg := messaging.Config{Concurrency: 1, HandlerTimeout: 500 * time.Millisecond}
		b.work("p1", cfg, func(ctx context.Context, _ messaging.Delivery) error {
			select {
			case <-time.After(400 * time.Millisecond):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		b.Publish(work, numbers("m", 1000)...)
		b.Advance(410 * time.Second)
		b.idle("p1")
		if got := len(b.calls()); got != 1000 {
			t.Errorf("handlers were called %d times, want 1,000", got)
		}
	})
}

// A handler that outlives its time limit has its context ended, which is a
// failed attempt.
func TestHandlerTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.work("p1", messaging.Config{HandlerTimeout: time.Second}, func(ctx context.Context, d messaging.Delivery) error {
			if d.Attempt() == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		b.Publish(work, "m")
		b.idle("p1")
		if got := b.stats("p1"); got.Failed != 1 || got.Acked != 1 {
			t.Errorf("failed %d, acked %d, want 1 and 1", got.Failed, got.Acked)
		}
	})
}

// A forgotten ack shows: its offset, key and age, and then a health that says
// so.
func TestForgottenAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		k := newKeep()
		b.work("p1", messaging.Config{StuckAfter: time.Minute}, k.handle)
		b.publish(0, "k", "m")
		b.Until("it to be handed out", func() bool { return k.len() == 1 })
		if err := b.worker("p1").Health(); err != nil {
			t.Errorf("health: %v, want nil", err)
		}
		b.Advance(2 * time.Minute)
		o := b.stats("p1").Partitions[0].Oldest
		if o == nil || o.Offset != 0 || string(o.Key) != "k" || time.Since(o.Handed) < 2*time.Minute {
			t.Errorf("the oldest unsettled is %+v, want offset 0 with its age", o)
		}
		if err := b.worker("p1").Health(); err == nil {
			t.Error("health is good, want it to name the stuck message")
		}
		if err := k.get("m").Ack(); err != nil {
			t.Fatal(err)
		}
		if err := b.worker("p1").Health(); err != nil {
			t.Errorf("health: %v, want nil", err)
		}
	})
}

// A partition whose oldest message is stuck stops at its limit, and only it.
func TestLimitPausesOnePartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		k := newKeep()
		cfg := messaging.Config{MaxUnsettled: 100, Order: messaging.Unordered}
		b.work("p1", cfg, func(ctx context.Context, d messaging.Delivery) error {
			if d.Partition() == 0 {
				return k.handle(ctx, d)
			}
			return nil
		})
		for i := range 50 {
			b.publish(0, "k", numbers(fmt.Sprint("a", i, "-"), 100)...)
			b.publish(1, "k", numbers(fmt.Sprint("b", i, "-"), 100)...)
			b.Advance(100 * time.Millisecond)
		}
		b.Advance(time.Second)
		st := b.stats("p1")
		if st.Acked != 5000 {
			t.Errorf("%d acked in the other partition, want 5,000", st.Acked)
		}
		if p := st.Partitions[0]; !p.Full || p.Backlog >= 2000 || p.Backlog < 100 {
			t.Errorf("the stuck partition: full %v, backlog %d, want it full at about 100", p.Full, p.Backlog)
		}
		for k.len() < 5000 {
			for _, v := range b.order() {
				if d := k.get(v); d != nil {
					d.Ack() // most were acked before
				}
			}
			b.Advance(100 * time.Millisecond)
		}
	})
}

// C46: what compaction has left nothing of is passed by who lists letters.
func TestNothingLeftOfLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.CreateTopic(letters, 1)
		for i := range 20 {
			b.PublishRecord(topic.Out{Topic: letters.Description, Key: []byte("k"), Value: fmt.Append(nil, "l", i)})
		}
		b.Clean("test.worker.dlq", 0, 0, 7)
		var got []string
		for l, err := range openLetters(t, b).List(context.Background(), messaging.Query{}) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(l.Value))
		}
		if len(got) != 13 || got[0] != "l7" {
			t.Errorf("%d letters are listed, from %v, want 13 from l7", len(got), got)
		}
	})
}
