package devbroker

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// pipe is one direction of a connection after the network: what has arrived
// and was not read yet. It has no limit of its own: what a client and a broker
// have in flight bounds it. Safe for concurrent use.
type pipe struct {
	mu struct {
		sync.Mutex
		arrived  *sync.Cond // on any change
		buf      []byte
		read     int   // how much of buf was read
		end      error // what Read answers once buf is empty: io.EOF, or why the connection broke
		deadline time.Time
		alarm    *time.Timer // wakes the reader at the deadline
	}
}

func newPipe() *pipe {
	p := &pipe{}
	p.mu.arrived = sync.NewCond(&p.mu.Mutex)
	return p
}

func (p *pipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case len(b) == 0:
			return 0, nil
		case !p.mu.deadline.IsZero() && !time.Now().Before(p.mu.deadline):
			return 0, os.ErrDeadlineExceeded
		case p.mu.read < len(p.mu.buf):
			n := copy(b, p.mu.buf[p.mu.read:])
			p.mu.read += n
			if p.mu.read == len(p.mu.buf) {
				p.mu.buf, p.mu.read = p.mu.buf[:0], 0
				if cap(p.mu.buf) > 1<<20 {
					p.mu.buf = nil
				}
			}
			return n, nil
		case p.mu.end != nil:
			return 0, p.mu.end
		}
		p.mu.arrived.Wait()
	}
}

// deliver appends what has arrived.
func (p *pipe) deliver(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.end == nil {
		p.mu.buf = append(p.mu.buf, b...)
		p.mu.arrived.Broadcast()
	}
}

// finish makes Read answer err after what has arrived.
func (p *pipe) finish(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.end == nil {
		p.mu.end = err
	}
	p.mu.arrived.Broadcast()
}

// breakOff makes Read answer err at once; what was not read is lost.
func (p *pipe) breakOff(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.buf, p.mu.read = nil, 0
	if p.mu.end != net.ErrClosed { // whoever closed it knows
		p.mu.end = err
	}
	if p.mu.alarm != nil {
		p.mu.alarm.Stop()
	}
	p.mu.arrived.Broadcast()
}

func (p *pipe) setDeadline(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.deadline = t
	if p.mu.alarm != nil {
		p.mu.alarm.Stop()
		p.mu.alarm = nil
	}
	if !t.IsZero() && p.mu.end == nil {
		p.mu.alarm = time.AfterFunc(time.Until(t), func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.mu.arrived.Broadcast()
		})
	}
	p.mu.arrived.Broadcast()
}

// end is one end of a connection through the network. It is a net.Conn.
type end struct {
	wire     *wire
	toBroker bool // which way Write goes
	in       *pipe
	name     address
	peer     address

	mu struct {
		sync.Mutex
		writeDeadline time.Time
	}
}

func (e *end) Read(b []byte) (int, error) { return e.in.Read(b) }

// Write never blocks: the network holds what it may not deliver.
func (e *end) Write(b []byte) (int, error) {
	e.mu.Lock()
	late := !e.mu.writeDeadline.IsZero() && !time.Now().Before(e.mu.writeDeadline)
	e.mu.Unlock()
	if late {
		return 0, os.ErrDeadlineExceeded
	}
	if err := e.wire.send(e.toBroker, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (e *end) Close() error {
	e.in.breakOff(net.ErrClosed)
	e.wire.close(e.toBroker)
	return nil
}

func (e *end) LocalAddr() net.Addr  { return e.name }
func (e *end) RemoteAddr() net.Addr { return e.peer }

func (e *end) SetDeadline(t time.Time) error {
	e.in.setDeadline(t)
	return e.SetWriteDeadline(t)
}

func (e *end) SetReadDeadline(t time.Time) error {
	e.in.setDeadline(t)
	return nil
}

func (e *end) SetWriteDeadline(t time.Time) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.writeDeadline = t
	return nil
}

// address names an end of a connection.
type address string

func (a address) Network() string { return "tcp" }
func (a address) String() string  { return string(a) }

var (
	_ net.Conn  = (*end)(nil)
	_ io.Reader = (*pipe)(nil)
)
