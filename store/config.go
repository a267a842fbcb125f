package store

import (
	"errors"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Config says what Open opens and how.
type Config struct {
	// Dir is the database's directory. It is made if it isn't there.
	Dir string
	// Options tune it.
	Options Options
	// Budget is the memory that the process's databases share. Nil makes a
	// small one for this database alone.
	Budget *Budget
	// Logger hears of what the storage library does. Nil means slog.Default.
	Logger *slog.Logger
	// OnDiskFull is called with full when a write begins to wait for space, and
	// without when the last one has gone on. path and err are those of a write
	// that waits. It is called from whatever goroutine writes, and must not
	// call back.
	OnDiskFull func(full bool, path string, err error)
	// Interrupt, when closed, ends all waiting for disk space, as Owner.Interrupt
	// does: it is how an Open that waits is stopped. Nil never does.
	Interrupt <-chan struct{}
	// OnFatal is called, from a goroutine of its own, when the storage library
	// met what it can't go on after. The database is marked for discard on disk
	// by then, and answers ErrFatal to its owner.
	OnFatal func(error)

	// Now is the clock that tables with a TTL go by. Nil means time.Now.
	Now func() time.Time

	// Tests have a file system and a clock of their own.
	fs    vfs.FS
	after func(time.Duration) (<-chan time.Time, func())
}

func (c Config) withDefaults() Config {
	c.Options = c.Options.withDefaults()
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.OnFatal == nil {
		c.OnFatal = func(error) {}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.fs == nil {
		c.fs = vfs.Default
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("no directory"))
	}
	errs = append(errs, c.Options.validate())
	return errors.Join(errs...)
}
