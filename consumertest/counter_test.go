package consumertest_test

import (
	"slices"
	"testing"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

type Total struct {
	Word  string
	Count int64
}

var (
	words  = topic.String("words")
	totals = topic.JSON("totals", topic.KeyedBy(func(t Total) string { return t.Word }))
	counts = store.NewTable("counts", store.String, store.Int64)
)

// counter counts words, and publishes how many there are of each.
type counter struct{}

func (counter) Topics() []*topic.Description { return []*topic.Description{words.Description} }

func (counter) Outputs() []*topic.Description { return []*topic.Description{totals.Description} }

func (counter) Consume(e topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
	_, err := counts.Update(s.Transaction(), string(e.Key), func(n int64) int64 { return n + 1 })
	return err
}

func (counter) Flush(s consumer.Shard, p *topic.Publisher) error {
	for word, c := range counts.Changes(s.Transaction()) {
		if err := totals.Publish(p, Total{word, c.New}); err != nil {
			return err
		}
	}
	return nil
}

func TestCounter(t *testing.T) { // a real store, no broker, no tag
	s := consumertest.NewShard(t, counter{})
	for _, w := range []string{"a", "b", "a"} {
		s.Consume(words, w, "")
	}
	s.Commit() // runs Flush
	if got, want := consumertest.Published(s, totals), []Total{{"a", 2}, {"b", 1}}; !slices.Equal(got, want) {
		t.Errorf("totals = %v, want %v", got, want)
	}
}
