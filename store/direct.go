package store

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// WriteOptions go with a direct write. There is nothing to choose: it is never
// synced on its own, and reaches the changelog with the shard's next commit. A
// nil pointer is as good.
type WriteOptions struct{}

// direct is what was written past the transaction and is not in the changelog
// yet. It lies in memory, above what is committed: all reads look through it,
// and nothing of it reaches the storage library before a commit has it. So a
// crash takes back what was not committed, here and in every copy alike.
//
//	DB.Put ──► direct ──► the next Seal ──► changelog ──► Apply
//	              ▲                              │
//	              └───────────── Abort ──────────┘
//
// Any goroutine writes and reads it.
type direct struct {
	waiting atomic.Int64  // bytes; 0 for none
	version atomic.Uint64 // the number of the last write: tables compare it
	wake    chan struct{} // holds a value while something waits

	mu struct {
		sync.Mutex
		keys    map[string]*directKey
		order   ordered[*directKey] // the same keys; never reset, since views keep its runs
		sorter  sorter
		log     []directEntry // in the order of writing
		number  uint64        // of the last write
		sealed  uint64        // of the last that the sealed transaction has
		settled uint64        // of the last that is committed
		applied uint64        // how many transactions were
		changed chan struct{}
		ended   error
	}
}

// A directEntry is a write in the order of writing.
type directEntry struct {
	key   []byte
	write *directWrite
}

const (
	// directMax bounds the bytes that wait: a commit is due long before.
	directMax = 16 << 20
	// directOverhead is what a write takes beside its bytes, roughly.
	directOverhead = 128
	// directRecordMax bounds one write. A transaction's record that the broker
	// refuses fails the message that wrote it; a direct write's would fail every
	// commit from then on. Brokers take a MiB unless they are told otherwise.
	directRecordMax = 1<<20 - 4<<10
)

func newDirect() *direct {
	x := &direct{wake: make(chan struct{}, 1)}
	x.mu.keys = make(map[string]*directKey)
	x.mu.changed = make(chan struct{})
	return x
}

