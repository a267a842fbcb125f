package consumer_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// I1: nothing uncommitted reaches the database, a query, or the output.
func TestI1NothingUncommittedIsVisible(t *testing.T) {
	virtually(t, func(t *testing.T) {
		reached, proceed := make(chan consumer.Shard), make(chan error)
		p := &program{after: func(e topic.Envelope, s consumer.Shard) error {
			if string(e.Key) != "held" {
				return nil
			}
			reached <- s
			return <-proceed
		}}
		c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.Skip})
		send(c, "a", "a")
		c.Settle()
		send(c, "held")
		s := <-reached

		// The transaction sees its write; nobody else does.
		if n, ok, err := counts.Get(s.Transaction(), "held"); n != 1 || !ok || err != nil {
			t.Errorf("the transaction reads %d, %v, %v", n, ok, err)
		}
		checkStored(t, c, "words-000", map[string]int{"a": 2})
		err := s.Database().View(func(tx *store.Transaction) error {
			if n, ok, err := counts.Get(tx, "held"); ok {
				t.Errorf("the database holds %d for an uncommitted key, error %v", n, err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if got := len(consumertest.WrittenEnvelopes(c, lines)); got != 2 {
			t.Errorf("%d lines are on the broker before the commit, want 2", got)
		}
		proceed <- errors.New("refused")
		c.Settle()
		checkStored(t, c, "words-000", map[string]int{"a": 2})
		checkExact(t, c, map[string]int{"a": 2})
		if got := c.Metric("p1", "pawl_dropped_total"); got != 1 {
			t.Errorf("%v messages are counted as dropped, want 1", got)
		}
	})
}

// I2: state, offsets and position are in one batch. A process that crashes at
// any moment comes back with state and offsets that agree.
func TestI2StateAndOffsetsAgreeAfterCrashes(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{before: func(topic.Envelope, consumer.Shard) error {
			time.Sleep(time.Millisecond) // virtual time
			return nil
		}}, consumer.Config{CreateTopics: 2, CommitInterval: 7 * time.Millisecond, FlushInterval: time.Second})
		var sent []string
		for i := range 15 {
			msgs := repeated(60, "a", "b", "c", "d", "e")
			send(c, msgs...)
			sent = append(sent, msgs...)
			c.Advance(time.Duration(5+7*i) * time.Millisecond)
			c.Crash("p1")
			c.Restart("p1")
		}
		c.Settle()
		checkExact(t, c, countOf(sent))
		all := stored(c, "words-000")
		for k, n := range stored(c, "words-001") {
			all[k] += n
		}
		if want := countOf(sent); !maps.Equal(all, want) {
			t.Errorf("stored counts are %v, want %v", all, want)
		}
	})
}

// I3: the reply to EndTxn is lost. The outcome is unknown, is not taken for a
// failure nor for success, and is resolved by the fence.
func TestI3LostEndTxnReply(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{})
		var sent []string
		for i := range 8 {
			c.DropReply("p1", "EndTxn", 1+i%3)
			msgs := repeated(5, "a", "b")
			send(c, msgs...)
			sent = append(sent, msgs...)
			c.Settle()
		}
		checkExact(t, c, countOf(sent))
		checkStored(t, c, "words-000", countOf(sent))
	})
}

// I3: replies of every kind of request of a transaction are lost, in turn.
func TestI3LostReplies(t *testing.T) {
	for _, request := range []string{"Produce", "EndTxn", "InitProducerID", "Fetch", "Heartbeat", "FindCoordinator", "OffsetCommit", "JoinGroup", "SyncGroup", "Metadata"} {
		t.Run(request, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				c := consumertest.Start(t, &program{}, consumer.Config{CreateTopics: 2})
				var sent []string
				for nth := range 4 {
					c.DropReply("p1", request, nth+1)
					msgs := repeated(9, "a", "b", "c")
					send(c, msgs...)
					sent = append(sent, msgs...)
					c.Settle()
				}
				c.Crash("p1")
				c.Restart("p1")
				c.Settle()
				checkExact(t, c, countOf(sent))
			})
		})
	}
}

