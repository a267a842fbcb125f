package store

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"unsafe"
)

// entries holds a table's entries and finds them by key. With a hundred
// thousand keys in random order almost everything that looking one up costs is
// waiting for memory, so an entry is found with two looks, one at the index and
// one at the entry, which has its key beside its value:
//
//	index    hash and number of the entry, eight bytes a slot, probed in order
//	chunks   the entries by number, a few hundred to an array, never moved
//	long     the keys that don't fit into their entry
//
// Where V holds no pointers none of it does but the list of chunks and long
// keys, and the garbage collector has nothing to look at.
//
// A pointer to an entry is valid until the entry is removed, and across an
// add; compact moves entries.
type entries[V any] struct {
	index []uint64 // hash<<32 | number+1; 0 is free. The length is a power of 2.
	live  int

	chunks [][]entry[V]
	made   uint32   // numbers handed out; some of them are free again
	free   []uint32 // numbers to hand out again

	long     [][]byte
	freeLong []uint32
}

// An entry is what a table keeps of one key. An entry without a value says that
// the key is absent, which is worth knowing too.
type entry[V any] struct {
	val     V
	cost    int32
	touched uint32 // the last transaction that held on to it, by its number in the table
	change  int32  // its change's number plus one, in that transaction; 0 if it has none
	flags   uint8
	keyLen  uint8           // keyLong for one that doesn't fit
	time    [6]byte         // of the last write, in milliseconds since 1970, if the table has a TTL
	keyHead [keyInline]byte // the key, or where in long it is
}

const (
	entryLive   = 1 << iota
	entryHas    // there is a value
	entryKnown  // whether there is one, and val, are known: not after a blind write was forgotten
	entryRecent // used since the hand last passed

	entryKnownHas = entryKnown | entryHas
)

const (
	// keyInline is the longest key that an entry holds itself. With a V of
	// eight bytes an entry takes 48.
	keyInline = 20
	keyLong   = 255

	// An index is at most three quarters full. A slot is eight bytes.
	indexMin = 8
)

var seed = maphash.MakeSeed()

func hashKey(key []byte) uint32 { return uint32(maphash.Bytes(seed, key)) }

// chunkShift is the logarithm of how many entries a chunk has: about 16 KiB.
func (s *entries[V]) chunkShift() uint {
	return uint(bits.Len(uint(max(1, 16<<10/unsafe.Sizeof(entry[V]{}))))) - 1
}

func (s *entries[V]) at(number uint32) *entry[V] {
	shift := s.chunkShift()
	return &s.chunks[number>>shift][number&(1<<shift-1)]
}

// key returns the bytes of an entry's key, which are the entry's own.
func (s *entries[V]) key(e *entry[V]) []byte {
	if e.keyLen != keyLong {
		return e.keyHead[:e.keyLen]
	}
	return s.long[binary.NativeEndian.Uint32(e.keyHead[:])]
}

// find returns the entry of a key, nil if there is none.
func (s *entries[V]) find(hash uint32, key []byte) *entry[V] {
	if len(s.index) == 0 {
		return nil
	}
	mask := uint32(len(s.index) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		slot := s.index[i]
		if slot == 0 {
			return nil
		}
		if uint32(slot>>32) == hash {
			if e := s.at(uint32(slot) - 1); string(s.key(e)) == string(key) {
				return e
			}
		}
	}
}

// add makes the entry of a key that has none, and copies the key.
func (s *entries[V]) add(hash uint32, key []byte) *entry[V] {
	if 4*(s.live+1) > 3*len(s.index) {
		s.grow(max(indexMin, 2*len(s.index)))
	}
	var number uint32
	if n := len(s.free); n > 0 {
		number, s.free = s.free[n-1], s.free[:n-1]
	} else {
		number = s.made
		s.made++
		if shift := s.chunkShift(); int(number>>shift) == len(s.chunks) {
			s.chunks = append(s.chunks, make([]entry[V], 1<<shift))
		}
	}
	e := s.at(number)
	e.flags = entryLive
	if len(key) <= keyInline {
		e.keyLen = uint8(len(key))
		copy(e.keyHead[:], key)
	} else {
		s.addLong(e, key)
	}
	s.place(hash, number)
	s.live++
	return e
}

func (s *entries[V]) addLong(e *entry[V], key []byte) {
	e.keyLen = keyLong
	own := append(make([]byte, 0, len(key)), key...)
	if n := len(s.freeLong); n > 0 {
		at := s.freeLong[n-1]
		s.freeLong = s.freeLong[:n-1]
		s.long[at] = own
		binary.NativeEndian.PutUint32(e.keyHead[:], at)
		return
	}
	binary.NativeEndian.PutUint32(e.keyHead[:], uint32(len(s.long)))
	s.long = append(s.long, own)
}

func (s *entries[V]) place(hash, number uint32) {
	mask := uint32(len(s.index) - 1)
	i := hash & mask
	for s.index[i] != 0 {
		i = (i + 1) & mask
	}
	s.index[i] = uint64(hash)<<32 | uint64(number+1)
}

func (s *entries[V]) grow(slots int) {
	old := s.index
	s.index = make([]uint64, slots)
	for _, slot := range old {
		if slot != 0 {
			s.place(uint32(slot>>32), uint32(slot)-1)
		}
	}
}

// remove forgets an entry. Its number is used again.
func (s *entries[V]) remove(e *entry[V]) {
	mask := uint32(len(s.index) - 1)
	i := hashKey(s.key(e)) & mask
	for s.index[i] == 0 || s.at(uint32(s.index[i])-1) != e {
		i = (i + 1) & mask
	}
	number := uint32(s.index[i]) - 1
	// What was pushed on past the slot by its having been taken moves back.
	for j := i; ; {
		j = (j + 1) & mask
		slot := s.index[j]
		if slot == 0 {
			break
		}
		if home := uint32(slot>>32) & mask; (j-home)&mask >= (j-i)&mask {
			s.index[i] = slot
			i = j
		}
	}
	s.index[i] = 0
	if e.keyLen == keyLong {
		at := binary.NativeEndian.Uint32(e.keyHead[:])
		s.long[at] = nil
		s.freeLong = append(s.freeLong, at)
	}
	*e = entry[V]{}
	s.free = append(s.free, number)
	s.live--
}

// wasteful says that most of the memory is for entries that are gone.
func (s *entries[V]) wasteful() bool {
	return len(s.free) > s.live && len(s.free) > 2<<s.chunkShift()
}

// compact moves the entries together and gives back what is left over.
func (s *entries[V]) compact() {
	old := *s
	*s = entries[V]{}
	slots := indexMin
	for 4*old.live > 2*slots {
		slots *= 2
	}
	s.index = make([]uint64, slots)
	for number := range old.made {
		if e := old.at(number); e.flags&entryLive != 0 {
			key := old.key(e)
			moved := s.add(hashKey(key), key)
			head := moved.keyHead
			*moved = *e
			moved.keyHead = head
		}
	}
}
