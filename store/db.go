package store

import (
	"errors"
	"fmt"
	"iter"

	"github.com/cockroachdb/pebble/v2"
)

// DB is a shard's database as everyone may read it, from any goroutine and at
// any time: what has been committed, and nothing else.
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
		failed = d.View(func(t *Transaction) error { return t.scan(o, yield) })
	}
	return seq, func() error { return failed }
}

// Count counts the keys that Scan would go over.
func (d *DB) Count(o *ReadOptions) (n int, err error) {
	err = d.View(func(t *Transaction) error {
		n, err = t.Count(o)
		return err
	})
	return n, err
}

// View calls fn with a read-only transaction over the state as it is committed
// now, which stays the same while fn runs. Tables can be read with it. It ends
// with fn; a Close of the database doesn't wait for fn, whose reads answer
// ErrClosed from then on.
func (d *DB) View(fn func(*Transaction) error) (err error) {
	if err := d.o.tx.fenced(); err != nil {
		return err
	}
	snap, err := d.o.d.snapshot()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.o.d.release(snap)) }()
	t := newTransaction(d.o.d, snap, 0)
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

// A Loader restores a database from its changelog.
type Loader struct {
	o     *Owner
	batch *pebble.Batch
}

// NewLoader returns a Loader. Use it while the transaction is empty, before the
// first Consume or on a standby.
func (o *Owner) NewLoader() *Loader { return &Loader{o: o, batch: o.d.db.NewBatch()} }

// Set adds a record, in the order of the changelog. It copies both.
func (l *Loader) Set(key, val []byte) error {
	if val == nil {
		return l.Delete(key)
	}
	if err := CheckRecord(key, val); err != nil {
		return err
	}
	return l.batch.Set(key, val, nil)
}

// Delete adds a record without a value.
func (l *Loader) Delete(key []byte) error {
	if err := CheckRecord(key, nil); err != nil {
		return err
	}
	return l.batch.Delete(key, nil)
}

// Size returns the bytes added since the last Commit. Batches of more than half
// a memtable are applied fastest: the storage library takes them whole.
func (l *Loader) Size() int64 { return int64(l.batch.Len()) }

// Commit writes what was added, and the position that it leads to, in one
// batch. The Loader is empty again.
func (l *Loader) Commit(meta []byte) error {
	if err := l.batch.Set(keyMeta, meta, nil); err != nil {
		return fmt.Errorf("load database %s: %w", l.o.d.dir, err)
	}
	err := l.o.write(l.batch, meta)
	if err != nil {
		return fmt.Errorf("load database %s: %w", l.o.d.dir, err)
	}
	l.o.tx.dropTables()
	l.batch = l.o.d.db.NewBatch()
	return nil
}
