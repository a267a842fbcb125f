package consumer_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/topic"
)

// A message that fails after a write, a publish and a change of Cache leaves no
// trace of the three, whatever the policy is; its neighbours are unharmed, and
// consumed once.
func TestFailureLeavesNoTrace(t *testing.T) {
	for policy, wantDead := range map[consumer.OnFailure]int{consumer.Skip: 0, consumer.DeadLetter: 1} {
		t.Run(string(policy), func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				p := &program{
					init: func(s consumer.Shard) error {
						if s.Cache() != nil {
							t.Errorf("InitShard finds a cache: %v", s.Cache())
						}
						s.SetCache(0)
						return nil
					},
					after: func(e topic.Envelope, s consumer.Shard) error {
						n := s.Cache().(int) + 1
						s.SetCache(n)
						if string(e.Key) == "bad" {
							return fmt.Errorf("refused, with %d in the cache", n)
						}
						return nil
					},
				}
				c := consumertest.Start(t, p, consumer.Config{OnFailure: policy})
				release := c.Hold("p1", "Fetch")
				send(c, "a", "b", "bad", "a", "c")
				release()
				c.Settle()
				checkExact(t, c, map[string]int{"a": 2, "b": 1, "c": 1})
				checkStored(t, c, "words-000", map[string]int{"a": 2, "b": 1, "c": 1})

				dead := 0
				if policy == consumer.DeadLetter {
					letters := consumertest.CommittedEnvelopes(c, topic.Bytes("test.words.dlq"))
					dead = len(letters)
					if dead == 1 {
						checkLetter(t, letters[0])
					}
				}
				if dead != wantDead {
					t.Errorf("%d dead letters, want %d", dead, wantDead)
				}
				if got := c.Metric("p1", "pawl_dropped_total") + c.Metric("p1", "pawl_dead_letters_total"); got != 1 {
					t.Errorf("%v messages are counted, want 1", got)
				}
			})
		})
	}
}

// checkLetter checks a dead letter of the message "bad" at offset 2.
func checkLetter(t *testing.T, e topic.Envelope) {
	t.Helper()
	got := make(map[string]string)
	for _, h := range e.Headers {
		got[h.Key] = string(h.Value)
	}
	for name, want := range map[string]string{
		consumer.HeaderTopic: "words", consumer.HeaderPartition: "0", consumer.HeaderOffset: "2", consumer.HeaderReason: "error",
	} {
		if got[name] != want {
			t.Errorf("header %s is %q, want %q", name, got[name], want)
		}
	}
	if !strings.Contains(got[consumer.HeaderError], "refused") {
		t.Errorf("header %s is %q", consumer.HeaderError, got[consumer.HeaderError])
	}
	if string(e.Key) != "bad" || string(e.Value) != "bad" {
		t.Errorf("the letter is %q: %q", e.Key, e.Value)
	}
}

// C30, for the dead letters of a shard: key and value, null or empty, and
// headers in their order, with duplicates, are what they were.
func TestDeadLetterIsTheMessage(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := &program{consume: func(topic.Envelope, consumer.Shard, *topic.Publisher) error {
			return errors.New(strings.Repeat("x\n", 1<<19) + "\xff\xfe")
		}}
		c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.DeadLetter})
		headers := []topic.Header{{Key: "a", Value: []byte{0, 0xff}}, {Key: "a", Value: []byte{}}, {Key: "", Value: []byte{1}}, {Key: "n"}}
		sent := []topic.Out{
			{Topic: words.Description, Value: []byte("v0")},
			{Topic: words.Description, Key: []byte{}, Value: []byte{}},
			{Topic: words.Description, Key: []byte("k")},
			{Topic: words.Description, Key: []byte("k"), Value: []byte("v3"), Headers: headers},
		}
		c.PublishRecord(sent...)
		c.Settle()
		got := consumertest.CommittedEnvelopes(c, topic.Bytes("test.words.dlq"))
		if len(got) != len(sent) {
			t.Fatalf("%d dead letters, want %d", len(got), len(sent))
		}
		for i, e := range got {
			if want := sent[i]; !same(e.Key, want.Key) || !same(e.Value, want.Value) {
				t.Errorf("letter %d is %#v: %#v, want %#v: %#v", i, e.Key, e.Value, want.Key, want.Value)
			}
			added := 0
			for j, h := range e.Headers {
				added += len(h.Key) + len(h.Value)
				if j < len(sent[i].Headers) {
					if want := sent[i].Headers[j]; h.Key != want.Key || !same(h.Value, want.Value) {
						t.Errorf("letter %d: header %d is %q=%#v, want %q=%#v", i, j, h.Key, h.Value, want.Key, want.Value)
					}
				} else if !strings.HasPrefix(h.Key, "pawl-") {
					t.Errorf("letter %d has a header %q of somebody's", i, h.Key)
				}
			}
			if added > 16<<10 {
				t.Errorf("letter %d has %d bytes of headers", i, added)
			}
		}
	})
}

