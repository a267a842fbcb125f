package consumertest_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// journal notes what is called, and does as its functions say.
type journal struct {
	topics   []*topic.Description
	calls    []string
	consume  func(topic.Envelope, consumer.Shard, *topic.Publisher) error
	flush    func(consumer.Shard, *topic.Publisher) error
	initFail error
}

func (j *journal) Topics() []*topic.Description { return j.topics }

func (j *journal) Consume(e topic.Envelope, s consumer.Shard, p *topic.Publisher) error {
	j.calls = append(j.calls, fmt.Sprintf("consume %s-%d@%d %q", e.TopicName(), e.Partition, e.Offset, e.Key))
	if j.consume == nil {
		return nil
	}
	return j.consume(e, s, p)
}

func (j *journal) Flush(s consumer.Shard, p *topic.Publisher) error {
	j.calls = append(j.calls, "flush")
	if j.flush == nil {
		return nil
	}
	return j.flush(s, p)
}

func (j *journal) InitShard(s consumer.Shard) error {
	j.calls = append(j.calls, fmt.Sprintf("init %s cache=%v", s.ID(), s.Cache()))
	return j.initFail
}

func (j *journal) HaltShard(s consumer.Shard) {
	j.calls = append(j.calls, fmt.Sprintf("halt cache=%v", s.Cache()))
}

func (j *journal) InitOptions(o *store.Options) {
	j.calls = append(j.calls, "options")
	o.MemTableSize = 1 << 20
}

func diff(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
}

// The calls come in the order in which an application makes them.
func TestShardCalls(t *testing.T) {
	j := &journal{topics: []*topic.Description{words.Description}}
	j.consume = func(_ topic.Envelope, s consumer.Shard, _ *topic.Publisher) error { s.SetCache("warm"); return nil }
	t.Run("shard", func(t *testing.T) {
		s := consumertest.NewShard(t, j)
		s.Commit() // nothing to commit
		s.Consume(words, "k", "v")
		s.Commit()
		s.Consume(words, "", "v")
		s.Abort()
		s.Consume(words, "k", "v")
		s.Reopen()
		s.Consume(words, "k", "v")
		s.Commit()
	})
	diff(t, "calls", j.calls, []string{
		"options", "init words-000 cache=<nil>",
		`consume words-0@0 "k"`, "flush",
		`consume words-0@1 ""`,
		"halt cache=warm", "init words-000 cache=<nil>", // Abort
		`consume words-0@1 "k"`,
		"halt cache=warm", "init words-000 cache=<nil>", // Reopen
		`consume words-0@1 "k"`, "flush",
		"halt cache=warm", // the test's end
	})
}

