package pawl

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

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
			Paused: s.Paused, Lag: s.Lag, LagSeconds: seconds(s.LagTime), Bytes: s.Bytes, Changelog: s.Changelog, Commits: s.Commits, LastCommit: s.LastCommit,
			Offsets: make([]admin.Offset, 0, len(s.Offsets)),
		}
		for part, next := range s.Offsets {
			to.Offsets = append(to.Offsets, admin.Offset{Topic: part.Topic, Partition: part.Number, Next: next})
		}
		slices.SortFunc(to.Offsets, func(x, y admin.Offset) int {
			return cmp.Or(cmp.Compare(x.Topic, y.Topic), cmp.Compare(x.Partition, y.Partition))
		})
		if s.Phase == consumer.Restoring {
			to.Restore = restoreOf(s, time.Now())
		}
		if s.Busy != nil {
			to.Busy = &admin.Call{Name: s.Busy.Call, Since: s.Busy.Since, Message: s.Busy.Message, Stack: s.Busy.Stack}
		}
		st.Shards = append(st.Shards, to)
	}
	return st
}

// seconds returns a duration in seconds, to the millisecond.
func seconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }

// restoreOf says how far a restore is, and how long it may still take if it goes
// on as it went so far.
func restoreOf(s consumer.ShardStatus, now time.Time) *admin.Restore {
	r := &admin.Restore{Next: s.RestoreNext, End: s.RestoreEnd}
	done, took := s.RestoreNext-s.RestoreFrom, now.Sub(s.RestoreBegan)
	if left := s.RestoreEnd - s.RestoreNext; done > 0 && left > 0 && !s.RestoreBegan.IsZero() && took > 0 {
		r.Seconds = seconds(time.Duration(float64(took) / float64(done) * float64(left)))
	}
	return r
}
