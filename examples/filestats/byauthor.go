package filestats

import (
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// ByAuthor keeps the totals of each author, and of each day of an author's.
type ByAuthor struct {
	In  topic.Of[PathTotals]
	Out topic.Of[AuthorTotals]
}

// Topics returns what ByPath publishes.
func (c ByAuthor) Topics() []*topic.Description { return []*topic.Description{c.In.Description} }

// Outputs returns the topic of totals.
func (c ByAuthor) Outputs() []*topic.Description { return []*topic.Description{c.Out.Description} }

// Consume adds the increase to both totals, and publishes them.
func (c ByAuthor) Consume(e topic.Envelope, s consumer.Shard, p *topic.Publisher) error {
	in, ok, err := c.In.Message(e)
	if err != nil || !ok {
		return err
	}
	increase := plus(in.Added, in.Deleted)
	totals, err := Authors.Update(s.Transaction(), in.Author, increase)
	if err != nil {
		return err
	}
	day := time.Unix(in.AuthoredAt, 0).UTC().Format(time.DateOnly)
	onDay, err := AuthorDays.Update(s.Transaction(), store.Pair[string, string]{First: in.Author, Second: day}, increase)
	if err != nil {
		return err
	}
	return c.Out.Publish(p, AuthorTotals{
		Author:    in.Author,
		Day:       day,
		Added:     in.Added,
		Deleted:   in.Deleted,
		Totals:    totals,
		DayTotals: onDay,
		Input:     Position{e.Partition, e.Offset},
	})
}

// Flush has nothing to add: each message has published its own.
func (ByAuthor) Flush(consumer.Shard, *topic.Publisher) error { return nil }
