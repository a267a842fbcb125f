package store

import (
	"encoding/binary"
	"fmt"
	"unsafe"
)

// tableState is one table's part of a transaction, of whatever types.
type tableState interface {
	keyPrefix() []byte
	changed() bool                   // by the transaction
	catchUp()                        // with direct writes
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
// Keys are told apart by their bytes: two that the codec gives the same bytes
// are one.
type table[K comparable, V any] struct {
	t  *Table[K, V]
	tx *Transaction

	entries entries[V]
	changes ordered[*change[V]]
	records records[V]  // what changes points to
	read    []*entry[V] // what an abort forgets though it wasn't changed: if V holds pointers
	number  uint32      // the transaction's; an entry that has it is held on to

	// whole says that every key that the table holds has an entry, and so that
	// a key without one is absent. It begins with an empty table, and ends when
	// an entry is forgotten that may have a value. Of a table that fits into the
	// cache no absent key is ever looked up, which costs microseconds.
	whole bool

	hand uint32 // the number of the entry that eviction looks at next

	seen      uint64      // the number of the last direct write that it has caught up with
	overtaken []*entry[V] // changed here, and written directly after
}

// A change is what a transaction keeps of an entry that it has changed.
type change[V any] struct {
	e        *entry[V]
	stored   []byte // the key as stored
	old      V      // if oldKnown and hadOld
	writes   int32  // since the transaction's first, while V has no fixed size
	oldKnown bool
	hadOld   bool
	swept    bool // by a sweep: a direct write that comes after it stands
	replaced bool // one has come: this is no change any more
}

func (c *change[V]) storedKey() []byte { return c.stored }

// records are a transaction's changes by number, in memory that the next one
// uses again.
type records[V any] struct {
	chunks [][]change[V]
	n      int
}

const recordChunk = 256

func (r *records[V]) add() (c *change[V], number int) {
	if r.n == len(r.chunks)*recordChunk {
		r.chunks = append(r.chunks, make([]change[V], recordChunk))
	}
	number = r.n
	r.n++
	return r.at(number), number
}

func (r *records[V]) at(number int) *change[V] {
	return &r.chunks[number/recordChunk][number%recordChunk]
}

func (r *records[V]) reset() {
	used := (r.n + recordChunk - 1) / recordChunk
	for _, c := range r.chunks[:used] {
		clear(c)
	}
	// One large transaction does not hold its memory for ever.
	if have := len(r.chunks); used < have/4 {
		clear(r.chunks[have/2:])
		r.chunks = r.chunks[:have/2]
	}
	r.n = 0
}

// state returns the table's state in a transaction.
func (t *Table[K, V]) state(tx *Transaction) (*table[K, V], error) {
	if t.index < len(tx.tables) {
		if s, ok := tx.tables[t.index].(*table[K, V]); ok {
			if s.seen != tx.d.direct.version.Load() {
				s.catchUp()
			}
			return s, nil
		}
	}
	return t.newState(tx)
}

func (t *Table[K, V]) newState(tx *Transaction) (*table[K, V], error) {
	if err := t.conflict(); err != nil {
		return nil, err
	}
	s := &table[K, V]{t: t, tx: tx, number: 1, seen: tx.d.direct.version.Load()}
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

func (s *table[K, V]) changed() bool { return s.records.n > 0 }

func (s *table[K, V]) size() int { return int(s.entries.made) }

// find returns the entry of a key, nil if there is none, and what make and load
// take to make one: the key's bytes and their hash. They may be k's own.
func (s *table[K, V]) find(tx *Transaction, k *K) (e *entry[V], key []byte, hash uint32) {
	key = s.t.keyBytes(tx, k)
	hash = hashKey(key)
	return s.entries.find(hash, key), key, hash
}

// load returns the entry of a key whose value is not known yet; e is nil if
// there is no entry.
func (s *table[K, V]) load(tx *Transaction, e *entry[V], k *K, key []byte, hash uint32) (*entry[V], error) {
	if e == nil {
		var err error
		if e, err = s.make(tx, k, key, hash); err != nil {
			return nil, err
		}
		if s.whole {
			e.flags |= entryKnown
			return e, nil
		}
	}
	v, at, ok, err := s.t.readAt(tx, s.t.storedKey(tx, key))
	if err != nil {
		return nil, err
	}
	e.set(v, ok)
	e.setTime(at)
	s.recost(e, len(tx.stored))
	return e, nil
}

// make returns a new entry of a key that has none.
func (s *table[K, V]) make(tx *Transaction, k *K, key []byte, hash uint32) (*entry[V], error) {
	if *k != *k {
		return nil, s.t.keyError(k)
	}
	if tx.cache.excess() > 0 {
		tx.evict(evictBytes, evictSteps)
	}
	e := s.entries.add(hash, key)
	e.flags |= entryRecent
	s.recost(e, 0)
	return e, nil
}

func (e *entry[V]) has() bool   { return e.flags&entryHas != 0 }
func (e *entry[V]) known() bool { return e.flags&entryKnown != 0 }

// set sets the value, or that there is none.
func (e *entry[V]) set(v V, has bool) {
	e.val = v
	e.flags |= entryKnownHas
	if !has {
		e.flags &^= entryHas
	}
}

func (e *entry[V]) setTime(at int64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(at))
	copy(e.time[:], b[2:])
}

func (e *entry[V]) timeOf() int64 {
	var b [8]byte
	copy(b[2:], e.time[:])
	return int64(binary.BigEndian.Uint64(b[:]))
}

// age makes an entry say that its key is absent once it has expired.
func (s *table[K, V]) age(e *entry[V]) {
	if e.has() && s.t.expired(e.timeOf(), s.tx.d.now()) {
		var none V
		e.set(none, false)
	}
}

// written dates an entry's last write.
func (s *table[K, V]) written(e *entry[V]) {
	if s.t.ttl > 0 {
		e.setTime(s.tx.d.now().UnixMilli())
	}
}

// What a full cache lets go when an entry is added: more than one entry takes,
// so that a cache over its limit shrinks, within a bounded number of looks,
// since all that is there may be dirty.
const (
	evictBytes = 1 << 10
	evictSteps = 16
)

// What an entry takes beside itself: its slots in the index, of which there are
// up to two and two thirds for each, and if its key is long, what that takes
// and the allocator rounds up.
const (
	entryOverhead   = 16
	longKeyOverhead = 40
)

// recost sets what an entry costs, its value being so many bytes encoded.
func (s *table[K, V]) recost(e *entry[V], encoded int) {
	cost := int64(unsafe.Sizeof(*e)) + entryOverhead
	if e.keyLen == keyLong {
		cost += longKeyOverhead + int64(len(s.entries.key(e)))
	}
	if !s.t.fixed {
		cost += 2 * int64(encoded)
	}
	cost = min(cost, 1<<31-1)
	s.tx.cache.used += cost - int64(e.cost)
	if e.touched == s.number {
		s.tx.cache.held += cost - int64(e.cost)
	}
	e.cost = int32(cost)
}

// dirty marks an entry as changed by the transaction, keeping what it was.
func (s *table[K, V]) dirty(e *entry[V]) *change[V] {
	e.flags |= entryRecent
	held := e.touched == s.number
	if held && e.change != 0 {
		c := s.records.at(int(e.change) - 1)
		c.swept, c.replaced = false, false
		return c
	}
	c, number := s.records.add()
	c.e = e
	stored := append(s.tx.arena.begin(), s.t.prefix...)
	c.stored = s.tx.arena.end(append(stored, s.entries.key(e)...))
	if c.oldKnown = s.t.plain && e.known(); c.oldKnown {
		c.old, c.hadOld = e.val, e.has()
	}
	s.changes.add(c)
	s.tx.cache.held += int64(unsafe.Sizeof(*c)) + changeOverhead + int64(len(c.stored))
	if !held {
		e.touched = s.number
		s.tx.cache.held += int64(e.cost)
	}
	e.change = int32(number) + 1
	return c
}

// hold keeps an entry that was read until the transaction ends.
func (s *table[K, V]) hold(e *entry[V]) {
	if e.touched != s.number {
		e.touched, e.change = s.number, 0
		s.read = append(s.read, e)
		s.tx.cache.held += int64(e.cost)
	}
}

// grown keeps the size of a changed value in mind, if values may grow: it is
// measured at the entry's first, second, fourth … write in a transaction.
func (s *table[K, V]) grown(tx *Transaction, c *change[V]) {
	if s.t.fixed {
		return
	}
	c.writes++
	if c.writes&(c.writes-1) != 0 {
		return
	}
	n := 0
	if c.e.has() {
		// A value that can't be encoded fails the transaction when it is sealed.
		if b, err := s.t.val.Append(tx.stored[:0], c.e.val); err == nil {
			tx.stored, n = b, len(b)
		}
	}
	s.recost(c.e, n)
}

func (s *table[K, V]) seal(out []Change) ([]Change, error) {
	for _, c := range s.changes.all(&s.tx.sorter) {
		if c.replaced {
			continue
		}
		if s.t.ttl > 0 {
			s.age(c.e)
		}
		if !c.e.has() {
			if c.oldKnown && !c.hadOld {
				continue // it came and went within the transaction
			}
			out = append(out, Change{Key: c.stored})
			continue
		}
		b, err := s.t.val.Append(s.t.appendHeader(s.tx.arena.begin(), c.e.timeOf()), c.e.val)
		if err != nil {
			return nil, fmt.Errorf("encode value of table %q, key %x: %w", s.t.name, c.stored[len(s.t.prefix):], err)
		}
		b = s.tx.arena.end(b)
		if !s.t.fixed {
			s.recost(c.e, len(b))
		}
		out = append(out, Change{c.stored, b})
	}
	return out, nil
}

func (s *table[K, V]) committed() {
	for _, e := range s.overtaken {
		e.flags &^= entryKnown
	}
	s.forgetChanges()
}

func (s *table[K, V]) aborted() {
	for _, e := range s.read {
		if e.change == 0 { // else it was changed after it was read
			s.forget(e)
		}
	}
	for i := range s.records.n {
		s.forget(s.records.at(i).e)
	}
	s.whole = s.whole && s.records.n == 0 && len(s.read) == 0
	s.forgetChanges()
	if s.entries.wasteful() {
		s.entries.compact()
		s.hand = 0
	}
}

// forgetChanges lets go of what the transaction held on to.
func (s *table[K, V]) forgetChanges() {
	clear(s.read)
	s.read = s.read[:0]
	s.overtaken = nil
	s.changes.reset()
	s.records.reset()
	if s.number++; s.number == 0 {
		// The numbers begin again: none that an entry has may come again.
		for i := range s.entries.made {
			s.entries.at(i).touched = 0
		}
		s.number = 1
	}
}

func (s *table[K, V]) forget(e *entry[V]) {
	s.tx.cache.used -= int64(e.cost)
	s.entries.remove(e)
}

// evict moves the hand over the entries. One that was used since the hand last
// passed is spared once; one that the transaction holds, for as long.
func (s *table[K, V]) evict(bytes int64, steps int) (freed int64) {
	for range steps {
		if freed >= bytes || s.entries.live == 0 {
			break
		}
		if s.hand >= s.entries.made {
			s.hand = 0
		}
		e := s.entries.at(s.hand)
		s.hand++
		switch {
		case e.flags&entryLive == 0:
		case e.touched == s.number || e.flags&entryRecent != 0:
			e.flags &^= entryRecent
		default:
			freed += int64(e.cost)
			s.whole = s.whole && e.flags&entryKnownHas == entryKnown
			s.forget(e)
		}
	}
	return freed
}
