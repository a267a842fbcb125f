package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
)

// changed is a key that the transaction has changed: a raw one or a table's.
type changed interface {
	comparable
	storedKey() []byte
}

// ordered keeps a transaction's changed keys so that they can be read in order
// though they come in none. Adding is an append. The first scan after some
// additions sorts those alone into a run; runs of like size are merged, so
// there are few of them and each key moves a logarithmic number of times. A
// run never changes once made: a scan that is under way keeps those that it
// began with.
type ordered[T changed] struct {
	fresh []T   // added since the last scan, in no order
	runs  [][]T // each in key order, each key in one run only
	skip  int   // what all keys begin with, so that comparing can start after it
}

func (o *ordered[T]) add(e T) { o.fresh = append(o.fresh, e) }

func (o *ordered[T]) reset() {
	clear(o.fresh)
	o.fresh = o.fresh[:0]
	o.runs = nil
}

// sorted returns the runs that now hold all keys.
func (o *ordered[T]) sorted(s *sorter) [][]T {
	if len(o.fresh) > 0 {
		run := sortByKey(s, o.fresh, o.skip)
		o.fresh = o.fresh[:0]
		o.runs = append(slices.Clip(o.runs), run)
		for n := len(o.runs); n > 1 && len(o.runs[n-2]) < 2*len(o.runs[n-1]); n-- {
			last := mergeRuns(o.runs[n-2], o.runs[n-1])
			o.runs = append(slices.Clip(o.runs[:n-2]), last)
		}
	}
	return o.runs
}

// all returns all keys in order.
func (o *ordered[T]) all(s *sorter) []T {
	o.sorted(s)
	for n := len(o.runs); n > 1; n-- {
		last := mergeRuns(o.runs[n-2], o.runs[n-1])
		o.runs = append(slices.Clip(o.runs[:n-2]), last)
	}
	if len(o.runs) == 0 {
		return nil
	}
	return o.runs[0]
}

func mergeRuns[T changed](a, b []T) []T {
	out := make([]T, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if bytes.Compare(a[0].storedKey(), b[0].storedKey()) < 0 {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return append(append(out, a...), b...)
}

// A sorter sorts keys by the eight bytes after what all of them begin with,
// which fit a word, and looks at the rest of two keys only where those are
// equal. Its buffer is kept from one sort to the next.
type sorter struct {
	words []word
}

type word struct {
	prefix uint64
	at     int32
}

func sortByKey[T changed](s *sorter, in []T, skip int) []T {
	skip += commonPrefix(in, skip)
	words := s.words[:0]
	for i, e := range in {
		words = append(words, word{keyWord(e.storedKey()[skip:]), int32(i)})
	}
	s.words = words
	slices.SortFunc(words, func(a, b word) int {
		if a.prefix != b.prefix {
			return cmp.Compare(a.prefix, b.prefix)
		}
		return bytes.Compare(in[a.at].storedKey(), in[b.at].storedKey())
	})
	out := make([]T, len(in))
	for i, w := range words {
		out[i] = in[w.at]
	}
	return out
}

// commonPrefix is how many bytes all keys have in common after the first skip.
func commonPrefix[T changed](in []T, skip int) int {
	first := in[0].storedKey()[skip:]
	n := len(first)
	for _, e := range in[1:] {
		key := e.storedKey()[skip:]
		n = min(n, len(key))
		for i := range n {
			if key[i] != first[i] {
				n = i
				break
			}
		}
	}
	return n
}

// keyWord is the number whose order agrees with that of the keys, as far as
// their first eight bytes go.
func keyWord(key []byte) uint64 {
	if len(key) >= 8 {
		return binary.BigEndian.Uint64(key)
	}
	var b [8]byte
	copy(b[:], key)
	return binary.BigEndian.Uint64(b[:])
}

// A walk goes over the keys of some runs within bounds, in order.
type walk[T changed] struct {
	runs    [][]T // what is left of each
	reverse bool
}

func newWalk[T changed](runs [][]T, lower, upper []byte, reverse bool) *walk[T] {
	w := &walk[T]{reverse: reverse}
	for _, r := range runs {
		from, _ := slices.BinarySearchFunc(r, lower, compareKey[T])
		to := len(r)
		if upper != nil {
			to, _ = slices.BinarySearchFunc(r, upper, compareKey[T])
		}
		if from < to {
			w.runs = append(w.runs, r[from:to])
		}
	}
	return w
}

func compareKey[T changed](e T, key []byte) int { return bytes.Compare(e.storedKey(), key) }

// head is the key that comes next.
func (w *walk[T]) head() (next T, ok bool) {
	i := w.first()
	if i < 0 {
		return next, false
	}
	return w.end(i), true
}

func (w *walk[T]) end(i int) T {
	if r := w.runs[i]; w.reverse {
		return r[len(r)-1]
	}
	return w.runs[i][0]
}

func (w *walk[T]) first() int {
	best := -1
	for i := range w.runs {
		if best < 0 {
			best = i
			continue
		}
		if c := bytes.Compare(w.end(i).storedKey(), w.end(best).storedKey()); (c < 0) != w.reverse && c != 0 {
			best = i
		}
	}
	return best
}

// advance passes the key that head returned.
func (w *walk[T]) advance() {
	i := w.first()
	r := w.runs[i]
	if w.reverse {
		r = r[:len(r)-1]
	} else {
		r = r[1:]
	}
	if w.runs[i] = r; len(r) == 0 {
		w.runs = slices.Delete(w.runs, i, i+1)
	}
}
