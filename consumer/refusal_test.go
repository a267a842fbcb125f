package consumer_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
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
