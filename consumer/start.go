package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// incarnation is one life of a shard in this process, from its fence to its
// end. Whatever fails ends the incarnation: a new one starts from the fence,
// and so nothing of a failed one is ever trusted.
type incarnation struct {
	s   *shard
	log *slog.Logger

	session  *kafka.Session
	identity kafka.ProducerIdentity
	db       *store.Owner
	dbFatal  chan error // what the storage library can't go on after

	position    changelog.Position        // what the database holds
	changelogID topic.ID                  // of the changelog topic; does not change
	partitions  int                       // that the input had at the shard's first start; does not change once it runs
	committed   bool                      // something was, since the life of the shard last looked
	ids         map[string]topic.ID       // of the consumed topics
	ends        map[topic.Partition]int64 // last stable offsets, as last heard
	start       int64                     // the offset of the start record

	handle *handle
	cancel context.CancelFunc // ends the handle's context
	worker *worker
	inited bool // InitShard was called and HaltShard was not

	running   // the state of the loop: run.go
	committer // buffers of the commit: commit.go
}

// begin makes this process the only one whose work for the shard can become
// visible. The order of its steps is the proof of that:
//
//  1. Open the local database and read the position that it holds.
//  2. Initialise the producer with the shard's transactional ID. This fences
//     whoever owned the shard before, and returns only when that owner's last
//     transaction is wholly committed or aborted.
//  3. Commit a start record to the changelog. From then on the leader of that
//     partition itself refuses a record with the old epoch, and everything
//     that any owner before has committed lies below this record.
//
// Before it, the group is asked whether the shard is still this process's:
// otherwise two processes that both believe so would fence each other for
// ever.
func (s *shard) begin(ctx context.Context) (_ *incarnation, err error) {
	invariants.Crash("heartbeat-before")
	if err := s.app.group.confirm(ctx, s); err != nil {
		return nil, err
	}
	invariants.Crash("heartbeat-after")
	r := &incarnation{s: s, log: s.log, dbFatal: make(chan error, 1), ends: make(map[topic.Partition]int64)}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.release())
		}
	}()
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	invariants.Crash("fence-before")
	if err := r.fence(ctx); err != nil {
		return nil, err
	}
	invariants.Crash("fence-after")
	invariants.Crash("start-record-before")
	if err := r.commitStartRecord(ctx); err != nil {
		return nil, err
	}
	invariants.Crash("start-record-after")
	return r, nil
}

