// Package wordcount counts words: how often each has come, exactly once each
// time, however often the program is killed meanwhile.
//
// A message of the topic words is a word, as its key. For each word that a
// transaction has counted, its new total goes to the topic totals. Its
// program is in cmd:
//
//	go run ./examples/wordcount/cmd --listen 127.0.0.1:9092
package wordcount

import (
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// Total says how often a word has come.
type Total struct {
	Word  string `json:"word"`
	Count int64  `json:"count"`
}

var (
	words  = topic.String("words")
	totals = topic.JSON("totals", topic.KeyedBy(func(t Total) string { return t.Word })).With(topic.Compacted())
	counts = store.NewTable("counts", store.String, store.Int64)
)

// Counter is the consumer.
type Counter struct{}

// Topics returns the topic to consume.
func (Counter) Topics() []*topic.Description { return []*topic.Description{words.Description} }

// Outputs returns the topic to publish to.
func (Counter) Outputs() []*topic.Description { return []*topic.Description{totals.Description} }

// Consume counts one word.
func (Counter) Consume(e topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
	_, err := counts.Update(s.Transaction(), string(e.Key), func(n int64) int64 { return n + 1 })
	return err
}

// Flush publishes the words that were counted since the last commit.
func (Counter) Flush(s consumer.Shard, p *topic.Publisher) error {
	for word, c := range counts.Changes(s.Transaction()) {
		if err := totals.Publish(p, Total{word, c.New}); err != nil {
			return err
		}
	}
	return nil
}
