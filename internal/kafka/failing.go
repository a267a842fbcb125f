package kafka

import (
	"maps"
	"time"

	"github.com/pawlstream/pawl/topic"
)

// ReadFailure says that a partition can't be read.
type ReadFailure struct {
	Since time.Time
	Err   error // the last one
}

// Failing returns the partitions that can't be read just now, and since when.
// One is that from its first failure until it is fetched again, also while it is
// consumed anew; not while it is paused, and no more once it is stopped.
func (r *reading) Failing() map[topic.Partition]ReadFailure {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.mu.failing)
}

func (r *reading) failingLocked(p topic.Partition, err error) {
	f, ok := r.mu.failing[p]
	if !ok {
		f.Since = time.Now()
	}
	f.Err = err
	if r.mu.failing == nil {
		r.mu.failing = make(map[topic.Partition]ReadFailure)
	}
	r.mu.failing[p] = f
}
