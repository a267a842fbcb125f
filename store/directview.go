package store

import (
	"slices"
	"sync/atomic"

	"github.com/pawlstream/pawl/internal/invariants"
)

// A directView is the direct writes as they were at a moment. Making one takes
// no longer for there being many of them, and whoever looks through it neither
// waits for writers nor makes them wait.
type directView struct {
	runs   [][]*directKey // see ordered
	number uint64         // of the last write that is seen
}

// A directKey is a key that was written directly. Its writes are added while views
// look at it, each of which passes those that came after it was made.
type directKey struct {
	key  []byte // as stored
	last atomic.Pointer[directWrite]
}

func (k *directKey) storedKey() []byte { return k.key }

// A directWrite is one write of a key, with the value as stored; nil for a delete.
type directWrite struct {
	val    []byte
	number uint64
	before *directWrite // the key's one before
}

// view returns the direct writes as they are now.
func (x *direct) view() directView {
	if x.waiting.Load() == 0 {
		return directView{}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.viewLocked()
}

func (x *direct) viewLocked() directView {
	return directView{x.mu.order.sorted(&x.mu.sorter), x.mu.number}
}

// get returns the write of a key, if there is one.
func (v directView) get(stored []byte) (val []byte, found bool) {
	for _, run := range v.runs {
		if at, found := slices.BinarySearchFunc(run, stored, compareKey[*directKey]); found {
			return v.val(run[at]), true
		}
	}
	return nil, false
}

// val returns what the view sees of one of its keys.
func (v directView) val(k *directKey) []byte {
	w := k.last.Load()
	for w.number > v.number {
		w = w.before
		invariants.Check(w != nil, "no write of key %x is as old as the view that shows it", k.key)
	}
	return w.val
}
