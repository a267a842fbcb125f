package store

import (
	"errors"
	"iter"
)

// DB is a shard's database as everyone may use it, from any goroutine and at any
// time. Reads show what has been committed, and what was written directly.
//
// A direct write goes past the transaction. All reads see it at once, those of
// the open transaction too, except where the transaction has written the key
// itself: then its own value stands, and is what stays once it is committed.
// (What a sweep makes of a key doesn't: there the direct write stands.) It is
// logged with the shard's next commit, whether or not the transaction that was
// open when it was made aborts. So it applies at least once: code that is run
// again after an abort writes it again, and what a crash finds not committed is
// lost; Sync tells when it is.
type DB struct {
	o *Owner
}

// Get returns a copy of the committed value under a raw key.
func (d *DB) Get(key []byte) (val []byte, ok bool, err error) {
	if err := d.o.tx.fenced(); err != nil {
		return nil, false, err
	}
	stored := appendRawKey(nil, key)
	b, ok, err := d.o.d.get(d.o.d.db, stored, nil)
	return d.o.d.plain(stored, b, ok, err)
}

// Scan goes over the committed raw keys in order. Key and value are valid until
// the next step. The second result returns, after the sequence, what error
// ended it.
func (d *DB) Scan(o *ReadOptions) (iter.Seq2[[]byte, []byte], func() error) {
	var failed error
	seq := func(yield func(key, val []byte) bool) {
		failed = d.read(o, func(t *Transaction) error { return t.scan(within(o), yield) })
	}
	return seq, func() error { return failed }
}

// Count counts the keys that Scan would go over.
func (d *DB) Count(o *ReadOptions) (n int, err error) {
	err = d.read(o, func(t *Transaction) error {
		n, err = t.Count(within(o))
		return err
	})
	return n, err
}

// read calls fn with the state that the options name: a snapshot's, or the one
// there is now.
func (d *DB) read(o *ReadOptions, fn func(*Transaction) error) error {
	if o != nil && o.Snapshot != nil {
		return o.Snapshot.View(fn)
	}
	return d.View(fn)
}

// within returns the options without the snapshot that is read already.
func within(o *ReadOptions) *ReadOptions {
	if o == nil || o.Snapshot == nil {
		return o
	}
	bounds := *o
	bounds.Snapshot = nil
	return &bounds
}

// A Snapshot is the state of a database at one moment, with the direct writes
// there were. It keeps on disk what has changed since, until it is closed.
type Snapshot struct {
	d *DB
	f *frozen
}

// NewSnapshot fixes the state as it is now. Close it.
func (d *DB) NewSnapshot() (*Snapshot, error) {
	if err := d.o.tx.fenced(); err != nil {
		return nil, err
	}
	f, err := d.o.d.snapshot()
	if err != nil {
		return nil, err
	}
	return &Snapshot{d, f}, nil
}

// View calls fn with a read-only transaction over the snapshot's state, which
// ends with fn. It must not be called after, or beside, Close.
func (s *Snapshot) View(fn func(*Transaction) error) error { return s.d.viewOf(s.f, fn) }

// Close gives the snapshot up. That of a database that is closed is closed.
func (s *Snapshot) Close() error { return s.d.o.d.release(s.f.Snapshot) }

// View calls fn with a read-only transaction over the state as it is committed
// now, which stays the same while fn runs. Tables can be read with it. It ends
// with fn; a Close of the database doesn't wait for fn, whose reads answer
// ErrClosed from then on.
func (d *DB) View(fn func(*Transaction) error) (err error) {
	s, err := d.NewSnapshot()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return s.View(fn)
}

func (d *DB) viewOf(f *frozen, fn func(*Transaction) error) (err error) {
	if err := d.o.tx.fenced(); err != nil {
		return err
	}
	t := newTransaction(d.o.d, f, 0)
	t.setState(stateReadOnly)
	defer func() {
		t.setState(stateClosed)
		err = errors.Join(err, t.point.drop(t.d))
	}()
	t.parent = d.o.tx
	if err := fn(t); err != nil {
		return err
	}
	return t.Err()
}

// fenced reports the fence alone, for reads of what is committed.
func (t *Transaction) fenced() error {
	if t.state.Load()&stateFenced != 0 {
		return ErrFenced
	}
	return nil
}

// own reads what is stored under one of the database's own keys.
func (d *database) own(key []byte) ([]byte, error) {
	v, ok, err := d.get(d.db, key, nil)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, nil
	}
	return v, nil
}
