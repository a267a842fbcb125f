package store

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
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

	ttl     time.Duration // 0 for none
	version uint64
	older   []ValueCodec[V] // by version

	plain    bool // a V copied is a V kept: it holds no pointers but strings'
	fixed    bool // every V takes the same memory
	isString bool // keys are stored as the strings that they are

	keyStrings []uintptr // where in a key there are strings, if its codec is not one of ours: see hidden

	checked atomic.Uint64 // the registry's generation in which no other table conflicted
}

// A TableChange is what a transaction did to one key of a table.
type TableChange[V any] struct {
	Old, New V    // zero if there was, or is, none
	HadOld   bool // the key was there before
	Deleted  bool // the key is not there now
}

// NewTable makes a table. A second one of the same name must have the same
// codecs and options, and is then the same table; CheckTables tells if one
// hasn't, and what is wrong with options.
func NewTable[K comparable, V any](name string, key KeyCodec[K], val ValueCodec[V], options ...TableOption) *Table[K, V] {
	_, isString := any(key).(StringCodec)
	t := &Table[K, V]{
		name:     name,
		key:      key,
		val:      val,
		prefix:   tablePrefix(name),
		plain:    isPlain(reflect.TypeFor[V](), true),
		fixed:    isPlain(reflect.TypeFor[V](), false),
		isString: isString,
	}
	if !keepsNothing(key) {
		t.keyStrings = stringsIn(nil, reflect.TypeFor[K](), 0)
	}
	var o tableOptions
	for _, set := range options {
		set(&o)
	}
	older, ok := o.older.([]ValueCodec[V])
	if o.older != nil && !ok && o.err == nil {
		o.err = fmt.Errorf("older codecs are %T, want those of %v", o.older, reflect.TypeFor[V]())
	}
	if o.err == nil {
		t.ttl, t.version, t.older = o.ttl, uint64(len(older)), older
	}
	c := codecs{keyType: reflect.TypeFor[K](), valType: reflect.TypeFor[V](), key: key, val: val, ttl: o.ttl, err: o.err}
	for _, codec := range older {
		c.older = append(c.older, codec)
	}
	t.index = register(t, c)
	return t
}

// Name returns the table's name.
func (t *Table[K, V]) Name() string { return t.name }

// codecs are what two tables of one name must agree in.
type codecs struct {
	keyType, valType reflect.Type
	key, val         any
	older            []any // value codecs, by version
	ttl              time.Duration
	err              error // what is wrong with the options
}

func (c codecs) equal(d codecs) bool {
	return c.err == nil && d.err == nil && c.ttl == d.ttl && slices.EqualFunc(c.older, d.older, sameCodec) && c.keyType == d.keyType && c.valType == d.valType && sameCodec(c.key, d.key) && sameCodec(c.val, d.val)
}

func sameCodec(a, b any) bool {
	if a == nil || b == nil || reflect.TypeOf(a) != reflect.TypeOf(b) {
		return a == nil && b == nil
	}
	// A codec that can't be compared is taken to be decided by its type.
	v, w := reflect.ValueOf(a), reflect.ValueOf(b)
	return !v.Comparable() || !w.Comparable() || v.Equal(w)
}

func (c codecs) String() string {
	s := fmt.Sprintf("%T and %T (%v to %v)", c.key, c.val, c.keyType, c.valType)
	if len(c.older) > 0 {
		s += fmt.Sprintf(" version %d", len(c.older))
	}
	if c.ttl > 0 {
		s += fmt.Sprintf(" TTL %v", c.ttl)
	}
	return s
}

// registry holds every table of the program, by index.
var registry struct {
	generation atomic.Uint64 // changes with what is in it
	sync.Mutex
	names  []string
	codecs []codecs
	tables []AnyTable
}

func register(t AnyTable, c codecs) (index int) {
	registry.Lock()
	defer registry.Unlock()
	name := t.Name()
	for i, n := range registry.names {
		if n == name && registry.codecs[i].equal(c) {
			return i
		}
	}
	registry.names = append(registry.names, name)
	registry.codecs = append(registry.codecs, c)
	registry.tables = append(registry.tables, t)
	registry.generation.Add(1)
	return len(registry.names) - 1
}

// CheckTables reports every name that two tables with different codecs share:
// each would read what the other wrote; and options that can't be. A consumer
// asks at its start.
func CheckTables() error {
	registry.Lock()
	defer registry.Unlock()
	return checkTables(registry.names, registry.codecs)
}

func checkTables(names []string, all []codecs) error {
	var errs []error
	first := make(map[string]int)
	for i, n := range names {
		if err := all[i].err; err != nil {
			errs = append(errs, fmt.Errorf("table %q: %w", n, err))
			continue
		}
		if j, ok := first[n]; ok {
			errs = append(errs, fmt.Errorf("table %q has two pairs of codecs: %v; %v", n, all[j], all[i]))
			continue
		}
		first[n] = i
	}
	return errors.Join(errs...)
}

