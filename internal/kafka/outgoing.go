package kafka

import (
	"errors"
	"fmt"
	"time"

	"github.com/pawlstream/pawl/topic"
)

// outgoing is what one transaction writes, encoded and sorted by partition. It
// belongs to the session's identity at the time, and is sent as it is however
// often that takes.
type outgoing struct {
	targets []*target // those that are written to
	order   []int32   // of each record: the place of its target
	memory  memory
}

// build encodes the records of a transaction. A *RecordError names the first
// that can't be sent, and nothing has been sent. Unless asked says that the
// topics have just been asked about, one that is not known well enough is
// errNotReady.
func (o *outgoing) build(recs []Record, rs *routes, asked bool) error {
	o.clear()
	now := time.Now().UnixMilli()
	var r *route
	name, limit, most := "", 0, 0
	for i := range recs {
		rec := &recs[i]
		if rec.Topic != name || r == nil {
			name, r = rec.Topic, rs.topics[rec.Topic]
			if r == nil || !asked && (r.gone != nil || r.limit == 0) {
				return fmt.Errorf("topic %s: %w", name, errNotReady)
			}
			limit = r.limit
			most = min(limit, batchTarget)
		}
		t, err := r.target(rec)
		if err != nil {
			return &RecordError{Index: i, Topic: name, Partition: max(rec.Partition, 0), Key: rec.Key, Size: wireSize(rec), Err: classed(err)}
		}
		if !t.listed {
			t.listed, t.ordinal, t.written, t.doubtful = true, int32(len(o.targets)), 0, false
			t.reset()
			o.targets = append(o.targets, t)
		}
		ts := now
		if !rec.Timestamp.IsZero() {
			ts = rec.Timestamp.UnixMilli()
		}
		t.add(rec, ts, most)
		o.order = append(o.order, t.ordinal)
		if len(rec.Key)+len(rec.Value)+batchOverhead+recordOverhead > limit || len(rec.Headers) > 0 { // else there is no need to count
			if size := wireSize(rec); size > limit {
				return &RecordError{Index: i, Topic: name, Partition: t.number, Key: rec.Key, Size: size, Limit: limit, Err: ErrTooLarge}
			}
		}
	}
	return nil
}

// recordOverhead is the most that a record without headers takes beside its key
// and value.
const recordOverhead = 40

// errNotReady says that the cluster knows of a topic and not yet enough.
var errNotReady = errors.New("the topic is not ready")

// clear lets go of the last transaction.
func (o *outgoing) clear() {
	o.memory.keep(o.targets)
	for _, t := range o.targets {
		t.listed = false
	}
	clear(o.targets)
	o.targets, o.order = o.targets[:0], o.order[:0]
}

// index returns the place, among the records of the transaction, of the nth
// record of a batch.
func (o *outgoing) index(t *target, batch int, n int32) int {
	for _, s := range t.spans[:batch] {
		n += s.records
	}
	for i, ordinal := range o.order {
		if ordinal == t.ordinal {
			if n == 0 {
				return i
			}
			n--
		}
	}
	return -1
}

// reached returns the offset after the last record of each partition that was
// written to.
func (o *outgoing) reached() map[topic.Partition]int64 {
	next := make(map[topic.Partition]int64, len(o.targets))
	for _, t := range o.targets {
		next[t.partition()] = t.reached
	}
	return next
}
