package consumer

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

var (
	aheadTopic = topic.String("ahead")
	aheadTable = store.NewTable("ahead-counts", store.String, store.Int64)
)

// aheadCounter counts messages by key, and notes how many Prefetch is given.
type aheadCounter struct {
	sizes []int
	fail  func() error
}

func (c *aheadCounter) Topics() []*topic.Description {
	return []*topic.Description{aheadTopic.Description}
}

func (c *aheadCounter) Consume(e topic.Envelope, s Shard, _ *topic.Publisher) error {
	_, err := aheadTable.Update(s.Transaction(), string(e.Key), func(n int64) int64 { return n + 1 })
	return err
}

func (c *aheadCounter) Flush(Shard, *topic.Publisher) error { return nil }

func (c *aheadCounter) Prefetch(es []topic.Envelope, s Shard) error {
	c.sizes = append(c.sizes, len(es))
	if c.fail != nil {
		return c.fail()
	}
	keys := make([]string, len(es))
	for i, e := range es {
		keys[i] = string(e.Key)
	}
	return aheadTable.Prefetch(s.Transaction(), keys)
}

// aheadShard is a worker over a database whose tables keep little at hand.
type aheadShard struct {
	t     *testing.T
	c     *aheadCounter
	owner *store.Owner
	w     *worker
	next  int64
}

func newAheadShard(t *testing.T, cache int64) *aheadShard {
	owner, err := store.Open(store.Config{Dir: t.TempDir(), Options: store.Options{TableCache: cache}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := owner.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &aheadShard{t: t, c: &aheadCounter{}, owner: owner}
	h := newHandle(t.Context(), "ahead-000", topic.Partition{Topic: aheadTopic.Name()}, owner)
	s.w = newWorker(h, s.c, owner, 1<<30)
	s.w.ahead.always = false // also in builds that check invariants
	return s
}

func (s *aheadShard) messages(keys ...string) kafka.Messages {
	es := make([]topic.Envelope, len(keys))
	for i, k := range keys {
		es[i] = topic.Envelope{Topic: aheadTopic.Description, Offset: s.next, Key: []byte(k), Timestamp: time.Unix(0, 0)}
		s.next++
	}
	return kafka.MessagesOf(aheadTopic.Description, es...)
}

// consume consumes messages in one call, commits, and returns how many Prefetch
// was given.
func (s *aheadShard) consume(keys ...string) (sizes []int) {
	s.t.Helper()
	s.c.sizes = nil
	var r result
	if err := s.w.consume(s.messages(keys...), &r); err != nil || r.n != len(keys) {
		s.t.Fatalf("%d of %d messages were consumed: %v", r.n, len(keys), err)
	}
	if _, err := s.owner.Seal(); err != nil {
		s.t.Fatal(err)
	}
	if err := s.owner.Apply([]byte("p")); err != nil {
		s.t.Fatal(err)
	}
	return s.c.sizes
}

func someKeys(from, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("k%06d", (from+i)*7919%1_000_003)
	}
	return keys
}

// Prefetch is called while messages look up keys in the database, and then only.
func TestPrefetchOnlyWhereKeysAreCold(t *testing.T) {
	s := newAheadShard(t, 32<<10) // room for some hundred keys
	// All keys are new: after some, there is a filter that tells so.
	for i := range 12 {
		s.consume(someKeys(1000*i, 1000)...)
	}
	if got := s.consume(someKeys(20_000, 5000)...); len(got) > 1 {
		t.Errorf("Prefetch was given %v of 5000 messages with new keys, want one chunk at most, before a filter is there", got)
	}
	// The same again are there, and no longer at hand.
	s.consume(someKeys(20_000, 100)...)
	if got, want := s.consume(someKeys(20_100, 4500)...), []int{2000, 2000, 500}; !slices.Equal(got, want) {
		t.Errorf("Prefetch was given %v of 4500 messages with cold keys, want %v", got, want)
	}
	// A few keys again and again are at hand.
	hot := someKeys(0, 20)
	s.consume(append(hot, hot...)...)
	s.consume(append(hot, hot...)...)
	for range 10 {
		if got := s.consume(slices.Repeat(hot, 10)...); len(got) > 0 {
			t.Fatalf("Prefetch was given %v of messages whose keys are at hand, want none", got)
		}
	}
	// Cold ones among them that are fewer than one in eight are not worth it.
	mixed := slices.Repeat(hot, 10)
	for i := range 10 {
		mixed[i*20] = someKeys(i, 1)[0]
	}
	s.consume(mixed...)
	if got := s.consume(mixed...); len(got) > 0 {
		t.Errorf("Prefetch was given %v of messages of which one in twenty is cold, want none", got)
	}
}

// A chunk that takes several calls is read ahead once.
func TestPrefetchOncePerChunk(t *testing.T) {
	s := newAheadShard(t, 1<<20)
	s.w.ahead.cold = true
	msgs := s.messages(someKeys(0, 1000)...)
	calls := 0
	for n := 0; n < msgs.Len(); calls++ {
		s.w.yield.Store(true) // after each message
		var r result
		if err := s.w.consume(msgs.Slice(n, msgs.Len()), &r); err != nil || r.n != 1 {
			t.Fatalf("a call consumed %d messages: %v; want 1", r.n, err)
		}
		n += r.n
	}
	if got, want := s.c.sizes, []int{1000}; !slices.Equal(got, want) {
		t.Errorf("in %d calls Prefetch was given %v messages, want %v", calls, got, want)
	}
	// Those of before come again, after a failure.
	var r result
	s.w.yield.Store(false)
	if err := s.w.consume(msgs, &r); err != nil || r.n != 1000 {
		t.Fatalf("%d messages were consumed again: %v", r.n, err)
	}
}

// A failure is told, fails nothing, and makes Prefetch rest: for longer each
// time, and not for ever.
func TestPrefetchRestsAfterAFailure(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error": func() error { return errors.New("no keys") },
		"panic": func() error { panic("no keys") },
	} {
		t.Run(name, func(t *testing.T) {
			s := newAheadShard(t, 1<<20)
			s.c.fail = fail
			failures := 0
			const chunks = 1100
			for i := range chunks {
				s.w.ahead.cold = true
				var r result
				if err := s.w.consume(s.messages(someKeys(16*i, 16)...), &r); err != nil || r.n != 16 {
					t.Fatalf("chunk %d: %d messages were consumed: %v", i, r.n, err)
				}
				s.w.ahead.lookups, s.w.ahead.consumed = 16, 16
				if r.ahead != nil {
					failures++
				}
			}
			if failures != len(s.c.sizes) || failures < 8 || failures > 12 {
				t.Errorf("in %d chunks Prefetch failed %d times in %d calls, want each told, and about 10", chunks, failures, len(s.c.sizes))
			}
			s.c.fail, s.c.sizes = nil, nil
			for i := range 1100 {
				s.w.ahead.cold = true
				var r result
				if err := s.w.consume(s.messages(someKeys(16*i, 16)...), &r); err != nil || r.ahead != nil {
					t.Fatalf("chunk %d: %v, %v", i, err, r.ahead)
				}
				s.w.ahead.lookups, s.w.ahead.consumed = 16, 16
			}
			if len(s.c.sizes) < 10 {
				t.Errorf("after its failures Prefetch was called %d times for %d chunks, want it back once it succeeds", len(s.c.sizes), 1100)
			}
		})
	}
}
