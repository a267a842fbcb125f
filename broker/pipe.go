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
const pipeBuffer = 1 << 20

// flow is one direction of an in-memory connection: a bounded buffer between a
// writer and a reader. Safe for concurrent use.
type flow struct {
	mu struct {
		sync.Mutex
		changed     *sync.Cond
		buf         []byte // what was written and not read is buf[read:]
		read        int
		closed      bool  // by the writer: what is there can still be read
		broken      error // by the reader: nothing can be written or read
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
		case f.mu.read < len(f.mu.buf):
			n := copy(p, f.mu.buf[f.mu.read:])
			f.mu.read += n
			if f.mu.read == len(f.mu.buf) {
				f.mu.buf, f.mu.read = f.mu.buf[:0], 0
			}
			f.mu.changed.Broadcast()
			return n, nil
		case f.mu.closed:
			return 0, io.EOF
		}
		f.mu.changed.Wait()
	}
}

func (f *flow) Write(p []byte) (n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		switch {
		case f.mu.broken != nil || f.mu.closed:
			return n, io.ErrClosedPipe
		case f.mu.writeBefore.passed():
			return n, os.ErrDeadlineExceeded
		case len(p) == n:
			return n, nil
		}
		if room := pipeBuffer - (len(f.mu.buf) - f.mu.read); room > 0 {
			if f.mu.read > 0 && len(f.mu.buf)+min(room, len(p)-n) > cap(f.mu.buf) {
				f.mu.buf, f.mu.read = f.mu.buf[:copy(f.mu.buf, f.mu.buf[f.mu.read:])], 0
			}
			m := min(room, len(p)-n)
			f.mu.buf = append(f.mu.buf, p[n:n+m]...)
			n += m
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
		f.mu.broken, f.mu.buf = err, nil
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
