package store

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

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
