package cli

import (
	"testing"
	"time"

	"github.com/pawlstream/pawl/examples/filestats"
	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// Start records say who owns each shard, and what was taken from whom.
func TestWatcherOwners(t *testing.T) {
	program := filestats.New("p-")
	names := namesOf("app", program)
	if _, err := newWatcher(kafka.Config{}, names); err == nil {
		t.Fatal("a watcher of no brokers was made")
	}
	w := &watcher{tail: new(tail), names: names}
	w.seen.audit, w.seen.owners = newAudit(), make(map[shardName]string)

	start := func(log string, partition int32, instance string) topic.Envelope {
		val, err := changelog.Start{Instance: instance, Version: "1", At: time.Unix(1, 0)}.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return topic.Envelope{Topic: topic.Bytes(log).Description, Partition: partition, Key: changelog.StartKey, Value: val}
	}
	take := func(es ...topic.Envelope) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for i := range es {
			w.takeLocked(&es[i])
		}
	}
	take(start(names.changesLog, 0, "a"), start(names.changesLog, 1, "b"), start(names.byAuthorLog, 0, "a"))
	if got := w.movesSoFar(); got != 0 {
		t.Errorf("%d moves after the first starts, want 0", got)
	}
	if owned := w.ownedBy("a"); len(owned) != 2 || !owned["p-changes-000"] || !owned["p-changes-by-author-000"] {
		t.Errorf("a owns %v", owned)
	}
	take(start(names.changesLog, 0, "a")) // a restart in place
	take(start(names.changesLog, 0, "b"), start(names.byAuthorLog, 0, "b"))
	if got := w.takenFrom("a", 0); got != 2 || w.takenFrom("b", 0) != 0 || w.takenFrom("a", 2) != 0 {
		t.Errorf("%d taken from a, %d from b, %d from a after that; want 2, 0, 0", got, w.takenFrom("b", 0), w.takenFrom("a", 2))
	}
	if err := w.awaitTaken(t.Context(), "a"); err != nil {
		t.Error(err)
	}

	bad := start(names.changesLog, 3, "a")
	bad.Value = []byte(`{"v":99}`)
	take(bad)
	if got := w.seen.audit.wrong.count; got != 1 {
		t.Errorf("%d findings after a start record that can't be read, want 1", got)
	}
	// What is no start record of a changelog says nothing of owners.
	other := start(names.changes, 5, "a")
	take(other, topic.Envelope{Topic: topic.Bytes(names.changesLog).Description, Partition: 5, Key: []byte("k"), Value: []byte("v")})
	if owned := w.ownedBy("a"); len(owned) != 0 {
		t.Errorf("a owns %v, want nothing", owned)
	}
}
