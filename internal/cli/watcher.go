package cli

import (
	"context"
	"fmt"
	"maps"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/examples/filestats"
	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// watcher knows a run of the demo of shards by what it commits: input, outputs
// and changelogs.
type watcher struct {
	*tail
	names topicNames

	seen struct { // guarded by the tail's lock
		audit  *audit
		owners map[shardName]string // the instance that last started the shard
		moves  []move               // in the order in which they were read
	}
}

// topicNames are the topics of a run.
type topicNames struct {
	changes, byAuthor, totals string
	changesLog, byAuthorLog   string
	changesSet, byAuthorSet   string // the sets that their shards belong to
}

func namesOf(application string, p *filestats.Program) topicNames {
	return topicNames{
		changes:     p.ByPath.In.Name(),
		byAuthor:    p.ByAuthor.In.Name(),
		totals:      p.ByAuthor.Out.Name(),
		changesLog:  consumer.ChangelogTopic(application, p.ByPath.In.Set()),
		byAuthorLog: consumer.ChangelogTopic(application, p.ByAuthor.In.Set()),
		changesSet:  p.ByPath.In.Set(),
		byAuthorSet: p.ByAuthor.In.Set(),
	}
}

// shardName is a shard, by its set and its partition.
type shardName struct {
	set       string
	partition int32
}

func (s shardName) id() consumer.ShardID {
	return consumer.ShardID(fmt.Sprintf("%s-%03d", s.set, s.partition))
}

// move is a shard that was started by another instance than before.
type move struct {
	shard    shardName
	from, to string
}

func newWatcher(cfg kafka.Config, names topicNames) (_ *watcher, err error) {
	w := &watcher{names: names}
	w.seen.audit = newAudit()
	w.seen.owners = make(map[shardName]string)
	if w.tail, err = newTail(cfg, w.takeLocked); err != nil {
		return nil, err
	}
	return w, nil
}

// takeLocked notes what a message says.
func (w *watcher) takeLocked(e *topic.Envelope) {
	at := position{e.Partition, e.Offset}
	switch e.TopicName() {
	case w.names.changes:
		w.seen.audit.change(at)
	case w.names.byAuthor:
		w.seen.audit.pathTotals(at, e.Value)
	case w.names.totals:
		w.seen.audit.authorTotals(at, e.Value)
	case w.names.changesLog:
		w.startLocked(e, w.names.changesSet)
	case w.names.byAuthorLog:
		w.startLocked(e, w.names.byAuthorSet)
	}
}

// startLocked notes who starts a shard, if the changelog's record says so.
func (w *watcher) startLocked(e *topic.Envelope, set string) {
	if string(e.Key) != string(changelog.StartKey) {
		return
	}
	start, err := changelog.ParseStart(e.Value)
	if err != nil {
		w.seen.audit.wrong.add("changelog %s-%d at offset %d: %v", e.TopicName(), e.Partition, e.Offset, err)
		return
	}
	shard := shardName{set, e.Partition}
	if before := w.seen.owners[shard]; before != "" && before != start.Instance {
		w.seen.moves = append(w.seen.moves, move{shard, before, start.Instance})
	}
	w.seen.owners[shard] = start.Instance
}

// awaitProgress waits until the work has come so far.
func (w *watcher) awaitProgress(ctx context.Context, events int64) error {
	return w.await(ctx, func() bool {
		_, progress := w.seen.audit.through()
		return progress >= events
	})
}

// awaitAll waits until so many messages were fed and have passed both
// consumers.
func (w *watcher) awaitAll(ctx context.Context, events int64) error {
	return w.await(ctx, func() bool {
		a := w.seen.audit
		return a.byPath.inputs >= events && a.byPath.lost() == 0 && a.byAuthor.lost() == 0
	})
}

// ownedBy returns the shards that the instance last started.
func (w *watcher) ownedBy(instance string) map[consumer.ShardID]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	owned := make(map[consumer.ShardID]bool)
	for s, owner := range w.seen.owners {
		if owner == instance {
			owned[s.id()] = true
		}
	}
	return owned
}

// movesSoFar is how many moves were read.
func (w *watcher) movesSoFar() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.seen.moves)
}

// takenFrom is how many shards have moved away from the instance since so many
// moves were read.
func (w *watcher) takenFrom(instance string, since int) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.seen.moves[since:] {
		if m.from == instance {
			n++
		}
	}
	return n
}

// awaitTaken waits until the instance owns no shard.
func (w *watcher) awaitTaken(ctx context.Context, instance string) error {
	return w.await(ctx, func() bool {
		for _, owner := range w.seen.owners {
			if owner == instance {
				return false
			}
		}
		return true
	})
}

// look calls fn with what was read so far, which must not be changed.
func (w *watcher) look(fn func(a *audit, owners map[shardName]string)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fn(w.seen.audit, maps.Clone(w.seen.owners))
}
