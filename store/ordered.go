package store

import (
	"bytes"
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
	first []T   // the memory of the first run, used again by the next transaction
}

func (o *ordered[T]) add(e T) { o.fresh = append(o.fresh, e) }

func (o *ordered[T]) reset() {
	clear(o.fresh)
	o.fresh = o.fresh[:0]
	o.runs = nil
	clear(o.first)
	o.first = o.first[:0]
}

// sorted returns the runs that now hold all keys.
func (o *ordered[T]) sorted(s *sorter) [][]T {
	if len(o.fresh) > 0 {
		var run []T
		if len(o.runs) == 0 && len(o.first) == 0 {
			o.first = sortByKey(s, o.first, o.fresh, o.skip)
			run = o.first
		} else {
			run = sortByKey(s, make([]T, 0, len(o.fresh)), o.fresh, o.skip)
		}
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
// which fit a word: digit by digit, which takes no comparing, and only the
// digits in which they differ. Where the words of some keys are equal, the bytes
// after them decide. Equal keys stay in the order that they came in. Its buffers
// are kept from one sort to the next.
type sorter struct {
	keys  [][]byte
	words []word
	spare []word
}

type word struct {
	prefix uint64
	at     int32
}

// sortByKey puts in, whose keys all begin with the same skip bytes, in order
// and appends it to out.
func sortByKey[T changed](s *sorter, out, in []T, skip int) []T {
	s.keys = s.keys[:0]
	for _, e := range in {
		s.keys = append(s.keys, e.storedKey())
	}
	for _, w := range s.sort(skip) {
		out = append(out, in[w.at])
	}
	clear(s.keys)
	return out
}

// sort returns the order of the keys in s.keys, valid until the next sort.
func (s *sorter) sort(skip int) []word {
	n := len(s.keys)
	s.words, s.spare = slices.Grow(s.words[:0], n)[:n], slices.Grow(s.spare[:0], n)[:n]
	for i := range s.words {
		s.words[i].at = int32(i)
	}
	s.sortRange(s.words, s.spare, skip)
	return s.words
}

// byComparing is how many keys are sorted faster by comparing them.
const byComparing = 24

func (s *sorter) sortRange(words, spare []word, skip int) {
	if len(words) <= byComparing {
		s.insert(words, skip)
		return
	}
	skip += s.commonPrefix(words, skip)
	short := false // a key ends within its word
	var differ uint64
	for i := range words {
		key := s.keys[words[i].at][skip:]
		short = short || len(key) < 8
		words[i].prefix = keyWord(key)
		differ |= words[i].prefix ^ words[0].prefix
	}
	sortWords(words, spare, differ)
	for i := 0; i < len(words); {
		j := i + 1
		for j < len(words) && words[j].prefix == words[i].prefix {
			j++
		}
		switch {
		case j == i+1:
		case short:
			// 00 after the end of a key and 00 in a key are the same word.
			slices.SortStableFunc(words[i:j], func(a, b word) int {
				return bytes.Compare(s.keys[a.at][skip:], s.keys[b.at][skip:])
			})
		default:
			s.sortRange(words[i:j], spare[i:j], skip+8)
		}
		i = j
	}
}

// insert sorts a few keys.
func (s *sorter) insert(words []word, skip int) {
	for i := 1; i < len(words); i++ {
		w := words[i]
		key := s.keys[w.at][skip:]
		j := i
		for j > 0 && bytes.Compare(s.keys[words[j-1].at][skip:], key) > 0 {
			words[j] = words[j-1]
			j--
		}
		words[j] = w
	}
}

// sortWords sorts by the bytes of the words that differ, from the last to the
// first, keeping the order that the ones before have made.
func sortWords(words, spare []word, differ uint64) {
	var counts [8][256]int32
	for _, w := range words {
		for i := range 8 {
			counts[i][byte(w.prefix>>(8*i))]++
		}
	}
	in, out := words, spare
	for i := range 8 {
		shift := 8 * i
		if byte(differ>>shift) == 0 {
			continue
		}
		next := int32(0)
		starts := &counts[i]
		for d, n := range starts {
			starts[d] = next
			next += n
		}
		for _, w := range in {
			d := byte(w.prefix >> shift)
			out[starts[d]] = w
			starts[d]++
		}
		in, out = out, in
	}
	if &in[0] != &words[0] {
		copy(words, in)
	}
}

// commonPrefix is how many bytes all keys have in common after the first skip.
func (s *sorter) commonPrefix(words []word, skip int) int {
	first := s.keys[words[0].at][skip:]
	n := len(first)
	for _, w := range words[1:] {
		key := s.keys[w.at][skip:]
		n = min(n, len(key))
		if string(key[:n]) == string(first[:n]) {
			continue
		}
		i := 0
		for key[i] == first[i] {
			i++
		}
		n = i
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
