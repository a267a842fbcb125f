package filestats

import (
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/topic"
)

// ByPath keeps the totals of each path.
type ByPath struct {
	In  topic.Of[Change]
	Out topic.Of[PathTotals]
}

// Topics returns the input.
func (c ByPath) Topics() []*topic.Description { return []*topic.Description{c.In.Description} }

// Outputs returns the topic that is keyed by author.
func (c ByPath) Outputs() []*topic.Description { return []*topic.Description{c.Out.Description} }

// Consume adds the change to its path's totals, and publishes them.
func (c ByPath) Consume(e topic.Envelope, s consumer.Shard, p *topic.Publisher) error {
	change, ok, err := c.In.Message(e)
	if err != nil || !ok {
		return err
	}
	totals, err := Paths.Update(s.Transaction(), change.Path, plus(change.Added, change.Deleted))
	if err != nil {
		return err
	}
	return c.Out.Publish(p, PathTotals{
		Author:     change.Author,
		AuthoredAt: change.AuthoredAt,
		Path:       change.Path,
		Added:      change.Added,
		Deleted:    change.Deleted,
		Totals:     totals,
		Input:      Position{e.Partition, e.Offset},
	})
}

// Flush has nothing to add: each message has published its own.
func (ByPath) Flush(consumer.Shard, *topic.Publisher) error { return nil }
