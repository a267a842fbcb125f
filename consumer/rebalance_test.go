package consumer_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// runningIn returns which shards run in a process.
func runningIn(c *consumertest.Cluster, name string) (ids []consumer.ShardID) {
	for _, s := range c.Status(name).Shards {
		if s.Phase == consumer.Running {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// C06: a rebalance that does not move a shard costs that shard nothing: no
// transaction is aborted, no message consumed twice.
func TestRebalanceCostsOthersNothing(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var mu sync.Mutex
		consumed := make(map[string]int)
		p := &program{before: func(e topic.Envelope, s consumer.Shard) error {
			mu.Lock()
			defer mu.Unlock()
			consumed[fmt.Sprintf("%s/%d", s.ID(), e.Offset)]++
			return nil
		}}
		c := consumertest.Start(t, p, consumer.Config{CreateTopics: 12})
		c.StartProcess("p2")
		c.StartProcess("p3")
		c.Until("the shards to be shared", func() bool {
			return len(runningIn(c, "p1")) == 4 && len(runningIn(c, "p2")) == 4 && len(runningIn(c, "p3")) == 4
		})
		var keys []string
		for i := range 48 {
			keys = append(keys, fmt.Sprintf("k%d", i))
		}
		var sent []string
		load := func() {
			for range 10 {
				send(c, keys...)
				sent = append(sent, keys...)
				c.Advance(20 * time.Millisecond)
			}
		}
		load()
		stayed := append(runningIn(c, "p1"), runningIn(c, "p2")...)
		aborts := c.Metric("p1", "pawl_aborts_total") + c.Metric("p2", "pawl_aborts_total") + c.Metric("p1", "pawl_shard_failures_total") + c.Metric("p2", "pawl_shard_failures_total")
		if err := c.Stop("p3"); err != nil {
			t.Fatal(err)
		}
		load()
		c.Settle()
		checkExact(t, c, countOf(sent))
		if got := c.Metric("p1", "pawl_aborts_total") + c.Metric("p2", "pawl_aborts_total") + c.Metric("p1", "pawl_shard_failures_total") + c.Metric("p2", "pawl_shard_failures_total"); got != aborts {
			t.Errorf("%v transactions were aborted or shards failed", got-aborts)
		}
		for at, n := range consumed {
			id, _, _ := strings.Cut(at, "/")
			if n > 1 && slices.Contains(stayed, consumer.ShardID(id)) {
				t.Errorf("message %s was consumed %d times by a shard that stayed", at, n)
			}
		}
	})
}

// Partitions divide among the processes, and move when one dies. One that
// comes back within its session has its shards at once.
func TestShardsMove(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{CreateTopics: 8, SessionTimeout: 10 * time.Second})
		c.StartProcess("p2")
		c.Until("the shards to be shared", func() bool { return len(runningIn(c, "p1")) == 4 && len(runningIn(c, "p2")) == 4 })
		msgs := repeated(100, "a", "b", "c", "d", "e", "f", "g", "h")
		send(c, msgs...)
		c.Settle()

		mine := runningIn(c, "p2")
		c.Crash("p2")
		begun := time.Now()
		c.Restart("p2")
		c.Until("the shards to come back", func() bool { return slices.Equal(runningIn(c, "p2"), mine) })
		if took := time.Since(begun); took > time.Second {
			t.Errorf("a restart within the session took %v", took)
		}
		if len(runningIn(c, "p1")) != 4 {
			t.Errorf("p1 runs %v", runningIn(c, "p1"))
		}

		c.Crash("p2")
		begun = time.Now()
		c.Until("the other to take over", func() bool { return len(runningIn(c, "p1")) == 8 })
		if took := time.Since(begun); took > 12*time.Second {
			t.Errorf("the takeover took %v, with a session of 10s", took)
		}
		send(c, msgs...)
		c.Settle()
		checkExact(t, c, countOf(append(msgs, msgs...)))

		c.Restart("p2")
		c.Until("the shards to be shared again", func() bool { return len(runningIn(c, "p1")) == 4 && len(runningIn(c, "p2")) == 4 })
		if err := c.Stop("p1"); err != nil {
			t.Error(err)
		}
		begun = time.Now()
		c.Until("the other to take over after a stop", func() bool { return len(runningIn(c, "p2")) == 8 })
		if took := time.Since(begun); took > time.Second {
			t.Errorf("the takeover after a clean stop took %v", took)
		}
	})
}

