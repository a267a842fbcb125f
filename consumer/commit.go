package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// committer holds the buffers of the commit, which are used again.
type committer struct {
	offsets []byte
	meta    []byte
	inputs  []changelog.Offset // never the position's own
}

// commitPatience is how many transaction timeouts a commit is waited for. The
// coordinator gives a transaction up after one; nothing is gained by waiting much
// longer.
const commitPatience = 2

// commit makes what the open transaction holds visible: all of it, or, where
// it returns an error, nothing of it that this incarnation knows of.
//
//	Consume … Consume … Flush       nothing is on the wire yet
//	seal                            changed keys are encoded, one record a key
//	output, changes, one            every one is answered, or the transaction
//	offsets record; end             is not committed
//	apply                           changes, offsets and position go to the
//	                                database in one batch
//
// The three outcomes are kept apart. Committed: the database follows. Refused:
// the broker did not take a record, the transaction is aborted for certain and
// the session goes on; the error is a *kafka.RecordError. Unknown: any other
// error. Then nobody can tell from here what became of it, and the incarnation
// ends. The next one's fence ends the transaction, one way or the other, and
// the changelog, which is part of it, says which: whatever was committed is
// restored from there, state and offsets alike.
//
// extra records go with the transaction.
func (r *incarnation) commit(ctx context.Context, extra ...kafka.Record) error {
	begun, day := time.Now(), r.s.app.clock.Now()
	invariants.Crash("seal-before")
	changes, err := r.db.Seal()
	if err != nil {
		return &sealError{err}
	}
	if err := r.createOutputs(ctx); err != nil {
		return err
	}
	part := r.s.changelogPartition()
	recs := append(r.handle.out, extra...)
	for _, c := range changes {
		recs = append(recs, kafka.Record{Topic: part.Topic, Partition: part.Number, Key: c.Key, Value: c.Value})
	}
	offsets := r.nextOffsets()
	r.offsets = changelog.AppendOffsets(r.offsets[:0], offsets)
	recs = append(recs, kafka.Record{Topic: part.Topic, Partition: part.Number, Key: changelog.OffsetsKey, Value: r.offsets})
	r.handle.out = recs

	invariants.Crash("commit-before")
	bounded, cancel := context.WithTimeout(ctx, commitPatience*r.s.app.cfg.TransactionTimeout)
	res, err := r.session.Commit(bounded, recs)
	cancel()
	if err != nil {
		return r.handle.outputs.explain(err)
	}
	invariants.Crash("apply-before")

	next, ok := res.Next[part]
	if !ok || next <= r.position.Next-1 {
		return fmt.Errorf("commit of shard %s: the changelog's position went from %d to %d: %w", r.s.id, r.position.Next, next, kafka.ErrUnknownOutcome)
	}
	r.inputs = r.position.Offsets.Inputs // now, and not before, the buffers change places
	r.position = changelog.Position{Changelog: r.position.Changelog, Next: next, Offsets: offsets, AtEnd: day}
	r.meta = changelog.AppendPosition(r.meta[:0], r.position)
	if err := r.db.Apply(r.meta); err != nil {
		return fmt.Errorf("apply a committed transaction to the database of shard %s: %w", r.s.id, err)
	}
	invariants.Crash("apply-after")
	r.handle.committed()
	r.backlog.commit()

	took := time.Since(begun)
	messages := r.pace.consumed
	if r.pace.alone == 0 && messages > 0 {
		r.rounds = 0 // what went well together ends the row of what did not
	}
	r.pace.committed(time.Now(), took, r.s.app.commitPause())
	r.lastCommit = time.Now()
	if messages > 0 {
		r.attempts = 0
	}
	r.s.committed(r, messages, took)
	return nil
}

// createOutputs creates the topics that are published to for the first time
// and are missing, as those are at start that a consumer lists. Those that
// nothing says how to create, or that can't be created, are left to the commit,
// which fails by their name, as the policy wants it.
func (r *incarnation) createOutputs(ctx context.Context) error {
	o := &r.handle.outputs
	if o.asked == len(o.fresh) {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, r.s.app.cfg.TransactionTimeout)
	defer cancel()
	for ; o.asked < len(o.fresh); o.asked++ {
		d := o.fresh[o.asked]
		if d.Partitions() == 0 && r.s.app.cfg.CreateTopics == 0 {
			continue
		}
		_, err := r.s.app.ensure(bounded, d, "output")
		switch {
		case err == nil:
		case ctx.Err() != nil, kafka.Transient(err):
			return err
		default:
			r.log.Error("an output topic can't be had", "topic", d.Name(), "error", err)
			if o.missing == nil {
				o.missing = make(map[string]error)
			}
			o.missing[d.Name()] = err
		}
	}
	return nil
}

// explain adds to a record's refusal why its topic is missing.
func (o *outputs) explain(err error) error {
	var refused *kafka.RecordError
	if errors.As(err, &refused) && o.missing[refused.Topic] != nil {
		return fmt.Errorf("%w: %w", err, o.missing[refused.Topic])
	}
	return err
}

// nextOffsets returns the offsets that the open transaction commits, in a buffer
// of their own: those of the position stay what was committed last, whatever
// becomes of the transaction.
func (r *incarnation) nextOffsets() changelog.Offsets {
	old := r.position.Offsets
	inputs := append(r.inputs[:0], old.Inputs...)
	for i := range inputs {
		p := topic.Partition{Topic: inputs[i].Topic, Number: inputs[i].Partition}
		if next, ok := r.backlog.positions[p]; ok {
			invariants.Check(next >= inputs[i].Next, "offset of %s went from %d to %d", p, inputs[i].Next, next)
			inputs[i].Next = next
		}
	}
	r.inputs = inputs
	return changelog.Offsets{Inputs: inputs, Partitions: old.Partitions}
}

// sealError is an error of a codec of the application's, met when the changes
// of a transaction were encoded.
type sealError struct{ err error }

func (e *sealError) Error() string { return e.err.Error() }
func (e *sealError) Unwrap() error { return e.err }

// refused says whether a commit's error leaves the incarnation intact: the
// transaction is aborted, for a reason that lies in what it holds.
func refused(err error) bool {
	var record *kafka.RecordError
	var seal *sealError
	return errors.As(err, &record) || errors.As(err, &seal)
}