// open is step 1: it opens the database, and discards it first if it can't be
// resumed from. Where records were deleted from the changelog, that can't make the
// copy again, and so the copy is left as it is, unless its loss was accepted.
func (r *incarnation) open(ctx context.Context) error {
	s := r.s
	info, err := s.app.changelogOf(ctx, s.set)
	if err != nil {
		return err
	}
	part := s.changelogPartition()
	starts, err := s.app.admin.Offsets(ctx, kafka.Earliest, part)
	if err != nil {
		return fmt.Errorf("look up the start of changelog %s: %w", part, err)
	}
	ends, err := s.app.admin.Offsets(ctx, kafka.End, part)
	if err != nil {
		return fmt.Errorf("look up the end of changelog %s: %w", part, err)
	}
	r.changelogID = info.ID
	log := changelog.Log{ID: info.ID, Start: starts[part], End: ends[part], TombstoneRetention: info.TombstoneRetention}

	accepted := false // the loss, once: what follows from it is the same one
	lose := func(format string, args ...any) error {
		if log.Start == 0 || accepted {
			return nil
		}
		accepted = true
		return s.stateLost(fmt.Errorf("changelog %s begins at offset %d and %s: %w: records were deleted from it", part, log.Start, fmt.Sprintf(format, args...), ErrStateLost))
	}
	if log.Start > 0 {
		// Opening it would discard it.
		why, err := store.Marked(s.dir())
		if err != nil {
			return fmt.Errorf("open database of shard %s: %w", s.id, err)
		}
		if why != "" {
			if err := lose("the local copy %s is marked for discard (%s)", s.dir(), why); err != nil {
				return err
			}
		}
	}
	for attempt := 0; ; attempt++ {
		if err := r.openDatabase(); err != nil {
			if attempt > 0 || !errors.Is(err, store.ErrCorrupt) {
				return err
			}
			if err := lose("the local copy %s can't be opened (%v)", s.dir(), err); err != nil {
				return err
			}
			if err := s.discard("corrupt", err.Error()); err != nil {
				return err
			}
			continue
		}
		var copy *changelog.Position
		verdict := changelog.Empty
		if meta := r.db.Meta(); meta != nil {
			p, err := changelog.ParsePosition(meta)
			var format *changelog.FormatError
			switch {
			case errors.As(err, &format):
				return fmt.Errorf("open database %s: %w", s.dir(), err)
			case err != nil:
				verdict = changelog.Unreadable
			default:
				copy = &p
				verdict = changelog.Judge(copy, log, s.app.clock.Now())
			}
		}
		switch verdict {
		case changelog.Resume:
			r.position = *copy
			r.position.Next = max(r.position.Next, log.Start)
			return nil
		case changelog.Empty:
			if err := lose("there is no local copy"); err != nil {
				return err
			}
			r.position = changelog.Position{Changelog: log.ID, Next: log.Start}
			return nil
		}
		if err := r.db.Close(); err != nil {
			return fmt.Errorf("close database %s: %w", s.dir(), err)
		}
		r.db = nil
		if err := lose("the local copy %s can't be resumed from (%s)", s.dir(), verdict); err != nil {
			return err
		}
		if err := s.discard("position", string(verdict)); err != nil {
			return err
		}
	}
}

// openDatabase opens the shard's database.
func (r *incarnation) openDatabase() error {
	s := r.s
	options := store.Options{TableCache: s.app.shares().tables}
	if i, ok := s.set.consumer.(OptionsIniter); ok {
		i.InitOptions(&options)
	}
	if err := os.MkdirAll(filepath.Dir(s.dir()), 0o755); err != nil {
		return fmt.Errorf("make state directory: %w", permitted(err))
	}
	db, err := store.Open(store.Config{
		Dir: s.dir(), Options: options, Budget: s.app.budget, Logger: r.log, Now: s.app.clock.Now,
		OnDiskFull: s.diskFull,
		OnFailing:  func(err error) { s.note("the disk fails: " + err.Error()) },
		Interrupt:  s.hard, // what waits for space then is in the changelog too
		OnFatal: func(err error) {
			select {
			case r.dbFatal <- err:
			default: // the first one says it
			}
		},
	})
	if err != nil {
		return fmt.Errorf("open database of shard %s: %w", s.id, err)
	}
	r.db = db
	if db.Discarded() {
		s.app.metrics.discarded.WithLabelValues("fatal").Inc()
	}
	return nil
}

// fence is step 2.
func (r *incarnation) fence(ctx context.Context) error {
	s := r.s
	session, err := kafka.NewSession(s.app.kafkaConfig(), kafka.SessionConfig{
		TransactionalID:        TransactionalID(s.app.cfg.Application, s.id),
		TransactionTimeout:     s.app.cfg.TransactionTimeout,
		Topics:                 append(topicNames(s.set.topics), s.changelogPartition().Topic),
		FetchMaxPartitionBytes: int(s.app.shares().fetch),
	})
	if err != nil {
		return err
	}
	r.session = session
	ctx, cancel := context.WithTimeout(ctx, s.app.cfg.FenceTimeout)
	defer cancel()
	if r.identity, err = session.Fence(ctx); err != nil {
		return fmt.Errorf("fence the last owner of shard %s: %w", s.id, err)
	}
	return nil
}

