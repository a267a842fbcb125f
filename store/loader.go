package store

import (
	"bytes"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// A Loader restores a database from its changelog. It gathers records, puts
// those of many in order at once, and has them written while it gathers the
// next:
//
//	Set … Set ─► Begin ─┬─► put in order, one batch ─────┐
//	                    └─► Set … Set ─► Begin waits ◄───┴─► … ─► Commit ─► Close
//
// The storage library would put a large batch in order too, at three times the
// cost, since it compares keys where they lie.
type Loader struct {
	o *Owner

	filling loaded
	spare   loaded     // the memory of the last batch, once it is written
	writing chan error // gets the result of the batch that is being written; nil if none is
	holds   bool       // compactions wait
	batches int

	// These belong to whoever writes.
	sorter sorter
	starts []int // of records
}

// loaded are records in the order of the changelog.
type loaded struct {
	data []byte // keys and values, one after the other
	recs []loadedRecord
}

type loadedRecord struct {
	key, val int32 // lengths; a val of -1 is a delete
}

// What a record takes beside its key and value, here and in the batch.
const loadedOverhead = 24

// NewLoader returns a Loader. Use it while the transaction is empty, before the
// first Consume or on a standby.
func (o *Owner) NewLoader() *Loader { return &Loader{o: o} }

// Set adds a record, in the order of the changelog. It copies both.
func (l *Loader) Set(key, val []byte) error {
	if val == nil {
		return l.Delete(key)
	}
	if err := CheckRecord(key, val); err != nil {
		return err
	}
	l.filling.data = append(append(l.filling.data, key...), val...)
	l.filling.recs = append(l.filling.recs, loadedRecord{int32(len(key)), int32(len(val))})
	return nil
}

// Delete adds a record without a value.
func (l *Loader) Delete(key []byte) error {
	if err := CheckRecord(key, nil); err != nil {
		return err
	}
	l.filling.data = append(l.filling.data, key...)
	l.filling.recs = append(l.filling.recs, loadedRecord{int32(len(key)), -1})
	return nil
}

// Size returns the bytes added since the last Begin or Commit, and what they
// take beside.
func (l *Loader) Size() int64 {
	return int64(len(l.filling.data) + loadedOverhead*len(l.filling.recs))
}

// Full says that it is time to write what was added. The storage library takes
// batches of more than half a memtable whole, which is fastest; and it has room
// for one beside the one that it brings to disk.
func (l *Loader) Full() bool { return l.Size() >= l.o.size/4*3 }

// Compactions wait for this many batches of a restore. Each of them would
// rewrite what the next batches change again; afterwards one does for all. It is
// not more, because until then a read has to look into all of them.
const uncompactedBatches = 64

// Begin begins to write what was added, and the position that it leads to, in
// one batch. The Loader is empty again. Its error is that of the batch before:
// whether this one is written, the next Begin or Commit says.
func (l *Loader) Begin(meta []byte) error {
	if err := l.wait(); err != nil {
		return err
	}
	l.batches++
	switch {
	case l.batches == 1 && !l.holds:
		l.holds = true
		l.o.compactions.hold()
	case l.batches > uncompactedBatches:
		l.release()
	}
	full := l.filling
	l.filling, l.spare = l.spare, loaded{}
	meta = bytes.Clone(meta)
	done := make(chan error, 1)
	l.writing = done
	go func() {
		err := l.write(&full, meta)
		full.data, full.recs = full.data[:0], full.recs[:0]
		l.spare = full // read after the result is
		done <- err
	}()
	return nil
}

// Commit writes what was added, and the position that it leads to, in one
// batch, after everything before it. The Loader is empty again.
func (l *Loader) Commit(meta []byte) error {
	if err := l.wait(); err != nil {
		return err
	}
	err := l.write(&l.filling, meta)
	l.filling.data, l.filling.recs = l.filling.data[:0], l.filling.recs[:0]
	return err
}

// Close waits for the batch that is being written, and reports its error. What
// was added after it is forgotten. No other method is called after it.
func (l *Loader) Close() error {
	err := l.wait()
	l.release()
	return err
}

func (l *Loader) wait() error {
	if l.writing == nil {
		return nil
	}
	err := <-l.writing
	l.writing = nil
	return err
}

// release lets compactions go on.
func (l *Loader) release() {
	if l.holds {
		l.holds = false
		l.o.compactions.release()
	}
}

// write writes a batch.
func (l *Loader) write(full *loaded, meta []byte) error {
	b, err := l.batch(full, meta)
	if err == nil {
		err = l.o.write(b, meta)
	}
	if err != nil {
		return fmt.Errorf("load database %s: %w", l.o.d.dir, err)
	}
	l.o.tx.dropTables()
	return nil
}

// batch makes a batch of the last record of each key, in the order of the keys.
func (l *Loader) batch(full *loaded, meta []byte) (*pebble.Batch, error) {
	keys, starts, at := l.sorter.keys[:0], l.starts[:0], 0
	for _, r := range full.recs {
		end := at + int(r.key)
		keys, starts = append(keys, full.data[at:end:end]), append(starts, at)
		at = end + max(int(r.val), 0)
	}
	l.sorter.keys, l.starts = keys, starts
	defer clear(keys)
	order := l.sorter.sort(0)
	b := l.o.d.db.NewBatch(pebble.WithInitialSizeBytes(len(full.data) + loadedOverhead*(len(full.recs)+1) + len(meta)))
	// The position's key comes before all others.
	if err := b.Set(keyMeta, meta, nil); err != nil {
		return nil, err
	}
	for i, w := range order {
		key := keys[w.at]
		if i+1 < len(order) && bytes.Equal(key, keys[order[i+1].at]) {
			continue // it has changed again
		}
		var err error
		if r := full.recs[w.at]; r.val < 0 {
			err = b.Delete(key, nil)
		} else {
			from := starts[w.at] + int(r.key)
			err = b.Set(key, full.data[from:from+int(r.val)], nil)
		}
		if err != nil {
			return nil, err
		}
	}
	return b, nil
}
