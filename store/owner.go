package store

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/pawlstream/pawl/internal/invariants"
)

// Owner is what the one goroutine that owns a shard's database may do with it.
// The shard's code sees only the Transaction and the DB. No two methods run at
// once, Fence and Interrupt apart, which any goroutine may call at any time.
//
//	   Open ──► NewLoader … Commit (restore) ──► ┐
//	┌────────────────────────────────────────────┘
//	└► Transaction is written ──► Seal ──► Apply ──► and again ──► Close
//	                        └───── or ──► Abort
type Owner struct {
	config Config
	d      *database
	disk   *disk
	budget *Budget // ours to close, if the database has one of its own
	size   int64   // of a memtable, taken from the budget
	db     DB
	tx     *Transaction
	meta   []byte

	compactions *compactions

	pending  pending
	settling sync.WaitGroup // settlings that nobody waits for
	gaveUp   atomic.Bool    // the disk was frozen because it fails: see commit

	discarded bool
	sealed    bool
	changes   []Change
	stalled   <-chan error // of a commit that a fatal error left behind; nil if none
	closed    bool

	failure *failure
	fatal   struct {
		sync.Mutex
		err  error
		met  chan struct{}  // closed with the first
		told sync.WaitGroup // the call of OnFatal
	}

	unflushed struct {
		bytes int64
		since time.Time
	}
}

// A Change is one key that a transaction changed, as it is stored and as it is
// logged. A nil Value is a delete.
type Change struct{ Key, Value []byte }

// DB returns the database as everyone may read it.
func (o *Owner) DB() *DB { return &o.db }

// Transaction returns the open transaction. There is always one, the same.
func (o *Owner) Transaction() *Transaction { return o.tx }

// Meta returns the position that was written with the last change; nil for a
// new database.
func (o *Owner) Meta() []byte { return o.meta }

// Discarded reports whether Open found the database marked for discard, and
// removed what was in it.
func (o *Owner) Discarded() bool { return o.discarded }

// Changed reports whether the open transaction has something to commit, direct
// writes apart. It is for whoever uses the transaction at the moment.
func (o *Owner) Changed() bool { return o.tx.changed() }

// Failing returns a channel that is closed once the disk has failed to do what it
// was told, in a read or in a write that nobody waits for: see Failure.
func (o *Owner) Failing() <-chan struct{} { return o.failure.met }

// Failure returns the first error that the disk has met, of whoever read or wrote.
// What was done after it may rest on what was not read: it says nothing of a
// message that it came with, and the database is to be closed and opened anew.
func (o *Owner) Failure() error {
	if err := o.failure.err.Load(); err != nil {
		return fmt.Errorf("the disk of database %s fails: %w", o.config.Dir, *err)
	}
	return nil
}

// Seal ends the writing of a transaction and returns what it changed, and what
// was written directly and waits for a commit: one Change per key, in the order
// of stored keys. They are valid, and writes
// answer ErrSealed, until Apply or Abort.
func (o *Owner) Seal() ([]Change, error) {
	if err := o.usable(); err != nil {
		return nil, err
	}
	if o.sealed {
		return o.changes, nil
	}
	changes, err := o.tx.seal()
	if err != nil {
		return nil, fmt.Errorf("seal transaction of %s: %w", o.config.Dir, err)
	}
	o.tx.setState(stateSealed)
	o.sealed, o.changes = true, changes
	return changes, nil
}

// Apply takes the sealed changes, and the position that they lead to, into the
// database, all together. The shard has committed them. Reads of the DB see
// them from now on; the transaction is empty again, and tables keep what they
// have decoded. They reach the disk with a later flush: until then a crash takes
// the database back, state and position together.
func (o *Owner) Apply(meta []byte) error {
	if err := o.usable(); err != nil {
		return err
	}
	if !o.sealed {
		// What was read needs no seal. What was written and not sealed was not
		// logged either, and a database must not hold what its changelog lacks.
		if changes, err := o.Seal(); err != nil || len(changes) > 0 {
			return errors.Join(err, fmt.Errorf("apply to %s: transaction of %d changes was not sealed", o.config.Dir, len(changes)))
		}
	}
	if invariants.Enabled {
		for i := 1; i < len(o.changes); i++ {
			invariants.Check(bytes.Compare(o.changes[i-1].Key, o.changes[i].Key) < 0, "sealed keys %x, %x out of order", o.changes[i-1].Key, o.changes[i].Key)
		}
	}
	invariants.Crash("store-apply")
	if err := o.apply(o.changes, meta); err != nil {
		return fmt.Errorf("apply to %s: %w", o.config.Dir, err)
	}
	o.reopen(true)
	if err := o.catchUp(); err != nil {
		return fmt.Errorf("apply to %s: %w", o.config.Dir, err)
	}
	return nil
}