// A stop with KeepMembership keeps the shards for a process that comes back.
func TestStopThatKeepsMembership(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{CreateTopics: 4, KeepMembership: true})
		c.StartProcess("p2")
		c.Until("the shards to be shared", func() bool { return len(runningIn(c, "p1")) == 2 && len(runningIn(c, "p2")) == 2 })
		if err := c.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		c.Advance(3 * time.Second)
		if got := len(runningIn(c, "p2")); got != 2 {
			t.Errorf("p2 runs %d shards, want 2", got)
		}
		c.Restart("p1")
		c.Until("the shards to come back", func() bool { return len(runningIn(c, "p1")) == 2 })
		send(c, "a", "b", "c")
		c.Settle()
		checkExact(t, c, map[string]int{"a": 1, "b": 1, "c": 1})
	})
}

// Assignments that come faster than they are acted on: processes join and
// leave all the time, and nothing is lost or doubled.
func TestManyRebalances(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{CreateTopics: 5, SessionTimeout: 6 * time.Second})
		var sent []string
		for i := range 12 {
			name := fmt.Sprintf("p%d", 2+i%3)
			msgs := repeated(25, "a", "b", "c", "d", "e")
			send(c, msgs...)
			sent = append(sent, msgs...)
			switch {
			case i < 3:
				c.StartProcess(name)
			case i%2 == 0:
				c.Crash(name)
				c.Advance(time.Duration(i) * 10 * time.Millisecond)
				c.Restart(name)
			default:
				if err := c.Stop(name); err != nil {
					t.Error(err)
				}
				c.Restart(name)
			}
			c.Advance(time.Duration(i*37%200) * time.Millisecond)
		}
		c.Settle()
		checkExact(t, c, countOf(sent))
	})
}

// C56: a topic gains partitions while it is consumed. The changelog follows,
// and the new partitions are read from their beginning, whatever the start.
func TestTopicGainsPartitions(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{Start: consumer.Latest, OnFailure: consumer.DeadLetter})
		c.Settle()
		send(c, "a", "b")
		c.Settle()
		c.Advance(3 * time.Second) // the group is advised
		c.AddPartitions("words", 3)
		for n := range int32(3) { // before anybody has found them
			c.PublishRecord(topic.Out{Topic: words.Description, Partition: n, Key: fmt.Appendf(nil, "n%d", n), Value: []byte("x")})
		}
		begun := time.Now()
		c.Until("the new shards to run", func() bool { return len(runningIn(c, "p1")) == 3 })
		if took := time.Since(begun); took > 11*time.Second { // topics are looked at every ten
			t.Errorf("new partitions were found after %v", took)
		}
		c.Settle()
		checkExact(t, c, map[string]int{"a": 1, "b": 1, "n0": 1, "n1": 1, "n2": 1})
	})
}

// One topic of a co-partitioned set gains partitions before the other: the new
// shard fails by name until they agree, and those that run go on.
func TestOneTopicOfASetGainsPartitions(t *testing.T) {
	left, right := topic.String("left").With(topic.Set("both")), topic.String("right").With(topic.Set("both"))
	virtually(t, func(t *testing.T) {
		p := &program{topics: []*topic.Description{left.Description, right.Description}}
		c := consumertest.Start(t, p, consumer.Config{BackoffMax: time.Second})
		consumertest.PublishKeyed(c, left, "a", "x")
		consumertest.PublishKeyed(c, right, "a", "x")
		c.Settle()
		c.AddPartitions("left", 2)
		c.Until("the new shard to fail by name", func() bool {
			for _, s := range c.Status("p1").Shards {
				if s.ID == "both-001" && strings.Contains(s.Reason, "left has 2 partitions and right has 1") {
					return true
				}
			}
			return false
		})
		c.PublishRecord(topic.Out{Topic: right.Description, Key: []byte("a"), Value: []byte("x")})
		c.Until("the old shard to go on", func() bool { return stored(c, "both-000")["a"] == 3 })
		c.AddPartitions("right", 2)
		c.Settle()
		c.PublishRecord(topic.Out{Topic: left.Description, Partition: 1, Key: []byte("b"), Value: []byte("x")})
		c.Settle()
		checkStored(t, c, "both-001", map[string]int{"b": 1})
	})
}

