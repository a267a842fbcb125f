package consumer_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// Programs that do what is allowed, and seldom done.

// What InitShard writes belongs to the next transaction, whatever that is, and is
// written once for each that commits.
func TestInitShardWrites(t *testing.T) {
	virtually(t, func(t *testing.T) {
		bad := true
		p := &program{
			init: func(s consumer.Shard) error {
				_, err := counts.Update(s.Transaction(), "inits", func(n int64) int64 { return n + 1 })
				return err
			},
			after: func(e topic.Envelope, s consumer.Shard) error {
				if string(e.Key) == "bad" && bad {
					return errors.New("refused")
				}
				return nil
			},
		}
		c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.Skip})
		c.Settle()
		checkStored(t, c, "words-000", map[string]int{}) // nothing is committed without a message
		send(c, "a")
		c.Settle()
		checkStored(t, c, "words-000", map[string]int{"a": 1, "inits": 1})
		send(c, "bad") // two aborts at most, each with an InitShard, and one transaction that passes it
		c.Settle()
		checkStored(t, c, "words-000", map[string]int{"a": 1, "inits": 2})
		c.Crash("p1")
		c.Restart("p1")
		c.Settle()
		checkStored(t, c, "words-000", map[string]int{"a": 1, "inits": 2})
		send(c, "b")
		c.Settle()
		checkStored(t, c, "words-000", map[string]int{"a": 1, "b": 1, "inits": 3})
	})
}

// A HaltShard that panics is counted, and costs nothing else.
func TestHaltShardPanics(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := &program{
			halt: func(consumer.Shard) { panic("no") },
			after: func(e topic.Envelope, s consumer.Shard) error {
				if string(e.Key) == "bad" {
					return errors.New("refused")
				}
				return nil
			},
		}
		c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.Skip})
		send(c, "a", "bad", "b")
		c.Settle()
		if got := c.Metric("p1", "pawl_halt_failures_total"); got < 1 {
			t.Errorf("%v panics are counted", got)
		}
		if err := c.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		c.Restart("p1")
		c.Settle()
		checkExact(t, c, map[string]int{"a": 1, "b": 1})
	})
}

// A value that its codec can't encode fails the message that stored it, and no
// other.
func TestValueThatCannotBeEncoded(t *testing.T) {
	picky := store.NewTable("picky", store.String, store.JSON[any]())
	virtually(t, func(t *testing.T) {
		p := &program{after: func(e topic.Envelope, s consumer.Shard) error {
			if string(e.Key) == "bad" {
				return picky.Put(s.Transaction(), "k", func() {})
			}
			return picky.Put(s.Transaction(), "k", string(e.Key))
		}}
		c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.DeadLetter})
		sendTogether(c, "a", "bad", "b", "bad")
		checkExact(t, c, map[string]int{"a": 1, "b": 1, "decoy": 1})
		if got := len(consumertest.CommittedEnvelopes(c, topic.Bytes("test.words.dlq"))); got != 2 {
			t.Errorf("%d dead letters, want 2", got)
		}
		c.View("words-000", func(tx *store.Transaction) {
			if v, ok, err := picky.Get(tx, "k"); v != "b" || !ok || err != nil {
				t.Errorf("the value is %v, %v, %v, want b", v, ok, err)
			}
		})
	})
}

// Two applications consume one topic, each as if it were alone.
func TestTwoApplications(t *testing.T) {
	second := topic.String("second-lines")
	virtually(t, func(t *testing.T) {
		q := &program{outputs: []*topic.Description{second.Description}, consume: func(e topic.Envelope, s consumer.Shard, pub *topic.Publisher) error {
			n, err := counts.Update(s.Transaction(), string(e.Key), func(n int64) int64 { return n + 10 })
			if err != nil {
				return err
			}
			return second.Publish(pub, fmt.Sprint(n))
		}}
		c := consumertest.Start(t, &program{}, consumer.Config{CreateTopics: 2, Application: "a"})
		c.StartApp("q", consumer.Config{Application: "a-b"}, q)
		msgs := repeated(40, "x", "y", "z")
		send(c, msgs...)
		c.Settle()
		c.Crash("q")
		send(c, msgs...)
		c.Advance(time.Second)
		c.Restart("q")
		c.Settle()
		checkExact(t, c, countOf(append(msgs, msgs...)))
		if got, want := len(consumertest.Committed(c, second)), 2*len(msgs); got != want {
			t.Errorf("the second application has published %d messages, want %d", got, want)
		}
	})
}

