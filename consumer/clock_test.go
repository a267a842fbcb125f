package consumer_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

const rememberedFor = 3 * time.Minute

var remembered = store.NewTable("clock-remembered", store.String, store.Int64, store.TTL(rememberedFor))

// clockwise sets a timer for each message, by what the message says, and
// remembers its key for a while. It counts what fires.
type clockwise struct {
	program
	skew atomic.Int64 // of the clock of the machine, at most
}

func (a *clockwise) Consume(e topic.Envelope, s consumer.Shard, p *topic.Publisher) error {
	after, err := time.ParseDuration(string(e.Value))
	if err != nil {
		return err
	}
	if _, err := remembered.Update(s.Transaction(), string(e.Key), func(n int64) int64 { return n + 1 }); err != nil {
		return err
	}
	return s.Transaction().SetTimer(e.Key, e.Timestamp.Add(after))
}

func (a *clockwise) Fire(key []byte, at time.Time, s consumer.Shard, p *topic.Publisher) error {
	if day := time.Now().Add(time.Duration(a.skew.Load())); day.Before(at) {
		return fmt.Errorf("timer %s of %v fired at %v", key, at, day)
	}
	n, err := fires.Update(s.Transaction(), string(key), func(n int64) int64 { return n + 1 })
	if err != nil {
		return err
	}
	return lines.Publish(p, fmt.Sprintf("%s=%d", key, n), topic.Key(key))
}

// step sets the clock of a machine.
func (a *clockwise) step(c *consumertest.Cluster, by time.Duration) {
	if by > 0 {
		a.skew.Add(int64(by))
	}
	c.StepClock("p1", by)
	if by < 0 {
		c.Advance(time.Nanosecond) // what has begun before is over
		a.skew.Add(int64(by))
	}
}

// known returns what the state remembers.
func known(t *testing.T, c *consumertest.Cluster) map[string]int64 {
	t.Helper()
	all := make(map[string]int64)
	if err := c.App("p1").View("words-000", func(tx *store.Transaction) error {
		for k, v := range remembered.All(tx) {
			all[k] = v
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// A clock that is set forward fires at once what is due by it, and one that is set
// back takes nothing back: each timer fires once, and none is lost.
func TestTimersWhenTheClockIsSet(t *testing.T) {
	virtually(t, func(t *testing.T) {
		a := &clockwise{}
		c := consumertest.Start(t, a, consumer.Config{FlushInterval: time.Hour})
		setTimer(c, "soon", time.Second)
		setTimer(c, "hour", time.Hour)
		setTimer(c, "day", 24*time.Hour)
		c.Settle()
		want := map[string]int{}
		check := func(when string, after time.Duration, keys ...string) {
			t.Helper()
			c.Advance(after)
			for _, key := range keys {
				want[key] = 1
			}
			if got := fired(t, c); !maps.Equal(got, want) {
				t.Errorf("%s: fired %v, want %v", when, got, want)
			}
		}
		check("two seconds later", 2*time.Second, "soon")
		a.step(c, 2*time.Hour)
		check("two hours forward", time.Second, "hour")
		a.step(c, -3*time.Hour)
		setTimer(c, "minute", time.Minute) // of a clock that is an hour ahead
		check("three hours back, and two minutes later", 2*time.Minute)
		a.step(c, time.Hour)
		check("once the clock is where it was", time.Second, "minute")
		a.step(c, 30*24*time.Hour)
		check("a month forward", time.Second, "day")
		a.step(c, -30*24*time.Hour)
		check("a month back", 5*time.Minute)
		if err := c.App("p1").Ready(); err != nil {
			t.Errorf("the process is not ready: %v", err)
		}
		setTimer(c, "stepwise", time.Minute)
		c.Settle()
		for range 8 { // each is less than a session
			a.step(c, 8*time.Second)
			c.Advance(400 * time.Millisecond)
		}
		check("a minute forward in steps", time.Second, "stepwise")
	})
}

// A machine that was suspended has not counted the time, and finds its clock set
// forward when it goes on: others may have had its shards. Nothing is answered
// from what it holds until the group has been asked, and then they are fenced.
func TestNothingIsAnsweredAfterASuspension(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{})
		send(c, "a")
		c.Settle()
		view := func() error { return c.App("p1").View("words-000", func(*store.Transaction) error { return nil }) }
		if err := view(); err != nil {
			t.Fatal(err)
		}
		stepped := time.Now()
		c.StepClock("p1", time.Minute)
		if err := view(); !errors.Is(err, consumer.ErrNotHere) {
			t.Errorf("a minute later by the time of day: %v, want %v", err, consumer.ErrNotHere)
		}
		c.Advance(2 * time.Second)
		if err := view(); err != nil {
			t.Errorf("once the group has answered: %v", err)
		}
		if since := c.Status("p1").Shards[0].Since; since.Before(stepped) {
			t.Errorf("the shard runs since %v, want since it was fenced anew after %v", since, stepped)
		}
		c.StepClock("p1", -2*time.Hour)
		if err := view(); err != nil {
			t.Errorf("set back: %v", err)
		}
	})
}

// A broker that refuses the time of what a shard writes refuses no message: none
// is skipped for it, and all goes on when the clock is right.
func TestMessagesAreNotSkippedForTheClock(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{OnFailure: consumer.Skip})
		send(c, "a")
		c.Settle()
		remove := c.Fail("p1", "Produce", "INVALID_TIMESTAMP", -1)
		send(c, "b", "a")
		c.Until("the shard to say so", func() bool {
			err := c.App("p1").Ready()
			return err != nil && strings.Contains(err.Error(), "one of the two clocks is wrong")
		})
		remove()
		c.Settle()
		checkExact(t, c, map[string]int{"a": 2, "b": 1})
		checkNoDrops(t, c)
	})
}

