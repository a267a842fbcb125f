package consumer_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/topic"
)

// C44: producers stamp anything. Whatever it is, the message is delivered,
// and dead-lettered if need be, like any other.
func TestAbsurdTimestamps(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := &program{after: func(e topic.Envelope, _ consumer.Shard) error {
			if string(e.Value) == "bad" {
				return fmt.Errorf("refused, stamped %v", e.Timestamp)
			}
			return nil
		}}
		c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.DeadLetter})
		now := time.Now()
		stamps := []time.Time{
			time.UnixMilli(-1), time.UnixMilli(0), time.UnixMilli(1), now.AddDate(10, 0, 0),
			time.UnixMilli(now.UnixMicro()), time.UnixMilli(math.MaxInt64), time.UnixMilli(math.MinInt64),
		}
		for i, at := range stamps {
			for _, v := range []string{"fine", "bad"} {
				c.PublishRecord(topic.Out{Topic: words.Description, Key: fmt.Appendf(nil, "k%d", i), Value: []byte(v), Timestamp: at})
			}
		}
		c.Settle()
		want := make(map[string]int)
		for i := range stamps {
			want[fmt.Sprintf("k%d", i)] = 1
		}
		checkExact(t, c, want)
		if got := len(consumertest.CommittedEnvelopes(c, topic.Bytes("test.words.dlq"))); got != len(stamps) {
			t.Errorf("%d dead letters, want %d", got, len(stamps))
		}
	})
}

// C55: a stop at any moment of ten thousand messages loses and doubles
// nothing, and ends in time.
func TestStopAtAnyMoment(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	virtually(t, func(t *testing.T) {
		p := &program{before: func(topic.Envelope, consumer.Shard) error {
			time.Sleep(50 * time.Microsecond) // virtual time
			return nil
		}}
		c := consumertest.Start(t, p, consumer.Config{CommitInterval: 20 * time.Millisecond})
		msgs := repeated(10_000, "a", "b", "c", "d", "e", "f", "g")
		out := make([]topic.Out, len(msgs))
		for i, m := range msgs {
			out[i] = topic.Out{Topic: words.Description, Key: []byte(m), Value: []byte(m)}
		}
		c.PublishRecord(out...)
		for round := range 12 {
			c.Advance(time.Duration(rng.IntN(60_000)) * time.Microsecond)
			begun := time.Now()
			if err := c.Stop("p1"); err != nil {
				t.Errorf("seed %d, round %d: %v", seed, round, err)
			}
			if took := time.Since(begun); took > 2*time.Second {
				t.Errorf("seed %d, round %d: the stop took %v", seed, round, took)
			}
			c.Restart("p1")
		}
		c.Settle()
		checkExact(t, c, countOf(msgs))
		checkStored(t, c, "words-000", countOf(msgs))
	})
}

// Messages that come one by one are fetched together when the next commit may
// begin, not each by itself while the last commit's pause lasts.
func TestFewFetchesUnderASteadyLoad(t *testing.T) {
	virtually(t, func(t *testing.T) {
		const pause, messages = 20 * time.Millisecond, 1_000
		c := consumertest.Start(t, &program{}, consumer.Config{CommitPause: pause})
		send(c, "a")
		c.Settle()
		asked, commits := c.Requests("p1", "Fetch"), c.Commits("words-000")
		begun := time.Now()
		for range messages {
			send(c, "a")
			c.Advance(time.Millisecond)
		}
		c.Settle()
		took := time.Since(begun)
		asked, commits = c.Requests("p1", "Fetch")-asked, c.Commits("words-000")-commits
		if least := int(took / (2 * pause)); commits < least {
			t.Errorf("%d commits in %v, want %d at least", commits, took, least)
		}
		if most := 4*commits + 4; asked > most {
			t.Errorf("%d fetches for %d commits of %d messages, want at most %d", asked, commits, messages, most)
		}
		checkExact(t, c, map[string]int{"a": messages + 1})
	})
}

// C46: compaction has left nothing of the input's end but a batch without a
// record. The shard's lag reaches 0 all the same, its offset the end, and what
// comes after is consumed.
func TestEndOfInputHoldsNoMessage(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := &program{}
		c := consumertest.Start(t, p, consumer.Config{FlushInterval: 10 * time.Second})
		send(c, "a", "a", "b", "b")
		c.Settle()
		if err := c.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		send(c, "c", "c", "d", "d", "e", "e")
		c.Clean("words", 0, 4, 10)
		c.Restart("p1")
		c.Until("the shard to run", func() bool { return len(runningIn(c, "p1")) == 1 })
		c.Advance(2 * time.Second)
		if lag := c.Status("p1").Shards[0].Lag; lag != 0 {
			t.Errorf("the shard lags by %d, want 0", lag)
		}
		asked := c.Requests("p1", "Fetch")
		c.Advance(30 * time.Second)
		if got := c.Status("p1").Shards[0].Offsets[topic.Partition{Topic: "words"}]; got != 10 {
			t.Errorf("the committed offset is %d, want 10", got)
		}
		if got := c.Requests("p1", "Fetch") - asked; got > 70 { // two a second, as long as nothing comes
			t.Errorf("%d fetches in 30s", got)
		}
		send(c, "f")
		c.Settle()
		checkExact(t, c, map[string]int{"a": 2, "b": 2, "f": 1})
	})
}
