package consumer_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/topic"
)

// tooLarge is an output that no topic takes.
func tooLarge() string {
	noise := make([]byte, 3<<20)
	for i, x := 0, uint32(1); i < len(noise); i++ {
		x = x*1664525 + 1013904223
		noise[i] = "abcdefghijklmnopqrstuvwxyz012345"[x>>27]
	}
	return string(noise)
}

// sendTogether publishes messages so that one fetch brings them all, and settles. A
// decoy comes before them: the fetch that waits at the broker takes it.
func sendTogether(c *consumertest.Cluster, msgs ...string) {
	release := c.Hold("p1", "Fetch")
	send(c, "decoy")
	c.Advance(time.Second)
	send(c, msgs...)
	release()
	c.Settle()
}

// A message whose output the broker refuses again and again is not passed by a
// stop: the offsets that a refused commit would have written stay unwritten,
// also in the local copy.
func TestRefusedOffsetsAreNotKept(t *testing.T) {
	virtually(t, func(t *testing.T) {
		refuse := true
		noise := tooLarge()
		p := &program{consume: func(e topic.Envelope, s consumer.Shard, pub *topic.Publisher) error {
			if string(e.Key) == "large" && refuse {
				return lines.Publish(pub, noise, topic.Key(e.Key))
			}
			return countLine(e, s, pub)
		}}
		c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.Retry})
		send(c, "a")
		c.Settle()
		send(c, "large", "b")
		c.Advance(20 * time.Second) // many attempts, each refused
		if err := c.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		refuse = false
		c.Restart("p1")
		c.Settle()
		checkExact(t, c, map[string]int{"a": 1, "large": 1, "b": 1})
	})
}

// Messages that are found guilty, each in a transaction of many, leave no
// suspicion behind: no other message is ever skipped in their place.
func TestGuiltFoundClearsTheOthers(t *testing.T) {
	for name, flush := range map[string]bool{"refused by the broker": false, "refused by Flush": true} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				noise := tooLarge()
				p := &program{}
				p.consume = func(e topic.Envelope, s consumer.Shard, pub *topic.Publisher) error {
					if string(e.Key) == "bad" && !flush {
						return lines.Publish(pub, noise, topic.Key(e.Key))
					}
					return countLine(e, s, pub)
				}
				p.flush = func(s consumer.Shard, pub *topic.Publisher) error {
					for key := range counts.Changes(s.Transaction()) {
						if key == "bad" {
							return errors.New("refused")
						}
					}
					return nil
				}
				c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.Skip})
				const rounds = 7
				for range rounds {
					sendTogether(c, "a", "bad", "b")
				}
				checkExact(t, c, map[string]int{"a": rounds, "b": rounds, "decoy": rounds})
				if got := c.Metric("p1", "pawl_dropped_total"); got != rounds {
					t.Errorf("%v messages are counted as skipped, want %d", got, rounds)
				}
			})
		})
	}
}

// Rounds in which messages failed only together count when they follow on each
// other: one now and then, among transactions that go well, costs no message.
func TestRoundsAreInARow(t *testing.T) {
	virtually(t, func(t *testing.T) {
		failures := 0
		p := &program{flush: func(s consumer.Shard, _ *topic.Publisher) error {
			keys := make(map[string]bool)
			for key := range counts.Changes(s.Transaction()) {
				keys[key] = true
			}
			if keys["x"] && keys["y"] {
				failures++
				return errors.New("both at once")
			}
			return nil
		}}
		c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.Skip})
		want := make(map[string]int)
		for range 6 {
			for _, msgs := range [][]string{{"x", "y"}, {"a", "b", "c"}} {
				sendTogether(c, msgs...)
				for _, m := range append(msgs, "decoy") {
					want[m]++
				}
			}
		}
		if failures != 6 {
			t.Errorf("%d transactions failed, want 6", failures)
		}
		checkExact(t, c, want)
	})
}

// Two topics of a set lose messages at once: each is gone on with.
func TestBothTopicsOutOfRange(t *testing.T) {
	left, right := topic.String("left").With(topic.Set("pair")), topic.String("right").With(topic.Set("pair"))
	virtually(t, func(t *testing.T) {
		p := &program{topics: []*topic.Description{left.Description, right.Description}}
		cfg := consumer.Config{OnOffsetOutOfRange: consumer.GoToEarliest}
		c := consumertest.Start(t, p, cfg)
		c.Settle()
		if err := c.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			consumertest.PublishKeyed(c, left, "l", fmt.Sprint(i))
			consumertest.PublishKeyed(c, right, "r", fmt.Sprint(i))
		}
		c.Trim("left", 0, 4)
		c.Trim("right", 0, 7)
		c.Restart("p1")
		c.Settle()
		checkStored(t, c, "pair-000", map[string]int{"l": 6, "r": 3})
		if got := c.Metric("p1", "pawl_dropped_total"); got != 11 {
			t.Errorf("%v messages are counted as missing, want 11", got)
		}
	})
}