// What was written while the clock was ahead does not outlive its TTL by as much,
// and what has expired while it was ahead is gone from every copy.
func TestTTLWhenTheClockIsSet(t *testing.T) {
	virtually(t, func(t *testing.T) {
		a := &clockwise{}
		c := consumertest.Start(t, a, consumer.Config{})
		setTimer(c, "before", 0)
		c.Settle()
		a.step(c, 48*time.Hour)
		c.Advance(2 * time.Minute)
		if got := known(t, c); len(got) != 0 {
			t.Errorf("two days forward %v are remembered, want none", got)
		}
		setTimer(c, "ahead", 0)
		c.Settle()
		a.step(c, -48*time.Hour)
		c.Advance(2 * time.Minute)
		if got, want := known(t, c), map[string]int64{"ahead": 1}; !maps.Equal(got, want) {
			t.Errorf("set back, %v are remembered, want %v", got, want)
		}
		c.Advance(rememberedFor)
		if got := known(t, c); len(got) != 0 {
			t.Errorf("after their TTL %v are remembered, want none", got)
		}
	})
}

// The auditor's way: messages come, processes crash, and the clock is set both
// ways, by up to an hour. Each timer has fired once, by output and by state, none
// before its time, and nothing outlives its TTL.
func TestAuditWhenTheClockIsSet(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 1))
				a := &clockwise{}
				c := consumertest.Start(t, a, consumer.Config{})
				want := make(map[string]int)
				for i := range 60 {
					key := fmt.Sprintf("key-%02d", i)
					want[key] = 1
					setTimer(c, key, time.Duration(r.Int64N(int64(10*time.Minute))))
					switch r.IntN(6) {
					case 0:
						a.step(c, time.Duration(r.Int64N(int64(time.Hour))))
					case 1:
						a.step(c, -time.Duration(r.Int64N(int64(time.Hour))))
					case 2:
						c.Crash("p1")
						c.StartProcess("p1")
					}
					c.Advance(time.Duration(r.Int64N(int64(10 * time.Second))))
				}
				c.Settle()
				if skew := time.Duration(a.skew.Load()); skew < 0 {
					a.step(c, -skew)
				}
				c.Advance(10*time.Minute + 10*time.Second)
				if got := fired(t, c); !maps.Equal(got, want) {
					t.Errorf("fired %v, want each once", got)
				}
				if got := known(t, c); len(got) != 0 {
					t.Errorf("after their TTL %v are remembered, want none", got)
				}
				if err := c.App("p1").Ready(); err != nil {
					t.Errorf("the process is not ready: %v", err)
				}
				checkNoDrops(t, c)
			})
		})
	}
}

func checkNoDrops(t *testing.T, c *consumertest.Cluster) {
	t.Helper()
	if got := c.Metric("p1", "pawl_dropped_total"); got != 0 {
		t.Errorf("%v messages were dropped", got)
	}
}
