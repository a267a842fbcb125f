package store

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"sync"
)

// A Table is a name with two codecs: typed access to a part of a shard's
// database, the same for all shards. It is made once for the program, as a
// variable of a package, and its methods take the transaction.
//
// Behind it each shard keeps decoded values, so that updating a key again and
// again costs one encoding and one changelog record per commit, not one per
// update. A value that holds pointers, maps or slices may be changed in place
// by the function given to Update, which returns it; what Get returns is to be
// read only.
type Table[K comparable, V any] struct {
	name   string
	key    KeyCodec[K]
	val    ValueCodec[V]
	prefix []byte
	index  int // where a transaction keeps its state

	plain     bool // a V copied is a V kept: it holds no pointers but strings'
	fixed     bool // every V takes the same memory
	canonical bool // unequal keys never have equal bytes
}

// A TableChange is what a transaction did to one key of a table.
type TableChange[V any] struct {
	Old, New V    // zero if there was, or is, none
	HadOld   bool // the key was there before
	Deleted  bool // the key is not there now
}

// NewTable makes a table. A second one of the same name must have the same
// codecs, and is then the same table; CheckTables tells if one hasn't.
func NewTable[K comparable, V any](name string, key KeyCodec[K], val ValueCodec[V]) *Table[K, V] {
	_, isCanonical := key.(canonical)
	t := &Table[K, V]{
		name:      name,
		key:       key,
		val:       val,
		prefix:    tablePrefix(name),
		plain:     isPlain(reflect.TypeFor[V](), true),
		fixed:     isPlain(reflect.TypeFor[V](), false),
		canonical: isCanonical,
	}
	t.index = register(name, codecs{reflect.TypeFor[K](), reflect.TypeFor[V](), key, val})
	return t
}

// Name returns the table's name.
func (t *Table[K, V]) Name() string { return t.name }

// codecs are what two tables of one name must agree in.
type codecs struct {
	keyType, valType reflect.Type
	key, val         any
}

func (c codecs) equal(d codecs) bool {
	return c.keyType == d.keyType && c.valType == d.valType && sameCodec(c.key, d.key) && sameCodec(c.val, d.val)
}

func sameCodec(a, b any) bool {
	if reflect.TypeOf(a) != reflect.TypeOf(b) {
		return false
	}
	// A codec that can't be compared is taken to be decided by its type.
	v, w := reflect.ValueOf(a), reflect.ValueOf(b)
	return !v.Comparable() || !w.Comparable() || v.Equal(w)
}

func (c codecs) String() string {
	return fmt.Sprintf("%T and %T (%v to %v)", c.key, c.val, c.keyType, c.valType)
}

// registry holds every table of the program, by index.
var registry struct {
	sync.Mutex
	names  []string
	codecs []codecs
}

func register(name string, c codecs) (index int) {
	registry.Lock()
	defer registry.Unlock()
	for i, n := range registry.names {
		if n == name && registry.codecs[i].equal(c) {
			return i
		}
	}
	registry.names = append(registry.names, name)
	registry.codecs = append(registry.codecs, c)
	return len(registry.names) - 1
}

// CheckTables reports every name that two tables with different codecs share:
// each would read what the other wrote. A consumer asks at its start.
func CheckTables() error {
	registry.Lock()
	defer registry.Unlock()
	return checkTables(registry.names, registry.codecs)
}

func checkTables(names []string, all []codecs) error {
	var errs []error
	first := make(map[string]int)
	for i, n := range names {
		if j, ok := first[n]; ok {
			errs = append(errs, fmt.Errorf("table %q has two pairs of codecs: %v; %v", n, all[j], all[i]))
			continue
		}
		first[n] = i
	}
	return errors.Join(errs...)
}

// conflict reports whether another table of this name has other codecs.
func (t *Table[K, V]) conflict() error {
	registry.Lock()
	defer registry.Unlock()
	for i, n := range registry.names {
		if n == t.name && i != t.index {
			return fmt.Errorf("table %q has two pairs of codecs: %v; %v", n, registry.codecs[t.index], registry.codecs[i])
		}
	}
	return nil
}

// isPlain reports whether values of a type are whole when copied: no pointers,
// strings' apart if they are allowed.
func isPlain(t reflect.Type, strings bool) bool {
	switch k := t.Kind(); k {
	case reflect.String:
		return strings
	case reflect.Array:
		return isPlain(t.Elem(), strings)
	case reflect.Struct:
		for i := range t.NumField() {
			if !isPlain(t.Field(i).Type, strings) {
				return false
			}
		}
		return true
	default:
		return k >= reflect.Bool && k <= reflect.Complex128 && k != reflect.Uintptr
	}
}

// Get returns a key's value, with the transaction's own writes seen.
func (t *Table[K, V]) Get(tx *Transaction, k K) (v V, ok bool, err error) {
	if err := tx.readable(); err != nil {
		return v, false, err
	}
	if tx.state.Load()&stateReadOnly != 0 {
		return t.getCommitted(tx, k)
	}
	s, err := t.state(tx)
	if err != nil {
		return v, false, err
	}
	e := s.entries[k]
	if e == nil || !e.known {
		if e, err = s.load(tx, k); err != nil {
			return v, false, err
		}
	}
	e.recent = true
	if !t.plain {
		s.touch(e)
	}
	return e.val, e.has, nil
}

// getCommitted reads past the cache, which a View has none of.
func (t *Table[K, V]) getCommitted(tx *Transaction, k K) (v V, ok bool, err error) {
	if k != k {
		return v, false, t.keyError(k)
	}
	tx.scratch = t.key.AppendKey(append(tx.scratch[:0], t.prefix...), k)
	return t.read(tx, tx.scratch)
}

