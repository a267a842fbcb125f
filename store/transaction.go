package store

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// A Transaction is what a shard's code reads and writes. Its writes stay in
// memory, in an overlay that its own reads look through, until the shard
// commits; then they reach the changelog and the database all together. When it
// aborts they are forgotten. It belongs to one goroutine at a time.
//
//	Put, Delete, Table.Update …        overlay, dirty table entries
//	Owner.Seal                         one list of changes, in key order
//	  to the changelog
//	Owner.Apply                        the same list to the database
//
// There is always one open transaction; Apply and Abort make it empty again.
type Transaction struct {
	d     *database
	from  pebble.Reader // the database, or a View's snapshot
	state atomic.Uint32 // zero while it can be read and written

	point  point        // for reads of single committed keys
	parent *Transaction // of a View: the shard's, whose fence is its own

	raw    overlay
	timers timers
	merge  func(key, val, operand []byte) ([]byte, error) // the options'

	tables []tableState // by a table's index, nil until it is used
	used   []tableState // those that are not nil, in the order of their keys
	cache  tableCache

	arena   arena // of the bytes that Seal returns
	names   names
	sorter  sorter
	ahead   ahead // of a Prefetch
	sealed  []Change
	scratch []byte // for keys on their way to the database
	full    []byte // for a table's keys, with the prefix
	stored  []byte // for values on their way from it
	err     error  // what an iteration met first
	ended   uint64 // how many transactions have been committed or aborted
}

// What a transaction's state says of it, as bits.
const (
	stateFenced = 1 << iota
	stateSealed
	stateReadOnly
	stateClosed
	stateAhead // the shard's code reads ahead, and is to do no more

	stateUnreadable = stateFenced | stateClosed
)

func newTransaction(d *database, from pebble.Reader, tableCacheLimit int64) *Transaction {
	t := &Transaction{d: d, from: from, raw: newOverlay()}
	t.timers.overlay = newOverlay()
	t.cache.limit = tableCacheLimit
	return t
}

// readable says why the transaction can't be read, if it can't.
func (t *Transaction) readable() error {
	if s := t.state.Load(); s&stateUnreadable != 0 {
		return stateError(s)
	}
	if t.parent != nil {
		return t.parent.fenced()
	}
	return nil
}

// writable says why the transaction can't be written, if it can't.
func (t *Transaction) writable() error {
	if s := t.state.Load(); s != 0 {
		return stateError(s)
	}
	return nil
}

func stateError(s uint32) error {
	switch {
	case s&stateFenced != 0:
		return ErrFenced
	case s&stateClosed != 0:
		return ErrClosed
	case s&(stateReadOnly|stateAhead) != 0:
		return ErrReadOnly
	default:
		return ErrSealed
	}
}

func (t *Transaction) setState(bits uint32)   { t.state.Or(bits) }
func (t *Transaction) clearState(bits uint32) { t.state.And(^bits) }

// Get returns a copy of a key's value, with the transaction's own writes seen.
func (t *Transaction) Get(key []byte) (val []byte, ok bool, err error) {
	if err := t.readable(); err != nil {
		return nil, false, err
	}
	t.scratch = appendRawKey(t.scratch[:0], key)
	if c, ok := t.raw.keys[string(t.scratch)]; ok && !t.replaced(c) {
		if c.deleted {
			return nil, false, nil
		}
		val, err := decodePlain(c.val)
		return append([]byte{}, val...), err == nil, err
	}
	b, ok, err := t.point.get(t.d, t.from, t.scratch, nil)
	return t.d.plain(t.scratch, b, ok, err)
}

// replaced reports whether a direct write stands in place of a change: of one
// that a sweep made, which had not seen it.
func (t *Transaction) replaced(c *rawChange) bool {
	if !c.swept {
		return false
	}
	_, found := t.d.direct.get(c.key)
	return found
}

// plain takes what was stored under a raw key apart.
func (d *database) plain(stored, b []byte, ok bool, err error) (val []byte, _ bool, _ error) {
	if err != nil || !ok {
		return nil, false, err
	}
	val, err = decodePlain(b)
	if err != nil {
		return nil, false, fmt.Errorf("read key %q of %s: %w: %w", stored[1:], d.dir, ErrCorrupt, err)
	}
	return val, true, nil
}

// Put sets a key's value. It copies both; a nil value is an empty one.
func (t *Transaction) Put(key, val []byte) error {
	if err := t.writable(); err != nil {
		return err
	}
	t.scratch = appendRawKey(t.scratch[:0], key)
	t.raw.put(t.scratch, valuePlain, val)
	return nil
}

// Delete removes a key, whether or not it is there.
func (t *Transaction) Delete(key []byte) error {
	if err := t.writable(); err != nil {
		return err
	}
	t.scratch = appendRawKey(t.scratch[:0], key)
	t.raw.delete(t.scratch)
	return nil
}

// DeleteRange removes every key from lo on, below hi; a nil hi is no bound. It
// becomes one delete per key that is there, because a compacted changelog
// keeps records by key and would forget what a range had covered.
func (t *Transaction) DeleteRange(lo, hi []byte) error {
	if err := t.writable(); err != nil {
		return err
	}
	var keys [][]byte
	err := t.scan(&ReadOptions{Lower: lo, Upper: hi}, func(key, _ []byte) bool {
		keys = append(keys, bytes.Clone(key))
		return true
	})
	if err != nil {
		return fmt.Errorf("delete range: %w", err)
	}
	for _, k := range keys {
		if err := t.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// Merge makes a key's value what Options.Merge makes of it and the operand. The
// result is what is stored and logged: a compacted changelog keeps the last
// record of a key, and would lose operands.
func (t *Transaction) Merge(key, operand []byte) error {
	if err := t.writable(); err != nil {
		return err
	}
	if t.merge == nil {
		return ErrNoMerge
	}
	val, _, err := t.Get(key)
	if err != nil {
		return err
	}
	if val, err = t.merge(key, val, operand); err != nil {
		return fmt.Errorf("merge into key %q: %w", key, err)
	}
	return t.Put(key, val)
}

// Scan goes over the raw keys in order, with the transaction's own writes seen.
// Key and value are valid until the next step. Whether a write that the loop
// makes itself is seen by the rest of the scan is not said. An error ends the
// sequence: Err has it then, and fails the message.
func (t *Transaction) Scan(o *ReadOptions) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, val []byte) bool) {
		if err := t.scan(o, yield); err != nil {
			t.fail(fmt.Errorf("scan: %w", err))
		}
	}
}

