package consumer_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/topic"
)

// batches consumes messages in batches, by what program does with each, and
// notes how large they were.
type batches struct {
	program
	mu struct {
		sync.Mutex
		sizes []int
	}
	slow time.Duration // for each batch
}

func (b *batches) Consume(topic.Envelope, consumer.Shard, *topic.Publisher) error {
	return errors.New("Consume of a consumer of batches")
}

func (b *batches) ConsumeBatch(es []topic.Envelope, s consumer.Shard, p *topic.Publisher) error {
	b.mu.Lock()
	b.mu.sizes = append(b.mu.sizes, len(es))
	b.mu.Unlock()
	if b.slow > 0 {
		time.Sleep(b.slow) // virtual time
	}
	for i, e := range es {
		if e.Partition != es[0].Partition || i > 0 && e.Offset <= es[i-1].Offset {
			return fmt.Errorf("message %d of the batch is %d@%d, after %d@%d", i, e.Partition, e.Offset, es[0].Partition, es[0].Offset)
		}
		if err := b.program.Consume(e, s, p); err != nil {
			return err
		}
	}
	return nil
}

func (b *batches) seen() (largest, messages int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.mu.sizes {
		largest, messages = max(largest, n), messages+n
	}
	return largest, messages
}

// A consumer of batches is given what was fetched together, in order, and no
// more than is said at once.
func TestConsumeBatch(t *testing.T) {
	virtually(t, func(t *testing.T) {
		b := &batches{}
		c := consumertest.Start(t, b, consumer.Config{})
		release := c.Hold("p1", "Fetch")
		msgs := repeated(2500, "a", "b", "c", "d")
		send(c, msgs...)
		release()
		c.Settle()
		checkExact(t, c, countOf(msgs))
		largest, messages := b.seen()
		if largest < 100 || largest > 1000 {
			t.Errorf("the largest batch has %d messages, want some hundreds and at most 1000", largest)
		}
		if messages != len(msgs) {
			t.Errorf("batches hold %d messages, want %d", messages, len(msgs))
		}
		if got := c.Status("p1").Shards[0].Commits; got >= 100 {
			t.Errorf("%d commits of %d messages", got, len(msgs))
		}
	})
}

// A batch that fails is consumed again message by message, and the policy
// applied to the one that fails alone. The others are consumed once, whatever
// fails, and however.
func TestBatchThatFails(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error": func() error { return errors.New("refused") },
		"panic": func() error { panic("refused") },
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				b := &batches{}
				b.after = func(e topic.Envelope, _ consumer.Shard) error {
					if string(e.Key) == "bad" {
						return fail()
					}
					return nil
				}
				c := consumertest.Start(t, b, consumer.Config{OnFailure: consumer.DeadLetter})
				release := c.Hold("p1", "Fetch")
				msgs := append(append(repeated(20, "a", "b", "c"), "bad"), repeated(20, "a", "b", "c")...)
				msgs = append(append(msgs, "bad"), repeated(20, "a")...)
				send(c, msgs...)
				release()
				c.Settle()
				want := countOf(msgs)
				delete(want, "bad")
				checkExact(t, c, want)
				letters := consumertest.CommittedEnvelopes(c, topic.Bytes("test.words.dlq"))
				if len(letters) != 2 {
					t.Fatalf("%d dead letters, want 2", len(letters))
				}
				for _, l := range letters {
					if string(l.Key) != "bad" {
						t.Errorf("the dead letter of %q, want of the message that fails", l.Key)
					}
				}
			})
		})
	}
}

// Batches under crashes at any moment: every message has its effects once.
func TestBatchesSurviveCrashes(t *testing.T) {
	virtually(t, func(t *testing.T) {
		b := &batches{slow: 3 * time.Millisecond}
		c := consumertest.Start(t, b, consumer.Config{CreateTopics: 2, CommitInterval: 7 * time.Millisecond, FlushInterval: time.Second})
		var sent []string
		for i := range 12 {
			msgs := repeated(90, "a", "b", "c", "d", "e")
			send(c, msgs...)
			sent = append(sent, msgs...)
			c.Advance(time.Duration(5+7*i) * time.Millisecond)
			c.Crash("p1")
			c.Restart("p1")
		}
		c.Settle()
		checkExact(t, c, countOf(sent))
	})
}