// apply makes the sealed changes, direct writes among them, and a position part
// of the database's state.
func (o *Owner) apply(changes []Change, meta []byte) error {
	return o.d.direct.apply(func() error { return o.take(changes, meta) })
}

// take makes changes and a position pending. Once much is, it is brought to the
// storage library beside the shard's work.
func (o *Owner) take(changes []Change, meta []byte) error {
	if err := o.tx.point.drop(o.d); err != nil {
		return err
	}
	bytes, err := o.pending.add(changes, meta, &o.tx.arena)
	if err != nil {
		return err
	}
	o.d.exists.add(o.d, changes)
	if bytes >= o.pending.limit {
		o.settleSoon()
	}
	size := len(meta)
	for _, c := range changes {
		size += len(c.Key) + len(c.Value)
	}
	o.applied(int64(size), meta)
	return nil
}

// catchUp waits until what is pending is within bounds, if it isn't: the storage
// library is slower than the shard.
func (o *Owner) catchUp() error {
	if o.pending.bytes() < 2*o.pending.limit {
		return nil
	}
	return o.settle()
}

func (o *Owner) applied(size int64, meta []byte) {
	o.meta = bytes.Clone(meta)
	if o.unflushed.bytes == 0 {
		o.unflushed.since = time.Now()
	}
	o.unflushed.bytes += size
}

// Abort forgets what the transaction has written, and what its tables have
// decoded of the keys that it touched. Direct writes go with the next one. After a fence it does nothing: a Consume
// that was given up may still be writing, to be forgotten with the Owner.
func (o *Owner) Abort() {
	if o.usable() != nil {
		return
	}
	if err := o.tx.point.drop(o.d); err != nil {
		// A read that failed has said so to whoever read.
		o.config.Logger.Warn("end of reading", "dir", o.config.Dir, "error", err)
	}
	o.d.direct.abort()
	o.reopen(false)
}

func (o *Owner) reopen(committed bool) {
	o.tx.clear(committed)
	o.sealed, o.changes = false, nil
	o.tx.clearState(stateSealed)
}

// SetMeta writes the position alone, which has moved past records that change
// nothing.
func (o *Owner) SetMeta(meta []byte) error {
	if err := o.usable(); err != nil {
		return err
	}
	if err := o.take(nil, meta); err != nil {
		return fmt.Errorf("set position of %s: %w", o.config.Dir, err)
	}
	return nil
}

// write gives one batch to the storage library, without a sync, after what is
// pending. The batch is used up.
func (o *Owner) write(b *pebble.Batch, meta []byte) error {
	if err := o.usable(); err != nil {
		return err
	}
	size := int64(b.Len())
	if err := o.tx.point.drop(o.d); err != nil {
		return err
	}
	if err := o.settle(); err != nil {
		return err
	}
	defer o.d.exists.forget()
	if err := o.commit(b); err != nil {
		return err
	}
	if err := b.Close(); err != nil {
		return err
	}
	o.applied(size, meta)
	return nil
}

// commit gives a batch to the storage library. That may have to wait for a
// memtable, and so for the disk, which a fatal error would make it do for ever.
// So would a flush that fails and is tried again for ever: the disk is frozen, on
// which the flush ends and leaves nothing, and with it the waiting. What was
// flushed before is on disk, as after a power cut.
func (o *Owner) commit(b *pebble.Batch) error {
	done := make(chan error, 1)
	go func() { done <- b.Commit(pebble.NoSync) }()
	select {
	case err := <-done:
		if e := o.ended(); e != nil {
			return e
		}
		return err
	case <-o.fatal.met:
	case <-o.failure.met:
		o.gaveUp.Store(true)
		o.disk.freeze()
		select {
		case <-done:
			return o.ended()
		case <-o.fatal.met: // it came first
		}
	}
	o.stalled = done
	return o.fatalError()
}

// ended says why the database is of no more use, if it isn't.
func (o *Owner) ended() error {
	if err := o.fatalError(); err != nil {
		return err
	}
	switch {
	case !o.disk.isFrozen():
		return nil
	case o.gaveUp.Load():
		return o.Failure()
	}
	return ErrInterrupted
}

