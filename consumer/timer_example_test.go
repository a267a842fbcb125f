package consumer_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/topic"
)

// reminder sends each message out again after a day.
type reminder struct{}

func (reminder) Topics() []*topic.Description { return []*topic.Description{words.Description} }

func (reminder) Consume(e topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
	return s.Transaction().SetTimer(e.Key, e.Timestamp.Add(24*time.Hour))
}

func (reminder) Fire(key []byte, _ time.Time, _ consumer.Shard, p *topic.Publisher) error {
	return lines.Publish(p, "remember "+string(key))
}

func (reminder) Flush(consumer.Shard, *topic.Publisher) error { return nil }

// A consumer that does something a day later, tested without a broker and without
// a day's wait.
func ExampleTimerConsumer() {
	testReminder := func(t *testing.T) {
		s := consumertest.NewShard(t, reminder{})
		s.Consume(words, "milk", "")
		s.Advance(23 * time.Hour)
		fmt.Println(consumertest.Published(s, lines))
		s.Advance(time.Hour)
		fmt.Println(consumertest.Published(s, lines))
	}
	testing.RunTests(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: "Reminder", F: testReminder}})
	// Output:
	// []
	// [remember milk]
}