// Latest starts with what comes after the first start, once: a later start
// goes on where the first one left.
func TestStartIsResolvedOnce(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := &program{}
		c := consumertest.Start(t, p, consumer.Config{})
		send(c, "before")
		c.Settle()
		if err := c.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		late := consumer.Config{Application: "late", Start: consumer.Latest}
		c.StartApp("p2", late, p)
		c.Until("the shard to run", func() bool { return len(runningIn(c, "p2")) == 1 })
		if err := c.Stop("p2"); err != nil {
			t.Fatal(err)
		}
		send(c, "between")
		c.StartApp("p2", late, p)
		c.Until("the shard to run", func() bool { return len(runningIn(c, "p2")) == 1 })
		c.Until("it to consume", func() bool { return c.Metric("p2", "pawl_messages_total") == 1 })
		checkStored(t, c, "words-000", map[string]int{"between": 1})
	})
}

// An input offset below retention is a configured, loud decision.
func TestOffsetOutOfRange(t *testing.T) {
	for _, test := range []struct {
		decision consumer.OutOfRange
		want     map[string]int
		dropped  float64
	}{
		{consumer.FailShard, nil, 0},
		{consumer.GoToEarliest, map[string]int{"a": 10, "b": 5}, 15},
		{consumer.GoToLatest, map[string]int{"a": 10}, 20},
	} {
		t.Run(string(test.decision), func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				p := &program{}
				cfg := consumer.Config{OnOffsetOutOfRange: test.decision}
				c := consumertest.Start(t, p, cfg)
				send(c, repeated(10, "a")...)
				c.Settle()
				if err := c.Stop("p1"); err != nil {
					t.Fatal(err)
				}
				send(c, repeated(20, "b")...)
				c.Trim("words", 0, 25)
				c.StartApp("p1", cfg, p)
				if test.decision == consumer.FailShard {
					c.Until("the shard to fail", func() bool {
						st := c.Status("p1").Shards
						return len(st) == 1 && st[0].Phase == consumer.Failed
					})
					why := c.Status("p1").Shards[0].Reason
					for _, want := range []string{"words-0", "offset 10", "25", "OnOffsetOutOfRange"} {
						if !strings.Contains(why, want) {
							t.Errorf("the reason does not say %q: %s", want, why)
						}
					}
					return
				}
				c.Settle()
				checkExact(t, c, test.want)
				if got := c.Metric("p1", "pawl_dropped_total"); got != test.dropped {
					t.Errorf("%v messages are counted as missing, want %v", got, test.dropped)
				}
			})
		})
	}
}

// A topic that is deleted and created again is another one, at whose beginning a
// shard goes on that is told to; its state is what it was.
func TestTopicIsCreatedAgain(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{OnOffsetOutOfRange: consumer.GoToEarliest})
		send(c, "a", "a", "b")
		c.Settle()
		c.DeleteTopic("words")
		c.Until("the process to say so", func() bool { return c.App("p1").Ready() != nil })
		c.CreateTopic(words, 1)
		send(c, "a", "c")
		c.Until("the shard to run again", func() bool { return c.App("p1").Ready() == nil })
		c.Settle()
		checkStored(t, c, "words-000", map[string]int{"a": 3, "b": 1, "c": 1})
	})
}

// Input that is deleted while the application runs is not created again by it,
// although its description says how: an empty topic would hide what is lost.
func TestDeletedInputStaysDeleted(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := &program{
			topics: []*topic.Description{words.With(topic.Partitions(1)).Description},
			before: func(topic.Envelope, consumer.Shard) error { return errors.New("no") },
		}
		c := consumertest.StartWith(t, consumer.Config{OnOffsetOutOfRange: consumer.GoToEarliest}, p)
		send(c, "a")
		c.Until("the shard to start again and again", func() bool {
			shards := c.Status("p1").Shards
			return len(shards) == 1 && shards[0].Phase == consumer.Failed
		})
		c.DeleteTopic("words")
		gone := func() bool {
			err := c.App("p1").Ready()
			return err != nil && strings.Contains(err.Error(), "consumed topic words does not exist any more")
		}
		c.Until("the process to say so", gone)
		c.Advance(time.Minute)
		if !gone() {
			t.Errorf("a minute later the process says: %v", c.App("p1").Ready())
		}
	})
}

// The group's coordinator and the transactions' move again and again while
// messages come: nothing is lost or doubled, and the shard goes on by itself.
func TestCoordinatorsMove(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{CreateTopics: 2})
		c.Settle()
		var sent []string
		for _, request := range []string{"Heartbeat", "EndTxn", "InitProducerID", "OffsetCommit", "JoinGroup", "SyncGroup", "EndTxn"} {
			c.Fail("p1", request, "NOT_COORDINATOR", 3)
			msgs := repeated(20, "a", "b", "c")
			send(c, msgs...)
			sent = append(sent, msgs...)
			if request == "JoinGroup" || request == "SyncGroup" {
				c.StartProcess("p-" + strings.ToLower(request)) // has p1 join anew
			}
			c.Advance(2 * time.Second)
			c.Settle()
			checkExact(t, c, countOf(sent))
		}
	})
}

