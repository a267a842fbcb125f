package consumer_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// C02: a second process joins while Consume, which has published, takes four
// seconds. Of the two attempts at each message one becomes visible.
func TestSecondProcessJoinsDuringConsume(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := &program{after: func(topic.Envelope, consumer.Shard) error {
			time.Sleep(4 * time.Second) // virtual time
			return nil
		}}
		c := consumertest.Start(t, p, consumer.Config{CreateTopics: 4})
		c.Settle()
		msgs := repeated(16, "a", "b", "c", "d", "e", "f", "g", "h")
		send(c, msgs...)
		c.Advance(2 * time.Second)
		c.StartProcess("p2")
		c.Settle()
		checkExact(t, c, countOf(msgs))
		if got := len(c.Status("p2").Shards); got != 2 {
			t.Errorf("the second process has %d shards, want 2", got)
		}
	})
}

// C08: a shard goes to another process and comes back while an answer to this one's
// fetch is on its way. It changes nothing when it arrives.
func TestLateFetchAfterTheShardCameBack(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{CreateTopics: 2})
		msgs := repeated(10, "a", "b", "c", "d")
		send(c, msgs...)
		c.Settle()
		for range 3 {
			release := c.Hold("p1", "Fetch")
			more := repeated(20, "a", "b", "c", "d")
			send(c, more...)
			c.Advance(time.Second)
			c.StartProcess("p2")
			c.Until("p2 to have a shard", func() bool { return len(c.Status("p2").Shards) == 1 })
			c.Advance(time.Second)
			if err := c.Stop("p2"); err != nil {
				t.Error(err)
			}
			last := repeated(20, "a", "b", "c", "d")
			send(c, last...)
			release()
			c.Settle()
			msgs = slices.Concat(msgs, more, last)
			checkExact(t, c, countOf(msgs))
		}
	})
}

// C16: somebody else holds a transaction open on the changelog. The restore that it
// holds up says who does, and goes on once it has ended.
func TestForeignTransactionHoldsUpARestore(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{})
		send(c, "a", "a")
		c.Settle()
		if err := c.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		foreign := func() *kafka.Session {
			s, err := kafka.NewSession(kafka.Config{Cluster: c.Host("foreign"), Logger: slog.New(slog.DiscardHandler)},
				kafka.SessionConfig{TransactionalID: "someone-else", TransactionTimeout: 15 * time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			if _, err := s.Fence(t.Context()); err != nil {
				t.Fatal(err)
			}
			return s
		}
		release := c.Hold("foreign", "EndTxn")
		held, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := foreign().Commit(held, []kafka.Record{{Topic: consumer.ChangelogTopic("test", "words"), Key: []byte("stray"), Value: []byte("x")}})
		if err == nil {
			t.Fatal("the foreign transaction is committed, want it open")
		}
		c.Advance(time.Second)
		c.StartProcess("p2")
		c.Until("the restore to name who holds it up", func() bool {
			shards := c.Status("p2").Shards
			return len(shards) == 1 && strings.Contains(shards[0].Reason, `"someone-else"`)
		})
		if reason := c.Status("p2").Shards[0].Reason; !strings.Contains(reason, "has held a transaction open there for 1m") {
			t.Errorf("reason is %q, want how long the transaction is open", reason)
		}
		release()
		foreign() // which aborts it
		c.Settle()
		checkStored(t, c, "words-000", map[string]int{"a": 2})
	})
}

// C04: a process stands still for longer than its transaction's timeout and
// shorter than its session. The coordinator aborts the transaction and raises
// the epoch; the commit that was under way is refused, and the shard comes back
// by itself, with nothing lost.
func TestCoordinatorAbortsWhileItsOwnerStalls(t *testing.T) {
	for name, hold := range map[string]string{"before EndTxn": "EndTxn", "everything": ""} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				c := consumertest.Start(t, &program{}, consumer.Config{TransactionTimeout: 10 * time.Second, SessionTimeout: time.Minute})
				msgs := repeated(20, "a", "b", "c")
				send(c, msgs...)
				c.Settle()
				release := func() { c.Thaw("p1") }
				if hold != "" {
					release = c.Hold("p1", hold)
				}
				send(c, msgs...)
				if hold == "" {
					c.Freeze("p1")
				}
				c.Advance(19 * time.Second)
				release()
				begun := time.Now()
				c.Settle()
				if took := time.Since(begun); took > 10*time.Second {
					t.Errorf("the shard took %v to come back", took)
				}
				checkExact(t, c, countOf(append(msgs, msgs...)))
				if got := c.Status("p1").Shards[0].Phase; got != consumer.Running {
					t.Errorf("the shard is %s", got)
				}
			})
		})
	}
}