// A message that fails leaves nothing behind: not a write, not a message, not
// the cache. What was committed before stays, also when the store is opened
// anew.
func TestShardFailure(t *testing.T) {
	bad := errors.New("bad")
	j := &journal{topics: []*topic.Description{words.Description}}
	j.consume = func(e topic.Envelope, s consumer.Shard, p *topic.Publisher) error {
		s.SetCache(string(e.Key))
		if _, err := counts.Update(s.Transaction(), string(e.Key), func(n int64) int64 { return n + 1 }); err != nil {
			return err
		}
		if err := totals.Publish(p, Total{string(e.Key), 1}); err != nil {
			return err
		}
		switch string(e.Value) {
		case "error":
			return bad
		case "panic":
			panic("boom")
		}
		return nil
	}
	s := consumertest.NewShard(t, j)
	state := func() (all []string) {
		t.Helper()
		if err := s.Shard().Database().View(func(tx *store.Transaction) error {
			for k, n := range counts.All(tx) {
				all = append(all, fmt.Sprint(k, "=", n))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return all
	}
	s.Consume(words, "a", "")
	s.Commit()
	s.Consume(words, "b", "") // shares the fate of the next
	if err := s.TryConsume(words, "c", "error"); !errors.Is(err, bad) || !strings.Contains(err.Error(), `words-0 at offset 2 with key "c"`) {
		t.Errorf("TryConsume = %v, want the consumer's error and the message's place", err)
	}
	if got := s.Shard().Cache(); got != nil {
		t.Errorf("cache = %v after a failure, want nil", got)
	}
	var p *consumer.PanicError
	if err := s.TryConsume(words, "d", "panic"); !errors.As(err, &p) || p.Value != "boom" {
		t.Errorf("TryConsume = %v, want a panic", err)
	}
	j.flush = func(consumer.Shard, *topic.Publisher) error { return bad }
	s.Consume(words, "e", "")
	if err := s.TryCommit(); !errors.Is(err, bad) {
		t.Errorf("TryCommit = %v, want the error of Flush", err)
	}
	j.flush = nil
	s.Commit() // nothing is open
	diff(t, "state", state(), []string{"a=1"})
	s.Reopen()
	diff(t, "state of the reopened store", state(), []string{"a=1"})
	if got, want := consumertest.Published(s, totals), []Total{{"a", 1}}; !slices.Equal(got, want) {
		t.Errorf("published %v, want %v", got, want)
	}
	if got := s.Commits(); got != 1 {
		t.Errorf("%d commits, want 1", got)
	}
}

// A shard consumes the topics of one set, and its messages can be anything
// that a topic can hold.
func TestShardEnvelopes(t *testing.T) {
	left := topic.JSON("left", topic.KeyedBy(func(t Total) string { return t.Word })).With(topic.Set("both"))
	right := topic.Bytes("right").With(topic.Set("both"))
	alone := topic.Bytes("alone")
	j := &journal{topics: []*topic.Description{alone.Description, right.Description, left.Description}}
	var got []string
	j.consume = func(e topic.Envelope, s consumer.Shard, p *topic.Publisher) error {
		got = append(got, fmt.Sprintf("%s-%d@%d key=%q nil=%v value=%q nil=%v", e.TopicName(), e.Partition, e.Offset, e.Key, e.Key == nil, e.Value, e.Value == nil))
		return totals.PublishTombstone(p, string(e.Key))
	}
	s := consumertest.NewShard(t, j, consumertest.OfTopic(right), consumertest.OfPartition(7))
	if got, want := s.Shard().ID(), consumer.ShardID("both-007"); got != want {
		t.Errorf("ID = %s, want %s", got, want)
	}
	if got, want := s.Shard().Partition(), (topic.Partition{Topic: "left", Number: 7}); got != want {
		t.Errorf("partition = %s, want %s", got, want)
	}
	s.Consume(left, "", Total{"w", 1})
	s.Consume(right, "", []byte{})
	for _, e := range []topic.Envelope{
		{Topic: right.Description, Key: []byte{}, Offset: 5},
		{Topic: right.Description, Value: []byte{0xff}},
	} {
		if err := s.ConsumeEnvelope(e); err != nil {
			t.Fatal(err)
		}
	}
	diff(t, "messages", got, []string{
		`left-7@0 key="w" nil=false value="{\"Word\":\"w\",\"Count\":1}" nil=false`,
		`right-7@0 key="" nil=true value="" nil=false`,
		`right-7@5 key="" nil=false value="" nil=true`,
		`right-7@6 key="" nil=true value="\xff" nil=false`,
	})
	s.Commit()
	if got := consumertest.Published(s, totals); got != nil {
		t.Errorf("published %v, want only tombstones", got)
	}
	if got := consumertest.PublishedEnvelopes(s, totals); len(got) != 4 || string(got[0].Key) != "w" || got[0].Value != nil || got[3].Offset != 3 {
		t.Errorf("published %+v, want 4 tombstones, the first for w", got)
	}
}

// What is kept of a shard beyond its time answers ErrFenced, and a publisher
// beyond its call ErrOutsideCall.
func TestShardHandles(t *testing.T) {
	j := &journal{topics: []*topic.Description{words.Description}}
	var kept *topic.Publisher
	j.consume = func(_ topic.Envelope, _ consumer.Shard, p *topic.Publisher) error { kept = p; return nil }
	s := consumertest.NewShard(t, j)
	s.Consume(words, "a", "")
	old := s.Shard()
	if err := totals.Publish(kept, Total{}); !errors.Is(err, consumer.ErrOutsideCall) {
		t.Errorf("Publish after Consume = %v, want ErrOutsideCall", err)
	}
	s.Reopen()
	if err := old.Transaction().Put([]byte("k"), nil); !errors.Is(err, consumer.ErrFenced) {
		t.Errorf("Put after the shard's end = %v, want ErrFenced", err)
	}
	if err := totals.Publish(kept, Total{}); !errors.Is(err, consumer.ErrFenced) {
		t.Errorf("Publish after the shard's end = %v, want ErrFenced", err)
	}
	if old.Context().Err() == nil {
		t.Error("the context goes on after the shard's end")
	}
}

// It needs no tag in a bubble, and no bubble.
func TestShardInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { TestCounter(t) })
}

// What fails a test is told by running this test binary again.
func TestShardFailsTest(t *testing.T) {
	const mode = "PAWL_TEST_FAILING"
	bad := &journal{topics: []*topic.Description{words.Description}}
	bad.consume = func(topic.Envelope, consumer.Shard, *topic.Publisher) error { return errors.New("not today") }
	cases := []struct {
		name, want string
		run        func(t *testing.T)
	}{
		{"consume", "consume message words-0 at offset 0 with key \"a\": not today", func(t *testing.T) { consumertest.NewShard(t, bad).Consume(words, "a", "") }},
		{"init", "InitShard of shard words-000: no", func(t *testing.T) {
			consumertest.NewShard(t, &journal{topics: bad.topics, initFail: errors.New("no")})
		}},
		{"topic", "does not consume topic \"totals\"", func(t *testing.T) {
			consumertest.NewShard(t, bad).Consume(totals, "", Total{})
		}},
		{"type", "messages of type string, not int", func(t *testing.T) { consumertest.NewShard(t, bad).Consume(words, "", 1) }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if os.Getenv(mode) != "" {
				c.run(t)
				return
			}
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$")
			cmd.Env = append(os.Environ(), mode+"=1")
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), c.want) {
				t.Errorf("got %v and:\n%s\nwant a failure with %q", err, out, c.want)
			}
		})
	}
}