// A batch that would take long is stopped between two of its kind, not in the
// middle: a stop waits for it, and commits it.
func TestStopWaitsForABatch(t *testing.T) {
	virtually(t, func(t *testing.T) {
		b := &batches{slow: 2 * time.Second}
		c := consumertest.Start(t, b, consumer.Config{})
		c.Settle()
		send(c, "a", "b")
		c.Advance(time.Second)
		if err := c.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		c.Restart("p1")
		c.Settle()
		checkExact(t, c, map[string]int{"a": 1, "b": 1})
		if _, messages := b.seen(); messages != 2 {
			t.Errorf("%d messages were consumed, want 2: the stop has committed what ran", messages)
		}
	})
}

// A message that is just small enough for its own topic is too large for the
// dead-letter topic, with what a letter adds. It is written all the same, with
// less, and the shard goes past it.
func TestDeadLetterThatIsTooLarge(t *testing.T) {
	value := strings.Repeat("0123456789abcdef", 1000) // 16,000 bytes
	headers := []topic.Header{{Key: "mine", Value: []byte(strings.Repeat("h", 2000))}}
	for name, test := range map[string]struct {
		limit       string // of the dead-letter topic; empty: as it is created
		wantValue   int
		wantOmitted string
	}{
		"created with room":       {"", 16_000, ""},
		"no room for the headers": {"17000", 16_000, "headers"},
		"no room for the message": {"5000", 0, "headers, key, value"},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				p := &program{before: func(e topic.Envelope, _ consumer.Shard) error {
					if string(e.Key) == "bad" {
						return errors.New(strings.Repeat("no ", 5000))
					}
					return nil
				}}
				c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.DeadLetter})
				c.SetTopic("words", "max.message.bytes", "20000")
				c.Settle()
				if test.limit != "" {
					c.SetTopic("test.words.dlq", "max.message.bytes", test.limit)
				}
				send(c, "a")
				c.PublishRecord(topic.Out{Topic: words.Description, Key: []byte("bad"), Value: []byte(value), Headers: headers})
				send(c, "a")
				c.Settle()
				checkExact(t, c, map[string]int{"a": 2})
				letters := consumertest.CommittedEnvelopes(c, topic.Bytes("test.words.dlq"))
				if len(letters) != 1 {
					t.Fatalf("%d dead letters, want 1", len(letters))
				}
				got := make(map[string]string)
				for _, h := range letters[0].Headers {
					got[h.Key] = string(h.Value)
				}
				if len(letters[0].Value) != test.wantValue || got[consumer.HeaderOmitted] != test.wantOmitted {
					t.Errorf("the letter has %d bytes and leaves out %q, want %d and %q", len(letters[0].Value), got[consumer.HeaderOmitted], test.wantValue, test.wantOmitted)
				}
				if got[consumer.HeaderTopic] != "words" || got[consumer.HeaderOffset] != "1" {
					t.Errorf("the letter is of %s at offset %s, want words at 1", got[consumer.HeaderTopic], got[consumer.HeaderOffset])
				}
				if _, ok := got["mine"]; ok != (test.wantOmitted == "") {
					t.Errorf("the message's own header is there: %v", ok)
				}
				if n := c.Metric("p1", "pawl_dead_letters_total"); n != 1 {
					t.Errorf("%v dead letters are counted, want 1", n)
				}
				// What was in the changelog is as if nothing had been refused.
				for _, e := range consumertest.CommittedEnvelopes(c, topic.Bytes("test.words.changelog")) {
					if changelog.IsForeign(e.Key) {
						t.Errorf("the changelog holds %q", e.Key)
					}
				}
			})
		})
	}
}
