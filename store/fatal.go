package store

import (
	"fmt"
	"sync/atomic"
)

// failure is the first error that the disk has met, in a read or in a write that
// nobody waits for.
type failure struct {
	err atomic.Pointer[error]
	met chan struct{} // closed then
}

func newFailure() *failure { return &failure{met: make(chan struct{})} }

// note reports whether err is the first.
func (f *failure) note(err error) bool {
	first := f.err.CompareAndSwap(nil, &err)
	if first {
		close(f.met)
	}
	return first
}

// pebbleLogger is where the storage library logs. What it takes for fatal must
// not end the process from inside a library: it fails this database alone.
type pebbleLogger struct{ o *Owner }

func (l pebbleLogger) Infof(format string, args ...any) {
	l.o.config.Logger.Debug(fmt.Sprintf(format, args...), "dir", l.o.config.Dir)
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.o.config.Logger.Warn(fmt.Sprintf(format, args...), "dir", l.o.config.Dir)
}

// Fatalf is called where the storage library doesn't know how to go on: the
// usual reason is that a write of its manifest failed. From here on the disk is
// frozen, so that whatever it does after this returns changes nothing; the
// files are marked for discard; and the owner's calls answer ErrFatal.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.o.fail(fmt.Errorf("%w: %s", ErrFatal, fmt.Sprintf(format, args...)))
}

// fail records the first fatal error. It may be called with the storage
// library's locks held, so OnFatal gets a goroutine of its own, which Close
// waits for.
func (o *Owner) fail(err error) {
	o.fatal.Lock()
	defer o.fatal.Unlock()
	if o.disk.isFrozen() {
		// Either this is not the first, or Interrupt had frozen the disk: then
		// the storage library misses files that it thinks it wrote, and the
		// ones on disk are whole.
		o.config.Logger.Debug("storage library complains after its end", "dir", o.config.Dir, "error", err)
		return
	}
	o.disk.freeze()
	o.disk.failed.Store(true)
	o.fatal.err = err
	close(o.fatal.met)
	o.config.Logger.Error("database met a fatal error and is marked for discard", "dir", o.config.Dir, "error", err)
	if e := mark(o.config.fs, o.config.Dir, err); e != nil {
		// Nothing more can be done here. It may open well at an older position,
		// or not open: a restart finds out which.
		o.config.Logger.Error("database can't be marked for discard", "dir", o.config.Dir, "error", e)
	}
	o.fatal.told.Go(func() { o.config.OnFatal(err) })
}

func (o *Owner) fatalError() error {
	o.fatal.Lock()
	defer o.fatal.Unlock()
	return o.fatal.err
}

// backgroundError is told, with the storage library's locks held, that a flush
// or a compaction failed, which the library tries again at once and for ever. The
// owner hears of it, and until it closes the database the trying is slow.
func (o *Owner) backgroundError(err error) {
	o.disk.failed.Store(true)
	o.compactions.hold()
	if o.failure.note(err) {
		o.config.Logger.Error("background write failed", "dir", o.config.Dir, "error", err)
		o.config.OnFailing(err)
	}
}
