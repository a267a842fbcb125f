package pawl

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/admin"
)

// errStopping says why a program that drains is not ready.
var errStopping = errors.New("stopping")

// ready returns why the program is not ready, or nil. One that was told to
// stop is not.
func ready(ctx context.Context, healthy func() error) error {
	if ctx.Err() != nil {
		return errStopping
	}
	return healthy()
}

// unreadyOf returns why a program is not ready, a line each.
func unreadyOf(err error) (ready bool, why []string) {
	if err == nil {
		return true, nil
	}
	return false, strings.Split(err.Error(), "\n")
}

// statusOf returns the application's status as the admin API shows it, with
// why the program is not ready, or nil.
func statusOf(from consumer.Status, unready error) admin.Status {
	st := admin.Status{
		Application: from.Application, Instance: from.Instance, Version: consumer.Version,
		Joined: from.Joined, Generation: from.Generation, LastHeartbeat: from.LastHeartbeat,
		Shards: make([]admin.Shard, 0, len(from.Shards)),
	}
	st.Ready, st.Unready = unreadyOf(unready)
	for _, s := range from.Shards {
		to := admin.Shard{
			ID: s.ID.String(), Topic: s.Partition.Topic, Partition: s.Partition.Number,
			Phase: string(s.Phase), Reason: s.Reason, Since: s.Since,
			Lag: s.Lag, Changelog: s.Changelog, Commits: s.Commits, LastCommit: s.LastCommit,
			Offsets: make([]admin.Offset, 0, len(s.Offsets)),
		}
		for part, next := range s.Offsets {
			to.Offsets = append(to.Offsets, admin.Offset{Topic: part.Topic, Partition: part.Number, Next: next})
		}
		slices.SortFunc(to.Offsets, func(x, y admin.Offset) int {
			return cmp.Or(cmp.Compare(x.Topic, y.Topic), cmp.Compare(x.Partition, y.Partition))
		})
		if s.Phase == consumer.Restoring {
			to.Restore = &admin.Restore{Next: s.RestoreNext, End: s.RestoreEnd}
		}
		if s.Busy != nil {
			to.Busy = &admin.Call{Name: s.Busy.Call, Since: s.Busy.Since, Message: s.Busy.Message, Stack: s.Busy.Stack}
		}
		st.Shards = append(st.Shards, to)
	}
	return st
}