// Count counts the keys that Scan would go over.
func (t *Transaction) Count(o *ReadOptions) (n int, err error) {
	err = t.scan(o, func(_, _ []byte) bool { n++; return true })
	return n, err
}

func (t *Transaction) scan(o *ReadOptions, yield func(key, val []byte) bool) error {
	if o != nil && o.Snapshot != nil {
		return errSnapshot
	}
	lower, upper, o := rawBounds(o)
	m := newMerge(t, &t.raw.changes, lower, upper, o.Reverse)
	n := 0
	return m.run(func(stored, committed []byte, own *rawChange) (bool, error) {
		val := committed
		if own != nil && t.replaced(own) {
			b, ok, err := t.point.get(t.d, t.from, stored, nil)
			if err != nil || !ok {
				return err == nil, err
			}
			val = b
		} else if own != nil {
			if own.deleted {
				return true, nil
			}
			// The loop may put the same key, which reuses the value's bytes.
			t.stored = append(t.stored[:0], own.val...)
			val = t.stored
		}
		val, err := decodePlain(val)
		if err != nil {
			return false, fmt.Errorf("key %q: %w: %w", stored[1:], ErrCorrupt, err)
		}
		n++
		return yield(stored[1:], val) && n != o.Limit, nil
	})
}

var errSnapshot = errors.New("a transaction reads its own state, not a snapshot")

// rawBounds turns a scan's bounds into stored keys.
func rawBounds(o *ReadOptions) (lower, upper []byte, _ *ReadOptions) {
	if o == nil {
		o = &ReadOptions{}
	}
	lower = appendRawKey(nil, o.Lower)
	if o.Upper == nil {
		return lower, []byte{spaceRaw + 1}, o
	}
	return lower, appendRawKey(nil, o.Upper), o
}

// Err returns the first error that an iteration of this transaction met. A
// transaction that has one can't be committed.
func (t *Transaction) Err() error { return t.err }

func (t *Transaction) changed() bool {
	return len(t.raw.keys) > 0 || len(t.timers.keys) > 0 || slices.ContainsFunc(t.used, tableState.changed)
}

func (t *Transaction) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

// Size estimates the bytes that the transaction holds in memory, with those of
// direct writes that go with it.
func (t *Transaction) Size() int64 {
	return t.raw.size + t.timers.size + t.cache.held + t.d.direct.waiting.Load()
}

// seal turns everything that the transaction has changed into one list, in the
// order of stored keys: raw keys first, then table by table, then timers.
func (t *Transaction) seal() ([]Change, error) {
	if t.err != nil {
		return nil, t.err
	}
	// Tables learn of all direct writes that this commit has in it before what
	// they have changed is decided.
	direct := t.d.direct.seal()
	for _, s := range t.used {
		s.catchUp()
	}
	out := t.raw.seal(t.sealed[:0], &t.sorter, direct)
	var err error
	for _, s := range t.used {
		if out, err = s.seal(out); err != nil {
			return nil, err
		}
	}
	out = withDirect(t.timers.seal(out, &t.sorter, nil), direct)
	t.sealed = out
	return out, nil
}

// clear empties the transaction once its outcome is known.
func (t *Transaction) clear(committed bool) {
	t.raw.reset()
	t.timers.end(committed)
	clear(t.sealed)
	t.sealed = t.sealed[:0]
	for _, s := range t.used {
		if committed {
			s.committed()
		} else {
			s.aborted()
		}
	}
	t.arena.drop()
	t.cache.held = 0
	t.err = nil
	t.ended++
	if excess := t.cache.excess(); excess > 0 {
		t.evict(excess, 0)
	}
}

// dropTables forgets all that is known of the database, because it has changed
// below.
func (t *Transaction) dropTables() {
	t.timers.forget()
	clear(t.tables)
	t.used = nil
	t.cache.used, t.cache.held = 0, 0
}

// addTable enters a table's state once the transaction meets the table.
func (t *Transaction) addTable(index int, s tableState) {
	if index >= len(t.tables) {
		t.tables = append(t.tables, make([]tableState, index+1-len(t.tables))...)
	}
	t.tables[index] = s
	at, _ := slices.BinarySearchFunc(t.used, s.keyPrefix(), func(s tableState, prefix []byte) int {
		return bytes.Compare(s.keyPrefix(), prefix)
	})
	t.used = slices.Insert(t.used, at, s)
}

// evict lets go of so many bytes of clean table entries, or of what it finds
// within so many looks; 0 looks is as many as it takes.
func (t *Transaction) evict(excess int64, steps int) {
	for range t.used {
		if excess <= 0 {
			return
		}
		s := t.used[t.cache.next%len(t.used)]
		n := steps
		if n == 0 {
			n = 2 * s.size() // once round to see what is recent, once to take what is not
		}
		if excess -= s.evict(excess, n); excess > 0 {
			t.cache.next++
		}
	}
}
