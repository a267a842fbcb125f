package messaging_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/messaging"
)

// lags checks what the one partition's lag is: what was published and not read.
func (b *bench) lags(when string) {
	b.t.Helper()
	p := b.stats("p1").Partitions[0]
	want := consumertest.EndOffsets(b.Cluster, work)[0] - p.Position
	if p.Lag != want {
		b.t.Errorf("%s: the lag is %d, want %d: up to %d", when, p.Lag, want, p.Position)
	}
	if when != "at the end" && want == 0 {
		b.t.Errorf("%s: there is no lag to be seen", when)
	}
}

// The lag of a partition that is full grows with what is published, and comes
// down to nothing when there is room.
func TestLagWhileFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		release := make(chan struct{})
		b.work("p1", messaging.Config{MaxUnsettled: 20}, func(ctx context.Context, d messaging.Delivery) error {
			<-release
			return nil
		})
		for range 6 {
			b.publish(0, "k", numbers("m", 50)...)
			b.Advance(2 * time.Second)
		}
		b.Advance(2 * lagKnown)
		if !b.stats("p1").Partitions[0].Full {
			t.Error("the partition is not full")
		}
		b.lags("while it is full")
		close(release)
		b.idle("p1")
		b.lags("at the end")
	})
}

// lagKnown is how long it takes at most until a lag is true again.
const lagKnown = 11 * time.Second

// Likewise while the consumer is paused, for long enough that no more is fetched.
func TestLagWhilePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.work("p1", messaging.Config{MaxBytes: 1 << 20}, nil)
		b.running(1, "p1")
		b.worker("p1").Pause()
		for range 20 {
			b.Publish(work, numbers("m", 1000)...)
			b.Advance(time.Second)
		}
		b.Advance(2 * lagKnown)
		b.lags("while it is paused")
		b.worker("p1").Resume()
		b.idle("p1")
		b.lags("at the end")
	})
}

// A partition that can't be read is unready, with the reason, and its lag grows;
// both end with the failure, also where nothing is there to be read.
func TestUnreadable(t *testing.T) {
	for code, says := range map[string]string{"": "", "NOT_LEADER_OR_FOLLOWER": "NOT_LEADER", "TOPIC_AUTHORIZATION_FAILED": "TOPIC_AUTHORIZATION_FAILED", "KAFKA_STORAGE_ERROR": "KAFKA_STORAGE_ERROR"} {
		t.Run(code, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1)
				b.work("p1", messaging.Config{}, nil)
				b.running(1, "p1")
				b.publish(0, "k", numbers("m", 10)...)
				b.Advance(5 * time.Second)
				b.unready("p1")
				remove := b.Fail("p1", "Fetch", code, -1)
				b.Advance(20 * time.Second)
				b.unready("p1") // it may be a broker that restarts
				b.publish(0, "k", numbers("n", 100)...)
				b.Advance(40 * time.Second)
				b.unready("p1", "work-0 can't be read for", says)
				if r := b.stats("p1").Partitions[0].Reason; r == "" {
					t.Error("its stats give no reason")
				}
				b.lags("while it can't be read")
				remove()
				b.idle("p1")
				b.unready("p1")
				b.lags("at the end")

				remove = b.Fail("p1", "Fetch", code, -1)
				b.Advance(time.Minute)
				b.unready("p1", "can't be read")
				remove()
				b.Advance(3 * time.Second)
				b.unready("p1")
				if r := b.stats("p1").Partitions[0].Reason; r != "" {
					t.Errorf("it is given a reason when it can be read: %s", r)
				}
			})
		})
	}
}

// Whoever has a consumer of a client sees how it is, and pauses it.
func TestInspector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		c, err := newClient(t, b, messaging.Config{}).NewConsumer("test", "worker")
		if err != nil {
			t.Fatal(err)
		}
		in, ok := c.(messaging.Inspector)
		if !ok {
			t.Fatalf("%T is no Inspector", c)
		}
		if in.Health() == nil {
			t.Error("one that has not started is healthy")
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer c.Stop()
		b.Until("it to run", func() bool { return len(in.Stats().Partitions) == 1 && in.Health() == nil })
		in.Pause()
		b.publish(0, "k", "m")
		b.Advance(time.Second)
		select {
		case m := <-c.Messages():
			t.Errorf("message %q came in a pause", m.Value())
		default:
		}
		if st := in.Stats(); !st.Paused || st.Partitions[0].Oldest == nil {
			t.Errorf("stats %+v, want it to be paused with a message that waits", st)
		}
		in.Resume()
		if err := (<-c.Messages()).Ack(); err != nil {
			t.Error(err)
		}
	})
}