// commitStartRecord is step 3.
func (r *incarnation) commitStartRecord(ctx context.Context) error {
	s := r.s
	val, err := changelog.Start{
		Instance: s.app.cfg.Instance, Producer: r.identity.ID, Epoch: r.identity.Epoch, Version: Version, At: s.app.clock.Now().UTC(),
	}.Marshal()
	if err != nil {
		return fmt.Errorf("encode start record: %w", err)
	}
	part := s.changelogPartition()
	ctx, cancel := context.WithTimeout(ctx, s.app.cfg.FenceTimeout)
	defer cancel()
	res, err := r.session.Commit(ctx, []kafka.Record{{Topic: part.Topic, Partition: part.Number, Key: changelog.StartKey, Value: val}})
	if err != nil {
		return fmt.Errorf("commit start record to %s: %w", part, err)
	}
	r.start = res.Next[part] - 1
	return nil
}

// prepare brings the state up to what was committed, and makes the shard
// ready to consume:
//
//  4. Read the changelog from the local position to the end taken after
//     step 3, into the database.
//  5. The last offsets record says where to consume from. If there is none,
//     the configured start is resolved, once, and committed before the first
//     message.
//  6. InitShard.
//
// Before step 6 the group is asked once more whose the shard is.
//
// What it begins, the fetches and user code's context, lasts as long as life.
func (r *incarnation) prepare(ctx, life context.Context) error {
	invariants.Crash("restore-before")
	if err := r.restore(ctx); err != nil {
		return fmt.Errorf("restore shard %s: %w", r.s.id, err)
	}
	invariants.Crash("restore-after")
	if err := r.resolve(ctx); err != nil {
		return fmt.Errorf("find where shard %s consumes from: %w", r.s.id, err)
	}
	invariants.Crash("resolve-after")
	if err := r.s.app.group.confirm(ctx, r.s); err != nil {
		return err
	}
	r.openLoop(life)
	return r.init(ctx)
}

// restore is step 4. It ends by position: when it has read up to the start
// record that this incarnation committed, which is too young to have been
// compacted away, it has read everything that was committed before.
func (r *incarnation) restore(ctx context.Context) (err error) {
	s := r.s
	part := s.changelogPartition()
	end := r.start + 1
	next, begun := r.position.Next, time.Now()
	s.restoring(next, end)

	d := changelogDescription(part.Topic)
	r.session.Consume(d, part.Number, next)
	defer r.session.StopConsuming(part)

	loader := r.db.NewLoader()
	defer func() { err = errors.Join(err, loader.Close()) }()
	var lastOffsets []byte
	restored, strangers := int64(0), 0
	// What Begin has been given may not be written yet: the position is ahead of
	// the database until the loader is closed, or the incarnation has failed.
	store := func(write func(meta []byte) error) error {
		p := r.position
		p.Next = next
		if lastOffsets != nil {
			o, err := changelog.ParseOffsets(lastOffsets)
			if err != nil {
				return fmt.Errorf("read changelog %s: %w", part, err)
			}
			p.Offsets = o
		}
		if next >= end {
			p.AtEnd = s.app.clock.Now()
		}
		if err := write(changelog.AppendPosition(nil, p)); err != nil {
			return fmt.Errorf("write to database: %w", err)
		}
		invariants.Check(p.Next >= r.position.Next, "restored position went from %d to %d", r.position.Next, p.Next)
		r.position, lastOffsets = p, nil
		return nil
	}
	load := func(e topic.Envelope) error {
		switch {
		case changelog.IsChange(e.Key):
			if err := loader.Set(e.Key, e.Value); err != nil {
				return fmt.Errorf("read changelog %s at offset %d: %w", part, e.Offset, err)
			}
		case changelog.IsForeign(e.Key):
			if strangers++; strangers == 1 {
				r.log.Warn("somebody else has written to the changelog: passed over", "partition", part.String(), "offset", e.Offset, "key", fmt.Sprintf("%.60q", e.Key))
			}
		case string(e.Key) == string(changelog.OffsetsKey) && e.Value != nil:
			lastOffsets = append(lastOffsets[:0], e.Value...)
		}
		return nil
	}
	for next < end {
		batch, err := r.pollRestore(ctx, part, next)
		if err != nil {
			return err
		}
		for _, p := range batch.Parts {
			for i := range p.Len() {
				if err := load(p.At(i)); err != nil {
					return err
				}
			}
			next = max(next, p.Next)
			p.Recycle()
		}
		restored += int64(batch.Count)
		s.restoring(next, end)
		if loader.Full() {
			if err := store(loader.Begin); err != nil {
				return err
			}
			invariants.Crash("restore-batch")
		}
	}
	if err := store(loader.Commit); err != nil {
		return err
	}
	s.app.metrics.restored.Add(float64(restored))
	r.log.Info("restored", "records", restored, "foreign", strangers, "position", next, "took", time.Since(begun))
	return nil
}

