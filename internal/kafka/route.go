package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// routes knows the topics that a session writes to: their IDs, how many
// partitions they have, and who leads each.
type routes struct {
	topics map[string]*route
	asked  time.Time // when all of them were last asked about
}

// route is one topic. Its ID is that of the session's first look: one that was
// deleted and created again is another topic, and gone for the session.
type route struct {
	name  string
	id    topic.ID
	parts []*target // by number
	gone  error     // why nothing can be written to it, as last heard
	limit int       // how large a batch of it may be; 0 before it was asked

	keyless int // records without a key so far
}

// target is one partition, and what the session writes to it.
type target struct {
	route  *route
	number int32
	leader int32 // -1: nobody just now

	sequence int32            // of the next record
	epoch    ProducerIdentity // that the sequence belongs to
	reached  int64            // the offset after the last record of the session
	listed   bool             // it is among those of the open transaction
	ordinal  int32            // where
	batches                   // of the open transaction
	kept     kept             // of their memory
	written  int              // how many of them are acknowledged
	doubtful bool             // the next of them may have been appended, for all that was heard
}

func (t *target) partition() topic.Partition {
	return topic.Partition{Topic: t.route.name, Number: t.number}
}

var errAnotherTopic = errors.New("the topic was deleted and created again: it is another one")

// unknownTries is how often a topic that the cluster does not know is asked
// for: a new one is not known to every broker at once.
const (
	unknownTries = 4
	unknownPause = 50 * time.Millisecond
)

// prepare asks about the topics of the records that have no route, or one that
// ends nowhere, and about all if what is known is older than metadataMaxAge. A
// topic that is not there is no error: its route says so.
func (rs *routes) prepare(ctx context.Context, cl *kgo.Client, l *limits, recs []Record) error {
	var missing []string
	last := ""
	for i := range recs {
		name := recs[i].Topic
		if name == last {
			continue
		}
		last = name
		if r := rs.topics[name]; r == nil || r.gone != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 || rs.old() {
		if err := rs.ask(ctx, cl, missing...); err != nil {
			return err
		}
	}
	return rs.measure(ctx, cl, l, l.unknown(recs)...)
}

// old says whether it is time to ask about all topics.
func (rs *routes) old() bool { return time.Since(rs.asked) >= metadataMaxAge }

// measure asks how large the batches of topics may be, and takes note of it for
// every route.
func (rs *routes) measure(ctx context.Context, cl *kgo.Client, l *limits, names ...string) error {
	if err := l.learn(ctx, cl, names...); err != nil {
		return err
	}
	for name, r := range rs.topics {
		r.limit = l.largest(name)
	}
	return nil
}

// ask asks the cluster about the topics, again if it does not know them, and
// about those that have a route.
func (rs *routes) ask(ctx context.Context, cl *kgo.Client, names ...string) error {
	all := slices.AppendSeq(slices.Clone(names), maps.Keys(rs.topics))
	slices.Sort(all)
	all = slices.Compact(all)
	for try := 1; ; try++ {
		metas, err := metadata(ctx, cl, all...)
		if err != nil {
			return fmt.Errorf("look up topics %q: %w", all, err)
		}
		unknown := false
		for i := range metas {
			if m := &metas[i]; m.Topic != nil {
				rs.hear(*m.Topic, m)
				unknown = unknown || isUnknownTopic(kerr.ErrorForCode(m.ErrorCode)) && slices.Contains(names, *m.Topic)
			}
		}
		if !unknown || try == unknownTries {
			rs.asked = time.Now()
			return nil
		}
		if err := pause(ctx, nil, unknownPause); err != nil {
			return fmt.Errorf("look up topics %q: %w", all, err)
		}
	}
}

// hear takes what the cluster says about a topic.
func (rs *routes) hear(name string, m *kmsg.MetadataResponseTopic) {
	r := rs.topics[name]
	err := kerr.ErrorForCode(m.ErrorCode)
	if r == nil {
		if err != nil && !isUnknownTopic(err) && !isUnauthorized(err) && !errors.Is(err, kerr.InvalidTopicException) {
			return // it will say more later
		}
		r = &route{name: name, id: m.TopicID}
		rs.topics[name] = r
	}
	switch {
	case err != nil:
		if isRefusal(err) {
			r.gone = err
		}
		return
	case len(r.parts) == 0:
		r.id = m.TopicID
	case r.id != m.TopicID:
		r.gone = fmt.Errorf("%w: %w", kerr.UnknownTopicID, errAnotherTopic)
		return
	}
	r.gone = nil
	for i := range m.Partitions {
		p := &m.Partitions[i]
		for int(p.Partition) >= len(r.parts) {
			r.parts = append(r.parts, &target{route: r, number: int32(len(r.parts)), leader: -1})
		}
		t := r.parts[p.Partition]
		t.leader = -1
		if kerr.ErrorForCode(p.ErrorCode) == nil || errors.Is(kerr.ErrorForCode(p.ErrorCode), kerr.ReplicaNotAvailable) {
			t.leader = p.Leader
		}
	}
}

// target returns where a record belongs, or why it belongs nowhere: the error
// is a refusal.
func (r *route) target(rec *Record) (*target, error) {
	n := len(r.parts)
	switch {
	case r.gone != nil:
		return nil, r.gone
	case n == 0:
		return nil, kerr.UnknownTopicOrPartition
	case int(rec.Partition) >= n:
		return nil, fmt.Errorf("%w: %w", ErrUnknownTopic, errNoSuchPartition)
	case rec.Partition >= 0:
		return r.parts[rec.Partition], nil
	case rec.Key != nil:
		return r.parts[topic.PartitionFor(rec.Key, n)], nil
	}
	r.keyless++
	return r.parts[r.keyless/spreadRun%n], nil
}

// pause waits, unless ctx or done ends.
func pause(ctx context.Context, done <-chan struct{}, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-done:
		return ErrClosed
	}
}
