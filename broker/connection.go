package broker

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// connection is one client. Its reader decides on requests one after the other
// and hands what they come to to its writer, which waits for it and sends it,
// in order: so the produces that a client has in flight share a sync.
type connection struct {
	b      *Broker
	inside bool // over memory, from this process
	conn   net.Conn
	in     *bufio.Reader
	client string // how it calls itself in its last request
	login  login

	requests *budget // of bytes of requests in flight
	ahead    ahead   // the writer's

	once sync.Once
}

// answersInFlight is how many answers of one connection may wait. Its reader
// then waits too.
const answersInFlight = 32

// Connections from outside that say nothing that long are closed, as Kafka's
// are; clients make new ones.
const idleTime = 10 * time.Minute

// writeTime is how long a client may take to take a piece of an answer.
const (
	writeTime  = 30 * time.Second
	writePiece = 256 << 10
)

// accept serves the connections of a listener until it closes.
func (b *Broker) accept(l net.Listener, inside bool) {
	for {
		conn, err := l.Accept()
		if err != nil {
			if b.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			// There may be too many open files. Those who are connected go on.
			b.config.Logger.Error("accept a connection", "error", err)
			t := time.NewTimer(100 * time.Millisecond)
			select {
			case <-t.C:
				continue
			case <-b.ctx.Done():
				t.Stop()
				return
			}
		}
		if c := b.connect(conn, inside); c == nil {
			_ = conn.Close() // there are too many, or no broker any more
		}
	}
}

// connect begins to serve a connection, unless there are too many.
func (b *Broker) connect(conn net.Conn, inside bool) *connection {
	if b.config.TLS != nil && !inside {
		conn = tls.Server(conn, b.config.TLS)
	}
	c := &connection{b: b, inside: inside, conn: conn, in: bufio.NewReaderSize(conn, 16<<10), requests: b.requests}
	if inside {
		c.requests = b.ownRequests // whoever is outside can't use them up
	}
	b.mu.Lock()
	if b.mu.closed || b.ctx.Err() != nil {
		b.mu.Unlock()
		return nil
	}
	if room, say := b.roomLocked(inside); !room {
		n, refused := len(b.mu.connections), b.mu.refused
		b.mu.Unlock()
		if say {
			b.config.Logger.Warn("a connection is refused: there are too many", "dir", b.dir, "connections", n, "refused", refused,
				"max.connections", b.settings.number("max.connections"), "max for the limit of open files", b.files.connections)
		}
		return nil
	}
	defer b.mu.Unlock()
	b.mu.connections[c] = struct{}{}
	if !inside {
		b.mu.outside++
	}
	b.wg.Go(c.serve)
	return c
}

func (c *connection) close() {
	c.once.Do(func() {
		if t, ok := c.conn.(*tls.Conn); ok {
			// Its own Close waits to say goodbye to a client that may not listen.
			_ = t.NetConn().Close()
			return
		}
		_ = c.conn.Close()
	})
}

func (c *connection) serve() {
	ctx, cancel := context.WithCancel(c.b.ctx)
	defer context.AfterFunc(ctx, c.close)() // which ends the reader, whoever is done first
	answers := make(chan sending, answersInFlight)
	var written sync.WaitGroup
	written.Go(func() {
		c.write(ctx, answers)
		cancel()
		for s := range answers { // what is not sent any more
			c.drop(s)
		}
	})
	err := c.read(ctx, answers)
	cancel()
	close(answers)
	written.Wait()
	c.ahead.drop()
	c.close()
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && c.b.ctx.Err() == nil {
		c.b.config.Logger.Debug("connection ends", "client", c.client, "from", c.conn.RemoteAddr().String(), "error", err)
	}
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	delete(c.b.mu.connections, c)
	if !c.inside {
		c.b.mu.outside--
	}
}

// sending is an answer on its way, and the request that it is to.
type sending struct {
	frame  *frame
	answer answer
}

func (c *connection) read(ctx context.Context, answers chan<- sending) error {
	for {
		f, err := c.readFrame(ctx)
		if err != nil {
			return err
		}
		c.client = f.clientID
		c.b.latency.requests.Add(1)
		a, err := c.handle(f)
		if err != nil {
			c.drop(sending{f, a})
			return err
		}
		f.decoded()
		select {
		case answers <- sending{f, a}:
		case <-ctx.Done():
			c.drop(sending{f, a})
			return ctx.Err()
		}
	}
}

// handle decides on a request. A panic costs the connection alone, unless it
// is a broken invariant: then what it left half done must not be gone on with.
func (c *connection) handle(f *frame) (a answer, err error) {
	defer func() {
		if r := recover(); r != nil {
			c.b.fail(fmt.Errorf("%w: %s: %v\n%s", ErrFatal, kmsg.NameForKey(f.key), r, debug.Stack()))
			if invariants.Enabled {
				panic(r)
			}
			err = ErrFatal
		}
	}()
	if f.unsupported {
		return c.b.unsupportedVersions(c), nil
	}
	return apis[f.key].handle(c.b, c, f.req), nil
}

