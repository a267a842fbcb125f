package store

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// pending is what Apply has taken and the storage library does not have yet: a
// few transactions' changes, in their order, and the position that the last
// leads to. A key that changes in most transactions is so given to the storage
// library once for many of them, which is where most of a commit's cost was.
//
//	Apply ──► pending ──► one batch: the last change of each key, one position
//	             ▲
//	             └ when it is large, and before any read of the database
//
// Nothing is less durable for it: what the storage library has before a flush
// is in memory too. A flush and Close settle what is pending first.
type pending struct {
	any   atomic.Bool // whether there is something, for those who only read
	limit int64       // bytes at which it is settled

	mu struct {
		sync.Mutex
		taken  taken
		spare  taken         // memory to use again
		chunks [][]byte      // the same, for arenas
		busy   chan struct{} // closed when the settling that is under way ends; nil if none is
		ended  error         // nothing is settled any more, and why
		err    error         // of a settling that failed: the last one there was
	}

	// These belong to whoever settles.
	sorter sorter
	size   int // of the last batch
}

// taken is some transactions' changes.
type taken struct {
	changes []Change
	chunks  [][]byte // of the arena, that nothing but these changes is in
	meta    []byte
	bytes   int64
	commits int
}

// A change takes this much beside its key and value.
const pendingOverhead = 64

// add takes a transaction's changes, with the arena that they are in, to which
// it gives chunks that are free again. It returns the bytes that are pending.
func (p *pending) add(changes []Change, meta []byte, a *arena) (bytes int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.err != nil {
		return 0, p.mu.err
	}
	t := &p.mu.taken
	t.changes = append(t.changes, changes...)
	for _, c := range changes {
		t.bytes += int64(len(c.Key)+len(c.Value)) + pendingOverhead
	}
	t.meta = append(t.meta[:0], meta...)
	t.commits++
	if len(changes) > 0 { // else the chunks are those of a transaction that stays open
		t.chunks = append(t.chunks, a.full...)
		clear(a.full)
		a.full = a.full[:0]
	}
	if len(a.free) == 0 {
		a.free, p.mu.chunks = p.mu.chunks, a.free
	}
	p.any.Store(true)
	return t.bytes, nil
}

// settle gives the storage library what is pending, unless there is nothing.
// Any goroutine may call it. It returns when what was pending is there, whoever
// brought it.
func (o *Owner) settle() error {
	p := &o.pending
	if !p.any.Load() {
		return nil
	}
	p.mu.Lock()
	for p.mu.busy != nil {
		busy := p.mu.busy
		p.mu.Unlock()
		<-busy
		p.mu.Lock()
	}
	if p.mu.err != nil || p.mu.taken.commits == 0 {
		defer p.mu.Unlock()
		return p.mu.err
	}
	if p.mu.ended != nil {
		defer p.mu.Unlock()
		return p.mu.ended
	}
	busy := make(chan struct{})
	p.mu.busy = busy
	t := p.mu.taken
	p.mu.taken, p.mu.spare = p.mu.spare, taken{}
	p.mu.Unlock()

	err := o.bring(&t)

	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.err = err
	p.recycleLocked(t)
	p.any.Store(p.mu.taken.commits > 0 || err != nil)
	p.mu.busy = nil
	close(busy)
	return err
}

// bring writes what was taken in one batch.
func (o *Owner) bring(t *taken) error {
	p := &o.pending
	b := o.d.db.NewBatch(pebble.WithInitialSizeBytes(p.size + p.size/8))
	set := func(c Change) error {
		if c.Value == nil {
			return b.Delete(c.Key, nil)
		}
		return b.Set(c.Key, c.Value, nil)
	}
	if t.commits == 1 {
		for _, c := range t.changes {
			if err := set(c); err != nil {
				return fmt.Errorf("write to database %s: %w", o.d.dir, err)
			}
		}
	} else {
		keys := p.sorter.keys[:0]
		for _, c := range t.changes {
			keys = append(keys, c.Key)
		}
		p.sorter.keys = keys
		order := p.sorter.sort(0)
		for i, w := range order {
			c := t.changes[w.at]
			if i+1 < len(order) && bytes.Equal(c.Key, keys[order[i+1].at]) {
				continue // a later transaction changed it again
			}
			if err := set(c); err != nil {
				return fmt.Errorf("write to database %s: %w", o.d.dir, err)
			}
		}
		clear(keys)
	}
	if err := b.Set(keyMeta, t.meta, nil); err != nil {
		return fmt.Errorf("write to database %s: %w", o.d.dir, err)
	}
	p.size = b.Len()
	if err := o.commit(b); err != nil {
		return fmt.Errorf("write to database %s: %w", o.d.dir, err)
	}
	return b.Close()
}

// recycleLocked keeps the memory of what was settled, within bounds.
func (p *pending) recycleLocked(t taken) {
	for _, c := range t.chunks {
		if cap(c) == arenaChunkMax && int64(len(p.mu.chunks))*arenaChunkMax < p.limit {
			p.mu.chunks = append(p.mu.chunks, c[:0])
		}
	}
	clear(t.chunks)
	if int64(cap(t.changes))*pendingOverhead > 2*p.limit {
		return
	}
	clear(t.changes)
	p.mu.spare = taken{changes: t.changes[:0], chunks: t.chunks[:0], meta: t.meta[:0]}
}

// settleSoon settles without being waited for.
func (o *Owner) settleSoon() {
	p := &o.pending
	p.mu.Lock()
	busy := p.mu.busy != nil
	p.mu.Unlock()
	if !busy {
		// Its error is that of all later ones; close waits for it.
		o.settling.Go(func() { _ = o.settle() })
	}
}

// bytes returns what is pending.
func (p *pending) bytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.taken.bytes
}

// end makes later settlings answer with a reason, and waits for those under way.
func (o *Owner) end(reason error) {
	p := &o.pending
	p.mu.Lock()
	p.mu.ended = reason
	busy := p.mu.busy
	p.mu.Unlock()
	if busy != nil {
		<-busy
	}
	o.settling.Wait()
}