// I3: errors of every kind are answered to each request of a transaction.
func TestI3BrokerErrors(t *testing.T) {
	for _, c := range []struct{ request, code string }{
		{"EndTxn", "INVALID_PRODUCER_EPOCH"}, {"EndTxn", "PRODUCER_FENCED"}, {"EndTxn", "INVALID_TXN_STATE"}, {"EndTxn", "COORDINATOR_NOT_AVAILABLE"},
		{"EndTxn", "NOT_COORDINATOR"}, {"EndTxn", "CONCURRENT_TRANSACTIONS"}, {"EndTxn", ""}, {"EndTxn", "UNKNOWN_SERVER_ERROR"},
		{"Produce", ""}, {"InitProducerID", "CONCURRENT_TRANSACTIONS"}, {"InitProducerID", "COORDINATOR_LOAD_IN_PROGRESS"},
		{"InitProducerID", "NOT_COORDINATOR"}, {"Heartbeat", "UNKNOWN_MEMBER_ID"}, {"Heartbeat", "ILLEGAL_GENERATION"}, {"OffsetCommit", "ILLEGAL_GENERATION"},
	} {
		t.Run(c.request+" "+c.code, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				cl := consumertest.Start(t, &program{}, consumer.Config{})
				var sent []string
				for range 3 {
					cl.Fail("p1", c.request, c.code, 1)
					msgs := repeated(4, "a", "b")
					send(cl, msgs...)
					sent = append(sent, msgs...)
					cl.Settle()
				}
				checkExact(t, cl, countOf(sent))
				checkStored(t, cl, "words-000", countOf(sent))
			})
		})
	}
}

// I4: no produce error goes unobserved. A message that is too large fails by
// name, and its neighbours are unharmed.
func TestI4MessageTooLarge(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var l ledger
		p := &program{}
		p.consume = func(e topic.Envelope, s consumer.Shard, pub *topic.Publisher) error {
			if string(e.Key) == "large" {
				noise := make([]byte, 3<<20)
				for i, x := 0, uint32(1); i < len(noise); i++ {
					x = x*1664525 + 1013904223
					noise[i] = "abcdefghijklmnopqrstuvwxyz012345"[x>>27]
				}
				return lines.Publish(pub, string(noise), topic.Key(e.Key))
			}
			return countLine(e, s, pub)
		}
		p.halt = func(consumer.Shard) { l.note("halt") }
		c := consumertest.Start(t, p, consumer.Config{})
		send(c, "a", "large", "b")
		c.Until("the shard to say what is too large", func() bool {
			st := c.Status("p1").Shards
			return len(st) == 1 && st[0].Phase == consumer.Failed
		})
		why := c.Status("p1").Shards[0].Reason
		for _, want := range []string{"lines", "large", "max.message.bytes", "words-0 at offset 1"} {
			if !strings.Contains(why, want) {
				t.Errorf("the reason does not name %q: %s", want, why)
			}
		}
		checkExact(t, c, map[string]int{"a": 1}) // what came before it is committed, nothing after
		if err := c.Stop("p1"); err != nil {
			t.Error(err)
		}

		// Told to skip it, the shard goes on.
		c.StartApp("p2", consumer.Config{OnFailure: consumer.Skip}, p)
		c.Settle()
		checkExact(t, c, map[string]int{"a": 1, "b": 1})
	})
}

