package devbroker

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// network carries connections from named hosts to the broker. It reads each
// request's key and correlation ID as it passes, which is what lets it hold a
// request or lose a reply, and it keeps from the broker what would bring the
// whole process down: an API key that nobody knows, a frame beyond any limit.
//
//	client end ── send ──► frames ──► faults ──► queue ──► pipe ──► broker end
//	broker end ── send ──► frames ──► lost? ───► queue ──► pipe ──► client end
//
// A queue moves only while its host is not frozen, the frame's delay is over
// and nobody holds it. Nothing here waits, and no goroutine is started: what
// changes a condition moves the queues.
type network struct {
	accept chan *end     // to the broker's listener
	closed chan struct{} // closed with the network

	mu struct {
		sync.Mutex
		closed    bool
		hosts     map[string]*hostState
		wires     map[*wire]bool
		rules     []*rule
		observers []func(host string, key int16)
		thawed    chan struct{} // closed and replaced when a host thaws
	}
}

// hostState is what holds for a host, from which connections come.
type hostState struct {
	cut, frozen bool
	delay       time.Duration
}

// frameMax is the largest request that is passed on, as in Kafka
// (socket.request.max.bytes).
const frameMax = 100 << 20

var errReset = &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}

func newNetwork() *network {
	n := &network{accept: make(chan *end), closed: make(chan struct{})}
	n.mu.hosts = make(map[string]*hostState)
	n.mu.wires = make(map[*wire]bool)
	n.mu.thawed = make(chan struct{})
	return n
}

func (n *network) hostLocked(name string) *hostState {
	h := n.mu.hosts[name]
	if h == nil {
		h = &hostState{}
		n.mu.hosts[name] = h
	}
	return h
}

// dial connects a host to the broker. It fails while the host is cut, and
// waits while it is frozen.
func (n *network) dial(ctx context.Context, from, to string) (net.Conn, error) {
	refuse := func(err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Addr: address(to), Err: err}
	}
	for {
		n.mu.Lock()
		h := n.hostLocked(from)
		cut, frozen, thawed := h.cut, h.frozen, n.mu.thawed
		n.mu.Unlock()
		if cut {
			return nil, refuse(os.NewSyscallError("connect", syscall.EHOSTUNREACH))
		}
		if !frozen {
			break
		}
		select {
		case <-thawed:
		case <-n.closed:
			return nil, refuse(os.NewSyscallError("connect", syscall.ECONNREFUSED))
		case <-ctx.Done():
			return nil, refuse(ctx.Err())
		}
	}

	w := &wire{net: n, from: from}
	w.up, w.down = newPipe(), newPipe()
	client := &end{wire: w, toBroker: true, in: w.down, name: address(from), peer: address(to)}
	server := &end{wire: w, in: w.up, name: address(to), peer: address(from)}
	n.mu.Lock()
	if n.mu.closed {
		n.mu.Unlock()
		return nil, refuse(os.NewSyscallError("connect", syscall.ECONNREFUSED))
	}
	n.mu.wires[w] = true
	n.mu.Unlock()
	select {
	case n.accept <- server:
		return client, nil
	case <-n.closed:
		n.breakWire(w)
		return nil, refuse(os.NewSyscallError("connect", syscall.ECONNREFUSED))
	case <-ctx.Done():
		n.breakWire(w)
		return nil, refuse(ctx.Err())
	}
}

func (n *network) breakWire(w *wire) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w.breakLocked()
}

// change applies fn to a host, then moves what may move.
func (n *network) change(name string, fn func(*hostState)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.hostLocked(name)
	fn(h)
	for w := range n.mu.wires {
		if w.from != name {
			continue
		}
		if h.cut {
			w.breakLocked()
		} else {
			w.moveLocked()
		}
	}
	close(n.mu.thawed)
	n.mu.thawed = make(chan struct{})
}

// moveAll moves every queue: a hold was released.
func (n *network) moveAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for w := range n.mu.wires {
		w.moveLocked()
	}
}

func (n *network) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.closed {
		return
	}
	n.mu.closed = true
	close(n.closed)
	for w := range n.mu.wires {
		w.breakLocked()
	}
}

// wire is one connection. The network's lock guards everything but the pipes.
type wire struct {
	net      *network
	from     string
	up, down *pipe // to the broker, to the client

	broken         bool
	upEnd, downEnd bool // the client, the broker closed its end
	upPart         []byte
	downPart       []byte
	upQueue        []parcel
	downQueue      []parcel
	lost           map[int32]bool // correlation IDs whose replies are not to arrive
}

// parcel is a frame, or the end of a direction, in a queue.
type parcel struct {
	bytes []byte
	end   bool
	due   time.Time
	held  *hold
}

// hold is what keeps requests from the broker until it is released. The
// network's lock guards it.
type hold struct{ released bool }

