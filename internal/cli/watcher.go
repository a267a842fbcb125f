package cli

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/examples/filestats"
	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// watcher reads everything that a run commits, input, outputs and changelogs,
// from their beginning and read committed. All that the demo knows of a run,
// it knows from here.
type watcher struct {
	reader *kafka.Reader
	names  topicNames

	mu struct {
		sync.Mutex
		audit   *audit
		next    map[topic.Partition]int64
		owners  map[shardName]string // the instance that last started the shard
		moves   []move               // in the order in which they were read
		changed chan struct{}        // closed, and replaced, when something was read
		err     error                // why nothing more is read
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

func newWatcher(cfg kafka.Config, names topicNames) (*watcher, error) {
	reader, err := kafka.NewReader(cfg, kafka.ReaderConfig{Committed: true})
	if err != nil {
		return nil, err
	}
	w := &watcher{reader: reader, names: names}
	w.mu.audit = newAudit()
	w.mu.next = make(map[topic.Partition]int64)
	w.mu.owners = make(map[shardName]string)
	w.mu.changed = make(chan struct{})
	return w, nil
}

// watch adds topics, which exist.
func (w *watcher) watch(names ...string) {
	for _, name := range names {
		for p := range int32(filestats.Partitions) {
			w.mu.Lock()
			w.mu.next[topic.Partition{Topic: name, Number: p}] = 0
			w.mu.Unlock()
			w.reader.Consume(topic.Bytes(name).Description, p, 0)
		}
	}
}

// pollMax is how many messages are read at once.
const pollMax = 5_000

// run reads until ctx ends.
func (w *watcher) run(ctx context.Context) {
	var batch kafka.Batch
	for {
		err := w.reader.Poll(ctx, pollMax, &batch)
		if ctx.Err() != nil {
			return
		}
		w.mu.Lock()
		w.takeLocked(&batch)
		if err != nil {
			w.mu.err = fmt.Errorf("read what the run has committed: %w", err)
		}
		close(w.mu.changed)
		w.mu.changed = make(chan struct{})
		w.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (w *watcher) takeLocked(batch *kafka.Batch) {
	for i := range batch.Envelopes {
		e := &batch.Envelopes[i]
		at := position{e.Partition, e.Offset}
		switch e.TopicName() {
		case w.names.changes:
			w.mu.audit.change(at)
		case w.names.byAuthor:
			w.mu.audit.pathTotals(at, e.Value)
		case w.names.totals:
			w.mu.audit.authorTotals(at, e.Value)
		case w.names.changesLog:
			w.startLocked(e, w.names.changesSet)
		case w.names.byAuthorLog:
			w.startLocked(e, w.names.byAuthorSet)
		}
	}
	for _, p := range batch.Parts {
		w.mu.next[p.Partition] = p.Next
	}
}

// startLocked notes who starts a shard, if the changelog's record says so.
func (w *watcher) startLocked(e *topic.Envelope, set string) {
	if string(e.Key) != string(changelog.StartKey) {
		return
	}
	start, err := changelog.ParseStart(e.Value)
	if err != nil {
		w.mu.audit.wrong.add("changelog %s-%d at offset %d: %v", e.TopicName(), e.Partition, e.Offset, err)
		return
	}
	shard := shardName{set, e.Partition}
	if before := w.mu.owners[shard]; before != "" && before != start.Instance {
		w.mu.moves = append(w.mu.moves, move{shard, before, start.Instance})
	}
	w.mu.owners[shard] = start.Instance
}

// await waits until condition holds, which is called with the watcher locked,
// after everything that is read.
func (w *watcher) await(ctx context.Context, condition func() bool) error {
	for {
		w.mu.Lock()
		ok, changed, err := condition(), w.mu.changed, w.mu.err
		w.mu.Unlock()
		switch {
		case ok:
			return nil
		case err != nil:
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// awaitProgress waits until the work has come so far.
func (w *watcher) awaitProgress(ctx context.Context, events int64) error {
	return w.await(ctx, func() bool {
		_, progress := w.mu.audit.through()
		return progress >= events
	})
}

// awaitAll waits until so many messages were fed and have passed both
// consumers.
func (w *watcher) awaitAll(ctx context.Context, events int64) error {
	return w.await(ctx, func() bool {
		a := w.mu.audit
		return a.byPath.inputs >= events && a.byPath.lost() == 0 && a.byAuthor.lost() == 0
	})
}

// awaitOffsets waits until everything below the offsets is read.
func (w *watcher) awaitOffsets(ctx context.Context, ends map[topic.Partition]int64) error {
	err := w.await(ctx, func() bool {
		for p, end := range ends {
			if w.mu.next[p] < end {
				return false
			}
		}
		return true
	})
	if err == nil || ctx.Err() == nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var behind []string
	for p, end := range ends {
		if w.mu.next[p] < end {
			behind = append(behind, fmt.Sprintf("%s at %d of %d", p, w.mu.next[p], end))
		}
	}
	return fmt.Errorf("read all that is committed: %s: %w", strings.Join(behind, ", "), err)
}

// partitions are all that is watched.
func (w *watcher) partitions() []topic.Partition {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []topic.Partition
	for p := range w.mu.next {
		all = append(all, p)
	}
	return all
}

// ownedBy returns the shards that the instance last started.
func (w *watcher) ownedBy(instance string) map[consumer.ShardID]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	owned := make(map[consumer.ShardID]bool)
	for s, owner := range w.mu.owners {
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
	return len(w.mu.moves)
}

// takenFrom is how many shards have moved away from the instance since so many
// moves were read.
func (w *watcher) takenFrom(instance string, since int) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.mu.moves[since:] {
		if m.from == instance {
			n++
		}
	}
	return n
}

// awaitTaken waits until the instance owns no shard.
func (w *watcher) awaitTaken(ctx context.Context, instance string) error {
	return w.await(ctx, func() bool {
		for _, owner := range w.mu.owners {
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
	fn(w.mu.audit, maps.Clone(w.mu.owners))
}
