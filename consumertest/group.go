package consumertest

import (
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// GroupOffsets returns what a group has committed.
func GroupOffsets(c *Cluster, group string) map[topic.Partition]int64 {
	c.t.Helper()
	offsets := make(map[topic.Partition]int64)
	for p, o := range groupCommits(c, group) {
		offsets[p] = o.Offset
	}
	return offsets
}

// GroupMetadata returns the metadata of what a group has committed.
func GroupMetadata(c *Cluster, group string) map[topic.Partition]string {
	c.t.Helper()
	texts := make(map[topic.Partition]string)
	for p, o := range groupCommits(c, group) {
		texts[p] = o.Metadata
	}
	return texts
}

func groupCommits(c *Cluster, group string) map[topic.Partition]kafka.Committed {
	c.t.Helper()
	ctx, cancel := c.context()
	defer cancel()
	all, err := c.admin.Committed(ctx, group)
	if err != nil {
		c.t.Fatal(err)
	}
	return all
}

// SetGroupOffset commits an offset, with metadata, for a group that has no
// members.
func SetGroupOffset(c *Cluster, group string, p topic.Partition, offset int64, metadata string) {
	c.t.Helper()
	ctx, cancel := c.context()
	defer cancel()
	if err := c.admin.CommitOffsets(ctx, group, map[topic.Partition]kafka.Committed{p: {Offset: offset, Metadata: metadata}}); err != nil {
		c.t.Fatal(err)
	}
}

// EndOffsets returns where each partition of a topic ends now.
func EndOffsets(c *Cluster, of Topic) map[int32]int64 {
	c.t.Helper()
	ends := make(map[int32]int64)
	for p, o := range c.offsets(kafka.End, c.partitions(of.Describe().Name())...) {
		ends[p.Number] = o
	}
	return ends
}
