package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/pawlstream/pawl/cluster"
)

// dial opens a connection to a broker below TLS.
func dial(ctx context.Context, c cluster.Cluster, address string) (net.Conn, error) {
	if c.Dial != nil {
		return c.Dial(ctx, "tcp", address)
	}
	d := net.Dialer{Timeout: dialTimeout}
	return d.DialContext(ctx, "tcp", address)
}

// handshake puts TLS on a connection, which it closes when that fails.
func handshake(ctx context.Context, c cluster.Cluster, address string, plain net.Conn) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("broker %q: %w", address, err), plain.Close())
	}
	conn := tls.Client(plain, tlsFor(c.TLS, host))
	if err := conn.HandshakeContext(ctx); err != nil {
		// The handshake's error is the one that says why.
		_ = plain.Close()
		return nil, err
	}
	return conn, nil
}

func (c Config) dialTLS(ctx context.Context, _, address string) (net.Conn, error) {
	conn, err := dial(ctx, c.Cluster, address)
	if err != nil {
		return nil, err
	}
	return handshake(ctx, c.Cluster, address, conn)
}
