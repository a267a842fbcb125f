package messaging_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/messaging"
)

// held is what a process holds, of each partition and in all.
func (b *bench) held(process string) (each []int64, all int64) {
	for _, p := range b.stats(process).Partitions {
		each = append(each, p.Bytes)
		all += p.Bytes
	}
	return each, all
}

// large returns n values of about so many bytes, each its own.
func large(prefix string, n, size int) (vs []string) {
	for _, v := range numbers(prefix, n) {
		vs = append(vs, v+"-"+strings.Repeat("x", size))
	}
	return vs
}

// ackAll acks whatever is kept until that is n messages in all.
func (b *bench) ackAll(k *keep, n int, process string) {
	b.t.Helper()
	acked := 0
	b.Until(fmt.Sprint(n, " messages to be acked"), func() bool {
		k.mu.Lock()
		ds := slices.Collect(maps.Values(k.ds))
		clear(k.ds)
		k.mu.Unlock()
		for _, d := range ds {
			if err := d.Ack(); err != nil {
				b.t.Error(err)
			}
		}
		acked += len(ds)
		return acked == n
	})
	b.idle(process)
}

// Many partitions hold no more than the limit together, however much there is
// and however slow their handlers are; and all of it is handled.
func TestPartitionsShareTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const partitions, messages, size, limit = 20, 100, 1000, 400_000
		b := newBench(t, partitions)
		k := newKeep()
		for p := range int32(partitions) {
			for i := range messages / 10 { // batches of 10 kB
				b.publish(p, "k", large(fmt.Sprint("p", p, "-", i, "-"), 10, size)...)
			}
		}
		b.work("p1", messaging.Config{MaxBytes: limit, Order: messaging.Unordered}, k.handle)
		// A batch is more than the share of a stream: each input may have the rest
		// of one beside what there is.
		const bound = limit + partitions*(10*(size+300)-limit/2/(partitions*5))
		for range 200 {
			b.Advance(50 * time.Millisecond)
			if each, all := b.held("p1"); all > bound {
				t.Fatalf("the partitions hold %d bytes, %d in all, want %d at most", each, all, bound)
			}
		}
		each, all := b.held("p1")
		if all < limit/2 {
			t.Errorf("the partitions hold %d bytes in all, want more than half of the limit", all)
		}
		for p, n := range each {
			if n == 0 {
				t.Errorf("nothing is read of partition %d", p)
			}
		}
		b.ackAll(k, partitions*messages, "p1")
		if _, all := b.held("p1"); all != 0 {
			t.Errorf("the process holds %d bytes, and all is settled", all)
		}
	})
}

// A partition whose messages are stuck takes no more than others can do without:
// they go on.
func TestStuckPartitionStarvesNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 200_000
		b := newBench(t, 4)
		k := newKeep()
		cfg := messaging.Config{MaxBytes: limit, Order: messaging.Unordered}
		b.work("p1", cfg, func(ctx context.Context, d messaging.Delivery) error {
			if d.Partition() == 0 {
				return k.handle(ctx, d)
			}
			return nil
		})
		for i := range 100 {
			b.publish(0, "k", large(fmt.Sprint("stuck", i, "-"), 5, 1000)...)
		}
		b.Advance(5 * time.Second)
		for i := range 100 {
			for p := int32(1); p < 4; p++ {
				b.publish(p, "k", large(fmt.Sprint("p", p, "-", i, "-"), 5, 1000)...)
			}
		}
		b.Advance(10 * time.Second)
		st := b.stats("p1")
		if st.Acked != 1500 {
			t.Errorf("%d acked in the other partitions, want 1,500", st.Acked)
		}
		for i, p := range st.Partitions {
			if stuck := i == 0; p.Full != stuck || stuck && (p.Bytes < limit/5 || p.Bytes > limit/2) || !stuck && p.Bytes != 0 {
				t.Errorf("partition %d is full: %v, and holds %d bytes", i, p.Full, p.Bytes)
			}
		}
		b.ackAll(k, 500, "p1")
	})
}

// An input that has taken all it can does not keep messages of a delay topic
// from being read: the stuck ones' key goes on when its first message comes
// back.
func TestFullInputStarvesNoDelayTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		k := newKeep()
		cfg := messaging.Config{MaxBytes: 100_000, Retry: messaging.Retry{InPlace: 1, Tiers: []time.Duration{time.Second}}}
		b.work("p1", cfg, func(ctx context.Context, d messaging.Delivery) error {
			switch key := string(d.Key()); {
			case key == "retried" && d.Attempt() == 1:
				return errNo
			case key == "retried":
				return nil
			}
			return k.handle(ctx, d)
		})
		retried := large("retried-", 10, 8000)
		b.publish(0, "retried", retried...)
		for i := range 100 { // each of its own key, and all of them stuck
			b.publish(0, fmt.Sprint("stuck-", i), large(fmt.Sprint("stuck-", i, "-"), 1, 1000)...)
		}
		b.Advance(2 * time.Minute)
		st := b.stats("p1").Partitions[0]
		if !st.Full || k.len() == 0 || k.len() == 100 {
			t.Errorf("the input is full: %v, with %d of 100 messages stuck; want it full", st.Full, k.len())
		}
		got := b.values()
		for _, v := range retried {
			if got[v] != 2 {
				t.Fatalf("%.10q was handled %d times beside a full input, want twice", v, got[v])
			}
		}
		b.ackAll(k, 100, "p1")
	})
}