// I5: restored is decided by position. Each of these changelogs has something
// else at its end.
func TestI5RestoreEnds(t *testing.T) {
	type row struct {
		last    func(c *consumertest.Cluster)               // what is written last, before p1 crashes
		restart func(t *testing.T, c *consumertest.Cluster) // who restores; p1 itself if there is nothing here
		shards  int
		want    map[string]int
	}
	counted := func(msgs ...string) map[string]int { return countOf(append(msgs, "z")) }
	for name, row := range map[string]row{
		"empty":           {last: func(*consumertest.Cluster) {}, want: counted()},
		"one record":      {last: func(c *consumertest.Cluster) { send(c, "a"); c.Settle() }, want: counted("a")},
		"a commit marker": {last: func(c *consumertest.Cluster) { send(c, "a", "b"); c.Settle() }, want: counted("a", "b")},
		"an abort":        {last: func(c *consumertest.Cluster) { c.DropReply("p1", "EndTxn", 1); send(c, "a"); c.Settle() }, want: counted("a")},
		"an open one": {last: func(c *consumertest.Cluster) {
			c.Fail("p1", "EndTxn", "", -1)
			send(c, "a")
			c.Advance(50 * time.Millisecond)
		}, want: counted("a")},
		"many start marks": {last: func(c *consumertest.Cluster) {
			send(c, "a")
			c.Settle()
			for range 2 {
				c.Crash("p1")
				c.Restart("p1")
				c.Settle()
			}
		}, want: counted("a")},
		"below the trimmed": {last: func(c *consumertest.Cluster) {
			send(c, "a", "a")
			c.Settle()
			c.Advance(2 * time.Minute)
			c.Trim("test.words.changelog", 0, 3)
		}, want: counted("a", "a")},
		"a rebalance mid-restore": {shards: 2, last: func(c *consumertest.Cluster) {
			send(c, "a", "b", "c", "d", "e", "f", "a")
			c.Settle()
		}, restart: func(t *testing.T, c *consumertest.Cluster) {
			release := c.Hold("p2", "Fetch")
			c.StartProcess("p2")
			c.Advance(3 * time.Second)
			for _, s := range c.Status("p2").Shards {
				if s.Phase != consumer.Restoring {
					t.Errorf("shard %s is %s, want restoring", s.ID, s.Phase)
				}
			}
			c.StartProcess("p3")
			c.Advance(5 * time.Second)
			if a, b := len(c.Status("p2").Shards), len(c.Status("p3").Shards); a != 1 || b != 1 {
				t.Errorf("in the middle of the restore the processes have %d and %d shards, want one each", a, b)
			}
			release()
		}, want: counted("a", "b", "c", "d", "e", "f", "a")},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				c := consumertest.Start(t, &program{}, consumer.Config{CreateTopics: max(1, row.shards)})
				c.Settle()
				row.last(c)
				c.Crash("p1")
				c.Advance(time.Minute)
				if row.restart != nil {
					row.restart(t, c)
				} else {
					c.Restart("p1")
				}
				send(c, "z")
				c.Settle()
				got := make(map[string]int)
				for n := range max(1, row.shards) {
					for key, count := range stored(c, consumer.ShardID(fmt.Sprintf("words-%03d", n))) {
						got[key] += count
					}
				}
				if !maps.Equal(got, row.want) {
					t.Errorf("stored counts are %v, want %v", got, row.want)
				}
				checkExact(t, c, row.want)
			})
		})
	}
}

// I6: a clean stop flushes: the next start reads nothing but the tail. After a
// crash, what is read again is bounded by the age of what was not flushed.
func TestI6ReplayIsBounded(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{})
		for range 50 {
			send(c, repeated(10, "a", "b", "c")...)
			c.Settle()
		}
		c.Advance(6 * time.Hour) // idle: positions stay young, and reach the disk
		if err := c.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		c.Restart("p1")
		c.Settle()
		if got := c.Metric("p1", "pawl_restored_records_total"); got > 3 {
			t.Errorf("%v records were restored after a clean stop, want the tail alone", got)
		}
		// C14: the head of the changelog is gone, up to its end.
		if err := c.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		ends := len(consumertest.WrittenEnvelopes(c, topic.Bytes("test.words.changelog")))
		if ends < 100 {
			t.Fatalf("the changelog holds %d records", ends)
		}
		c.Trim("test.words.changelog", 0, -1) // all of it
		c.Restart("p1")
		send(c, "a")
		c.Settle()
		if got := c.Metric("p1", "pawl_state_discarded_total"); got != 0 {
			t.Errorf("the state was discarded %v times", got)
		}
		checkStored(t, c, "words-000", map[string]int{"a": 201, "b": 150, "c": 150})

		// A crash right after: at most what the flush interval holds.
		c.Advance(2 * time.Minute)
		send(c, repeated(10, "a")...)
		c.Settle()
		c.Crash("p1")
		c.Restart("p1")
		c.Settle()
		if got := c.Metric("p1", "pawl_restored_records_total"); got > 20 {
			t.Errorf("%v records were restored after a crash, want those of the last minute", got)
		}
		checkStored(t, c, "words-000", map[string]int{"a": 211, "b": 150, "c": 150})
	})
}

