package store

import (
	"bytes"
	"fmt"
	"unsafe"

	"github.com/pawlstream/pawl/internal/invariants"
)

// tableState is one table's part of a transaction, of whatever types.
type tableState interface {
	keyPrefix() []byte
	seal([]Change) ([]Change, error) // the changes, encoded, in key order
	committed()                      // what was dirty is now clean
	aborted()                        // what was touched is forgotten
	// evict lets clean entries go until it has freed so many bytes or looked at
	// so many entries. It returns what it freed.
	evict(bytes int64, steps int) int64
	size() int // how many entries there are to look at
}

// tableCache is the account of what all tables of a shard keep in memory.
type tableCache struct {
	limit int64
	used  int64 // all entries
	held  int64 // those that the transaction holds on to
	next  int   // which table the next eviction begins with
}

func (c *tableCache) excess() int64 { return c.used - c.limit }

// table is the state of one Table in one shard: the values it keeps decoded,
// and which of them the transaction has changed.
//
//	        load            first change           commit
//	absent ──────► clean ──────────────► dirty ──────────────► clean
//	   ▲  evict,     │                     │
//	   └─── abort ───┴──────── abort ──────┘
//
// An entry without a value says that the key is absent, which is worth knowing
// too.
type table[K comparable, V any] struct {
	t  *Table[K, V]
	tx *Transaction

	entries map[K]*entry[K, V]
	changes ordered[*entry[K, V]] // the dirty ones
	touched []*entry[K, V]        // those an abort forgets: the dirty ones, and if V holds pointers those read

	// whole says that every key that the table holds has an entry, and so that
	// a key without one is absent. It begins with an empty table, and ends when
	// an entry is forgotten that may have a value. Of a table that fits into the
	// cache no absent key is ever looked up, which costs microseconds.
	whole bool

	ring []*entry[K, V] // all entries, and forgotten ones until the hand passes
	hand int
	gone int // forgotten entries in the ring
}

type entry[K comparable, V any] struct {
	key    K
	val    V
	old    V
	stored []byte // the key as stored
	cost   int32
	writes int32 // since the transaction's first, while V has no fixed size

	has      bool // there is a value
	known    bool // has and val are known: false after a blind write was forgotten
	hadOld   bool
	oldKnown bool
	isDirty  bool
	isTouch  bool
	recent   bool // used since the hand last passed
	isGone   bool // forgotten
}

func (e *entry[K, V]) storedKey() []byte { return e.stored }

// state returns the table's state in a transaction.
func (t *Table[K, V]) state(tx *Transaction) (*table[K, V], error) {
	if t.index < len(tx.tables) {
		if s, ok := tx.tables[t.index].(*table[K, V]); ok {
			return s, nil
		}
	}
	return t.newState(tx)
}

func (t *Table[K, V]) newState(tx *Transaction) (*table[K, V], error) {
	if err := t.conflict(); err != nil {
		return nil, err
	}
	s := &table[K, V]{t: t, tx: tx, entries: make(map[K]*entry[K, V])}
	s.changes.skip = len(t.prefix)
	first, err := tx.d.newCursor(tx.from, t.prefix, prefixEnd(t.prefix), false)
	if err != nil {
		return nil, err
	}
	s.whole = !first.ok
	if err := first.close(); err != nil {
		return nil, err
	}
	tx.addTable(t.index, s)
	return s, nil
}

func (s *table[K, V]) keyPrefix() []byte { return s.t.prefix }

func (s *table[K, V]) size() int { return len(s.ring) }

// load returns the entry of a key whose value is not known yet.
func (s *table[K, V]) load(tx *Transaction, k K) (*entry[K, V], error) {
	entries := len(s.entries)
	e, err := s.make(tx, k)
	if err != nil || e.known {
		return e, err
	}
	if s.whole && len(s.entries) > entries { // it was made just now
		e.known = true
		return e, nil
	}
	v, ok, err := s.t.read(tx, e.stored)
	if err != nil {
		return nil, err
	}
	e.val, e.has, e.known = v, ok, true
	s.recost(e, len(tx.stored))
	return e, nil
}

