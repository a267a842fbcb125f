package consumer_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/topic"
)

// I9: the deadline bounds a stop also when the group's coordinator, or the whole
// cluster, does not answer.
func TestI9StopEndsWithoutAnAnswer(t *testing.T) {
	for name, breaks := range map[string]func(c *consumertest.Cluster){
		"frozen":          func(c *consumertest.Cluster) { c.Freeze("p1") },
		"cut":             func(c *consumertest.Cluster) { c.Cut("p1") },
		"no OffsetCommit": func(c *consumertest.Cluster) { c.Hold("p1", "OffsetCommit") },
		"no LeaveGroup":   func(c *consumertest.Cluster) { c.Hold("p1", "LeaveGroup") },
		"no EndTxn":       func(c *consumertest.Cluster) { c.Hold("p1", "EndTxn") },
		"no Produce":      func(c *consumertest.Cluster) { c.Hold("p1", "Produce") },
		"no Heartbeat":    func(c *consumertest.Cluster) { c.Hold("p1", "Heartbeat") },
		"no Fetch":        func(c *consumertest.Cluster) { c.Hold("p1", "Fetch") },
		"no Metadata":     func(c *consumertest.Cluster) { c.Hold("p1", "Metadata") },
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				const limit = 20 * time.Second
				c := consumertest.Start(t, &program{}, consumer.Config{CreateTopics: 2, DrainTimeout: limit})
				msgs := repeated(20, "a", "b", "c")
				send(c, msgs...)
				c.Settle()
				breaks(c)
				more := repeated(20, "a", "b", "c")
				send(c, more...)
				c.Advance(1500 * time.Millisecond) // long enough for the next advice to be on its way
				begun := time.Now()
				if err := c.Stop("p1"); err != nil {
					t.Errorf("stop: %v", err)
				}
				if took := time.Since(begun); took > limit+limit/10+time.Second {
					t.Errorf("the stop took %v, with a deadline of %v", took, limit)
				}
				c.StartProcess("p2")
				c.Settle()
				checkExact(t, c, countOf(append(msgs, more...)))
			})
		})
	}
}

// I9: the same deadline holds for a shard that the group takes away: a Consume
// that does not return is abandoned, and what it still does has no effect. The
// shard comes back here only once it has returned.
func TestI9MovedShardIsAbandoned(t *testing.T) {
	virtually(t, func(t *testing.T) {
		stuck, late := make(chan struct{}), make(chan error, 1)
		first := true
		p := &program{before: func(e topic.Envelope, s consumer.Shard) error {
			if string(e.Key) == "stuck" && first {
				first = false
				<-stuck
				_, err := counts.Update(s.Transaction(), "late", func(n int64) int64 { return n + 1 })
				late <- err
			}
			return nil
		}}
		c := consumertest.Start(t, p, consumer.Config{CreateTopics: 2, DrainTimeout: 10 * time.Second})
		c.Settle()
		for n := range int32(2) {
			c.PublishRecord(topic.Out{Topic: words.Description, Partition: n, Key: []byte("a"), Value: []byte("a")})
		}
		c.Settle()
		c.PublishRecord(topic.Out{Topic: words.Description, Partition: 0, Key: []byte("stuck"), Value: []byte("x")})
		c.Advance(time.Second)
		c.StartProcess("p2") // which is given the first shard
		c.Advance(5 * time.Second)
		here := func() string {
			for _, s := range c.Status("p1").Shards {
				if s.ID == "words-000" {
					return string(s.Phase) + " " + s.Reason
				}
			}
			return "gone"
		}
		if got := here(); !strings.HasPrefix(got, "draining") {
			t.Errorf("the shard that was taken away is %s in the process that had it, want draining", got)
		}
		checkStored(t, c, "words-000", map[string]int{"a": 1, "stuck": 1}) // in p2
		c.Advance(15 * time.Second)
		if got := c.Metric("p1", "pawl_abandoned_calls_total"); got != 1 {
			t.Errorf("%v calls were abandoned, want 1", got)
		}
		if got := here(); !strings.Contains(got, "abandoned") {
			t.Errorf("the shard is %s, want it to say what it waits for", got)
		}
		if err := c.Stop("p2"); err != nil { // p1 has the shard again, but not yet the database
			t.Fatal(err)
		}
		c.Advance(5 * time.Second)
		if err := c.App("p1").Ready(); err == nil || !strings.Contains(err.Error(), "abandoned") {
			t.Errorf("readiness says %v, want what was abandoned", err)
		}
		close(stuck)
		c.Settle()
		if err := <-late; !errors.Is(err, consumer.ErrFenced) {
			t.Errorf("a late write: %v, want ErrFenced", err)
		}
		checkStored(t, c, "words-000", map[string]int{"a": 1, "stuck": 1})
	})
}

// A Consume that waits for the end of its context does not hold up a stop for
// longer than half of the time there is.
func TestConsumeThatWaitsForItsContext(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := &program{before: func(e topic.Envelope, s consumer.Shard) error {
			if string(e.Key) == "waits" {
				<-s.Context().Done()
				return s.Context().Err()
			}
			return nil
		}}
		c := consumertest.Start(t, p, consumer.Config{DrainTimeout: 10 * time.Second, OnFailure: consumer.Skip})
		send(c, "a", "waits", "b")
		c.Advance(time.Second)
		begun := time.Now()
		if err := c.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > 6*time.Second {
			t.Errorf("the stop took %v, want half of 10s", took)
		}
		if got := c.Metric("p1", "pawl_dropped_total"); got != 0 {
			t.Errorf("%v messages were skipped because of a stop", got)
		}
	})
}

// A Consume that ends its goroutine, as t.FailNow does, fails its message.
func TestGoexitFailsTheMessage(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := &program{before: func(e topic.Envelope, s consumer.Shard) error {
			if string(e.Key) == "exits" {
				runtime.Goexit()
			}
			return nil
		}}
		c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.DeadLetter})
		send(c, "a", "exits", "b", "exits", "a")
		c.Settle()
		checkExact(t, c, map[string]int{"a": 2, "b": 1})
		letters := consumertest.CommittedEnvelopes(c, topic.Bytes("test.words.dlq"))
		if len(letters) != 2 {
			t.Fatalf("%d dead letters, want 2", len(letters))
		}
		for _, h := range letters[0].Headers {
			if h.Key == consumer.HeaderError && !strings.Contains(string(h.Value), "Goexit") {
				t.Errorf("the error is %q", h.Value)
			}
		}
	})
}
