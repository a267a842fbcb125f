package broker

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/pawlstream/pawl/cluster"
)

// Config says how a broker runs. Its zero value is a durable broker that only
// this process can reach.
type Config struct {
	// Listen is the HOST:PORT to listen on for other programs. Empty: none.
	// Another address than a loopback one needs SASL users, or Insecure.
	Listen string

	// Advertise is the HOST:PORT that other programs are told to connect to.
	// Empty: the address that is listened on.
	Advertise string

	// TLS, when set, is spoken by whoever connects from outside the process.
	TLS *tls.Config

	// Users, when there are any, are who may connect from outside the process,
	// by SASL PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
	Users []User

	// Insecure lets a broker without users listen where others can reach it.
	Insecure bool

	// Settings are broker settings by Kafka's names, such as
	// "log.retention.ms". They are the defaults of the topics' own.
	Settings map[string]string

	// Unsynced acks what has not been synced to disk: a power cut loses up to
	// the last moments of it, whole writes at a time; a crash of the process
	// loses nothing that was handed to the operating system.
	Unsynced bool

	// Memory bounds what requests and answers in flight, and the storage's
	// caches, take. Default 512 MiB.
	Memory int64

	// FreeSpace is how little space may be left on the disk before produces are
	// refused. Default 256 MiB; negative: none.
	FreeSpace int64

	// Logger hears what the broker has to say. Default slog.Default.
	Logger *slog.Logger

	fs        vfs.FS                              // tests have a file system of their own
	freeSpace func(dir string) (uint64, error)    // and a disk that fills
	janitor   func(b *Broker, stop chan struct{}) // and time that they move by hand
}

// User is who may connect from outside the process.
type User struct {
	Name     string
	Password string `json:"-"`
}

// String hides the password.
func (u User) String() string { return u.Name }

// GoString hides the password.
func (u User) GoString() string { return "broker.User{" + u.Name + "}" }

const (
	memoryDefault    = 512 << 20
	memoryMin        = 64 << 20
	freeSpaceDefault = 256 << 20
)

func (c Config) withDefaults() Config {
	if c.Memory == 0 {
		c.Memory = memoryDefault
	}
	if c.FreeSpace == 0 {
		c.FreeSpace = freeSpaceDefault
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.fs == nil {
		c.fs = vfs.Default
		if c.freeSpace == nil {
			c.freeSpace = freeSpace
		}
	}
	if c.janitor == nil {
		c.janitor = (*Broker).clean
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Memory < memoryMin {
		errs = append(errs, fmt.Errorf("memory of %d bytes: want at least %d (%d MiB)", c.Memory, memoryMin, memoryMin>>20))
	}
	if c.Listen != "" {
		host, _, err := net.SplitHostPort(c.Listen)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("listen %q: want HOST:PORT", c.Listen))
		case !isLoopback(host) && len(c.Users) == 0 && !c.Insecure:
			errs = append(errs, fmt.Errorf("listen %q: others can reach this address, and nobody has to say who they are; set users, or insecure", c.Listen))
		}
	} else if c.Advertise != "" {
		errs = append(errs, fmt.Errorf("advertise %q: the broker does not listen", c.Advertise))
	}
	if c.Advertise != "" {
		if host, port, err := net.SplitHostPort(c.Advertise); err != nil || host == "" || port == "" || port == "0" {
			errs = append(errs, fmt.Errorf("advertise %q: want HOST:PORT", c.Advertise))
		}
	}
	names := make(map[string]bool)
	for _, u := range c.Users {
		switch {
		case u.Name == "":
			errs = append(errs, errors.New("a user has no name"))
		case u.Password == "":
			errs = append(errs, fmt.Errorf("user %q has no password", u.Name))
		case names[u.Name]:
			errs = append(errs, fmt.Errorf("user %q is named twice", u.Name))
		}
		names[u.Name] = true
	}
	if _, err := newSettings(c.Settings); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// mechanisms are what users may authenticate by.
var mechanisms = []string{cluster.Plain, cluster.ScramSHA256, cluster.ScramSHA512}

func knownMechanism(m string) bool { return slices.Contains(mechanisms, m) }

// now is the time as Kafka tells it, in milliseconds.
func now() int64 { return time.Now().UnixMilli() }
