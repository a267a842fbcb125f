package store

import (
	"bytes"
	"slices"
)

// overlay is what a transaction has put and deleted by stored key, its tables
// apart.
type overlay struct {
	keys    map[string]*rawChange
	changes ordered[*rawChange]
	size    int64
}

// A rawChange is a stored key that the transaction has put or deleted.
type rawChange struct {
	key     []byte // as stored
	val     []byte // as stored; nil if deleted
	deleted bool
	swept   bool // by a sweep: a direct write that comes after it stands
}

func (r *rawChange) storedKey() []byte { return r.key }

// changeOverhead is what a change costs in memory beside its bytes, roughly.
const changeOverhead = 96

func newOverlay() overlay {
	o := overlay{keys: make(map[string]*rawChange)}
	o.changes.skip = 1
	return o
}

// change returns the change of a key, which may be a new one.
func (o *overlay) change(stored []byte) *rawChange {
	c := o.keys[string(stored)]
	if c == nil {
		c = &rawChange{key: bytes.Clone(stored)}
		o.keys[string(c.key)] = c
		o.changes.add(c)
		o.size += int64(2*len(c.key)) + changeOverhead
	}
	return c
}

// put sets a key to the format byte and what follows it.
func (o *overlay) put(stored []byte, format byte, val []byte) {
	c := o.change(stored)
	o.size += int64(1 + len(val) - len(c.val))
	c.val = append(append(c.val[:0], format), val...)
	c.deleted, c.swept = false, false
}

func (o *overlay) delete(stored []byte) {
	c := o.change(stored)
	o.size -= int64(len(c.val))
	c.val, c.deleted, c.swept = nil, true, false
}

// seal appends the changes in the order of their keys, but for what a sweep
// changed and a direct write has set since.
func (o *overlay) seal(out []Change, s *sorter, direct []Change) []Change {
	for _, c := range o.changes.all(s) {
		if c.swept {
			if _, replaced := slices.BinarySearchFunc(direct, c.key, compareChange); replaced {
				continue
			}
		}
		if c.deleted {
			out = append(out, Change{Key: c.key})
		} else {
			out = append(out, Change{c.key, c.val})
		}
	}
	return out
}

func (o *overlay) reset() {
	clear(o.keys)
	o.changes.reset()
	o.size = 0
}