// drop gives back what an answer that is sent, or can't be, has taken.
func (c *connection) drop(s sending) {
	if s.answer.release != nil {
		s.answer.release()
	}
	s.frame.from.give(s.frame.weight)
}

func (c *connection) write(ctx context.Context, answers <-chan sending) {
	var buf []byte
	var beside sync.WaitGroup
	defer beside.Wait()
	for s := range answers {
		beside.Wait() // what goes on beside an answer is done before the next one is begun
		if wait := s.answer.wait; wait != nil {
			s.answer = c.await(ctx, s.frame, wait)
		}
		err := c.b.durable(s.answer.round)
		if err == nil && s.answer.resp == nil {
			err = ErrClosed
		}
		if fn := s.answer.beside; err == nil && fn != nil && len(answers) == 0 {
			beside.Go(func() { c.guard(s.frame.key, func() { fn(ctx) }) })
		}
		if err == nil && !s.answer.silent {
			if f, ok := s.answer.resp.(*fetched); ok {
				buf, err = c.sendFetched(buf, s.frame, f)
			} else {
				buf = appendResponse(buf[:0], s.frame, s.answer.resp)
				err = c.send(buf)
			}
			if cap(buf) > 1<<20 {
				buf = nil
			}
		}
		c.drop(s)
		if err != nil || s.answer.last {
			return
		}
	}
}

// await waits for an answer.
func (c *connection) await(ctx context.Context, f *frame, wait func(context.Context) answer) (a answer) {
	c.guard(f.key, func() { a = wait(ctx) })
	return a
}

// guard runs what reads for an answer, and changes nothing: a panic in it costs
// that alone.
func (c *connection) guard(key int16, fn func()) {
	defer func() {
		if r := recover(); r != nil {
			if invariants.Enabled {
				panic(r)
			}
			c.b.config.Logger.Error("answer a request", "request", kmsg.NameForKey(key), "panic", r, "stack", string(debug.Stack()))
		}
	}()
	fn()
}

func appendResponse(dst []byte, f *frame, resp kmsg.Response) []byte {
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(f.correlation))
	if resp.IsFlexible() && f.key != int16(kmsg.ApiVersions) {
		dst = append(dst, 0)
	}
	dst = resp.AppendTo(dst)
	binary.BigEndian.PutUint32(dst, uint32(len(dst)-4))
	return dst
}

// sendFetched sends the answer to a fetch, records and what is between them in
// turn.
func (c *connection) sendFetched(buf []byte, f *frame, resp *fetched) ([]byte, error) {
	var err error
	size := 0
	count := func(dst []byte, b *blocks) []byte {
		size += len(dst) + int(b.size)
		return dst[:0]
	}
	begin := func() []byte {
		dst := binary.BigEndian.AppendUint32(append(buf[:0], 0, 0, 0, 0), uint32(f.correlation))
		if resp.IsFlexible() {
			dst = append(dst, 0)
		}
		return dst
	}
	size += len(resp.encode(begin(), count)) - 4
	buf = begin()
	binary.BigEndian.PutUint32(buf, uint32(size))
	buf = resp.encode(buf, func(dst []byte, b *blocks) []byte {
		if len(b.pieces) == 0 {
			return dst
		}
		if err == nil {
			err = c.send(dst)
		}
		for _, p := range b.pieces {
			if err == nil {
				err = c.send(p)
			}
		}
		return dst[:0]
	})
	if err == nil {
		err = c.send(buf)
	}
	return buf, err
}

// send writes an answer, piece by piece, so that a client that takes them slowly
// is told from one that takes none.
func (c *connection) send(buf []byte) error {
	for len(buf) > 0 {
		if err := c.conn.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
			return err
		}
		n, err := c.conn.Write(buf[:min(len(buf), writePiece)])
		if err != nil {
			return err
		}
		buf = buf[n:]
	}
	return nil
}

// setReadTime says how long the next read may take. A connection within the
// process never ends for want of words.
func (c *connection) setReadTime(d time.Duration) error {
	if c.inside {
		return nil
	}
	return c.conn.SetReadDeadline(time.Now().Add(d))
}

func (c *connection) idleTime() time.Duration {
	if !c.authenticated() {
		return frameTime
	}
	return idleTime
}

func (c *connection) authenticated() bool { return c.inside || !c.b.sasl.required() || c.login.done }

func (c *connection) clientID() string { return c.client }

// host is where the client is, as tools show it.
func (c *connection) host() string {
	host, _, err := net.SplitHostPort(c.conn.RemoteAddr().String())
	if err != nil || c.inside {
		return "/127.0.0.1"
	}
	return "/" + host
}
