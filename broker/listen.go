package broker

import (
	"fmt"
	"net"
)

// listen opens the port for other programs, and says what they are told.
func (b *Broker) listen() error {
	l, err := net.Listen("tcp", b.config.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	b.outside = l
	b.address = b.config.Advertise
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	ip := net.ParseIP(host)
	if b.address == "" {
		if ip != nil && ip.IsUnspecified() {
			host = "localhost"
		}
		b.address = net.JoinHostPort(host, port)
	}
	b.config.Logger.Info("broker listens", "address", l.Addr().String(), "advertised", b.address, "tls", b.config.TLS != nil, "users", len(b.config.Users))
	if advertised, _, err := net.SplitHostPort(b.address); err == nil && ip != nil && !ip.IsLoopback() && isLoopback(advertised) {
		b.config.Logger.Warn("clients on other machines are told an address that they can't reach; set the advertised address", "address", l.Addr().String(), "advertised", b.address)
	}
	return nil
}
