package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"

	"github.com/pawlstream/pawl/cluster"
)

// tap watches the requests of a client on their way to any cluster, in process
// or real. before is called with each one's API key before it is sent, and
// what it returns is what happens to the request.
type tap struct {
	before func(key int16) fate
	under  func(ctx context.Context, network, address string) (net.Conn, error)
}

type fate int

const (
	pass      fate = iota
	loseReply      // sent, and the connection breaks when its reply comes
	breakOff       // not sent, and the connection breaks
)

// through returns the cluster, reached through a tap.
func (e *env) through(before func(key int16) fate) cluster.Cluster {
	t := &tap{before: before, under: e.cluster.Dial}
	if t.under == nil {
		t.under = (&net.Dialer{}).DialContext
	}
	c := e.cluster
	c.Dial = t.dial
	return c
}

func (t *tap) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := t.under(ctx, network, address)
	if err != nil {
		return nil, err
	}
	tc := &tapped{Conn: c, tap: t}
	tc.mu.lost = make(map[int32]bool)
	return tc, nil
}

// tapped is a connection of a client that writes whole requests.
type tapped struct {
	net.Conn
	tap *tap

	part  []byte // of a request
	reply []byte // of a whole reply: what was not given yet

	mu struct {
		sync.Mutex
		lost map[int32]bool // correlation IDs
	}
}

var errBroken = errors.New("the connection was broken by the test")

func (c *tapped) Write(b []byte) (int, error) {
	c.part = append(c.part, b...)
	for len(c.part) >= 4 && len(c.part) >= 4+int(binary.BigEndian.Uint32(c.part)) {
		n := 4 + int(binary.BigEndian.Uint32(c.part))
		frame := append([]byte(nil), c.part[:n]...)
		c.part = c.part[n:]
		switch c.tap.before(int16(binary.BigEndian.Uint16(frame[4:]))) {
		case breakOff:
			c.Conn.Close()
			return 0, &net.OpError{Op: "write", Net: "tcp", Err: errBroken}
		case loseReply:
			c.mu.Lock()
			c.mu.lost[int32(binary.BigEndian.Uint32(frame[8:]))] = true
			c.mu.Unlock()
		}
		if _, err := c.Conn.Write(frame); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

func (c *tapped) Read(b []byte) (int, error) {
	for len(c.reply) == 0 {
		var head [8]byte
		if err := readFull(c.Conn, head[:]); err != nil {
			return 0, err
		}
		rest := make([]byte, int(binary.BigEndian.Uint32(head[:]))-4)
		if err := readFull(c.Conn, rest); err != nil {
			return 0, err
		}
		c.mu.Lock()
		lost := c.mu.lost[int32(binary.BigEndian.Uint32(head[4:]))]
		c.mu.Unlock()
		if lost {
			c.Conn.Close()
			return 0, &net.OpError{Op: "read", Net: "tcp", Err: net.ErrClosed}
		}
		c.reply = append(head[:], rest...)
	}
	n := copy(b, c.reply)
	c.reply = c.reply[n:]
	return n, nil
}

func readFull(c net.Conn, b []byte) error {
	for len(b) > 0 {
		n, err := c.Read(b)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