// A consumer that can't be compared, such as a struct with a function in it,
// may have a set of several topics.
func TestIncomparableConsumer(t *testing.T) {
	left, right := topic.String("left").With(topic.Set("pair")), topic.String("right").With(topic.Set("pair"))
	_, err := consumer.New(consumer.Config{Application: "app"}, incomparable{program: &program{topics: []*topic.Description{left.Description, right.Description}}, f: func() {}})
	if err == nil || !strings.Contains(err.Error(), "state directory") {
		t.Errorf("error is %v, want what is wrong with the configuration alone", err)
	}
}

type incomparable struct {
	*program
	f func()
}

// The input has lost its end: a shard stands beyond it. That is a decision like
// any other about missing messages, and consumes none a second time.
func TestOffsetBeyondTheEnd(t *testing.T) {
	for _, decision := range []consumer.OutOfRange{consumer.FailShard, consumer.GoToEarliest, consumer.GoToLatest} {
		t.Run(string(decision), func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				c := consumertest.Start(t, &program{}, consumer.Config{OnOffsetOutOfRange: decision})
				send(c, "a", "b", "a")
				c.Settle()
				if err := c.Stop("p1"); err != nil {
					t.Fatal(err)
				}
				// As if there had been a hundred messages.
				log := topic.Bytes(consumer.ChangelogTopic("test", "words"))
				var last []byte
				for _, e := range consumertest.CommittedEnvelopes(c, log) {
					if string(e.Key) == string(changelog.OffsetsKey) {
						last = e.Value
					}
				}
				o, err := changelog.ParseOffsets(last)
				if err != nil {
					t.Fatal(err)
				}
				o.Inputs[0].Next = 100
				c.PublishRecord(topic.Out{Topic: log.Description, Key: changelog.OffsetsKey, Value: changelog.AppendOffsets(nil, o)})
				c.Restart("p1")
				if decision == consumer.FailShard {
					c.Until("the shard to fail by name", func() bool {
						st := c.Status("p1").Shards
						return len(st) == 1 && st[0].Phase == consumer.Failed && strings.Contains(st[0].Reason, "100")
					})
					return
				}
				c.Until("the shard to run", func() bool {
					st := c.Status("p1").Shards
					return len(st) == 1 && st[0].Phase == consumer.Running && st[0].Lag == 0
				})
				c.Advance(time.Second) // the first fetch tells
				send(c, "a", "b")
				c.Settle()
				checkExact(t, c, map[string]int{"a": 3, "b": 2})
				c.Crash("p1")
				c.Restart("p1")
				send(c, "b")
				c.Settle()
				checkExact(t, c, map[string]int{"a": 3, "b": 3})
			})
		})
	}
}

// Messages of two topics of a set come in any order, and after an abort in
// another: whichever of them fails, and however, is the one that is skipped.
func TestGuiltInASetOfTopics(t *testing.T) {
	left, right := topic.String("left").With(topic.Set("pair")), topic.String("right").With(topic.Set("pair"))
	for seed := range uint64(20) {
		virtually(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			p := &program{topics: []*topic.Description{left.Description, right.Description}}
			p.consume = func(e topic.Envelope, s consumer.Shard, pub *topic.Publisher) error {
				if _, err := counts.Update(s.Transaction(), string(e.Key)+e.TopicName(), func(n int64) int64 { return n + 1 }); err != nil {
					return err
				}
				if string(e.Key) == "bad" {
					return errors.New("refused")
				}
				return nil
			}
			p.flush = func(s consumer.Shard, _ *topic.Publisher) error {
				for key := range counts.Changes(s.Transaction()) {
					if strings.HasPrefix(key, "worse") {
						return errors.New("refused")
					}
				}
				return nil
			}
			c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.Skip})
			want := make(map[string]int)
			skipped := 0
			for range 12 {
				release := c.Hold("p1", "Fetch")
				for range 1 + r.IntN(12) {
					of := []topic.Of[string]{left, right}[r.IntN(2)]
					key := []string{"a", "b", "c", "d", "bad", "worse"}[r.IntN(6)]
					consumertest.PublishKeyed(c, of, key, "x")
					if key == "bad" || key == "worse" {
						skipped++
					} else {
						want[key+of.Name()]++
					}
				}
				release()
				c.Advance(time.Duration(r.IntN(200)) * time.Millisecond)
			}
			c.Settle()
			if got := stored(c, "pair-000"); !maps.Equal(got, want) {
				t.Errorf("seed %d: stored counts are %v, want %v", seed, got, want)
			}
			if got := c.Metric("p1", "pawl_dropped_total"); got != float64(skipped) {
				t.Errorf("seed %d: %v messages are counted as skipped, want %d", seed, got, skipped)
			}
		})
	}
}