// usable says why the owner can't go on, if it can't.
func (o *Owner) usable() error {
	if o.closed {
		return ErrClosed
	}
	if err := o.ended(); err != nil {
		return err
	}
	return o.tx.fenced()
}

// Flush writes what is only in memory to disk, and waits until it is durable:
// what Meta said before the call survives a crash.
func (o *Owner) Flush() error {
	if o.closed {
		return ErrClosed
	}
	if err := o.flush(); err != nil {
		return fmt.Errorf("flush database %s: %w", o.config.Dir, err)
	}
	return nil
}

func (o *Owner) flush() error {
	if err := o.ended(); err != nil {
		return err
	}
	if o.unflushed.bytes == 0 {
		return nil
	}
	if err := o.Failure(); err != nil {
		return err
	}
	if err := o.settle(); err != nil {
		return err
	}
	flushed, err := o.d.db.AsyncFlush()
	if err != nil {
		return err
	}
	select {
	case <-flushed:
	case <-o.fatal.met:
	case <-o.failure.met:
		// The storage library tries again and again.
		return errors.Join(o.ended(), o.Failure())
	}
	if err := o.ended(); err != nil {
		return err
	}
	o.unflushed.bytes, o.unflushed.since = 0, time.Time{}
	return nil
}

// Unflushed returns how much has been written since the last Flush, and when
// the first of it was: what a crash would have the shard replay, at most. (The
// storage library flushes a full memtable by itself, which isn't counted off.)
func (o *Owner) Unflushed() (bytes int64, since time.Time) {
	return o.unflushed.bytes, o.unflushed.since
}

// Fence makes every read and write of the transaction, and of the DB, return
// ErrFenced from now on, also in a Consume that still runs. Flush and Close go
// on: what has been applied was committed. It may be called from any goroutine.
func (o *Owner) Fence() {
	o.tx.setState(stateFenced)
	o.d.direct.end(ErrFenced)
}

// Interrupt makes Flush, Apply and Close stop writing, and waiting for what the
// machine is short of, now and later. Those that would go on return
// ErrInterrupted, and the database stands on disk as if power had been cut: at
// some position, with the state of that position. A write that is under way is
// waited for. It may be called from any goroutine.
func (o *Owner) Interrupt() { o.disk.interrupt() }

// Close flushes the database and closes it. Reads that are under way end first,
// those of iterators that are still open with ErrClosed. An error says that the
// database may have lost what was not flushed before; it is closed all the
// same. A second Close does nothing.
func (o *Owner) Close() error {
	if o.closed {
		return nil
	}
	err := o.flush()
	if err != nil {
		err = fmt.Errorf("flush: %w", err)
	}
	return o.close(err)
}

// CloseWithoutFlush closes the database and leaves on disk what the last flush
// left there.
func (o *Owner) CloseWithoutFlush() error {
	if o.closed {
		return nil
	}
	return o.close(nil)
}

func (o *Owner) close(before error) error {
	o.closed = true
	o.tx.setState(stateClosed)
	reason := ErrClosed
	if o.tx.fenced() != nil {
		reason = ErrFenced // also for a Consume that is in the middle of a read
	}
	o.d.direct.end(reason)
	o.end(reason)
	err := errors.Join(before, o.d.closeReads(reason))
	o.d.exists.builders.Wait()
	if o.fatalError() != nil {
		o.disk.freeze()
	}
	close(o.disk.closing)
	if o.isStalled() {
		// The commit holds what closing needs, and waits for a memtable that
		// will never be written. It stays behind, in a process that is to end.
		o.config.Logger.Error("database is left open: a write of it never ends", "dir", o.config.Dir)
	} else if e := o.d.db.Close(); !o.disk.isFrozen() {
		// What closing finds amiss after the disk froze is why it froze.
		err = errors.Join(err, e)
	}
	o.fatal.told.Wait()
	if o.config.Budget != nil {
		o.config.Budget.giveBack(o.size)
	}
	o.closeBudget()
	if err != nil {
		return fmt.Errorf("close database %s: %w", o.config.Dir, err)
	}
	return nil
}

func (o *Owner) isStalled() bool {
	if o.stalled == nil {
		return false
	}
	select {
	case <-o.stalled:
		return false
	default:
		return true
	}
}

func (o *Owner) closeBudget() {
	if o.budget != nil {
		o.budget.Close()
	}
}