// read decodes the committed value under a stored key.
func (t *Table[K, V]) read(tx *Transaction, stored []byte) (v V, ok bool, err error) {
	b, ok, err := tx.point.get(tx.d, tx.from, stored, tx.stored[:0])
	if err != nil || !ok {
		return v, false, err
	}
	tx.stored = b
	v, err = t.decode(stored, b)
	return v, err == nil, err
}

func (t *Table[K, V]) decode(key, stored []byte) (v V, err error) {
	version, payload, err := decodeTableValue(stored)
	if err == nil && version != codecVersion {
		err = fmt.Errorf("codec version %d, want %d", version, codecVersion)
	}
	if err == nil {
		v, err = t.val.Decode(payload)
	}
	if err != nil {
		return v, fmt.Errorf("decode value of table %q, key %x: %w", t.name, key[len(t.prefix):], err)
	}
	return v, nil
}

func (t *Table[K, V]) keyError(k K) error {
	return fmt.Errorf("table %q: key %v is not equal to itself", t.name, k)
}

// Put sets a key's value.
func (t *Table[K, V]) Put(tx *Transaction, k K, v V) error {
	s, e, err := t.forWrite(tx, k)
	if err != nil {
		return err
	}
	s.dirty(e)
	e.val, e.has, e.known = v, true, true
	s.grown(tx, e)
	return nil
}

// Delete removes a key, whether or not it is there.
func (t *Table[K, V]) Delete(tx *Transaction, k K) error {
	s, e, err := t.forWrite(tx, k)
	if err != nil {
		return err
	}
	s.dirty(e)
	var zero V
	e.val, e.has, e.known = zero, false, true
	s.grown(tx, e)
	return nil
}

// forWrite finds or makes the entry of a key that is about to be set, whatever
// it is now.
func (t *Table[K, V]) forWrite(tx *Transaction, k K) (*table[K, V], *entry[K, V], error) {
	if err := tx.writable(); err != nil {
		return nil, nil, err
	}
	s, err := t.state(tx)
	if err != nil {
		return nil, nil, err
	}
	e := s.entries[k]
	if e == nil {
		e, err = s.make(tx, k)
	}
	return s, e, err
}

// Update sets a key's value to what fn makes of the one it has, the zero V if
// it has none, and returns it. fn may change its argument in place, and must
// not touch the same key of the table otherwise.
func (t *Table[K, V]) Update(tx *Transaction, k K, fn func(V) V) (v V, err error) {
	if err := tx.writable(); err != nil {
		return v, err
	}
	s, err := t.state(tx)
	if err != nil {
		return v, err
	}
	e := s.entries[k]
	if e == nil || !e.known {
		if e, err = s.load(tx, k); err != nil {
			return v, err
		}
	}
	// Dirty before fn runs: what fn reads itself may push clean entries out.
	s.dirty(e)
	e.val, e.has = fn(e.val), true
	s.grown(tx, e)
	return e.val, nil
}

// All goes over the table in key order, with the transaction's own writes
// seen. Whether a write that the loop makes itself is seen by the rest of the
// scan is not said. An error ends the sequence: the transaction's Err has it
// then, and fails the message.
func (t *Table[K, V]) All(tx *Transaction) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		t.scan(tx, t.prefix, prefixEnd(t.prefix), yield)
	}
}

// Range is All from lo on, below hi.
func (t *Table[K, V]) Range(tx *Transaction, lo, hi K) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		lower := t.key.AppendKey(bytes.Clone(t.prefix), lo)
		upper := t.key.AppendKey(bytes.Clone(t.prefix), hi)
		t.scan(tx, lower, upper, yield)
	}
}

func (t *Table[K, V]) scan(tx *Transaction, lower, upper []byte, yield func(K, V) bool) {
	var own ordered[*entry[K, V]]
	changes := &own
	if tx.state.Load()&stateReadOnly == 0 {
		s, err := t.state(tx)
		if err != nil {
			tx.fail(err)
			return
		}
		changes = &s.changes
	}
	m := newMerge(tx, changes, lower, upper, false)
	err := m.run(func(stored, committed []byte, own *entry[K, V]) (bool, error) {
		if own != nil {
			return !own.has || yield(own.key, own.val), nil
		}
		k, err := t.key.DecodeKey(stored[len(t.prefix):])
		if err != nil {
			return false, fmt.Errorf("decode key %x: %w", stored[len(t.prefix):], err)
		}
		v, err := t.decode(stored, committed)
		if err != nil {
			return false, err
		}
		return yield(k, v), nil
	})
	if err != nil {
		tx.fail(fmt.Errorf("scan table %q: %w", t.name, err))
	}
}

// Changes goes over the keys that this transaction has changed, in key order,
// with what each was and is. Flush publishes from it. An error ends the
// sequence, as in All.
func (t *Table[K, V]) Changes(tx *Transaction) iter.Seq2[K, TableChange[V]] {
	return func(yield func(K, TableChange[V]) bool) {
		if err := tx.readable(); err != nil {
			tx.fail(err)
			return
		}
		if tx.state.Load()&stateReadOnly != 0 {
			return
		}
		s, err := t.state(tx)
		if err != nil {
			tx.fail(err)
			return
		}
		for _, e := range s.changes.all(&tx.sorter) {
			c := TableChange[V]{New: e.val, Deleted: !e.has}
			if e.oldKnown {
				c.Old, c.HadOld = e.old, e.hadOld
			} else if c.Old, c.HadOld, err = t.read(tx, e.stored); err != nil {
				tx.fail(err)
				return
			}
			if c.Deleted && !c.HadOld {
				continue
			}
			if !yield(e.key, c) {
				return
			}
		}
	}
}