// same compares bytes, nil and empty being different.
func same(a, b []byte) bool { return (a == nil) == (b == nil) && string(a) == string(b) }

// A panic is caught, and costs its shard alone: the others go on, and so does
// the process.
func TestPanicCostsOneShard(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var attempts atomic.Int64
		p := &program{before: func(e topic.Envelope, s consumer.Shard) error {
			if e.Partition == 1 && string(e.Value) == "poison" {
				attempts.Add(1)
				panic("as if a nil map had been written to")
			}
			return nil
		}}
		c := consumertest.Start(t, p, consumer.Config{CreateTopics: 3})
		for n := range int32(3) {
			c.PublishRecord(topic.Out{Topic: words.Description, Partition: n, Key: fmt.Appendf(nil, "k%d", n), Value: []byte("fine")})
		}
		c.Settle()
		c.PublishRecord(topic.Out{Topic: words.Description, Partition: 1, Key: []byte("k1"), Value: []byte("poison")})
		c.Advance(10 * time.Minute)
		for n := range int32(3) {
			c.PublishRecord(topic.Out{Topic: words.Description, Partition: n, Key: fmt.Appendf(nil, "k%d", n), Value: []byte("fine")})
		}
		c.Advance(10 * time.Second)
		for n, want := range []map[string]int{{"k0": 2}, nil, {"k2": 2}} {
			if want != nil {
				checkStored(t, c, consumer.ShardID(fmt.Sprintf("words-%03d", n)), want)
			}
		}
		st := c.Status("p1").Shards[1]
		if !strings.Contains(st.Reason, "a nil map") || !strings.Contains(st.Reason, "words-1 at offset 1") {
			t.Errorf("shard %s is %s: %q", st.ID, st.Phase, st.Reason)
		}
		// It neither loops hot nor gives up: with a back-off of 30 s at most,
		// ten minutes hold some 25 starts, of one or two attempts each.
		if n := attempts.Load(); n < 15 || n > 80 {
			t.Errorf("%d attempts in ten minutes", n)
		}
	})
}

// A message that can't be decoded fails like any other, and its reason says so.
func TestDecodeErrorFailsTheMessage(t *testing.T) {
	type event struct{ N int }
	events := topic.JSON[event]("events")
	virtually(t, func(t *testing.T) {
		sum, deleted := 0, 0
		p := &program{topics: []*topic.Description{events.Description}, consume: func(e topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
			m, ok, err := events.Message(e)
			switch {
			case err != nil:
				return err
			case !ok:
				deleted++ // C40: a tombstone is no zero value and no error
			}
			sum += m.N
			return nil
		}}
		c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.DeadLetter})
		for _, v := range [][]byte{[]byte(`{"N":1}`), []byte(`{"N":`), nil, {}, []byte(`{"N":2}`)} {
			c.PublishRecord(topic.Out{Topic: events.Description, Key: []byte("k"), Value: v})
			c.Settle()
		}
		if sum != 3 || deleted != 1 {
			t.Errorf("sum %d and %d deleted, want 3 and 1", sum, deleted)
		}
		letters := consumertest.CommittedEnvelopes(c, topic.Bytes("test.events.dlq"))
		if len(letters) != 2 {
			t.Fatalf("%d dead letters, want 2", len(letters))
		}
		for _, l := range letters {
			if i := slices.IndexFunc(l.Headers, func(h topic.Header) bool { return h.Key == consumer.HeaderReason }); string(l.Headers[i].Value) != "decode" {
				t.Errorf("reason is %s", l.Headers[i].Value)
			}
		}
	})
}

