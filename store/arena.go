package store

import "unsafe"

// An arena lends out bytes for the keys and values of transactions, from chunks
// that each holds those of several: which are free again when the last of them
// has reached the storage library.
type arena struct {
	chunk []byte
	full  [][]byte // filled by the transaction that is open; the first may hold older ones' bytes too
	free  [][]byte // to be used again
}

const (
	arenaChunkMin = 4 << 10
	arenaChunkMax = 256 << 10
	arenaRoom     = 1 << 10 // a chunk with less is full
)

// begin returns an empty slice to append one key or value to.
func (a *arena) begin() []byte {
	if cap(a.chunk)-len(a.chunk) < arenaRoom {
		a.next()
	}
	return a.chunk[len(a.chunk):len(a.chunk):cap(a.chunk)]
}

func (a *arena) next() {
	if a.chunk != nil {
		a.full = append(a.full, a.chunk)
	}
	if n := len(a.free); n > 0 {
		a.chunk = a.free[n-1]
		a.free[n-1] = nil
		a.free = a.free[:n-1]
		return
	}
	a.chunk = make([]byte, 0, min(max(arenaChunkMin, 2*cap(a.chunk)), arenaChunkMax))
}

// end takes what was appended, which may have outgrown the chunk and moved.
func (a *arena) end(b []byte) []byte {
	n := len(a.chunk)
	if len(b) <= cap(a.chunk)-n && len(b) > 0 && &b[0] == &a.chunk[:n+1][n] {
		a.chunk = a.chunk[:n+len(b)]
	}
	return b[:len(b):len(b)]
}

// drop lets go of the chunks that an aborted transaction has filled. They live
// on where older bytes in them are used.
func (a *arena) drop() {
	clear(a.full)
	a.full = a.full[:0]
}

// names makes strings that are the caller's to keep, many to one allocation.
// Whoever keeps one keeps its neighbours, so there are not too many of them.
type names struct {
	chunk []byte
}

const namesChunk = 1 << 10

func (n *names) keep(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if len(b) > namesChunk/8 {
		return string(b)
	}
	if len(b) > cap(n.chunk)-len(n.chunk) {
		n.chunk = make([]byte, 0, namesChunk)
	}
	at := len(n.chunk)
	n.chunk = append(n.chunk, b...)
	return unsafe.String(&n.chunk[at], len(b))
}