// Two consumers of one application are as independent: one that fails does not
// hold up the other.
func TestTwoConsumers(t *testing.T) {
	left, right := topic.String("left"), topic.String("right")
	virtually(t, func(t *testing.T) {
		p := &program{topics: []*topic.Description{left.Description}, before: func(topic.Envelope, consumer.Shard) error { return errors.New("always") }}
		q := &program{topics: []*topic.Description{right.Description}}
		c := consumertest.StartWith(t, consumer.Config{}, p, q)
		consumertest.PublishKeyed(c, left, "l", "x")
		for range 20 {
			consumertest.PublishKeyed(c, right, "r", "x")
			c.Advance(time.Second)
		}
		checkStored(t, c, "right-000", map[string]int{"r": 20})
		checkExact(t, c, map[string]int{"r": 20})
	})
}

// Topics that are declared co-partitioned have one shard for each partition, whose
// state holds both sides; and topics that differ in partitions can't be.
func TestCoPartitioned(t *testing.T) {
	left, right := topic.String("left").With(topic.Set("pair")), topic.String("right").With(topic.Set("pair"))
	virtually(t, func(t *testing.T) {
		joined := topic.String("joined")
		sides := store.NewTable("sides", store.String, store.String)
		p := &program{topics: []*topic.Description{left.Description, right.Description}, outputs: []*topic.Description{joined.Description}}
		p.consume = func(e topic.Envelope, s consumer.Shard, pub *topic.Publisher) error {
			mine, other := "l/"+string(e.Key), "r/"+string(e.Key)
			if e.TopicName() == "right" {
				mine, other = other, mine
			}
			if err := sides.Put(s.Transaction(), mine, string(e.Value)); err != nil {
				return err
			}
			v, ok, err := sides.Get(s.Transaction(), other)
			if err != nil || !ok {
				return err
			}
			return joined.Publish(pub, fmt.Sprintf("%s=%s+%s", e.Key, e.Value, v))
		}
		c := consumertest.Start(t, p, consumer.Config{CreateTopics: 3})
		const n = 30
		for i := range n {
			consumertest.PublishKeyed(c, left, fmt.Sprint("k", i), "l")
			if i%5 == 0 {
				c.Advance(20 * time.Millisecond)
				c.Crash("p1")
				c.Restart("p1")
			}
			consumertest.PublishKeyed(c, right, fmt.Sprint("k", i), "r")
		}
		c.Settle()
		if got := len(consumertest.Committed(c, joined)); got != n {
			t.Errorf("%d pairs were joined, want %d", got, n)
		}
		shards := c.Status("p1").Shards
		if len(shards) != 3 {
			t.Errorf("%d shards, want 3", len(shards))
		}
		for _, s := range shards {
			if !strings.HasPrefix(string(s.ID), "pair-") || len(s.Offsets) != 2 {
				t.Errorf("shard %s consumes %v, want both topics", s.ID, s.Offsets)
			}
		}
	})
	virtually(t, func(t *testing.T) {
		c := consumertest.NewCluster(t)
		c.CreateTopic(left, 3)
		c.CreateTopic(right, 2)
		c.StartApp("p1", consumer.Config{}, &program{topics: []*topic.Description{left.Description, right.Description}})
		err := c.Wait("p1")
		if err == nil {
			t.Fatal("a set of topics with 3 and 2 partitions is consumed")
		}
		for _, want := range []string{"pair", "left", "right", "3", "2"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("the error does not say %q: %v", want, err)
			}
		}
	})
}

