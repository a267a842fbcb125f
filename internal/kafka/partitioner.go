package kafka

import (
	"errors"
	"sync"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kgo"
)

var errNoSuchPartition = errors.New("the topic has no such partition")

// byHand sends a record to the partition that it names, or, where it names
// none, to the one that its key belongs to. (The library's own partitioners
// ignore the partition of a record.)
type byHand struct {
	astray *sync.Map // of *kgo.Record: those that name a partition which does not exist
}

// ForTopic is called once per topic.
func (b byHand) ForTopic(string) kgo.TopicPartitioner { return &spread{astray: b.astray} }

// spread deals out records without a key: spreadRun to one partition, then to
// the next, so that batches stay large.
type spread struct {
	astray *sync.Map
	n      int
}

const spreadRun = 64

// RequiresConsistency makes the library pass the number of all partitions,
// not only of those that have a leader just now.
func (*spread) RequiresConsistency(*kgo.Record) bool { return true }

func (s *spread) Partition(r *kgo.Record, n int) int {
	switch {
	case int(r.Partition) >= n:
		s.astray.Store(r, true)
		return -1 // which the library refuses, with an error of no class
	case r.Partition >= 0:
		return int(r.Partition)
	case r.Key != nil:
		return int(topic.PartitionFor(r.Key, n))
	}
	s.n++
	return s.n / spreadRun % n
}
