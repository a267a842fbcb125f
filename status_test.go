package pawl

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/admin"
	"github.com/pawlstream/pawl/topic"
)

// Everything that a status says is in what the admin API shows.
func TestStatusOf(t *testing.T) {
	at := func(s int) time.Time { return time.Date(2026, 1, 2, 3, 4, s, 0, time.UTC) }
	from := consumer.Status{
		Application: "orders", Instance: "host-1", Joined: true, Generation: 7, LastHeartbeat: at(0),
		Shards: []consumer.ShardStatus{
			{
				ID: "both-003", Partition: topic.Partition{Topic: "left", Number: 3}, Phase: consumer.Running, Since: at(1), Lag: 5,
				Offsets:   map[topic.Partition]int64{{Topic: "right", Number: 3}: 20, {Topic: "left", Number: 3}: 10},
				Changelog: 30, Commits: 4, LastCommit: at(2), RestoreNext: 8, RestoreEnd: 8,
				Busy: &consumer.BusyStatus{Call: "Consume", Since: at(3), Message: "left-3 at offset 10", Stack: "goroutine 1"},
			},
			{ID: "both-004", Partition: topic.Partition{Topic: "left", Number: 4}, Phase: consumer.Restoring, Reason: "failed before", RestoreNext: 3, RestoreEnd: 9},
		},
	}
	want := admin.Status{
		Application: "orders", Instance: "host-1", Version: consumer.Version, Joined: true, Generation: 7, LastHeartbeat: at(0),
		Unready: []string{"one", "two"},
		Shards: []admin.Shard{
			{
				ID: "both-003", Topic: "left", Partition: 3, Phase: "running", Since: at(1), Lag: 5,
				Offsets:   []admin.Offset{{Topic: "left", Partition: 3, Next: 10}, {Topic: "right", Partition: 3, Next: 20}},
				Changelog: 30, Commits: 4, LastCommit: at(2),
				Busy: &admin.Call{Name: "Consume", Since: at(3), Message: "left-3 at offset 10", Stack: "goroutine 1"},
			},
			{ID: "both-004", Topic: "left", Partition: 4, Phase: "restoring", Reason: "failed before", Offsets: []admin.Offset{}, Restore: &admin.Restore{Next: 3, End: 9}},
		},
	}
	if diff := cmp.Diff(want, statusOf(from, errors.Join(errors.New("one"), errors.New("two")))); diff != "" {
		t.Errorf("status: got + want -\n%s", diff)
	}
	if got := statusOf(consumer.Status{}, nil); !got.Ready || got.Unready != nil || got.Shards == nil {
		t.Errorf("status of nothing: %+v, want ready, and no shards as an empty list", got)
	}
}