// make returns the entry of a key that is not in the map, or is not known.
func (s *table[K, V]) make(tx *Transaction, k K) (*entry[K, V], error) {
	if e := s.entries[k]; e != nil {
		return e, nil
	}
	if k != k {
		return nil, s.t.keyError(k)
	}
	tx.scratch = s.t.key.AppendKey(append(tx.scratch[:0], s.t.prefix...), k)
	if !s.t.canonical {
		// Another key with the same bytes would be another entry of the same
		// record. The one that the bytes decode to stands for all of them.
		c, err := s.t.key.DecodeKey(tx.scratch[len(s.t.prefix):])
		if err != nil {
			return nil, fmt.Errorf("table %q: decode key %v again: %w", s.t.name, k, err)
		}
		if e := s.entries[c]; e != nil {
			return e, nil
		}
		k = c
	}
	if tx.cache.excess() > 0 {
		tx.evict(evictBytes, evictSteps)
	}
	e := &entry[K, V]{key: k, stored: bytes.Clone(tx.scratch), recent: true}
	if own, ok := any(&e.key).(*string); ok && s.t.canonical {
		// The caller's string may be a small part of a large message, which the
		// cache would keep alive. The stored bytes are never changed.
		key := e.stored[len(s.t.prefix):]
		*own = unsafe.String(unsafe.SliceData(key), len(key))
	}
	s.entries[e.key] = e
	s.ring = append(s.ring, e)
	s.recost(e, 0)
	return e, nil
}

// What a full cache lets go when an entry is added: more than one entry takes,
// so that a cache over its limit shrinks, within a bounded number of looks,
// since all that is there may be dirty.
const (
	evictBytes = 1 << 10
	evictSteps = 16
)

// entryOverhead is what an entry takes beside its key and value: its slots in
// the map and the ring, and what the allocator rounds up.
const entryOverhead = 48

// recost sets what an entry costs, its value being so many bytes encoded.
func (s *table[K, V]) recost(e *entry[K, V], encoded int) {
	cost := int64(unsafe.Sizeof(*e)) + entryOverhead + int64(len(e.stored))
	if !s.t.fixed {
		cost += 2 * int64(encoded)
	}
	cost = min(cost, 1<<31-1)
	s.tx.cache.used += cost - int64(e.cost)
	if e.isTouch {
		s.tx.cache.held += cost - int64(e.cost)
	}
	e.cost = int32(cost)
}

// dirty marks an entry as changed by the transaction, keeping what it was.
func (s *table[K, V]) dirty(e *entry[K, V]) {
	if e.isDirty {
		return
	}
	e.isDirty, e.recent = true, true
	e.oldKnown = s.t.plain && e.known
	if e.oldKnown {
		e.old, e.hadOld = e.val, e.has
	}
	s.changes.add(e)
	s.touch(e)
}

func (s *table[K, V]) touch(e *entry[K, V]) {
	if !e.isTouch {
		e.isTouch = true
		s.touched = append(s.touched, e)
		s.tx.cache.held += int64(e.cost)
	}
}

// grown keeps the size of a changed value in mind, if values may grow: it is
// measured at the entry's first, second, fourth … write in a transaction.
func (s *table[K, V]) grown(tx *Transaction, e *entry[K, V]) {
	if s.t.fixed {
		return
	}
	e.writes++
	if e.writes&(e.writes-1) != 0 {
		return
	}
	n := 0
	if e.has {
		// A value that can't be encoded fails the transaction when it is sealed.
		if b, err := s.t.val.Append(tx.stored[:0], e.val); err == nil {
			tx.stored, n = b, len(b)
		}
	}
	s.recost(e, n)
}