// A state directory that can't be one is an error that names it, at start.
func TestStateDirectoryBelowAFile(t *testing.T) {
	virtually(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{file, filepath.Join(file, "below"), "/proc/pawl"} {
			c := consumertest.NewCluster(t)
			c.StartApp("p1", consumer.Config{StateDir: dir}, &program{})
			if err := c.Wait("p1"); err == nil || !strings.Contains(err.Error(), dir) {
				t.Errorf("state directory %s: %v", dir, err)
			}
		}
	})
}

// A stop ends a shard that fences or restores, at once.
func TestStopDuringTheStart(t *testing.T) {
	for name, held := range map[string]string{"fencing": "InitProducerID", "the start record": "EndTxn", "restoring": "Fetch", "the changelog's end": "ListOffsets", "joining": "JoinGroup", "the assignment": "SyncGroup"} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				c := consumertest.Start(t, &program{}, consumer.Config{})
				send(c, "a", "b")
				c.Settle()
				if err := c.Stop("p1"); err != nil {
					t.Fatal(err)
				}
				c.Hold("p2", held)
				c.StartProcess("p2")
				c.Advance(3 * time.Second)
				if name == "restoring" { // it is live, and says that it is not ready
					if got := c.Status("p2").Shards[0].Phase; got != consumer.Restoring {
						t.Errorf("the shard is %s, want restoring", got)
					}
					if err := c.App("p2").Ready(); err == nil || !strings.Contains(err.Error(), "shard words-000 is restoring") {
						t.Errorf("readiness says %v, want that the shard is restoring", err)
					}
				}
				begun := time.Now()
				if err := c.Stop("p2"); err != nil {
					t.Errorf("stop: %v", err)
				}
				// Joining holds up what says that the member leaves.
				if took := time.Since(begun); took > 11*time.Second || took > time.Second && held != "JoinGroup" && held != "SyncGroup" {
					t.Errorf("the stop took %v", took)
				}
				c.StartProcess("p3")
				send(c, "a")
				c.Settle()
				checkExact(t, c, map[string]int{"a": 2, "b": 1})
			})
		})
	}
}

// An InitShard that fails at first is tried again, with a back-off; the shard
// says why meanwhile.
func TestInitShardFailsForAWhile(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var tries atomic.Int64
		p := &program{init: func(consumer.Shard) error {
			if tries.Add(1) < 5 {
				return errors.New("not yet")
			}
			return nil
		}}
		c := consumertest.Start(t, p, consumer.Config{})
		send(c, "a")
		c.Advance(500 * time.Millisecond)
		if st := c.Status("p1").Shards[0]; st.Phase != consumer.Failed || !strings.Contains(st.Reason, "not yet") {
			t.Errorf("the shard is %s: %s", st.Phase, st.Reason)
		}
		c.Settle()
		checkExact(t, c, map[string]int{"a": 1})
		if n := tries.Load(); n != 5 {
			t.Errorf("InitShard was called %d times, want 5", n)
		}
	})
}

// The counters that have reasons have all of them from the start: what is alerted
// on when it grows would otherwise miss the first event.
func TestCountersByReasonBeginAtZero(t *testing.T) {
	registry := prometheus.NewRegistry()
	virtually(t, func(t *testing.T) {
		consumertest.Start(t, &program{}, consumer.Config{Registerer: registry}).Settle()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[string]int)
		for _, f := range families {
			got[f.GetName()] = len(f.GetMetric())
		}
		for name, want := range map[string]int{"pawl_failed_messages_total": 3, "pawl_dead_letters_total": 3, "pawl_dropped_total": 4, "pawl_state_discarded_total": 4} {
			if got[name] != want {
				t.Errorf("%s has %d series at the start, want %d", name, got[name], want)
			}
		}
	})
}