// A transient error is retried, with a back-off that grows, whatever the policy
// says; nothing passes the message meanwhile.
func TestTransientErrorIsRetried(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var times []time.Time
		p := &program{before: func(e topic.Envelope, s consumer.Shard) error {
			if string(e.Key) != "busy" {
				return nil
			}
			times = append(times, time.Now())
			if len(times) < 8 {
				return fmt.Errorf("call the service: %w", consumer.Transient(errors.New("no answer")))
			}
			return nil
		}}
		c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.Skip})
		send(c, "a", "busy", "a")
		c.Settle()
		checkExact(t, c, map[string]int{"a": 2, "busy": 1})
		if len(times) != 8 && len(times) != 9 { // once more if it failed together first
			t.Errorf("%d attempts", len(times))
		}
		for i := 3; i < len(times); i++ {
			if a, b := times[i-1].Sub(times[i-2]), times[i].Sub(times[i-1]); b < a {
				t.Errorf("attempt %d came after %v, the one before after %v", i+1, b, a)
			}
		}
	})
}

// A message that fails only together with others is not blamed: the shard goes
// on. After three such rounds in a row it counts as the failure of the last.
func TestMessagesThatFailOnlyTogether(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var l ledger
		p := &program{flush: func(s consumer.Shard, _ *topic.Publisher) error {
			n := 0
			for range counts.Changes(s.Transaction()) {
				n++
			}
			if n > 1 {
				l.note("failed")
				return errors.New("two keys at once")
			}
			return nil
		}}
		c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.Skip})
		for round := range 3 {
			release := c.Hold("p1", "Fetch")
			c.Advance(time.Second) // a fetch that the broker has is answered by then
			send(c, "a", "b")
			release()
			c.Settle()
			if got := l.count("failed"); got != round+1 {
				t.Fatalf("%d failures in round %d", got, round+1)
			}
		}
		// Of the six messages the last is passed: the third failure in a row
		// without a transaction of several that went well.
		checkExact(t, c, map[string]int{"a": 3, "b": 2})
		if got := c.Metric("p1", "pawl_dropped_total"); got != 1 {
			t.Errorf("%v messages are counted as skipped, want 1", got)
		}
	})
}

// Flush that fails for one message fails that message.
func TestFlushErrorFailsTheMessage(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := &program{flush: func(s consumer.Shard, _ *topic.Publisher) error {
			for key := range counts.Changes(s.Transaction()) {
				if key == "bad" {
					panic("flush of bad")
				}
			}
			return nil
		}}
		c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.DeadLetter})
		send(c, "a", "bad", "b", "bad", "a")
		c.Settle()
		checkExact(t, c, map[string]int{"a": 2, "b": 1})
		if got := len(consumertest.CommittedEnvelopes(c, topic.Bytes("test.words.dlq"))); got != 2 {
			t.Errorf("%d dead letters, want 2", got)
		}
	})
}

// Records buffered before an abort are not skipped after it: a failure anywhere
// among many leaves every other message consumed once.
func TestNothingIsSkippedAfterAnAbort(t *testing.T) {
	virtually(t, func(t *testing.T) {
		fails := map[int64]bool{0: true, 7: true, 8: true, 63: true, 64: true, 199: true}
		failed := make(map[int64]bool)
		p := &program{after: func(e topic.Envelope, s consumer.Shard) error {
			if fails[e.Offset] && !failed[e.Offset] {
				failed[e.Offset] = true
				return errors.New("once")
			}
			return nil
		}}
		c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.Retry})
		msgs := repeated(200, "a", "b", "c")
		release := c.Hold("p1", "Fetch")
		send(c, msgs...)
		release()
		c.Settle()
		checkExact(t, c, countOf(msgs))
		if len(failed) != len(fails) {
			t.Errorf("%d messages failed, want %d", len(failed), len(fails))
		}
	})
}

