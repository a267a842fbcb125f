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

	// Dial opens the connections, in place of the operating system's network
	// and below TLS. The in-process broker is reached by it.
	Dial func(ctx context.Context, network, address string) (net.Conn, error) `json:"-"`
}

// The SASL mechanisms.
const (
	Plain       = "PLAIN"
	ScramSHA256 = "SCRAM-SHA-256"
	ScramSHA512 = "SCRAM-SHA-512"
)

// SASL names who connects. Its password appears in no log, no error and no
// JSON. Package fmt prints what is in an unexported field without asking it, so
// a struct that keeps a SASL or a Cluster in one must have a String method of
// its own.
type SASL struct {
	Mechanism string // Plain, ScramSHA256 or ScramSHA512; empty for none
	Username  string
	Password  string `json:"-"`
}

// Validate reports everything that is wrong with the cluster's settings.
func (c Cluster) Validate() error {
	var errs []error
	if len(c.Brokers) == 0 {
		errs = append(errs, errors.New("no brokers are named"))
	}
	for _, b := range c.Brokers {
		if !validAddress(b) {
			errs = append(errs, fmt.Errorf("broker %q: want HOST:PORT", b))
		}
	}
	switch c.SASL.Mechanism {
	case "":
		if c.SASL.Username != "" || c.SASL.Password != "" {
			errs = append(errs, errors.New("a SASL user name or password is set, and no mechanism"))
		}
	case Plain, ScramSHA256, ScramSHA512:
		if c.SASL.Username == "" {
			errs = append(errs, fmt.Errorf("SASL %s needs a user name", c.SASL.Mechanism))
		}
		if c.SASL.Password == "" {
			errs = append(errs, fmt.Errorf("SASL %s needs a password", c.SASL.Mechanism))
		}
		if strings.ContainsAny(c.SASL.Password, "\r\n") {
			errs = append(errs, errors.New("the SASL password holds a line break (read from a file that ends with one?)"))
		}
	default:
		errs = append(errs, fmt.Errorf("SASL mechanism %q: want %s, %s or %s", c.SASL.Mechanism, Plain, ScramSHA256, ScramSHA512))
	}
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
		s += fmt.Sprintf(" as %s by SASL %s", c.SASL.Username, c.SASL.Mechanism)
	}
	return s
}

// LogValue is what a log shows of the cluster: what String says.
func (c Cluster) LogValue() slog.Value { return slog.StringValue(c.String()) }

// String hides the password.
func (s SASL) String() string {
	if s.Mechanism == "" {
		return "none"
	}
	return s.Mechanism + " user " + s.Username
}

// GoString hides the password.
func (s SASL) GoString() string { return "cluster.SASL{" + s.String() + "}" }

// LogValue hides the password.
func (s SASL) LogValue() slog.Value { return slog.StringValue(s.String()) }