// pollRestore waits for more of the changelog. If nothing comes for longer
// than the configured limit, its error says who holds the changelog up.
func (r *incarnation) pollRestore(ctx context.Context, part topic.Partition, next int64) (*kafka.Fetched, error) {
	stall := r.s.app.cfg.RestoreStall
	wait, cancel := context.WithTimeout(ctx, stall)
	defer cancel()
	batch, err := r.session.Fetch(wait, restorePoll)
	switch {
	case err == nil:
		return batch, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case wait.Err() == nil:
		return nil, fmt.Errorf("read changelog %s at offset %d: %w", part, next, err)
	}
	open, lookErr := r.s.app.admin.OpenTransactions(ctx, part)
	if lookErr != nil {
		return nil, fmt.Errorf("read changelog %s: nothing came at offset %d for %v (and looking for open transactions: %w)", part, next, stall, lookErr)
	}
	for _, t := range open {
		return nil, fmt.Errorf("read changelog %s: nothing came at offset %d for %v: transactional ID %q (producer %d, epoch %d) has held a transaction open there for %v; abort it", part, next, stall, t.TransactionalID, t.ProducerID, t.Epoch, max(0, time.Since(t.Since)).Round(time.Second))
	}
	return nil, fmt.Errorf("read changelog %s: nothing came at offset %d for %v, and no transaction is open there", part, next, stall)
}

// restorePoll is how many records are read at once when restoring.
const restorePoll = 20_000

// resolve is step 5.
func (r *incarnation) resolve(ctx context.Context) error {
	s := r.s
	infos, err := s.app.inputsOf(ctx, s.set)
	if err != nil {
		return err
	}
	r.ids = make(map[string]topic.ID)
	for name, info := range infos {
		r.ids[name] = info.ID
		if int(s.partition) >= info.Partitions {
			return fmt.Errorf("topic %s has %d partitions: %w", name, info.Partitions, kafka.ErrUnknownTopic)
		}
	}
	known := r.position.Offsets.Inputs
	if len(known) == 0 {
		if err := s.app.checkStateLost(ctx, s); err != nil {
			return err
		}
		r.position.Offsets.Partitions = infos[s.set.topics[0].Name()].Partitions
	}
	changed := false
	var inputs []changelog.Offset
	for _, d := range s.set.topics {
		part := topic.Partition{Topic: d.Name(), Number: s.partition}
		i := slices.IndexFunc(known, func(o changelog.Offset) bool { return o.Topic == d.Name() && o.Partition == s.partition })
		switch {
		case i >= 0 && known[i].ID == r.ids[d.Name()]:
			inputs = append(inputs, known[i])
			continue
		case i >= 0:
			// The topic was deleted and created again: what was at these
			// offsets is gone.
			bounds, err := r.bounds(ctx, part)
			if err != nil {
				return err
			}
			next, err := r.outOfRange(&kafka.OffsetRangeError{Partition: part, Offset: known[i].Next, Earliest: bounds[0], End: bounds[1]}, "the topic was created anew", true)
			if err != nil {
				return err
			}
			inputs = append(inputs, changelog.Offset{Topic: d.Name(), ID: r.ids[d.Name()], Partition: s.partition, Next: next})
		default:
			next, err := s.app.resolveStart(ctx, s, part, len(known) > 0)
			if err != nil {
				return err
			}
			inputs = append(inputs, changelog.Offset{Topic: d.Name(), ID: r.ids[d.Name()], Partition: s.partition, Next: next})
		}
		changed = true
	}
	if err := r.learnEnds(ctx, inputs); err != nil {
		return err
	}
	r.position.Offsets.Inputs = inputs
	r.partitions = r.position.Offsets.Partitions
	if !changed {
		return nil
	}
	part := s.changelogPartition()
	ctx, cancel := context.WithTimeout(ctx, commitPatience*s.app.cfg.TransactionTimeout)
	defer cancel()
	res, err := r.session.Commit(ctx, []kafka.Record{{Topic: part.Topic, Partition: part.Number, Key: changelog.OffsetsKey, Value: changelog.AppendOffsets(nil, r.position.Offsets)}})
	if err != nil {
		return fmt.Errorf("commit the first offsets to %s: %w", part, err)
	}
	r.position.Next, r.position.AtEnd = res.Next[part], s.app.clock.Now()
	if err := r.db.SetMeta(changelog.AppendPosition(nil, r.position)); err != nil {
		return fmt.Errorf("write position: %w", err)
	}
	return nil
}

