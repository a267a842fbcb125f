package admin

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener of connections within the test.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// Whoever sends slowly, or not at all, does not hold a connection for long.
func TestSlowRequests(t *testing.T) {
	for name, test := range map[string]struct {
		sent string
		most time.Duration
	}{
		"nothing":              {"", headerTimeout},
		"half a line":          {"GET /heal", headerTimeout},
		"no end of the header": {"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ", headerTimeout},
		"half a body":          {"PUT /v1/log-level HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n{\"level\"", readTimeout},
		"an idle connection":   {"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", idleTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				l := &pipes{make(chan net.Conn), make(chan struct{})}
				served := make(chan error, 1)
				go func() { served <- Serve(ctx, l, whole()) }()
				client, server := net.Pipe()
				l.conns <- server
				begun := time.Now()
				go io.WriteString(client, test.sent) // an error means that the server has hung up
				answer, err := io.ReadAll(client)
				if err != nil && !errors.Is(err, io.ErrClosedPipe) {
					t.Fatal(err)
				}
				if took := time.Since(begun); took > test.most+time.Second {
					t.Errorf("the connection was held for %v, want at most %v", took, test.most)
				}
				if text := string(answer); text != "" && !strings.HasPrefix(text, "HTTP/1.1 ") {
					t.Errorf("the answer is %q", text)
				}
				cancel()
				if err := <-served; err != nil && !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
			})
		})
	}
}