// A consumed topic that is deleted fails its shards by name; the shards of
// other topics run on.
func TestDeletedTopicFailsItsShardsAlone(t *testing.T) {
	other := topic.String("other")
	virtually(t, func(t *testing.T) {
		p := &program{}
		q := &program{topics: []*topic.Description{other.Description}, consume: func(e topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
			_, err := counts.Update(s.Transaction(), string(e.Key), func(n int64) int64 { return n + 1 })
			return err
		}}
		c := consumertest.StartWith(t, consumer.Config{}, p, q)
		send(c, "a")
		consumertest.PublishKeyed(c, other, "k", "x")
		c.Settle()
		c.DeleteTopic("words")
		c.Until("the process to say so", func() bool {
			err := c.App("p1").Ready()
			return err != nil && strings.Contains(err.Error(), "topic words does not exist")
		})
		consumertest.PublishKeyed(c, other, "k", "x")
		c.Until("the other shard to go on", func() bool { return stored(c, "other-000")["k"] == 2 })

		// Created again it is another topic: what was at the old offsets is
		// gone, which is a configured decision.
		c.CreateTopic(words, 1)
		c.Until("the shard to fail by name", func() bool {
			for _, s := range c.Status("p1").Shards {
				if s.ID == "words-000" && s.Phase == consumer.Failed && strings.Contains(s.Reason, "created anew") {
					return true
				}
			}
			return false
		})
	})
}

// A coordinator that takes a process's own join, read late, for another process
// with the same instance fences it right after it has joined. It joins once more
// and goes on. Where there is another process, it is fenced again, and ends.
func TestFencedByItsOwnJoin(t *testing.T) {
	for times, ends := range map[int]bool{1: false, -1: true} {
		virtually(t, func(t *testing.T) {
			c := consumertest.Start(t, &program{}, consumer.Config{})
			send(c, "a")
			c.Settle()
			c.Fail("p1", "SyncGroup", "FENCED_INSTANCE_ID", times)
			c.Fail("p1", "Heartbeat", "UNKNOWN_MEMBER_ID", 1)
			if ends {
				if err := c.Wait("p1"); err == nil || !strings.Contains(err.Error(), "give each process its own instance") {
					t.Errorf("fenced again and again, the process ends with %v", err)
				}
				return
			}
			c.Advance(5 * time.Second)
			send(c, "a", "b")
			c.Settle()
			checkExact(t, c, map[string]int{"a": 2, "b": 1})
			if err := c.Stop("p1"); err != nil {
				t.Errorf("the stop: %v", err)
			}
		})
	}
}

// A changelog that is set to delete, or to compact and delete, while the
// application runs is told of: it loses state, and the next start would refuse it.
func TestChangelogIsSetToDelete(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{})
		send(c, "a", "b")
		c.Settle()
		log := consumer.ChangelogTopic(c.Status("p1").Application, "words")
		for _, policy := range []string{"delete", "compact,delete"} {
			c.SetTopic(log, "cleanup.policy", policy)
			c.Until("the process to say that state is lost with "+policy, func() bool {
				err := c.App("p1").Ready()
				return err != nil && strings.Contains(err.Error(), "changelog "+log+" has cleanup.policy="+policy)
			})
			c.SetTopic(log, "cleanup.policy", "compact")
			c.Until("the process to be ready again", func() bool { return c.App("p1").Ready() == nil })
		}
		send(c, "a")
		c.Settle()
		checkStored(t, c, "words-000", map[string]int{"a": 2, "b": 1})
	})
}

// A changelog that is made anew leaves no shard with the state of before, also
// one that no message comes to.
func TestIdleShardSeesItsChangelogMadeAnew(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{})
		send(c, "a", "b")
		c.Settle()
		log := consumer.ChangelogTopic(c.Status("p1").Application, "words")
		c.DeleteTopic(log)
		c.CreateTopic(topic.Bytes(log).With(topic.Compacted()), 1)
		c.Advance(15 * time.Second)
		err := c.App("p1").Ready()
		if err == nil || !strings.Contains(err.Error(), "which now holds none") {
			t.Errorf("15 s after the changelog was made anew the process says: %v", err)
		}
		if err := c.App("p1").View("words-000", func(*store.Transaction) error { return nil }); !errors.Is(err, consumer.ErrNotHere) {
			t.Errorf("the state of before is still shown: %v", err)
		}
	})
}