// send takes bytes from one end and passes on the frames that they complete.
func (w *wire) send(toBroker bool, b []byte) error {
	n := w.net
	n.mu.Lock()
	if w.broken || toBroker && (w.upEnd || w.downEnd) {
		n.mu.Unlock()
		return errReset
	}
	part := &w.downPart
	if toBroker {
		part = &w.upPart
	}
	*part = append(*part, b...)
	var frames [][]byte
	for len(*part) >= 4 {
		size := int64(binary.BigEndian.Uint32(*part))
		if toBroker && (size < 8 || size > frameMax) {
			w.breakLocked()
			n.mu.Unlock()
			return errReset
		}
		if int64(len(*part)) < 4+size {
			break
		}
		frames = append(frames, append([]byte(nil), (*part)[:4+size]...))
		*part = append((*part)[:0], (*part)[4+size:]...)
	}
	observers := n.mu.observers
	n.mu.Unlock()

	if !toBroker {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, f := range frames {
			if w.lost[int32(binary.BigEndian.Uint32(f[4:]))] {
				w.breakLocked()
				return errReset
			}
			w.downQueue = append(w.downQueue, parcel{bytes: f, due: w.dueLocked()})
		}
		w.moveLocked()
		return nil
	}
	for _, f := range frames {
		key := int16(binary.BigEndian.Uint16(f[4:]))
		if kmsg.RequestForKey(key) == nil {
			n.breakWire(w)
			return errReset
		}
		for _, fn := range observers {
			fn(w.from, key)
		}
		if err := w.request(key, f); err != nil {
			return err
		}
	}
	return nil
}

// request passes one whole request on, as the rules say.
func (w *wire) request(key int16, f []byte) error {
	n := w.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if w.broken {
		return errReset
	}
	p := parcel{bytes: f, due: w.dueLocked()}
	for _, r := range n.matchLocked(w.from, key) {
		switch {
		case r.close:
			w.breakLocked()
			return errReset
		case r.lose:
			if w.lost == nil {
				w.lost = make(map[int32]bool)
			}
			w.lost[int32(binary.BigEndian.Uint32(f[8:]))] = true
		case r.hold != nil:
			p.held = r.hold
		case r.mark != nil:
			p.bytes = r.mark(p.bytes)
		}
	}
	w.upQueue = append(w.upQueue, p)
	w.moveLocked()
	return nil
}

func (w *wire) dueLocked() time.Time {
	if d := w.net.hostLocked(w.from).delay; d > 0 {
		return time.Now().Add(d)
	}
	return time.Time{}
}

// moveLocked delivers what may be delivered.
func (w *wire) moveLocked() {
	if w.broken {
		return
	}
	w.upQueue = w.drainLocked(w.upQueue, w.up)
	w.downQueue = w.drainLocked(w.downQueue, w.down)
}

func (w *wire) drainLocked(q []parcel, to *pipe) []parcel {
	if w.net.hostLocked(w.from).frozen {
		return q
	}
	for len(q) > 0 {
		p := q[0]
		if p.held != nil && !p.held.released {
			return q
		}
		if !p.due.IsZero() {
			if wait := time.Until(p.due); wait > 0 {
				time.AfterFunc(wait, func() {
					w.net.mu.Lock()
					defer w.net.mu.Unlock()
					w.moveLocked()
				})
				return q
			}
		}
		if p.end {
			to.finish(io.EOF)
		} else {
			to.deliver(p.bytes)
		}
		q = q[1:]
	}
	return nil
}

// close is called when one end is closed. The other learns of it after what
// was sent before.
func (w *wire) close(toBroker bool) {
	w.net.mu.Lock()
	defer w.net.mu.Unlock()
	if w.broken {
		return
	}
	p := parcel{end: true, due: w.dueLocked()}
	if toBroker {
		w.upEnd = true
		w.upQueue = append(w.upQueue, p)
	} else {
		w.downEnd = true
		w.downQueue = append(w.downQueue, p)
	}
	w.moveLocked()
	if w.upEnd && w.downEnd {
		w.breakLocked()
	}
}

// breakLocked ends the connection at once. The client loses what it had not
// read. The broker still reads what had reached it.
func (w *wire) breakLocked() {
	if w.broken {
		return
	}
	w.broken = true
	w.down.breakOff(errReset)
	w.up.finish(errReset)
	w.upQueue, w.downQueue, w.upPart, w.downPart = nil, nil, nil, nil
	delete(w.net.mu.wires, w)
}

// listener gives the broker the connections of the network.
type listener struct {
	net  *network
	addr address
}

var errListenerClosed = errors.New("devbroker: listener closed")

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.net.accept:
		return c, nil
	case <-l.net.closed:
		return nil, errListenerClosed
	}
}

func (l *listener) Close() error {
	l.net.close()
	return nil
}

func (l *listener) Addr() net.Addr { return l.addr }
