package consumertest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/topic"
)

// slow takes its time for each message.
type slow struct{ each time.Duration }

func (slow) Topics() []*topic.Description { return []*topic.Description{words.Description} }

func (s slow) Consume(topic.Envelope, consumer.Shard, *topic.Publisher) error {
	time.Sleep(s.each) // virtual time
	return nil
}

func (slow) Flush(consumer.Shard, *topic.Publisher) error { return nil }

// Under load a transaction stays open for the commit interval, not longer.
func TestCommitInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := consumertest.Start(t, slow{1 * time.Millisecond}, consumer.Config{CommitInterval: 100 * time.Millisecond})
		c.Publish(words, make([]string, 1000)...) // a second of virtual time: passes at once
		c.Settle()
		if got, want := c.Commits("words-000"), 10; got != want {
			t.Errorf("%d commits, want %d", got, want)
		}
	})
}
