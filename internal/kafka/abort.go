package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// PartitionProducer is a producer that a partition's leader remembers.
type PartitionProducer struct {
	Partition        topic.Partition
	ProducerID       int64
	Epoch            int16
	LastSequence     int32
	LastWrite        time.Time
	CoordinatorEpoch int32 // of the last marker; -1: there was none
	StartOffset      int64 // of the transaction that is open; -1: none is

	// TransactionalID is what the coordinators know of the producer; empty
	// where they don't. Held says that the coordinator knows of the very
	// transaction that is open, and so will end it. One that nobody holds
	// hangs: it hides what comes after it until somebody aborts it by hand.
	TransactionalID string
	Held            bool
}

// Hangs says whether a transaction is open that no coordinator will end.
func (p PartitionProducer) Hangs() bool { return p.StartOffset >= 0 && !p.Held }

// Producers returns the producers that the partitions' leaders remember, in
// order, with what the coordinators know of those that have a transaction
// open.
func (a *Admin) Producers(ctx context.Context, parts ...topic.Partition) ([]PartitionProducer, error) {
	fail := func(err error) ([]PartitionProducer, error) {
		return nil, fmt.Errorf("look up the producers of %d partitions: %w", len(parts), classed(err))
	}
	all, err := a.remembered(ctx, parts...)
	if err != nil {
		return fail(err)
	}
	ids := withOpen(all)
	if len(ids) == 0 {
		return all, nil
	}
	known, err := a.transactions(ctx, ids)
	if err != nil {
		return fail(err)
	}
	for i := range all {
		p := &all[i]
		for _, t := range known {
			if t.ProducerID != p.ProducerID {
				continue
			}
			p.TransactionalID = t.ID
			// One that is ending has its markers under way. An epoch that
			// can't be told holds, too.
			p.Held = p.Held || t.open() && slices.Contains(t.Partitions, p.Partition) && (t.Epoch < 0 || t.Epoch == p.Epoch || t.State != StateOngoing)
		}
	}
	return all, nil
}

// remembered returns the producers that the partitions' leaders remember, in
// order. The coordinators are not asked.
func (a *Admin) remembered(ctx context.Context, parts ...topic.Partition) ([]PartitionProducer, error) {
	if len(parts) == 0 {
		return nil, nil
	}
	var set kadm.TopicsSet
	for _, p := range parts {
		set.Add(p.Topic, p.Number)
	}
	topics, err := a.adm.DescribeProducers(ctx, set)
	if err != nil {
		return nil, err
	}
	var all []PartitionProducer
	for _, t := range topics {
		for _, part := range t.Partitions {
			if part.Err != nil {
				return nil, part.Err
			}
			for _, pr := range part.ActiveProducers {
				all = append(all, PartitionProducer{
					Partition: topic.Partition{Topic: pr.Topic, Number: pr.Partition}, ProducerID: pr.ProducerID, Epoch: pr.ProducerEpoch, LastSequence: pr.LastSequence,
					LastWrite: time.UnixMilli(pr.LastTimestamp), CoordinatorEpoch: pr.CoordinatorEpoch, StartOffset: pr.CurrentTxnStartOffset,
				})
			}
		}
	}
	slices.SortFunc(all, func(x, y PartitionProducer) int {
		return cmp.Or(x.Partition.Compare(y.Partition), cmp.Compare(x.ProducerID, y.ProducerID))
	})
	return all, nil
}

// withOpen returns the IDs of those producers that have a transaction open.
func withOpen(all []PartitionProducer) (ids []int64) {
	for _, p := range all {
		if p.StartOffset >= 0 {
			ids = append(ids, p.ProducerID)
		}
	}
	return ids
}

// The states of a transaction, as Kafka names them.
const (
	StateOngoing       = "Ongoing"
	statePrepareCommit = "PrepareCommit"
	statePrepareAbort  = "PrepareAbort"
)

// open says whether the coordinator has yet to end the transaction.
func (t Transaction) open() bool {
	return t.State == StateOngoing || t.State == statePrepareCommit || t.State == statePrepareAbort
}

// AbortHanging ends a transaction that hangs, by writing the marker that no
// coordinator will write. Nothing but the partition it was found in changes.
func (a *Admin) AbortHanging(ctx context.Context, p PartitionProducer) error {
	fail := func(err error) error {
		return fmt.Errorf("abort the transaction of producer %d in %s: %w", p.ProducerID, p.Partition, classed(err))
	}
	if !p.Hangs() {
		return fail(errors.New("it does not hang"))
	}
	var set kadm.TopicsSet
	set.Add(p.Partition.Topic, p.Partition.Number)
	rs, err := a.adm.WriteTxnMarkers(ctx, kadm.TxnMarkers{ProducerID: p.ProducerID, ProducerEpoch: p.Epoch, CoordinatorEpoch: max(p.CoordinatorEpoch, 0), Topics: set})
	if err != nil {
		return fail(err)
	}
	answered := false
	for _, r := range rs.SortedPartitions() {
		answered = true
		if r.Err != nil {
			return fail(r.Err)
		}
	}
	if !answered {
		return fail(kerr.UnknownServerError)
	}
	return nil
}

// AbortTransaction ends the transaction that a transactional ID has open, and
// fences its producer. It returns once nothing of the transaction is open any
// more.
func (a *Admin) AbortTransaction(ctx context.Context, id string) error {
	s, err := NewSession(a.cfg, SessionConfig{TransactionalID: id})
	if err != nil {
		return err
	}
	defer s.Close()
	_, err = s.Fence(ctx)
	return err
}
