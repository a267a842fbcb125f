package kafka

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// known is what a reading knows of a topic. Its ID is that of the first look, or
// the one that ConsumeID was told: one that was deleted and created again is
// another topic, and unknown. Once nothing of it is read, ConsumeID may name
// another.
type known struct {
	id    topic.ID
	seen  bool   // the ID is known
	leads []lead // by partition
}

// lead is who leads a partition, and in which epoch.
type lead struct {
	broker int32 // -1: nobody just now
	term   int32
}

const (
	// lookPauseMin and lookPauseMax are between two looks for a partition that
	// can't be fetched. The first look comes at once.
	lookPauseMin = 100 * time.Millisecond
	lookPauseMax = time.Second

	// unknownMax is how often in a row a topic may be unknown that was known
	// before: a new one takes its time to be known to every broker.
	unknownMax = 5
)

// lookPause is how long to wait before the next look after so many failures.
func lookPause(fails int) time.Duration {
	if fails <= 1 {
		return 0
	}
	return min(lookPauseMin<<min(fails-2, 10), lookPauseMax)
}

// assignLocked gives a partition to its leader, if that is known, and otherwise
// has it looked up.
func (r *reading) assignLocked(c *consumed) {
	if k := r.mu.topics[c.partition.Topic]; k != nil && k.seen && int(c.partition.Number) < len(k.leads) {
		if l := k.leads[c.partition.Number]; l.broker >= 0 {
			c.term = l.term
			r.fetcherLocked(l.broker).joinLocked(c)
			return
		}
	}
	c.due = time.Now()
	signal(r.look)
}

// failLocked has a partition looked up that could not be fetched, or found.
func (r *reading) failLocked(c *consumed, err error) {
	c.fails++
	r.failingLocked(c.partition, err)
	c.due = time.Now().Add(lookPause(c.fails))
	if c.leader != nil {
		c.leader.leaveLocked(c, false)
	}
	if k := r.mu.topics[c.partition.Topic]; isUnknownTopic(err) && !errors.Is(err, errNoSuchPartition) && k != nil && k.seen {
		c.unknown++
	}
	r.config.log.Debug("a partition can't be read just now", "partition", c.partition.String(), "offset", c.next, "fails", c.fails, "err", err)
	if c.unknown > unknownMax {
		r.readyLocked(c, &arrival{err: err})
		return
	}
	signal(r.look)
}

// lookUp finds the leaders of the partitions that have none, as long as the
// reading lasts.
func (r *reading) lookUp() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		names, next := r.lost(time.Now())
		if len(names) > 0 {
			metas, err := metadata(r.life, r.cl, names...)
			if r.life.Err() != nil {
				return
			}
			r.learn(names, metas, err)
			continue
		}
		timer.Reset(next)
		select {
		case <-r.look:
		case <-timer.C:
		case <-r.life.Done():
			return
		}
	}
}

// lost returns the topics that are to be looked up, or how long nobody has to
// be.
func (r *reading) lost(now time.Time) (names []string, next time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next = time.Hour
	for _, c := range r.mu.parts {
		if c.leader != nil || c.came != nil {
			continue
		}
		if wait := c.due.Sub(now); wait > 0 {
			next = min(next, wait)
		} else {
			names = append(names, c.partition.Topic)
		}
	}
	if len(names) == 0 {
		return nil, next
	}
	for name, k := range r.mu.topics { // those that will be needed
		if !k.seen {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), 0
}

// learn takes what the cluster says about topics.
func (r *reading) learn(names []string, metas []kmsg.MetadataResponseTopic, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	why := make(map[string]error, len(names))
	for _, name := range names {
		why[name] = err
		if err == nil {
			why[name] = errors.New("the cluster says nothing of it")
		}
	}
	for i := range metas {
		if m := &metas[i]; m.Topic != nil {
			why[*m.Topic] = r.learnTopicLocked(*m.Topic, m)
		}
	}
	for _, c := range slices.SortedFunc(maps.Values(r.mu.parts), func(x, y *consumed) int { return x.partition.Compare(y.partition) }) {
		err, asked := why[c.partition.Topic]
		if !asked || c.leader != nil || c.came != nil || c.due.After(now) {
			continue
		}
		if err == nil {
			leads := r.mu.topics[c.partition.Topic].leads
			switch n := int(c.partition.Number); {
			case n >= len(leads):
				err = fmt.Errorf("%w: %w", kerr.UnknownTopicOrPartition, errNoSuchPartition)
			case leads[n].broker < 0:
				err = kerr.LeaderNotAvailable
			default:
				c.term = leads[n].term
				r.fetcherLocked(leads[n].broker).joinLocked(c)
				continue
			}
		}
		r.failLocked(c, err)
	}
}

// learnTopicLocked takes what the cluster says about a topic, and returns why
// it can't be read.
func (r *reading) learnTopicLocked(name string, m *kmsg.MetadataResponseTopic) error {
	if err := kerr.ErrorForCode(m.ErrorCode); err != nil {
		if !kerr.IsRetriable(err) {
			r.failTopicLocked(name, err)
		}
		return err
	}
	k := r.mu.topics[name]
	if k == nil {
		k = new(known)
		r.mu.topics[name] = k
	}
	switch {
	case !k.seen:
		k.id, k.seen = m.TopicID, true
	case k.id != m.TopicID:
		return fmt.Errorf("%w: %w", kerr.UnknownTopicID, errAnotherTopic)
	}
	k.leads = k.leads[:0]
	for i := range m.Partitions {
		p := &m.Partitions[i]
		for int(p.Partition) >= len(k.leads) {
			k.leads = append(k.leads, lead{broker: -1, term: -1})
		}
		if err := kerr.ErrorForCode(p.ErrorCode); err == nil || errors.Is(err, kerr.ReplicaNotAvailable) {
			k.leads[p.Partition] = lead{broker: p.Leader, term: p.LeaderEpoch}
		}
	}
	return nil
}

// failTopicLocked ends the reading of all partitions of a topic that may not be
// read.
func (r *reading) failTopicLocked(name string, err error) {
	read := false
	for p := range r.mu.parts {
		if p.Topic == name {
			read = true
			r.stopLocked(p, false)
			r.failingLocked(p, readError(err))
		}
	}
	if !read {
		return
	}
	r.mu.failed = append(r.mu.failed, &PartitionError{Partition: topic.Partition{Topic: name, Number: -1}, Err: readError(err)})
	signal(r.arrived)
}