// HaltShard is called once for every InitShard that was called, also after its
// error or panic, and never beside Consume.
func TestInitAndHaltArePaired(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var l ledger
		var consuming atomic.Bool
		inits := 0
		p := &program{
			init: func(consumer.Shard) error {
				l.note("init")
				inits++
				switch inits {
				case 1:
					return errors.New("not yet")
				case 2:
					panic("not yet either")
				}
				return nil
			},
			halt: func(consumer.Shard) {
				if consuming.Load() {
					t.Error("HaltShard beside Consume")
				}
				l.note("halt")
			},
			before: func(e topic.Envelope, _ consumer.Shard) error {
				consuming.Store(true)
				defer consuming.Store(false)
				time.Sleep(time.Millisecond) // virtual time
				if string(e.Key) == "bad" {
					return errors.New("refused")
				}
				return nil
			},
		}
		c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.Skip})
		send(c, repeated(40, "a", "a", "a", "bad")...)
		c.Settle()
		c.DropReply("p1", "EndTxn", 1)
		send(c, "a")
		c.Settle()
		if err := c.Stop("p1"); err != nil {
			t.Error(err)
		}
		events := l.all()
		for i, e := range events {
			if want := []string{"init", "halt"}[i%2]; e != want {
				t.Fatalf("call %d is %s, want %s: %v", i, e, want, events)
			}
		}
		if len(events)%2 != 0 || len(events) < 8 {
			t.Errorf("%d calls: %v", len(events), events)
		}
	})
}

// A publisher is valid during its call alone.
func TestPublisherOutsideItsCall(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var kept *topic.Publisher
		p := &program{consume: func(e topic.Envelope, s consumer.Shard, pub *topic.Publisher) error {
			kept = pub
			return countLine(e, s, pub)
		}}
		c := consumertest.Start(t, p, consumer.Config{})
		send(c, "a")
		c.Settle()
		if err := lines.Publish(kept, "late"); !errors.Is(err, consumer.ErrOutsideCall) {
			t.Errorf("a publish outside of the call is answered with %v", err)
		}
		if err := c.Stop("p1"); err != nil {
			t.Error(err)
		}
		if err := lines.Publish(kept, "later"); !errors.Is(err, consumer.ErrFenced) {
			t.Errorf("a publish after the shard has stopped is answered with %v", err)
		}
	})
}

// An output that is not listed and does not exist fails its message by name,
// and neither the shard's other messages nor other shards.
func TestMissingOutputFailsTheMessage(t *testing.T) {
	nowhere := topic.String("nowhere")
	virtually(t, func(t *testing.T) {
		p := &program{consume: func(e topic.Envelope, s consumer.Shard, pub *topic.Publisher) error {
			if string(e.Key) == "bad" {
				return nowhere.Publish(pub, "x")
			}
			return countLine(e, s, pub)
		}}
		c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.DeadLetter})
		send(c, "a", "bad", "b")
		c.Settle()
		checkExact(t, c, map[string]int{"a": 1, "b": 1})
		letters := consumertest.CommittedEnvelopes(c, topic.Bytes("test.words.dlq"))
		if len(letters) != 1 {
			t.Fatalf("%d dead letters, want 1", len(letters))
		}
		if i := slices.IndexFunc(letters[0].Headers, func(h topic.Header) bool { return h.Key == consumer.HeaderError }); !strings.Contains(string(letters[0].Headers[i].Value), "nowhere") {
			t.Errorf("the error does not name the topic: %s", letters[0].Headers[i].Value)
		}
	})
}

