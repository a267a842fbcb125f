package store

import "fmt"

// Prefetch reads the values of keys that are not at hand, in the order in which
// they are stored: with keys that are cold, that takes a fraction of what a Get
// or an Update of each takes by itself. A consumer of batches calls it with the
// keys that it is about to use. Keys of which some are at hand, the same or
// absent are as good as any; more than the cache has room for are not.
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
	var cold []K
	var stored [][]byte
	var chunk []byte
	for i := range keys {
		e, key, _ := s.find(tx, &keys[i])
		if e != nil && e.known() {
			continue
		}
		if n := len(t.prefix) + len(key); n > cap(chunk)-len(chunk) {
			chunk = make([]byte, 0, max(prefetchChunk, n))
		}
		at := len(chunk)
		chunk = append(append(chunk, t.prefix...), key...)
		cold, stored = append(cold, keys[i]), append(stored, chunk[at:])
	}
	tx.sorter.keys = append(tx.sorter.keys[:0], stored...)
	defer clear(tx.sorter.keys)
	for _, w := range tx.sorter.sort(len(t.prefix)) {
		e, key, hash := s.find(tx, &cold[w.at])
		if e != nil && e.known() {
			continue // it is in keys twice
		}
		if _, err := s.load(tx, e, &cold[w.at], key, hash); err != nil {
			return fmt.Errorf("prefetch: %w", err)
		}
	}
	return nil
}

const prefetchChunk = 16 << 10
