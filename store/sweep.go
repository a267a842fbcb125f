package store

import (
	"bytes"
	"fmt"
	"slices"
)

// A SweptKey is a user's key as a sweep shows it.
type SweptKey struct {
	Table string // the table's name, empty for a raw key
	Key   []byte // as the table's codec has it; valid during the call
}

// A SweepFilter says of a key and its value, as the table's codec has it,
// whether to remove it, or else what to set it to; nil leaves it as it is.
type SweepFilter func(k SweptKey, val []byte) (remove bool, newVal []byte)

// A Sweep goes over the committed keys again and again, a few at a time. It
// removes what has outlived its table's TTL, and what a filter says, and writes
// what a filter changes: all through the open transaction, so that it leaves
// reads, changelog and copies alike. Tables that the program doesn't declare
// are left as they are.
type Sweep struct {
	o      *Owner
	filter SweepFilter
	tables map[string]sweptTable
	ranges []keyRange // by key
	next   []byte     // where to go on; nil for the beginning
}

type keyRange struct{ lower, upper []byte }

// NewSweep returns a Sweep, which belongs to whoever uses the transaction. The
// filter may be nil; where there is none and no table has a TTL there is nothing
// to sweep for, and NewSweep returns nil.
func (o *Owner) NewSweep(filter SweepFilter) *Sweep {
	s := &Sweep{o: o, filter: filter, tables: make(map[string]sweptTable)}
	for _, t := range Tables() {
		if swept, ok := t.(sweptTable); ok {
			s.tables[t.Name()] = swept
		}
	}
	if filter != nil {
		s.ranges = []keyRange{{[]byte{spaceRaw}, []byte{spaceTable + 1}}}
		return s
	}
	for _, t := range s.tables {
		if t.expires() {
			s.ranges = append(s.ranges, keyRange{t.storedPrefix(), prefixEnd(t.storedPrefix())})
		}
	}
	if len(s.ranges) == 0 {
		return nil
	}
	slices.SortFunc(s.ranges, func(a, b keyRange) int { return bytes.Compare(a.lower, b.lower) })
	return s
}

// Step looks at up to max keys, from where the last one stopped. It returns true
// when it has come to the end; the next one begins anew. A key that the open
// transaction has written, or a direct write that is not committed yet, is left
// to a later round. A direct write that comes after the look at its key, and
// before the commit, stands: what the sweep made of the key is forgotten.
func (s *Sweep) Step(max int) (done bool, err error) {
	if err := s.o.tx.writable(); err != nil {
		return false, err
	}
	for _, r := range s.ranges {
		if s.next != nil {
			if bytes.Compare(s.next, r.upper) >= 0 {
				continue
			}
			if bytes.Compare(s.next, r.lower) > 0 {
				r.lower = s.next
			}
		}
		if max, err = s.sweep(r, max); err != nil {
			return false, fmt.Errorf("sweep %s: %w", s.o.config.Dir, err)
		}
		if max == 0 {
			return false, nil
		}
	}
	s.next = nil
	return true, nil
}

// sweep looks at up to max keys of a range and returns how many are left to
// look at.
func (s *Sweep) sweep(r keyRange, max int) (left int, err error) {
	tx := s.o.tx
	c, err := tx.d.newCursor(tx.from, r.lower, r.upper, false)
	if err != nil {
		return 0, err
	}
	defer func() {
		if e := c.close(); err == nil {
			err = e
		}
	}()
	for ; c.ok; max-- {
		if max == 0 {
			s.next = append(s.next[:0], c.key...)
			return 0, nil
		}
		if err := s.look(c.key, c.val); err != nil {
			return 0, err
		}
		if err := c.advance(); err != nil {
			return 0, err
		}
	}
	return max, nil
}

func (s *Sweep) look(stored, val []byte) error {
	k, err := decodeKey(stored)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if k.raw {
		return s.lookRaw(k.key, stored, val)
	}
	if t := s.tables[k.table]; t != nil {
		return t.sweep(s.o.tx, stored, val, s.filter)
	}
	return nil
}

func (s *Sweep) lookRaw(key, stored, val []byte) error {
	tx := s.o.tx
	if tx.raw.keys[string(stored)] != nil {
		return nil
	}
	if _, found := tx.d.direct.get(stored); found {
		return nil // val may be what was there before
	}
	plain, err := decodePlain(val)
	if err != nil {
		return fmt.Errorf("key %q: %w: %w", key, ErrCorrupt, err)
	}
	remove, newVal := s.filter(SweptKey{Key: key}, plain)
	switch {
	case remove:
		err = tx.Delete(key)
	case newVal != nil:
		err = tx.Put(key, newVal)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	tx.raw.keys[string(stored)].swept = true
	return nil
}

// sweptTable is a Table, of whatever types, as a sweep needs it.
type sweptTable interface {
	storedPrefix() []byte
	expires() bool
	sweep(tx *Transaction, stored, val []byte, filter SweepFilter) error
}

func (t *Table[K, V]) storedPrefix() []byte { return t.prefix }
func (t *Table[K, V]) expires() bool        { return t.ttl > 0 }

func (t *Table[K, V]) sweep(tx *Transaction, stored, val []byte, filter SweepFilter) error {
	s, err := t.state(tx)
	if err != nil {
		return err
	}
	key := stored[len(t.prefix):]
	hash := hashKey(key)
	e := s.entries.find(hash, key)
	if e != nil && e.touched == s.number && e.change != 0 {
		return nil
	}
	if _, found := tx.d.direct.get(stored); found {
		return nil // val may be what was there before
	}
	head, payload, err := decodeTableValue(val)
	if err != nil {
		return fmt.Errorf("table %q, key %x: %w: %w", t.name, key, ErrCorrupt, err)
	}
	remove := t.expired(head.at, tx.d.now())
	var newVal []byte
	if !remove && filter != nil {
		remove, newVal = filter(SweptKey{t.name, key}, payload)
	}
	at := head.at
	if now := tx.d.now().UnixMilli(); !remove && t.ttl > 0 && at > now {
		// It was written before the clock was set back, or by a machine whose
		// clock is ahead. It is not to outlive its TTL by as much: it counts as
		// written now.
		at = now
		if newVal == nil {
			newVal = payload
		}
	}
	if !remove && newVal == nil {
		return nil
	}
	var v V
	if !remove {
		if v, err = t.decodePayload(head.version, newVal); err != nil {
			return fmt.Errorf("decode what the filter made of table %q, key %x: %w", t.name, key, err)
		}
	}
	if e == nil {
		e = s.entries.add(hash, key)
		s.recost(e, 0)
	}
	c := s.dirty(e)
	c.oldKnown = false // the entry may say that it is gone already, and the record isn't
	e.set(v, !remove)
	e.setTime(at) // it was not written
	s.grown(tx, c)
	c.swept = true
	return nil
}