// conflict reports whether another table of this name has other codecs, or the
// table's options can't be.
func (t *Table[K, V]) conflict() error {
	generation := registry.generation.Load()
	if t.checked.Load() == generation {
		return nil
	}
	registry.Lock()
	defer registry.Unlock()
	if err := registry.codecs[t.index].err; err != nil {
		return fmt.Errorf("table %q: %w", t.name, err)
	}
	for i, n := range registry.names {
		if n == t.name && i != t.index {
			return fmt.Errorf("table %q has two pairs of codecs: %v; %v", n, registry.codecs[t.index], registry.codecs[i])
		}
	}
	t.checked.Store(generation)
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

// keyBytes returns the bytes of a key: its own, or the transaction's scratch
// space.
func (t *Table[K, V]) keyBytes(tx *Transaction, k *K) []byte {
	if t.isString {
		s := *(*string)(unsafe.Pointer(k)) // K is string: StringCodec is no other type's
		return unsafe.Slice(unsafe.StringData(s), len(s))
	}
	tx.scratch = t.key.AppendKey(tx.scratch[:0], t.ownKey(k))
	return tx.scratch
}

// storedKey puts a table's prefix before the bytes of a key, which may be the
// scratch space's.
func (t *Table[K, V]) storedKey(tx *Transaction, key []byte) []byte {
	tx.full = append(append(tx.full[:0], t.prefix...), key...)
	return tx.full
}

// keyOf decodes a stored key. It is the caller's to keep.
func (t *Table[K, V]) keyOf(tx *Transaction, stored []byte) (k K, err error) {
	key := stored[len(t.prefix):]
	if t.isString {
		*(*string)(unsafe.Pointer(&k)) = tx.names.keep(key)
		return k, nil
	}
	if k, err = t.key.DecodeKey(key); err != nil {
		return k, fmt.Errorf("decode key %x of table %q: %w", key, t.name, err)
	}
	return k, nil
}

// Get returns a key's value, with the transaction's own writes seen.
func (t *Table[K, V]) Get(tx *Transaction, k K) (v V, ok bool, err error) {
	return t.get(tx, hidden(&k))
}

func (t *Table[K, V]) get(tx *Transaction, k *K) (v V, ok bool, err error) {
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
	e, key, hash := s.find(tx, k)
	if e == nil || !e.known() {
		if e, err = s.load(tx, e, k, key, hash); err != nil {
			return v, false, err
		}
	}
	if t.ttl > 0 {
		s.age(e)
	}
	e.flags |= entryRecent
	if !t.plain {
		s.hold(e)
	}
	return e.val, e.has(), nil
}

// getCommitted reads past the cache, which a View has none of.
func (t *Table[K, V]) getCommitted(tx *Transaction, k *K) (v V, ok bool, err error) {
	if *k != *k {
		return v, false, t.keyError(k)
	}
	return t.read(tx, t.storedKey(tx, t.keyBytes(tx, k)))
}

// read decodes the committed value under a stored key. One that has expired is
// none.
func (t *Table[K, V]) read(tx *Transaction, stored []byte) (v V, ok bool, err error) {
	v, _, ok, err = t.readAt(tx, stored)
	return v, ok, err
}

// readAt returns when the value was written as well, if the table has a TTL.
func (t *Table[K, V]) readAt(tx *Transaction, stored []byte) (v V, at int64, ok bool, err error) {
	b, ok, err := tx.point.get(tx.d, tx.from, stored, tx.stored[:0])
	if err != nil || !ok {
		return v, 0, false, err
	}
	tx.stored = b
	return t.decode(tx.d, stored, b)
}

// decode decodes a stored value, which may have expired.
func (t *Table[K, V]) decode(d *database, key, stored []byte) (v V, at int64, ok bool, err error) {
	head, payload, err := decodeTableValue(stored)
	if err == nil && t.ttl > 0 && t.expired(head.at, d.now()) {
		return v, 0, false, nil
	}
	if err == nil {
		v, err = t.decodePayload(head.version, payload)
	}
	if err != nil {
		return v, 0, false, fmt.Errorf("decode value of table %q, key %x: %w", t.name, key[len(t.prefix):], err)
	}
	return v, head.at, true, nil
}

// decodePayload decodes what the codec of a version wrote.
func (t *Table[K, V]) decodePayload(version uint64, payload []byte) (v V, err error) {
	switch {
	case version == t.version:
		return t.val.Decode(payload)
	case version > t.version:
		return v, fmt.Errorf("codec version %d is newer than this program's %d", version, t.version)
	case t.older[version] == nil:
		return v, fmt.Errorf("codec version %d is one that this program no longer has", version)
	}
	if v, err = t.older[version].Decode(payload); err != nil {
		return v, fmt.Errorf("codec version %d: %w", version, err)
	}
	return v, nil
}

// appendHeader appends what stands before a value's payload.
func (t *Table[K, V]) appendHeader(dst []byte, at int64) []byte {
	if t.ttl > 0 {
		return appendTimedHeader(dst, t.version, at)
	}
	return appendTableHeader(dst, t.version)
}

// expired says whether what was written at a time, in milliseconds and 0 if that
// isn't known, has expired.
func (t *Table[K, V]) expired(at int64, now time.Time) bool {
	return t.ttl > 0 && at != 0 && now.UnixMilli()-at >= t.ttl.Milliseconds()
}

func (t *Table[K, V]) keyError(k *K) error {
	return fmt.Errorf("table %q: key %v is not equal to itself", t.name, t.ownKey(k))
}

// Put sets a key's value.
func (t *Table[K, V]) Put(tx *Transaction, k K, v V) error { return t.set(tx, hidden(&k), v, true) }

// Delete removes a key, whether or not it is there.
func (t *Table[K, V]) Delete(tx *Transaction, k K) error {
	var none V
	return t.set(tx, hidden(&k), none, false)
}

// set sets a key, whatever it is now.
func (t *Table[K, V]) set(tx *Transaction, k *K, v V, has bool) error {
	if err := tx.writable(); err != nil {
		return err
	}
	s, err := t.state(tx)
	if err != nil {
		return err
	}
	e, key, hash := s.find(tx, k)
	if e == nil {
		if e, err = s.make(tx, k, key, hash); err != nil {
			return err
		}
		if s.whole {
			e.flags |= entryKnown
		}
	}
	if t.ttl > 0 {
		s.age(e)
	}
	c := s.dirty(e)
	e.set(v, has)
	s.written(e)
	s.grown(tx, c)
	return nil
}

// Update sets a key's value to what fn makes of the one it has, the zero V if
// it has none, and returns it. fn may change its argument in place, and must
// not touch the same key of the table otherwise.
func (t *Table[K, V]) Update(tx *Transaction, k K, fn func(V) V) (v V, err error) {
	return t.update(tx, hidden(&k), fn)
}

func (t *Table[K, V]) update(tx *Transaction, k *K, fn func(V) V) (v V, err error) {
	if err := tx.writable(); err != nil {
		return v, err
	}
	s, err := t.state(tx)
	if err != nil {
		return v, err
	}
	e, key, hash := s.find(tx, k)
	if e == nil || !e.known() {
		if e, err = s.load(tx, e, k, key, hash); err != nil {
			return v, err
		}
	}
	if t.ttl > 0 {
		s.age(e)
	}
	// Dirty before fn runs: what fn reads itself may push clean entries out.
	c := s.dirty(e)
	e.val = fn(e.val)
	e.flags |= entryHas
	s.written(e)
	s.grown(tx, c)
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
	var own ordered[*change[V]]
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
	err := m.run(func(stored, committed []byte, own *change[V]) (bool, error) {
		var v V
		if own != nil && own.replaced {
			var ok bool
			var err error
			if v, ok, err = t.read(tx, stored); err != nil || !ok {
				return err == nil, err
			}
		} else if own != nil {
			if !own.e.has() || t.expired(own.e.timeOf(), tx.d.now()) {
				return true, nil
			}
			v = own.e.val
		} else {
			var ok bool
			var err error
			if v, _, ok, err = t.decode(tx.d, stored, committed); err != nil || !ok {
				return err == nil, err
			}
		}
		k, err := t.keyOf(tx, stored)
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
		if err := t.eachChange(tx, yield); err != nil {
			tx.fail(err)
		}
	}
}

func (t *Table[K, V]) eachChange(tx *Transaction, yield func(K, TableChange[V]) bool) error {
	if err := tx.readable(); err != nil {
		return err
	}
	if tx.state.Load()&stateReadOnly != 0 {
		return nil
	}
	s, err := t.state(tx)
	if err != nil {
		return err
	}
	number := s.number
	for _, own := range s.changes.all(&tx.sorter) {
		if s.number != number {
			return fmt.Errorf("changes of table %q: %w", t.name, errOutlived)
		}
		if own.replaced {
			continue
		}
		if t.ttl > 0 {
			s.age(own.e)
		}
		c := TableChange[V]{New: own.e.val, Deleted: !own.e.has()}
		if own.oldKnown {
			c.Old, c.HadOld = own.old, own.hadOld
		} else if c.Old, c.HadOld, err = t.read(tx, own.stored); err != nil {
			return err
		}
		if c.Deleted && !c.HadOld {
			continue
		}
		k, err := t.keyOf(tx, own.stored)
		if err != nil {
			return err
		}
		if !yield(k, c) {
			return nil
		}
	}
	return nil
}