func (s *table[K, V]) seal(out []Change) ([]Change, error) {
	for _, e := range s.changes.all(&s.tx.sorter) {
		if !e.has {
			if e.oldKnown && !e.hadOld {
				continue // it came and went within the transaction
			}
			out = append(out, Change{Key: e.stored})
			continue
		}
		b, err := s.t.val.Append(appendTableHeader(s.tx.arena.begin()), e.val)
		if err != nil {
			return nil, fmt.Errorf("encode value of table %q, key %v: %w", s.t.name, e.key, err)
		}
		b = s.tx.arena.end(b)
		if !s.t.fixed {
			s.recost(e, len(b))
		}
		out = append(out, Change{e.stored, b})
	}
	return out, nil
}

func (s *table[K, V]) committed() {
	for _, e := range s.touched {
		s.settle(e)
	}
	s.forgetChanges()
}

func (s *table[K, V]) aborted() {
	for _, e := range s.touched {
		s.settle(e)
		s.forget(e)
		s.gone++
		s.whole = false
	}
	s.forgetChanges()
	if s.gone > len(s.ring)/2 {
		s.sweep()
	}
}

func (s *table[K, V]) settle(e *entry[K, V]) {
	var zero V
	e.old, e.oldKnown, e.hadOld = zero, false, false
	e.isDirty, e.isTouch = false, false
	e.writes = 0
}

func (s *table[K, V]) forgetChanges() {
	clear(s.touched)
	s.touched = s.touched[:0]
	s.changes.reset()
}

// forget drops an entry from the map; the ring drops it later.
func (s *table[K, V]) forget(e *entry[K, V]) {
	invariants.Check(!e.isGone && !e.isDirty, "table %q forgets a dirty entry or one twice", s.t.name)
	e.isGone = true
	delete(s.entries, e.key)
	s.tx.cache.used -= int64(e.cost)
}

// sweep drops forgotten entries from the ring.
func (s *table[K, V]) sweep() {
	kept := s.ring[:0]
	for _, e := range s.ring {
		if !e.isGone {
			kept = append(kept, e)
		}
	}
	clear(s.ring[len(kept):])
	s.ring, s.gone, s.hand = kept, 0, 0
}

// evict moves the hand over the ring. An entry that was used since the hand
// last passed is spared once; one that the transaction holds, for as long.
func (s *table[K, V]) evict(bytes int64, steps int) (freed int64) {
	for range steps {
		if freed >= bytes || len(s.ring) == 0 {
			break
		}
		if s.hand >= len(s.ring) {
			s.hand = 0
		}
		e := s.ring[s.hand]
		switch {
		case e.isGone:
			s.gone--
		case e.isTouch || e.recent:
			e.recent = false
			s.hand++
			continue
		default:
			freed += int64(e.cost)
			s.whole = s.whole && e.known && !e.has
			s.forget(e)
		}
		last := len(s.ring) - 1
		s.ring[s.hand], s.ring[last] = s.ring[last], nil
		s.ring = s.ring[:last]
	}
	return freed
}

// An arena lends out bytes for the values of one transaction. It is emptied in
// one go and used again.
type arena struct {
	chunk []byte
}

const arenaChunk = 64 << 10

// begin returns an empty slice to append one value to.
func (a *arena) begin() []byte {
	if cap(a.chunk)-len(a.chunk) < arenaChunk/16 {
		// The full chunk lives on in the values that were lent from it.
		a.chunk = make([]byte, 0, min(max(arenaChunk, 2*cap(a.chunk)), 16*arenaChunk))
	}
	return a.chunk[len(a.chunk):len(a.chunk):cap(a.chunk)]
}

// end takes the appended value, which may have outgrown the chunk and moved.
func (a *arena) end(b []byte) []byte {
	n := len(a.chunk)
	if len(b) <= cap(a.chunk)-n && len(b) > 0 && &b[0] == &a.chunk[:n+1][n] {
		a.chunk = a.chunk[:n+len(b)]
	}
	return b[:len(b):len(b)]
}

func (a *arena) reset() { a.chunk = a.chunk[:0] }