// Delay topics full of messages that are not due don't keep the input from
// being read.
func TestFullDelayTopicStarvesNoInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 100_000
		b := newBench(t, 1)
		cfg := messaging.Config{MaxBytes: limit, Order: messaging.Unordered, Breaker: messaging.Breaker{Failures: -1}, Retry: messaging.Retry{InPlace: 1, Tiers: []time.Duration{10 * time.Minute, 11 * time.Minute, 12 * time.Minute}}}
		b.work("p1", cfg, func(_ context.Context, d messaging.Delivery) error {
			if string(d.Key()) == "retried" && d.Attempt() == 1 {
				return errNo
			}
			return nil
		})
		for i := range 100 {
			b.publish(0, "retried", large(fmt.Sprint("retried-", i, "-"), 5, 1000)...)
		}
		b.Advance(time.Minute)
		st := b.stats("p1").Partitions[0]
		if st.Delayed == 0 || st.Delayed > limit/1300 || !st.Full {
			t.Errorf("%d messages wait until they are due, and the partition is full: %v; want some, and it full", st.Delayed, st.Full)
		}
		for i := range 100 {
			b.publish(0, "k", large(fmt.Sprint("k", i, "-"), 5, 1000)...)
		}
		b.Advance(10 * time.Second)
		if got := b.stats("p1").Acked; got != 500 {
			t.Errorf("%d messages were acked beside a full delay topic, want 500", got)
		}
		b.Advance(20 * time.Minute)
		b.idle("p1")
		if got := b.stats("p1").Acked; got != 1000 {
			t.Errorf("%d messages were acked in the end, want 1,000", got)
		}
	})
}

// A key that is held back by a message far behind in a full delay topic goes on.
func TestKeyHeldBackInFullDelayTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		cfg := messaging.Config{MaxBytes: 40_000, Retry: messaging.Retry{InPlace: 1, Tiers: []time.Duration{time.Second, 5 * time.Second}}}
		b.work("p1", cfg, func(_ context.Context, d messaging.Delivery) error {
			if strings.HasPrefix(string(d.Value()), "first") && d.Attempt() <= 2 {
				return errNo
			}
			return nil
		})
		want := make(map[string][]string)
		for i := range 20 {
			key := fmt.Sprint("key-", i)
			want[key] = append(large("first-"+key+"-", 1, 1000), large(key+"-", 20, 1000)...)
			b.publish(0, key, want[key]...)
		}
		b.Advance(5 * time.Minute)
		b.idle("p1")
		got := make(map[string][]string)
		for _, h := range b.calls() {
			if n := len(got[h.key]); n == 0 || got[h.key][n-1] != h.value { // another attempt at the first
				got[h.key] = append(got[h.key], h.value)
			}
		}
		for key, vs := range want {
			if fmt.Sprint(got[key]) != fmt.Sprint(vs) {
				t.Errorf("of %s were handled %.400q, want %.400q", key, got[key], vs)
			}
		}
	})
}

// A message that is larger than the whole limit is handled, in the input and
// in a delay topic, and so are others beside it.
func TestMessageAboveTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		cfg := messaging.Config{MaxBytes: 10_000, Retry: messaging.Retry{InPlace: 1, Tiers: []time.Duration{time.Second}}}
		b.work("p1", cfg, func(_ context.Context, d messaging.Delivery) error {
			if d.Attempt() == 1 {
				return errNo
			}
			return nil
		})
		all := append(large("huge-", 3, 500_000), numbers("small-", 100)...)
		for p := range int32(2) {
			for i, v := range all {
				b.publish(p, fmt.Sprint("k", i), v)
			}
		}
		b.Advance(5 * time.Minute)
		b.idle("p1")
		got := b.values()
		for _, v := range all {
			if got[v] != 4 {
				t.Errorf("%.10q was handled %d times in two partitions, want twice in each", v, got[v])
			}
		}
	})
}

// What a partition holds is given back when it is revoked: the others have it.
func TestLimitIsGivenBackOnRevoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 200_000
		b := newBench(t, 2)
		k := newKeep()
		cfg := messaging.Config{MaxBytes: limit, Order: messaging.Unordered, DrainTimeout: time.Second, Retry: messaging.Retry{Tiers: []time.Duration{}}}
		b.work("p1", cfg, k.handle)
		b.running(2, "p1")
		for _, p := range []int32{1, 0} { // the first borrows most
			for i := range 100 {
				b.publish(p, "k", large(fmt.Sprint("p", p, "-", i, "-"), 5, 1000)...)
			}
			b.Advance(10 * time.Second)
		}
		// Of four streams each has a share of an eighth, and half is lent.
		if each, _ := b.held("p1"); len(each) != 2 || each[1] < limit/4 || each[0] < limit/8 || each[0] > limit*3/10 {
			t.Fatalf("the partitions hold %d bytes of %d, want the second to have the more", each, limit)
		}
		b.work("p2", cfg, k.handle)
		b.running(1, "p2")
		b.Advance(10 * time.Second)
		if each, _ := b.held("p1"); len(each) != 1 || each[0] < limit*4/10 || each[0] > limit/2 {
			t.Errorf("the partition that is left holds %d bytes of %d, want as much as one alone may have", each, limit)
		}
	})
}
