package broker

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// pipeBuffer is how many bytes one direction of an in-memory connection holds
// before its writer waits.
const pipeBuffer = 256 << 10

// pipeBufferMin is how many it has room for at first. Doubled some times it is
// pipeBuffer.
const pipeBufferMin = 1 << 10

// pipeDirect is how many bytes a write has at least that is not buffered at
// all: the reader copies from where the writer has them, once, and the writer
// waits for it.
const pipeDirect = 64 << 10

// flow is one direction of an in-memory connection: a bounded buffer between a
// writer and a reader. Safe for concurrent use.
type flow struct {
	mu struct {
		sync.Mutex
		changed     *sync.Cond
		ring        []byte // made at the first small write; grows up to pipeBuffer bytes
		head, n     int    // what was written and not read is n bytes from head on, around the end
		direct      []byte // what is left of a big write; it comes after what is in the ring
		writing     bool   // others that write wait for their turn
		closed      bool   // by the writer: what is there can still be read
		broken      error  // by the reader: nothing can be written or read
		readBefore  deadline
		writeBefore deadline
	}
}

func newFlow() *flow {
	f := &flow{}
	f.mu.changed = sync.NewCond(&f.mu.Mutex)
	return f
}

// deadline is when one side of a flow stops waiting.
type deadline struct {
	at    time.Time
	alarm *time.Timer
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func (f *flow) setDeadline(d *deadline, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d.alarm != nil {
		d.alarm.Stop()
		d.alarm = nil
	}
	d.at = at
	if !at.IsZero() && !f.mu.closed && f.mu.broken == nil {
		d.alarm = time.AfterFunc(time.Until(at), func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.mu.changed.Broadcast()
		})
	}
	f.mu.changed.Broadcast()
}

func (f *flow) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		switch {
		case f.mu.broken != nil:
			return 0, f.mu.broken
		case f.mu.readBefore.passed():
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			return 0, nil
		case f.mu.n > 0 || len(f.mu.direct) > 0:
			n := f.takeLocked(p)
			f.mu.changed.Broadcast()
			return n, nil
		case f.mu.closed:
			return 0, io.EOF
		}
		f.mu.changed.Wait()
	}
}

// takeLocked moves what is there into p.
func (f *flow) takeLocked(p []byte) (n int) {
	for f.mu.n > 0 && n < len(p) {
		m := copy(p[n:], f.mu.ring[f.mu.head:min(f.mu.head+f.mu.n, len(f.mu.ring))])
		f.mu.head, f.mu.n, n = (f.mu.head+m)%len(f.mu.ring), f.mu.n-m, n+m
	}
	if f.mu.n > 0 {
		return n
	}
	f.mu.head = 0
	m := copy(p[n:], f.mu.direct)
	f.mu.direct = f.mu.direct[m:]
	return n + m
}

// putLocked moves what there is room for out of p.
func (f *flow) putLocked(p []byte) (n int) {
	f.growLocked(f.mu.n + len(p))
	size := len(f.mu.ring)
	for f.mu.n < size && n < len(p) {
		at := (f.mu.head + f.mu.n) % size
		m := copy(f.mu.ring[at:min(at+size-f.mu.n, size)], p[n:])
		f.mu.n, n = f.mu.n+m, n+m
	}
	return n
}

// growLocked makes room for so many bytes, as far as there may be. Most
// connections of a shard that idles carry a few hundred at a time, and there are
// thousands of them.
func (f *flow) growLocked(want int) {
	size := max(len(f.mu.ring), pipeBufferMin)
	for size < min(want, pipeBuffer) {
		size *= 2
	}
	if size == len(f.mu.ring) {
		return
	}
	ring := make([]byte, size)
	end := min(f.mu.head+f.mu.n, len(f.mu.ring))
	m := copy(ring, f.mu.ring[f.mu.head:end])
	copy(ring[m:], f.mu.ring[:f.mu.n-m])
	f.mu.ring, f.mu.head = ring, 0
}

// Write returns when p is buffered or, if it is big, read.
func (f *flow) Write(p []byte) (n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.mu.writing {
		f.mu.changed.Wait()
	}
	f.mu.writing = true
	big := len(p) >= pipeDirect
	if big {
		f.mu.direct = p
		f.mu.changed.Broadcast()
	}
	defer func() {
		f.mu.direct, f.mu.writing = nil, false // p is the caller's again
		f.mu.changed.Broadcast()
	}()
	for {
		if big {
			n = len(p) - len(f.mu.direct)
		}
		switch {
		case f.mu.broken != nil || f.mu.closed:
			return n, io.ErrClosedPipe
		case f.mu.writeBefore.passed():
			return n, os.ErrDeadlineExceeded
		case len(p) == n:
			return n, nil
		}
		if !big && f.mu.n < pipeBuffer {
			n += f.putLocked(p[n:])
			f.mu.changed.Broadcast()
			continue
		}
		f.mu.changed.Wait()
	}
}

// close ends a flow: by its writer, or with an error by its reader.
func (f *flow) close(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.mu.closed = true
	} else if f.mu.broken == nil {
		f.mu.broken, f.mu.ring, f.mu.n = err, nil, 0
	}
	for _, d := range []*deadline{&f.mu.readBefore, &f.mu.writeBefore} {
		if d.alarm != nil {
			d.alarm.Stop()
		}
	}
	f.mu.changed.Broadcast()
}

// pipeEnd is one end of an in-memory connection.
type pipeEnd struct{ in, out *flow }

// newPipe returns the two ends of a connection.
func newPipe() (a, b *pipeEnd) {
	x, y := newFlow(), newFlow()
	return &pipeEnd{x, y}, &pipeEnd{y, x}
}

func (e *pipeEnd) Read(p []byte) (int, error)  { return e.in.Read(p) }
func (e *pipeEnd) Write(p []byte) (int, error) { return e.out.Write(p) }

func (e *pipeEnd) Close() error {
	e.out.close(nil)
	e.in.close(net.ErrClosed)
	return nil
}

func (e *pipeEnd) LocalAddr() net.Addr  { return pipeAddr{} }
func (e *pipeEnd) RemoteAddr() net.Addr { return pipeAddr{} }

func (e *pipeEnd) SetDeadline(t time.Time) error {
	e.in.setDeadline(&e.in.mu.readBefore, t)
	e.out.setDeadline(&e.out.mu.writeBefore, t)
	return nil
}

func (e *pipeEnd) SetReadDeadline(t time.Time) error {
	e.in.setDeadline(&e.in.mu.readBefore, t)
	return nil
}

func (e *pipeEnd) SetWriteDeadline(t time.Time) error {
	e.out.setDeadline(&e.out.mu.writeBefore, t)
	return nil
}

// pipeAddr is the address of both ends.
type pipeAddr struct{}

func (pipeAddr) Network() string { return "in-process" }
func (pipeAddr) String() string  { return inMemory }

// pipeListener hands the broker's ends of in-memory connections to it.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) dial(ctx context.Context) (net.Conn, error) {
	client, server := newPipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "dial", Net: "in-process", Addr: pipeAddr{}, Err: ErrClosed}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) close() { l.once.Do(func() { close(l.closed) }) }

func (l *pipeListener) Close() error {
	l.close()
	return nil
}

func (l *pipeListener) Addr() net.Addr { return pipeAddr{} }

var _ net.Conn = (*pipeEnd)(nil)
