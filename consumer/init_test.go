package consumer_test

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/topic"
)

// What InitShard writes is committed with what comes first: a message, direct
// writes, or the passing of a message that failed. Flush is called for it every
// time, and a dead letter that is too large takes nothing of it away.
func TestWritesOfInitShard(t *testing.T) {
	for name, test := range map[string]struct {
		policy consumer.OnFailure
		do     func(c *consumertest.Cluster, s consumer.Shard)
		inits  int
	}{
		"a message": {consumer.StopShard, func(c *consumertest.Cluster, _ consumer.Shard) { send(c, "a") }, 1},
		"direct writes": {consumer.StopShard, func(c *consumertest.Cluster, s consumer.Shard) {
			if err := errors.Join(s.Database().Put([]byte("k"), nil, nil), s.Database().Sync(s.Context())); err != nil {
				t.Error(err)
			}
		}, 1},
		"a message that is skipped": {consumer.Skip, func(c *consumertest.Cluster, _ consumer.Shard) { send(c, "bad") }, 2},
		"a message whose dead letter is too large": {consumer.DeadLetter, func(c *consumertest.Cluster, _ consumer.Shard) {
			c.SetTopic("test.words.dlq", "max.message.bytes", "2000")
			consumertest.PublishKeyed(c, words, "bad", strings.Repeat("v", 3000))
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				shards := make(chan consumer.Shard, 10)
				inits := 0
				p := &program{init: func(s consumer.Shard) error {
					inits++
					shards <- s
					return counts.Put(s.Transaction(), "inits", int64(inits))
				}, consume: func(e topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
					if string(e.Key) == "bad" {
						return errors.New("refused")
					}
					return nil
				}, flush: func(s consumer.Shard, p *topic.Publisher) error {
					for k, c := range counts.Changes(s.Transaction()) {
						if err := lines.Publish(p, fmt.Sprintf("%s=%d", k, c.New)); err != nil {
							return err
						}
					}
					return nil
				}}
				c := consumertest.Start(t, p, consumer.Config{OnFailure: test.policy})
				s := <-shards
				c.Settle()
				test.do(c, s)
				c.Settle()
				c.Advance(time.Second)
				if inits != test.inits {
					t.Errorf("InitShard was called %d times, want %d", inits, test.inits)
				}
				if got, want := stored(c, "words-000"), map[string]int{"inits": inits}; !maps.Equal(got, want) {
					t.Errorf("the state is %v, want %v", got, want)
				}
				// A sweep may have come first, and what was written before the abort with it.
				published := consumertest.Committed(c, lines)
				if want := fmt.Sprintf("inits=%d", inits); len(published) == 0 || len(published) > inits || published[len(published)-1] != want {
					t.Errorf("published %q, want %q: Flush sees what was written", published, want)
				}
			})
		})
	}
}

// A timer that is not to be fired goes, however many others are due before it.
func TestFailedTimerBehindMany(t *testing.T) {
	virtually(t, func(t *testing.T) {
		more := 1500
		a := &alarms{}
		a.fail = func(key string) error {
			if key == "bad" {
				return errors.New("refused")
			}
			return nil
		}
		b := &crowded{alarms: a, timers: more}
		c := consumertest.Start(t, b, consumer.Config{OnFailure: consumer.Skip})
		setTimer(c, "bad", time.Second)
		c.Settle()
		c.Advance(5 * time.Second)
		c.Settle()
		if got := c.Metric("p1", "pawl_dropped_total"); got != 1 {
			t.Errorf("%v timers were dropped, want 1", got)
		}
		if n := c.Metric("p1", "pawl_failed_messages_total"); n != 1 {
			t.Errorf("the timer has failed %v times, want 1", n)
		}
		if got := len(fired(t, c)); got != more {
			t.Errorf("%d others have fired, want %d", got, more)
		}
	})
}

// crowded sets many timers when the shard starts anew after an abort.
type crowded struct {
	*alarms
	timers int
	begun  bool // before
}

func (c *crowded) InitShard(s consumer.Shard) error {
	if !c.begun {
		c.begun = true
		return nil
	}
	for i := range c.timers {
		if err := s.Transaction().SetTimer(fmt.Append(nil, "t", i), time.Now().Add(-time.Hour)); err != nil {
			return err
		}
	}
	return nil
}
