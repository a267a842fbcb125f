// Package cluster says how to reach a Kafka cluster. A [Cluster] is part of
// every configuration of Pawl that needs a broker.
package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
)

// Cluster says how to reach the brokers of one Kafka cluster. The zero value
// names no brokers.
type Cluster struct {
	// Brokers are the addresses to start from, each a host and a port. One
	// that answers is enough: it names the others.
	Brokers []string

	// TLS, when set, encrypts every connection. The server name is taken from
	// the address of each broker unless it is set here.
	TLS *tls.Config `json:"-"`

	// SASL, when its mechanism is set, authenticates every connection.
	SASL SASL

	// OneBroker says that the cluster is one broker, and never more: that what it
	// holds is there once is no mistake. The in-process broker says so.
	OneBroker bool `json:"-"`

	// Dial opens the connections, in place of the operating system's network
	// and below TLS. The in-process broker is reached by it.
	Dial func(ctx context.Context, network, address string) (net.Conn, error) `json:"-"`
}

// Validate reports everything that is wrong with the cluster's settings.
func (c Cluster) Validate() error {
	var errs []error
	if len(c.Brokers) == 0 {
		errs = append(errs, fieldError{"Brokers", errors.New("no brokers are named")})
	}
	for _, b := range c.Brokers {
		if !validAddress(b) {
			errs = append(errs, fieldError{"Brokers", fmt.Errorf("broker %q: want HOST:PORT", b)})
		}
	}
	errs = append(errs, c.SASL.validate()...)
	return errors.Join(errs...)
}

func validAddress(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" || strings.ContainsAny(host, " \t\r\n/@,") {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// String names the brokers and how they are reached, without any secret.
func (c Cluster) String() string {
	s := strings.Join(c.Brokers, ",")
	if c.TLS != nil {
		s += " with TLS"
	}
	if c.SASL.Mechanism != "" {
		if c.SASL.Username != "" {
			s += " as " + c.SASL.Username
		}
		s += " by SASL " + c.SASL.Mechanism
	}
	return s
}

// LogValue is what a log shows of the cluster: what String says.
func (c Cluster) LogValue() slog.Value { return slog.StringValue(c.String()) }

// fieldError is what is wrong with a field.
type fieldError struct {
	field string // as Go names it: SASL.Password
	err   error
}

func (e fieldError) Error() string { return e.err.Error() }
func (e fieldError) Unwrap() error { return e.err }

// Field names the field, for programs that know what set it.
func (e fieldError) Field() string { return e.field }