// I7: a copy that has not stood at the end for longer than tombstones are kept
// is not resumed: it may have missed deletes. One that has, is.
func TestI7OldCopyIsNotResumed(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := &program{consume: func(e topic.Envelope, s consumer.Shard, pub *topic.Publisher) error {
			if len(e.Value) == 0 {
				return counts.Delete(s.Transaction(), string(e.Key))
			}
			return countLine(e, s, pub)
		}}
		c := consumertest.Start(t, p, consumer.Config{})
		send(c, "kept", "deleted")
		c.Settle()
		if err := c.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		// Another process takes over, and deletes a key.
		c.StartProcess("p2")
		consumertest.PublishKeyed(c, words, "deleted", "")
		c.Settle()
		if err := c.Stop("p2"); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			wait    time.Duration
			discard float64
		}{{17 * time.Hour, 0}, {19 * time.Hour, 1}} {
			c.Advance(step.wait)
			c.Restart("p1")
			c.Settle()
			if got := c.Metric("p1", "pawl_state_discarded_total"); got != step.discard {
				t.Errorf("after %v: discarded %v times, want %v", step.wait, got, step.discard)
			}
			checkStored(t, c, "words-000", map[string]int{"kept": 1})
			if err := c.Stop("p1"); err != nil {
				t.Fatal(err)
			}
			c.StartProcess("p3-" + fmt.Sprint(step.discard))
			consumertest.PublishKeyed(c, words, "deleted", "")
			c.Settle()
			if err := c.Stop("p3-" + fmt.Sprint(step.discard)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// I8: what a transaction holds is bounded in bytes, of writes and of output:
// either closes it.
func TestI8TransactionIsBoundedInBytes(t *testing.T) {
	for name, consume := range map[string]func(e topic.Envelope, s consumer.Shard, pub *topic.Publisher) error{
		"writes": func(e topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
			return s.Transaction().Put(fmt.Appendf(nil, "%d", e.Offset), make([]byte, 10_000))
		},
		"output": func(e topic.Envelope, s consumer.Shard, pub *topic.Publisher) error {
			return lines.Publish(pub, strings.Repeat("x", 10_000))
		},
		"headers": func(e topic.Envelope, s consumer.Shard, pub *topic.Publisher) error {
			return lines.Publish(pub, "x", topic.Headers(topic.Header{Key: "h", Value: make([]byte, 10_000)}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				c := consumertest.Start(t, &program{consume: consume}, consumer.Config{TransactionBytes: 100_000})
				release := c.Hold("p1", "Fetch") // so that all come at once
				consumertest.PublishKeyed(c, words, "k", repeated(200, "x")...)
				release()
				c.Settle()
				if got := c.Commits("words-000"); got < 10 {
					t.Errorf("%d commits for 2 MB of %s, with a limit of 100 KB", got, name)
				}
			})
		})
	}
}

// I9: a stop is a drain: the open transaction is finished, the group is left
// with the instance named, and the next process has the shards at once.
func TestI9StopDrains(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var l ledger
		p := &program{
			before: func(topic.Envelope, consumer.Shard) error { time.Sleep(10 * time.Millisecond); return nil }, // virtual time
			init:   func(consumer.Shard) error { l.note("init"); return nil },
			halt:   func(consumer.Shard) { l.note("halt") },
		}
		c := consumertest.Start(t, p, consumer.Config{CommitInterval: time.Hour / 2})
		msgs := repeated(200, "a", "b")
		send(c, msgs...)
		c.Advance(500 * time.Millisecond) // in the middle of a transaction
		begun := time.Now()
		if err := c.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("the stop took %v", took)
		}
		if got := l.all(); !slices.Equal(got, []string{"init", "halt"}) {
			t.Errorf("calls are %v", got)
		}
		got := consumertest.Committed(c, lines)
		if len(got) == 0 || len(got) == len(msgs) {
			t.Errorf("%d of %d messages are committed by the drain", len(got), len(msgs))
		}
		begun = time.Now()
		c.StartProcess("p2")
		c.Until("the shard to run", func() bool {
			st := c.Status("p2").Shards
			return len(st) == 1 && st[0].Phase == consumer.Running
		})
		if took := time.Since(begun); took > time.Second {
			t.Errorf("the next process waited %v for the shard", took)
		}
		c.Settle()
		checkExact(t, c, countOf(msgs))
	})
}

