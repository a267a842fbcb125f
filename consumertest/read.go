package consumertest

import (
	"fmt"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// Committed returns the messages of a topic that a reader of committed ones
// sees now: partition after partition, each in order. Tombstones are not among
// them: [CommittedEnvelopes] has everything.
func Committed[T any](c *Cluster, of topic.Of[T]) []T {
	c.t.Helper()
	return decode(c.t, of, CommittedEnvelopes(c, of))
}

// CommittedEnvelopes returns what a reader of committed messages sees of a
// topic now: partition after partition, each in order.
func CommittedEnvelopes(c *Cluster, of Topic) []topic.Envelope {
	c.t.Helper()
	return c.readAll(of.Describe(), true)
}

// WrittenEnvelopes returns everything that was written to a topic until now,
// committed, aborted and of open transactions: partition after partition, each
// in order.
func WrittenEnvelopes(c *Cluster, of Topic) []topic.Envelope {
	c.t.Helper()
	return c.readAll(of.Describe(), false)
}

func (c *Cluster) readAll(d *topic.Description, committed bool) (all []topic.Envelope) {
	c.t.Helper()
	for _, p := range c.partitions(d.Name()) {
		all = append(all, c.read(d, p, -1, committed)...)
	}
	return all
}

// read returns what a partition holds from an offset on, or from its start for
// -1.
func (c *Cluster) read(d *topic.Description, p topic.Partition, from int64, committed bool) (all []topic.Envelope) {
	c.t.Helper()
	end := kafka.End
	if committed {
		end = kafka.StableEnd
	}
	ends := c.offsets(end, p)
	start := c.offsets(kafka.Earliest, p)
	next := max(from, start[p])
	if next >= ends[p] {
		return nil
	}
	r, err := kafka.NewReader(c.kafka(), kafka.ReaderConfig{Committed: committed})
	if err != nil {
		c.t.Fatal(err)
	}
	defer r.Close()
	r.Consume(d, p.Number, next)
	ctx, cancel := c.context()
	defer cancel()
	for next < ends[p] {
		var batch kafka.Batch // a new one each time, since its envelopes are kept
		if err := r.Poll(ctx, 10_000, &batch); err != nil {
			c.t.Fatalf("read %s at %d of %d: %v", p, next, ends[p], err)
		}
		for _, e := range batch.Envelopes {
			if e.Offset < ends[p] {
				all = append(all, e)
			}
		}
		for _, b := range batch.Parts {
			next = max(next, b.Next)
		}
	}
	return all
}

func (c *Cluster) offsets(at kafka.At, parts ...topic.Partition) map[topic.Partition]int64 {
	c.t.Helper()
	ctx, cancel := c.context()
	defer cancel()
	offsets, err := c.admin.Offsets(ctx, at, parts...)
	if err != nil {
		c.t.Fatal(err)
	}
	return offsets
}

// Commits returns how many transactions a shard of the cluster's application
// has committed, in whatever processes, from its beginning. It counts them in
// the changelog, and so can't count what was trimmed.
func (c *Cluster) Commits(id consumer.ShardID) int {
	c.t.Helper()
	app := c.application()
	for _, cons := range app.consumers {
		for _, d := range cons.Topics() {
			log := consumer.ChangelogTopic(app.cfg.Application, d.Set())
			for _, p := range c.partitions(d.Name()) {
				if shardID(d.Set(), p.Number) == id {
					return c.commits(topic.Partition{Topic: log, Number: p.Number})
				}
			}
		}
	}
	c.t.Fatalf("no consumer has a shard %s", id)
	return 0
}

// commits counts the transactions in a changelog. Each has one offsets record.
// What does not count is a record that only says where to begin: it moves no
// offset that was there before.
func (c *Cluster) commits(log topic.Partition) (n int) {
	c.t.Helper()
	if len(c.topics(log.Topic)) == 0 {
		return 0
	}
	var before changelog.Offsets
	for _, e := range c.read(topic.Bytes(log.Topic).Description, log, -1, true) {
		if string(e.Key) != string(changelog.OffsetsKey) || e.Value == nil {
			continue
		}
		now, err := changelog.ParseOffsets(e.Value)
		if err != nil {
			c.t.Fatal(fmt.Errorf("read changelog %s at offset %d: %w", log, e.Offset, err))
		}
		if moved(before, now) {
			n++
		}
		before = now
	}
	return n
}

func moved(before, now changelog.Offsets) bool {
	for _, b := range before.Inputs {
		for _, o := range now.Inputs {
			if o.Topic == b.Topic && o.ID == b.ID && o.Partition == b.Partition && o.Next > b.Next {
				return true
			}
		}
	}
	return false
}
