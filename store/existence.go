package store

import (
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/pawlstream/pawl/internal/invariants"
)

// existence knows of most absent keys that they are, which takes looking into
// each memtable and asking the filter of each file otherwise: most of what a
// message costs whose key is new, once the table's cache doesn't hold all keys.
//
//	a few thousand lookups find nothing ──► keys are counted, then read into a
//	                                        filter, beside the shard's work
//	a transaction is applied            ──► its keys are added
//	as many came as it was made for     ──► it is made anew
//	a Loader has written                ──► it is forgotten
//
// Only the shard's transaction asks it: a snapshot may hold keys that have been
// deleted since, and are in no filter made after.
type existence struct {
	max int64 // bytes of a filter; a database of more keys has none

	absent   atomic.Int64 // lookups that found nothing, while there was no filter
	ready    atomic.Pointer[keyFilter]
	building atomic.Pointer[keyFilter] // has what was applied since it was begun
	builders sync.WaitGroup

	mu struct {
		sync.Mutex
		busy       bool // a builder is at work
		tooMany    bool // the last one found more keys than a filter may have
		generation int  // of the database's contents, as Loaders write them
	}
}

const (
	filterFloor = 64 << 10 // bytes that a filter may have at least

	filterBits = 12      // a key, of which one in a hundred absent ones is let through
	filterRoom = 1 << 16 // keys that every filter has room for, beyond twice those there are
)

// filterAfter is how many lookups find nothing before a filter is made.
var filterAfter = func() int64 {
	if invariants.Enabled {
		return 8 // so that all tests of the store and of shards have one
	}
	return 4096
}()

// missing reports whether a key is surely not stored.
func (x *existence) missing(stored []byte) bool {
	f := x.ready.Load()
	return f != nil && !f.has(maphash.Bytes(seed, stored))
}

// noted counts a lookup that found nothing. Once there have been many a filter is
// made.
func (x *existence) noted(d *database) {
	if x.ready.Load() == nil && x.absent.Add(1) == filterAfter {
		x.build(d)
	}
}

// add enters the keys of a transaction that has been taken: into the filter that
// is being made, which may miss them, and into the one there is. They are pending
// by then, so that a builder that begins after reads them.
func (x *existence) add(d *database, changes []Change) {
	building := x.building.Load() // first: what is built becomes ready before it is building no more
	ready := x.ready.Load()
	if building == nil && ready == nil {
		return
	}
	for _, c := range changes {
		h := maphash.Bytes(seed, c.Key)
		if building != nil {
			building.add(h)
		}
		if ready != nil && ready != building {
			ready.add(h)
		}
	}
	if ready != nil && ready.keys.Load() > ready.room {
		x.build(d)
	}
}

// forget gives up the filter, because the database has changed below.
func (x *existence) forget() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.generation++
	x.mu.tooMany = false
	x.ready.Store(nil)
	x.building.Store(nil)
	x.absent.Store(0)
}

// build begins to make a filter, unless one is being made, or there are too many
// keys for one.
func (x *existence) build(d *database) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.busy || x.mu.tooMany {
		return
	}
	x.mu.busy = true
	generation := x.mu.generation
	x.builders.Go(func() {
		f := x.made(d, generation)
		x.mu.Lock()
		defer x.mu.Unlock()
		x.mu.busy = false
		if x.mu.generation != generation {
			return
		}
		if f != nil {
			x.ready.Store(f)
		}
		x.building.Store(nil)
	})
}

// most is how many keys a filter has room for at most.
func (x *existence) most() int64 { return x.max * 8 / filterBits }

// made returns the filter of the keys that there are, or nil if it would be too
// large or a read fails: a database can do without, and who reads is told. A
// quarter of it has to be free, so that it is not soon to be made anew.
func (x *existence) made(d *database, generation int) *keyFilter {
	most := x.most()
	keys := int64(0)
	if !d.eachKey(func([]byte) bool { keys++; return keys <= most-most/4 }) {
		return nil
	}
	x.mu.Lock()
	if keys > most-most/4 || x.mu.generation != generation {
		x.mu.tooMany = x.mu.generation == generation
		x.ready.Store(nil) // it lets most keys through
		x.mu.Unlock()
		return nil
	}
	f := newKeyFilter(min(2*keys+filterRoom, most))
	x.building.Store(f)
	x.mu.Unlock()
	if !d.eachKey(func(stored []byte) bool { f.add(maphash.Bytes(seed, stored)); return true }) {
		return nil
	}
	return f
}

// eachKey visits every stored key but the database's own, until visit returns
// false. It returns false if it could not.
func (d *database) eachKey(visit func(stored []byte) bool) bool {
	c, err := d.newCursor(d.db, []byte{spaceOwn + 1}, nil, false)
	if err != nil {
		return false
	}
	for err == nil && c.ok && visit(c.key) {
		err = c.advance()
	}
	return c.close() == nil && err == nil
}

// A keyFilter holds hashes of keys: six bits of a cache line for each. Any
// goroutine may add while others ask.
type keyFilter struct {
	lines [][8]uint64
	keys  atomic.Int64 // that were added and not there, as far as it can tell
	room  int64        // keys that it is made for
}

func newKeyFilter(room int64) *keyFilter {
	return &keyFilter{lines: make([][8]uint64, room*filterBits/512+1), room: room}
}

func (f *keyFilter) line(h uint64) *[8]uint64 {
	at, _ := bits.Mul64(h, uint64(len(f.lines)))
	return &f.lines[at]
}

const filterProbes = 6

// probes spreads what the choice of the line has left of a hash: nine bits a probe.
func probes(h uint64) uint64 { return h * 0x9e3779b97f4a7c15 >> 10 }

func (f *keyFilter) add(h uint64) {
	line, p := f.line(h), probes(h)
	fresh := false
	for range filterProbes {
		bit := uint64(1) << (p & 63)
		word := &line[p>>6&7]
		if atomic.LoadUint64(word)&bit == 0 {
			atomic.OrUint64(word, bit)
			fresh = true
		}
		p >>= 9
	}
	if fresh {
		f.keys.Add(1)
	}
}

func (f *keyFilter) has(h uint64) bool {
	line, p := f.line(h), probes(h)
	for range filterProbes {
		if atomic.LoadUint64(&line[p>>6&7])&(1<<(p&63)) == 0 {
			return false
		}
		p >>= 9
	}
	return true
}