// I9: a Consume that does not return is abandoned at the deadline: its handle
// answers ErrFenced, HaltShard is skipped and counted, and Run returns.
func TestI9StuckConsumeIsAbandoned(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var l ledger
		stuck, returned := make(chan struct{}), make(chan error, 3)
		p := &program{
			consume: func(e topic.Envelope, s consumer.Shard, pub *topic.Publisher) error {
				<-stuck
				returned <- s.Transaction().Put([]byte("k"), []byte("v"))
				returned <- lines.Publish(pub, "late")
				_, err := counts.Update(s.Transaction(), "k", func(n int64) int64 { return n + 1 })
				returned <- err
				return nil
			},
			halt: func(consumer.Shard) { l.note("halt") },
		}
		c := consumertest.Start(t, p, consumer.Config{StuckAfter: time.Minute, DrainTimeout: 10 * time.Second})
		send(c, "a")
		c.Advance(30 * time.Second)
		if err := c.App("p1").Ready(); err != nil {
			t.Errorf("unready before the limit: %v", err)
		}
		c.Advance(2 * time.Minute)
		err := c.App("p1").Ready()
		if err == nil {
			t.Fatal("ready with a Consume that is stuck")
		}
		for _, want := range []string{"words-000", "words-0 at offset 0", `"a"`, "Consume", "invariants_test.go"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("what is stuck does not name %q: %v", want, err)
			}
		}
		begun := time.Now()
		if err := c.Stop("p1"); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took > 12*time.Second {
			t.Errorf("the stop took %v, with a deadline of 10s", took)
		}
		close(stuck)
		for range 3 {
			if err := <-returned; !errors.Is(err, consumer.ErrFenced) {
				t.Errorf("a late write or publish is answered with %v, want ErrFenced", err)
			}
		}
		if got := l.all(); len(got) != 0 {
			t.Errorf("HaltShard was called beside Consume: %v", got)
		}
		if got := consumertest.WrittenEnvelopes(c, lines); len(got) != 0 {
			t.Errorf("%d lines of an abandoned call are on the broker", len(got))
		}
	})
}

// I10: an owner that is cut off, while another takes over, publishes nothing
// that becomes visible, commits no offset, and answers no query once its last
// heartbeat is older than the session. Neither side fences the other again and
// again.
func TestI10FencedShardIsSilent(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{SessionTimeout: 6 * time.Second})
		msgs := repeated(50, "a", "b", "c")
		send(c, msgs...)
		c.Settle()
		old := c.App("p1")
		c.Freeze("p1")
		c.Advance(2 * time.Second)
		if err := old.View("words-000", func(*store.Transaction) error { return nil }); err != nil {
			t.Errorf("no answer while the session lasts: %v", err)
		}
		c.StartProcess("p2")
		c.Advance(20 * time.Second)
		if err := old.View("words-000", func(*store.Transaction) error { return nil }); !errors.Is(err, consumer.ErrNotHere) {
			t.Errorf("a query after the session: %v, want ErrNotHere", err)
		}
		more := repeated(50, "a", "d")
		send(c, more...)
		c.Settle()
		inits := c.Requests("p1", "InitProducerID") + c.Requests("p2", "InitProducerID")
		c.Thaw("p1")
		for range 10 {
			send(c, "a")
			more = append(more, "a")
			c.Settle()
			c.Advance(3 * time.Second)
		}
		checkExact(t, c, countOf(append(msgs, more...)))
		if again := c.Requests("p1", "InitProducerID") + c.Requests("p2", "InitProducerID") - inits; again > 2 {
			t.Errorf("%d initialisations after the thaw, want at most one by each side", again)
		}
	})
}

// I10: writes and publishes of a Consume that still runs when its shard is
// fenced return ErrFenced, or do not become visible.
func TestI10ConsumeThatRunsOnIsFenced(t *testing.T) {
	virtually(t, func(t *testing.T) {
		fenced := make(chan error, 1)
		p := &program{before: func(e topic.Envelope, s consumer.Shard) error {
			for { // C02: another joins meanwhile
				time.Sleep(100 * time.Millisecond) // virtual time
				if err := s.Transaction().Put([]byte("k"), nil); err != nil {
					fenced <- err
					return err
				}
			}
		}}
		c := consumertest.Start(t, p, consumer.Config{SessionTimeout: 6 * time.Second})
		send(c, "a", "b")
		c.Advance(time.Second)
		c.Freeze("p1")
		c.StartApp("p2", consumer.Config{SessionTimeout: 6 * time.Second}, &program{})
		c.Advance(10 * time.Second)
		c.Thaw("p1")
		c.Advance(5 * time.Second) // much less than the time to drain
		select {
		case err := <-fenced:
			if !errors.Is(err, consumer.ErrFenced) {
				t.Errorf("a write to a shard that has moved returns %v, want ErrFenced", err)
			}
		default:
			t.Error("a Consume whose shard has moved while the process stood still writes on")
		}
		c.Settle()
		checkExact(t, c, map[string]int{"a": 1, "b": 1})
	})
}
