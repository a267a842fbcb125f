package broker

import (
	"bytes"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/pawlstream/pawl/internal/invariants"
)

// A change is one write to the storage.
type change struct {
	kind     changeKind
	key, val []byte // of a deleteRange, val is the end
}

type changeKind byte

const (
	set changeKind = iota
	remove
	removeRange
)

// An op is one change of the state, which is stored whole or not at all. It is
// staged under the lock, in the order in which ops are to be on disk.
type op struct {
	changes []change
	bytes   int
	applied []func() // each runs once with the lock held, when the op is on disk
	added   []addition
}

// addition is a batch that an op appends to a partition.
type addition struct {
	p     *partition
	batch batch
}

func (o *op) set(key, val []byte) {
	o.changes = append(o.changes, change{set, key, val})
	o.bytes += len(key) + len(val)
}

func (o *op) remove(key []byte) {
	o.changes = append(o.changes, change{remove, key, nil})
	o.bytes += len(key)
}

func (o *op) removeRange(start, end []byte) {
	o.changes = append(o.changes, change{removeRange, start, end})
	o.bytes += len(start) + len(end)
}

// removePrefix removes all keys that begin with a prefix.
func (o *op) removePrefix(prefix []byte) { o.removeRange(prefix, after(prefix)) }

func (o *op) whenApplied(fn func()) { o.applied = append(o.applied, fn) }

// A round is what one synced write puts on disk.
type round struct {
	ops   []*op
	bytes int
	batch *pebble.Batch
	done  chan struct{} // closed when it is on disk and applied
}

// roundMax is how big a round grows before the next one is begun. A bigger one
// would fill the storage's memtable alone.
const roundMax = 4 << 20

// writer takes rounds to the disk. One goroutine hands them to the storage, in
// order, and another one waits for their sync: while one round is being synced
// the next is being written, and what is staged meanwhile shares the one after.
type writer struct {
	b        *Broker
	wake     chan struct{}
	inflight chan *round
	closing  chan struct{}
	ended    chan struct{}
}

// roundsInFlight is how many rounds are written and wait for their sync.
const roundsInFlight = 2

func newWriter(b *Broker) *writer {
	return &writer{
		b: b, wake: make(chan struct{}, 1), inflight: make(chan *round, roundsInFlight),
		closing: make(chan struct{}), ended: make(chan struct{}),
	}
}

// stageLocked puts an op behind all that were staged before. It is on disk when
// the round that it returns is done.
func (b *Broker) stageLocked(o *op) *round {
	last := len(b.mu.rounds) - 1
	if last < 0 || b.mu.rounds[last].bytes >= roundMax {
		b.mu.rounds = append(b.mu.rounds, &round{done: make(chan struct{})})
		last++
	}
	r := b.mu.rounds[last]
	r.ops = append(r.ops, o)
	r.bytes += o.bytes
	b.mu.lastRound = r
	for _, c := range o.changes {
		switch c.key[0] {
		case prefixTopic:
			b.mu.topicRound = r
		case prefixGroup, prefixOffset, prefixPending:
			b.mu.groupRound = r
		}
	}
	select {
	case b.writer.wake <- struct{}{}:
	default:
	}
	return r
}

// barrierLocked returns the round after which all that was staged so far is on
// disk. Whoever answers from the state waits for it: what it saw may be staged
// and no more.
func (b *Broker) barrierLocked() *round { return b.mu.lastRound }

// durable waits until a round is on disk; nil is.
func (b *Broker) durable(r *round) error {
	if r == nil {
		return nil
	}
	select {
	case <-r.done:
		return nil
	default:
	}
	select {
	case <-r.done:
		return nil
	case <-b.dead:
		return b.Err()
	}
}

// run writes rounds until the writer closes and nothing is staged.
func (w *writer) run() {
	defer close(w.inflight)
	for {
		w.b.mu.Lock()
		var r *round
		if len(w.b.mu.rounds) > 0 {
			r = w.b.mu.rounds[0]
			w.b.mu.rounds = w.b.mu.rounds[1:]
		}
		w.b.mu.Unlock()
		if r == nil {
			select {
			case <-w.wake:
				continue
			case <-w.b.dead:
				return
			case <-w.closing:
			}
			w.b.mu.Lock()
			none := len(w.b.mu.rounds) == 0
			w.b.mu.Unlock()
			if none {
				return
			}
			continue
		}
		if err := w.write(r); err != nil {
			w.b.fail(fmt.Errorf("%w: write: %w", ErrFatal, err))
			return
		}
		select {
		case w.inflight <- r:
		case <-w.b.dead:
			return
		}
	}
}

func (w *writer) write(r *round) error {
	r.batch = w.b.db.NewBatchWithSize(r.bytes + 64*len(r.ops) + 1024)
	for _, o := range r.ops {
		if err := o.appendTo(r.batch); err != nil {
			return err
		}
	}
	invariants.Crash("broker-write")
	if w.b.config.Unsynced {
		return w.b.db.Apply(r.batch, pebble.NoSync)
	}
	return w.b.db.ApplyNoSyncWait(r.batch, pebble.Sync)
}

func (o *op) appendTo(batch *pebble.Batch) error {
	for _, c := range o.changes {
		var err error
		switch c.kind {
		case set:
			err = batch.Set(c.key, c.val, nil)
		case remove:
			err = batch.Delete(c.key, nil)
		case removeRange:
			err = batch.DeleteRange(c.key, c.val, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sync waits for rounds to be on disk, in their order, and applies them.
func (w *writer) sync() {
	defer close(w.ended)
	for r := range w.inflight {
		invariants.Crash("broker-sync")
		added := r.keep()
		if !w.b.config.Unsynced {
			if err := r.batch.SyncWait(); err != nil {
				w.b.fail(fmt.Errorf("%w: sync: %w", ErrFatal, err))
				return
			}
		}
		select {
		case <-w.b.dead:
			return // whatever the storage says now, nothing is on disk any more
		default:
		}
		if err := r.batch.Close(); err != nil {
			w.b.fail(fmt.Errorf("%w: release a batch: %w", ErrFatal, err))
			return
		}
		r.batch = nil
		invariants.Crash("broker-synced")
		w.b.mu.Lock()
		for _, a := range added {
			w.b.mu.recents.addLocked(a.p, a.batch)
		}
		for _, o := range r.ops {
			for _, fn := range o.applied {
				fn()
			}
		}
		r.ops = nil
		for _, last := range []**round{&w.b.mu.lastRound, &w.b.mu.topicRound, &w.b.mu.groupRound} {
			if *last == r {
				*last = nil
			}
		}
		w.b.mu.Unlock()
		invariants.Crash("broker-applied") // and nobody is told yet
		close(r.done)
	}
}

// keep returns the round's batches to be kept: with bytes of their own, since
// those that came hold on to all of the request that they came in.
func (r *round) keep() (added []addition) {
	for _, o := range r.ops {
		for _, a := range o.added {
			a.batch.raw = bytes.Clone(a.batch.raw)
			added = append(added, a)
		}
	}
	return added
}