// reader reads ahead for messages that come together.
type reader struct {
	journal
	keys  []string
	fails error
}

var readerCounts = store.NewTable("reader-counts", store.String, store.Int64)

func (r *reader) Prefetch(es []topic.Envelope, s consumer.Shard) error {
	var keys []string
	for _, e := range es {
		keys = append(keys, string(e.Key))
	}
	r.keys = append(r.keys, keys...)
	if err := readerCounts.Put(s.Transaction(), "x", 1); !errors.Is(err, store.ErrReadOnly) {
		return fmt.Errorf("a write while reading ahead: %v; want ErrReadOnly", err)
	}
	return errors.Join(r.fails, readerCounts.Prefetch(s.Transaction(), keys))
}

// Prefetch is called before messages that come together. Its error is the test's
// business if nothing else fails.
func TestShardReadsAhead(t *testing.T) {
	r := &reader{journal: journal{topics: []*topic.Description{words.Description}}}
	r.consume = func(e topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
		if string(e.Key) == "bad" {
			return errors.New("refused")
		}
		_, err := readerCounts.Update(s.Transaction(), string(e.Key), func(n int64) int64 { return n + 1 })
		return err
	}
	tb := &recorder{TB: t}
	s := consumertest.NewShard(tb, r)
	of := func(keys ...string) (es []topic.Envelope) {
		for _, k := range keys {
			es = append(es, topic.Envelope{Topic: words.Description, Key: []byte(k)})
		}
		return es
	}
	s.Consume(words, "alone", "v")
	if err := s.ConsumeEnvelopes(of("a", "b", "a")...); err != nil {
		t.Fatal(err)
	}
	s.Commit()
	diff(t, "keys that were read ahead", r.keys, []string{"a", "b", "a"})
	r.fails = errors.New("no keys")
	if err := s.ConsumeEnvelopes(of("a", "bad")...); err == nil {
		t.Error("a message that fails did not")
	}
	diff(t, "errors of the test", tb.errors, nil)
	if err := s.ConsumeEnvelopes(of("a", "b")...); err != nil {
		t.Fatal(err)
	}
	if len(tb.errors) != 1 || !strings.Contains(tb.errors[0], "no keys") {
		t.Errorf("errors of the test are %q, want that of Prefetch", tb.errors)
	}
}

// recorder keeps errors of a test.
type recorder struct {
	testing.TB
	errors []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}