// An output that is not listed is created at the first commit where it is said
// with how many partitions, and so is one that says so itself.
func TestMissingOutputIsCreated(t *testing.T) {
	bare, sized := topic.String("bare"), topic.String("sized").With(topic.Partitions(5))
	virtually(t, func(t *testing.T) {
		p := &program{consume: func(e topic.Envelope, s consumer.Shard, pub *topic.Publisher) error {
			return errors.Join(countLine(e, s, pub), bare.Publish(pub, string(e.Key)), sized.Publish(pub, string(e.Key)))
		}}
		c := consumertest.Start(t, p, consumer.Config{CreateTopics: 3})
		send(c, "a", "b", "a")
		c.Settle()
		checkExact(t, c, map[string]int{"a": 2, "b": 1})
		for _, out := range []*topic.Of[string]{&bare, &sized} {
			if got := len(consumertest.Committed(c, *out)); got != 3 {
				t.Errorf("%d messages in %s, want 3", got, out.Name())
			}
		}
		if failed := c.Status("p1").Shards[0].Reason; failed != "" {
			t.Errorf("a shard has failed: %s", failed)
		}
	})
}

// An output that can't be created fails its message by name, as the policy wants
// it, and not the shard; once it can be, the next message has it created.
func TestOutputThatCannotBeCreated(t *testing.T) {
	refused := topic.String("refused").With(topic.Partitions(2))
	virtually(t, func(t *testing.T) {
		p := &program{consume: func(e topic.Envelope, s consumer.Shard, pub *topic.Publisher) error {
			if string(e.Key) == "out" {
				return refused.Publish(pub, string(e.Value), topic.Key(e.Key))
			}
			return countLine(e, s, pub)
		}}
		c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.DeadLetter})
		send(c, "a")
		c.Settle()
		begun := c.Status("p1").Shards[0].Since
		allow := c.Fail("p1", "CreateTopics", "TOPIC_AUTHORIZATION_FAILED", -1)
		send(c, "out", "b", "out")
		c.Settle()
		checkExact(t, c, map[string]int{"a": 1, "b": 1})
		letters := consumertest.CommittedEnvelopes(c, topic.Bytes("test.words.dlq"))
		if len(letters) != 2 {
			t.Errorf("%d dead letters, want 2", len(letters))
		}
		for _, letter := range letters {
			i := slices.IndexFunc(letter.Headers, func(h topic.Header) bool { return h.Key == consumer.HeaderError })
			for _, want := range []string{"refused", "TOPIC_AUTHORIZATION_FAILED"} {
				if got := string(letter.Headers[i].Value); !strings.Contains(got, want) {
					t.Errorf("the error is %q, want it to name %q", got, want)
				}
			}
		}
		if got := c.Status("p1").Shards[0].Since; !got.Equal(begun) {
			t.Errorf("the shard has started again")
		}
		allow()
		send(c, "out", "b")
		c.Settle()
		checkExact(t, c, map[string]int{"a": 1, "b": 2})
		if got := consumertest.Committed(c, refused); len(got) != 1 {
			t.Errorf("%d messages in %s, want 1", len(got), refused.Name())
		}
	})
}

// A shard that has run for a while, with or without messages, backs off from the
// shortest pause again when it fails.
func TestBackoffBeginsAnew(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{BackoffMax: 10 * time.Second, SessionTimeout: 6 * time.Second})
		send(c, "a")
		c.Settle()
		for round := range 8 { // in none of which anything is committed
			c.Advance(12 * time.Second)
			c.Cut("p1")
			c.Advance(8 * time.Second) // so that the membership lapses
			c.Heal("p1")
			begun := time.Now()
			c.Until("the shard to run again", func() bool {
				st := c.Status("p1").Shards
				return len(st) == 1 && st[0].Phase == consumer.Running && st[0].Since.After(begun)
			})
			if took := time.Since(begun); took > 4*time.Second {
				t.Fatalf("outage %d: the shard took %v to run again", round, took)
			}
		}
	})
}