// write takes one write: with a since, only if neither was the key written nor
// a transaction applied after it, and says whether. It keeps stored and val.
func (x *direct) write(stored, val []byte, since *directSince) (done bool, err error) {
	size := int64(len(stored) + len(val))
	if size > directRecordMax {
		return false, fmt.Errorf("direct write of %d bytes: want at most %d", size, directRecordMax)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.ended != nil {
		return false, x.mu.ended
	}
	if since != nil && *since != x.sinceLocked(stored) {
		return false, nil
	}
	if x.waiting.Load()+size > directMax {
		return false, ErrDirectFull
	}
	x.mu.number++
	x.enterLocked(stored, val, x.mu.number)
	x.waiting.Add(size + directOverhead)
	x.version.Store(x.mu.number)
	x.wakeLocked()
	return true, nil
}

func (x *direct) enterLocked(stored, val []byte, number uint64) {
	k := x.mu.keys[string(stored)]
	if k == nil {
		k = &directKey{key: stored}
		x.mu.keys[string(stored)] = k
		x.mu.order.add(k)
	}
	w := &directWrite{val: val, number: number, before: k.last.Load()}
	k.last.Store(w)
	x.mu.log = append(x.mu.log, directEntry{k.key, w})
}

func (x *direct) wakeLocked() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// directSince is what must be the same for a key not to have changed.
type directSince struct{ number, applied uint64 }

func (x *direct) since(stored []byte) directSince {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.sinceLocked(stored)
}

func (x *direct) sinceLocked(stored []byte) directSince {
	s := directSince{applied: x.mu.applied}
	if k := x.mu.keys[string(stored)]; k != nil {
		s.number = k.last.Load().number
	}
	return s
}

// get returns the write of a key, if there is one.
func (x *direct) get(stored []byte) (val []byte, found bool) {
	if x.waiting.Load() == 0 {
		return nil, false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	k, found := x.mu.keys[string(stored)]
	if !found {
		return nil, false
	}
	return k.last.Load().val, true
}

// after calls visit with each key that was written after a number, some of them
// more than once, and returns the number of the last.
func (x *direct) after(number uint64, visit func(stored []byte)) (last uint64) {
	x.mu.Lock()
	last = x.mu.number
	at, _ := slices.BinarySearchFunc(x.mu.log, number+1, func(e directEntry, n uint64) int {
		if e.write.number < n {
			return -1
		}
		return 1
	})
	entries := slices.Clone(x.mu.log[at:])
	x.mu.Unlock()
	for _, e := range entries {
		visit(e.key)
	}
	return last
}

// seal returns what the next commit has in it, by key.
func (x *direct) seal() []Change {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.sealed = x.mu.number
	if len(x.mu.keys) == 0 {
		return nil
	}
	out := make([]Change, 0, len(x.mu.keys))
	for _, k := range x.mu.order.all(&x.mu.sorter) {
		out = append(out, Change{k.key, k.last.Load().val})
	}
	return out
}

// abort gives up what seal has returned: the next one returns it again.
func (x *direct) abort() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.sealed = x.mu.settled
}

// apply calls take, and ends the waiting of what was sealed, all at once for
// those who look at what is committed and what waits together.
func (x *direct) apply(take func() error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := take(); err != nil {
		return err
	}
	x.mu.applied++
	if x.mu.settled == x.mu.sealed {
		return nil
	}
	x.mu.settled = x.mu.sealed
	x.forgetLocked()
	if x.mu.ended == nil { // else nobody waits any more: see end
		close(x.mu.changed)
		x.mu.changed = make(chan struct{})
	}
	if len(x.mu.log) > 0 {
		x.wakeLocked()
	}
	return nil
}

// forgetLocked begins anew with the writes that are not settled. Views keep what
// they look at.
func (x *direct) forgetLocked() {
	log := x.mu.log
	clear(x.mu.keys)
	x.mu.order, x.mu.log = ordered[*directKey]{}, nil
	waiting := int64(0)
	for _, e := range log {
		if e.write.number > x.mu.settled {
			x.enterLocked(e.key, e.write.val, e.write.number)
			waiting += int64(len(e.key)+len(e.write.val)) + directOverhead
		}
	}
	x.waiting.Store(waiting)
}

// end makes writes and waits answer with a reason from now on.
func (x *direct) end(reason error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.ended == nil {
		x.mu.ended = reason
		close(x.mu.changed)
	}
}

// sync waits until what was written before is committed.
func (x *direct) sync(ctx context.Context) error {
	x.mu.Lock()
	last := x.mu.number
	for x.mu.settled < last {
		if x.mu.ended != nil {
			defer x.mu.Unlock()
			return x.mu.ended
		}
		changed := x.mu.changed
		x.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		x.mu.Lock()
	}
	x.mu.Unlock()
	return nil
}

// Put sets a key's value past the transaction. See DB for what that means.
func (d *DB) Put(key, val []byte, _ *WriteOptions) error {
	_, err := d.o.d.direct.write(appendRawKey(nil, key), appendPlain(nil, val), nil)
	return err
}

// Delete removes a key past the transaction, whether or not it is there.
func (d *DB) Delete(key []byte, _ *WriteOptions) error {
	_, err := d.o.d.direct.write(appendRawKey(nil, key), nil, nil)
	return err
}

// DeleteRange removes every key that is there from lo on, below hi, past the
// transaction, one by one; a nil hi is no bound.
func (d *DB) DeleteRange(lo, hi []byte, o *WriteOptions) error {
	seq, end := d.Scan(&ReadOptions{Lower: lo, Upper: hi})
	for key := range seq {
		if err := d.Delete(key, o); err != nil {
			return fmt.Errorf("delete range: %w", err)
		}
	}
	return end()
}

// Merge makes a key's value what Options.Merge makes of it and the operand, past
// the transaction. What the open transaction has written is not seen. Two of
// them at once have both their effect.
func (d *DB) Merge(key, operand []byte, _ *WriteOptions) error {
	if d.o.config.Options.Merge == nil {
		return ErrNoMerge
	}
	stored := appendRawKey(nil, key)
	for {
		since := d.o.d.direct.since(stored)
		val, _, err := d.Get(key)
		if err != nil {
			return err
		}
		if val, err = d.o.config.Options.Merge(key, val, operand); err != nil {
			return fmt.Errorf("merge into key %q: %w", key, err)
		}
		if done, err := d.o.d.direct.write(stored, appendPlain(nil, val), &since); done || err != nil {
			return err
		}
	}
}

// Sync waits until all that was written directly before it is committed. The
// shard commits when it is between messages: a Sync within Consume, Flush or
// Fire would wait for what waits for it, until its context ends. ErrFenced and
// ErrClosed say that it will not be committed here; if it is known to another
// process by then can't be told.
func (d *DB) Sync(ctx context.Context) error {
	if err := d.o.d.direct.sync(ctx); err != nil {
		return fmt.Errorf("sync direct writes: %w", err)
	}
	return nil
}

// DirectWrites returns a channel that holds a value when direct writes wait for
// a commit.
func (o *Owner) DirectWrites() <-chan struct{} { return o.d.direct.wake }

// DirectBytes returns roughly how much memory the direct writes take that wait
// for a commit, 0 if none do.
func (o *Owner) DirectBytes() int64 { return o.d.direct.waiting.Load() }

// Direct is a table past the transaction, for one database: see DB for what that
// means. Any goroutine may use it.
type Direct[K comparable, V any] struct {
	t  *Table[K, V]
	db *DB
}

// In returns the table as it is in a database, committed values and direct
// writes, past the transaction.
func (t *Table[K, V]) In(db *DB) Direct[K, V] { return Direct[K, V]{t, db} }

// Get returns a key's value.
func (d Direct[K, V]) Get(k K) (v V, ok bool, err error) {
	stored, err := d.stored(hidden(&k))
	if err != nil {
		return v, false, err
	}
	if err := d.db.o.tx.fenced(); err != nil {
		return v, false, err
	}
	b, ok, err := d.db.o.d.get(d.db.o.d.db, stored, nil)
	if err != nil || !ok {
		return v, false, err
	}
	v, _, ok, err = d.t.decode(d.db.o.d, stored, b)
	return v, ok, err
}

// Put sets a key's value.
func (d Direct[K, V]) Put(k K, v V) error {
	stored, err := d.stored(hidden(&k))
	if err != nil {
		return err
	}
	b, err := d.t.val.Append(d.t.appendHeader(nil, d.db.o.d.now().UnixMilli()), v)
	if err != nil {
		return fmt.Errorf("encode value of table %q, key %x: %w", d.t.name, stored[len(d.t.prefix):], err)
	}
	_, err = d.db.o.d.direct.write(stored, b, nil)
	return err
}

// Delete removes a key, whether or not it is there.
func (d Direct[K, V]) Delete(k K) error {
	stored, err := d.stored(hidden(&k))
	if err == nil {
		_, err = d.db.o.d.direct.write(stored, nil, nil)
	}
	return err
}

func (d Direct[K, V]) stored(k *K) ([]byte, error) {
	if *k != *k {
		return nil, d.t.keyError(k)
	}
	return d.t.key.AppendKey(bytes.Clone(d.t.prefix), d.t.ownKey(k)), d.t.conflict()
}

// catchUp makes what the table keeps of the keys that were written directly
// since it last looked unknown, so that they are read again.
func (s *table[K, V]) catchUp() {
	s.seen = s.tx.d.direct.after(s.seen, func(stored []byte) {
		if !bytes.HasPrefix(stored, s.t.prefix) {
			return
		}
		key := stored[len(s.t.prefix):]
		hash := hashKey(key)
		e := s.entries.find(hash, key)
		switch {
		case e == nil && s.whole:
			e = s.entries.add(hash, key) // there may be a value now
			s.recost(e, 0)
		case e == nil:
		case e.touched == s.number && e.change != 0:
			c := s.records.at(int(e.change) - 1)
			c.oldKnown = false
			if c.swept {
				c.replaced = true
				e.flags &^= entryKnown
				return
			}
			// The transaction's own value stays, until it has ended.
			s.overtaken = append(s.overtaken, e)
		default:
			e.flags &^= entryKnown
		}
	})
}

// withDirect adds direct writes to a transaction's changes. Where both have a
// key, the transaction's own stands.
func withDirect(own, direct []Change) []Change {
	if len(direct) == 0 {
		return own
	}
	out := make([]Change, 0, len(own)+len(direct))
	for len(own) > 0 && len(direct) > 0 {
		switch c := bytes.Compare(own[0].Key, direct[0].Key); {
		case c < 0:
			out, own = append(out, own[0]), own[1:]
		case c > 0:
			out, direct = append(out, direct[0]), direct[1:]
		default:
			direct = direct[1:]
		}
	}
	return append(append(out, own...), direct...)
}
