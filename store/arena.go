package store

import "unsafe"

// An arena lends out bytes for the keys and values of one transaction. It is
// emptied in one go and used again.
type arena struct {
	chunk []byte
}

const arenaChunk = 64 << 10

// begin returns an empty slice to append one key or value to.
func (a *arena) begin() []byte {
	if cap(a.chunk)-len(a.chunk) < arenaChunk/16 {
		// The full chunk lives on in the values that were lent from it.
		a.chunk = make([]byte, 0, min(max(arenaChunk, 2*cap(a.chunk)), 16*arenaChunk))
	}
	return a.chunk[len(a.chunk):len(a.chunk):cap(a.chunk)]
}

// end takes what was appended, which may have outgrown the chunk and moved.
func (a *arena) end(b []byte) []byte {
	n := len(a.chunk)
	if len(b) <= cap(a.chunk)-n && len(b) > 0 && &b[0] == &a.chunk[:n+1][n] {
		a.chunk = a.chunk[:n+len(b)]
	}
	return b[:len(b):len(b)]
}

func (a *arena) reset() { a.chunk = a.chunk[:0] }

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