// learnEnds notes up to where there is something to consume, before anything is
// fetched: the shard's lag, and whether it ever reaches the end.
func (r *incarnation) learnEnds(ctx context.Context, inputs []changelog.Offset) error {
	parts := make([]topic.Partition, len(inputs))
	for i, in := range inputs {
		parts[i] = topic.Partition{Topic: in.Topic, Number: in.Partition}
	}
	ends, err := r.s.app.admin.Offsets(ctx, kafka.StableEnd, parts...)
	if err != nil {
		return fmt.Errorf("look up where the input ends: %w", err)
	}
	for p, end := range ends {
		r.ends[p] = end
	}
	return nil
}

// bounds returns the first offset of a partition and its last stable offset.
func (r *incarnation) bounds(ctx context.Context, part topic.Partition) ([2]int64, error) {
	first, err := r.s.app.admin.Offsets(ctx, kafka.Earliest, part)
	if err != nil {
		return [2]int64{}, fmt.Errorf("look up the start of %s: %w", part, err)
	}
	end, err := r.s.app.admin.Offsets(ctx, kafka.StableEnd, part)
	if err != nil {
		return [2]int64{}, fmt.Errorf("look up the end of %s: %w", part, err)
	}
	return [2]int64{first[part], end[part]}, nil
}

// outOfRange makes the configured decision about messages that are not there
// any more, and returns the offset to go on from. What is there is anew, or, where
// the offset lies beyond the end, was consumed already.
func (r *incarnation) outOfRange(e *kafka.OffsetRangeError, why string, anew bool) (int64, error) {
	next, decision := e.Earliest, r.s.app.cfg.OnOffsetOutOfRange
	switch decision {
	case GoToLatest:
		next = e.End
	case GoToEarliest:
		if !anew && e.Offset > e.End {
			next = e.End
		}
	default:
		return 0, fmt.Errorf("%s: %w: Config.OnOffsetOutOfRange (--on-offset-out-of-range) can go on from the earliest message or the latest", why, e)
	}
	skipped := max(0, next-e.Offset)
	r.log.Warn("messages are missing", "partition", e.Partition.String(), "reason", why, "offset", e.Offset, "earliest", e.Earliest, "end", e.End, "decision", string(decision), "going on from", next, "skipped", skipped)
	r.s.app.metrics.dropped.WithLabelValues("missing").Add(float64(skipped))
	return next, nil
}

// init is step 6. It runs on the worker, like all user code.
func (r *incarnation) init(ctx context.Context) error {
	r.inited = true
	res, err := r.callAndWait(ctx, call{name: callInit})
	if err != nil {
		return err
	}
	if res.err != nil {
		return fmt.Errorf("InitShard of %s: %w", r.s.id, res.err)
	}
	return nil
}
