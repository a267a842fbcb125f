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
	// OnDiskFull is called with full when a write begins to wait for space, or for
	// a disk that can be written to, or anything for a file descriptor (OutOfFiles
	// tells), and without when the last one has gone on. path and err are those of
	// one that waits. It is called from whatever goroutine that is, and must not
	// call back.
	OnDiskFull func(full bool, path string, err error)
	// Interrupt, when closed, ends all writing and waiting, as Owner.Interrupt
	// does: it is how an Open that waits is stopped. Nil never does.
	Interrupt <-chan struct{}
	// OnFailing is called when a write that nobody waits for has failed: the disk
	// is broken, and Owner.Failure says so from now on. It must neither wait nor
	// call back.
	OnFailing func(error)
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
	if c.OnFailing == nil {
		c.OnFailing = func(error) {}
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
