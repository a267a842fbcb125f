package store

import (
	"errors"
	"fmt"
)

// Prefetch reads the values of keys that are not at hand, in the order in which
// they are stored: with keys that are cold, that takes less than what a Get or an
// Update of each takes by itself. A consumer calls it with the keys that it is
// about to use. Keys of which some are at hand, the same or absent are as good as
// any. It is a hint, and changes nothing but what is at hand: keys that are known
// to be absent are left alone, and it stops when what it has read takes a quarter
// of what the shard's tables may keep.
func (t *Table[K, V]) Prefetch(tx *Transaction, keys []K) error {
	if err := tx.readable(); err != nil {
		return err
	}
	if tx.state.Load()&stateReadOnly != 0 {
		return nil // a View keeps nothing at hand
	}
	s, err := t.state(tx)
	if err != nil || s.whole {
		return err
	}
	a := &tx.ahead
	stored := tx.sorter.keys[:0]
	for i := range keys {
		e, key, _ := s.find(tx, &keys[i])
		if e != nil && e.known() {
			continue
		}
		full := t.storedKey(tx, key)
		if tx.d.exists.missing(full) {
			continue // or it is written directly, and soon found
		}
		stored, a.at = append(stored, a.keep(full)), append(a.at, int32(i))
	}
	tx.sorter.keys = stored
	defer func() {
		clear(stored)
		a.reset()
	}()
	room := tx.cache.limit / 4
	for _, w := range tx.sorter.sort(len(t.prefix)) {
		k := &keys[a.at[w.at]]
		e, key, hash := s.find(tx, k)
		if e != nil && e.known() {
			continue // it is in keys twice
		}
		if e, err = s.load(tx, e, k, key, hash); err != nil {
			return fmt.Errorf("prefetch: %w", err)
		}
		if room -= int64(e.cost); room < 0 {
			return nil
		}
	}
	return nil
}

// ahead is the memory of a Prefetch, which the next one uses again.
type ahead struct {
	at    []int32 // which of the keys each of the sorter's is
	chunk []byte
}

const prefetchChunk = 64 << 10

// keep copies a key.
func (a *ahead) keep(key []byte) []byte {
	if len(key) > cap(a.chunk)-len(a.chunk) {
		a.chunk = make([]byte, 0, max(prefetchChunk, len(key)))
	}
	begin := len(a.chunk)
	a.chunk = append(a.chunk, key...)
	return a.chunk[begin:]
}

func (a *ahead) reset() {
	a.at, a.chunk = a.at[:0], a.chunk[:0]
	if cap(a.chunk) > prefetchChunk {
		a.chunk = nil
	}
}

// ReadAhead runs fn, which is to do no more than read: meanwhile a write to the
// transaction answers ErrReadOnly, and an iteration that fails is an error of fn
// and not the transaction's.
func (o *Owner) ReadAhead(fn func() error) (err error) {
	tx := o.tx
	before := tx.err
	tx.setState(stateAhead)
	defer func() {
		tx.clearState(stateAhead)
		err = errors.Join(err, tx.err)
		tx.err = before
	}()
	tx.err = nil
	return fn()
}

// Lookups returns how many keys the transaction, and those before it, have looked
// up in the database one by one: not those that were at hand, or known to be
// absent. It is for whoever uses the transaction at the moment.
func (o *Owner) Lookups() int64 { return o.tx.point.lookups }
