package kafka

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pawlstream/pawl/topic"
)

// OpenTransaction is a transaction that holds a partition's last stable offset
// back.
type OpenTransaction struct {
	ProducerID      int64
	Epoch           int16
	TransactionalID string    // empty where it can't be found
	StartOffset     int64     // of the transaction in the partition
	Since           time.Time // when it began, or else when its producer last wrote
}

// Transaction is a transactional ID that the cluster's coordinators know.
type Transaction struct {
	ID         string
	ProducerID int64
	Epoch      int16
	State      string    // as Kafka names it: Empty, Ongoing, CompleteCommit, …
	Started    time.Time // zero unless one is open
	Timeout    time.Duration
	Partitions []topic.Partition // that it has written to
}

// OpenTransactions says who holds the partition's last stable offset back, the
// one that has for longest first.
func (a *Admin) OpenTransactions(ctx context.Context, p topic.Partition) ([]OpenTransaction, error) {
	all, err := a.remembered(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("look up open transactions of %s: %w", p, classed(err))
	}
	var open []OpenTransaction
	for _, pr := range all {
		if pr.StartOffset >= 0 {
			open = append(open, OpenTransaction{ProducerID: pr.ProducerID, Epoch: pr.Epoch, StartOffset: pr.StartOffset, Since: pr.LastWrite})
		}
	}
	if len(open) == 0 {
		return nil, nil
	}
	// The coordinators know the names. That they can't be asked takes nothing
	// from what the partition's leader has said.
	known, err := a.transactions(ctx, withOpen(all))
	for i := range open {
		for _, t := range known {
			if t.ProducerID == open[i].ProducerID {
				open[i].TransactionalID = t.ID
				if !t.Started.IsZero() {
					open[i].Since = t.Started
				}
			}
		}
	}
	slices.SortFunc(open, func(x, y OpenTransaction) int { return int(min(max(x.StartOffset-y.StartOffset, -1), 1)) })
	if err != nil {
		a.cfg.Logger.Debug("look up the names of open transactions", "partition", p.String(), "err", err)
	}
	return open, nil
}

// Transactions returns the transactional IDs that the cluster knows, in order.
func (a *Admin) Transactions(ctx context.Context) ([]Transaction, error) {
	ts, err := a.transactions(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list transactions: %w", classed(err))
	}
	return ts, nil
}

func (a *Admin) transactions(ctx context.Context, producers []int64) ([]Transaction, error) {
	listed, err := a.adm.ListTransactions(ctx, producers, nil)
	if err != nil {
		return nil, err
	}
	if len(listed) == 0 {
		return nil, nil
	}
	described, err := a.adm.DescribeTransactions(ctx, listed.TransactionalIDs()...)
	if err != nil {
		return nil, err
	}
	var all []Transaction
	for _, l := range listed {
		t := Transaction{ID: l.TxnID, ProducerID: l.ProducerID, State: l.State, Epoch: -1}
		if d, ok := described[l.TxnID]; ok && d.Err == nil {
			t.Epoch, t.State = d.ProducerEpoch, d.State
			t.Timeout = time.Duration(d.TimeoutMillis) * time.Millisecond
			if d.StartTimestamp > 0 {
				t.Started = time.UnixMilli(d.StartTimestamp)
			}
			d.Topics.Each(func(name string, p int32) {
				t.Partitions = append(t.Partitions, topic.Partition{Topic: name, Number: p})
			})
			slices.SortFunc(t.Partitions, topic.Partition.Compare)
		}
		all = append(all, t)
	}
	slices.SortFunc(all, func(x, y Transaction) int { return strings.Compare(x.ID, y.ID) })
	return all, nil
}
