package store

import "fmt"

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
	wasFrozen := o.disk.isFrozen()
	o.disk.freeze()
	o.fatal.Lock()
	defer o.fatal.Unlock()
	if o.fatal.err != nil {
		return
	}
	o.fatal.err = err
	close(o.fatal.met)
	o.disk.failed.Store(true)
	if wasFrozen {
		return // Interrupt had ended it before, and left it whole
	}
	o.config.Logger.Error("database met a fatal error and is marked for discard", "dir", o.config.Dir, "error", err)
	if e := mark(o.config.fs, o.config.Dir, err); e != nil {
		// Nothing more can be done here. It may not be opened well, or be opened
		// at an older position: a restart finds out which.
		o.config.Logger.Error("database can't be marked for discard", "dir", o.config.Dir, "error", e)
	}
	o.fatal.told.Add(1)
	go func() {
		defer o.fatal.told.Done()
		o.config.OnFatal(err)
	}()
}

func (o *Owner) fatalError() error {
	o.fatal.Lock()
	defer o.fatal.Unlock()
	return o.fatal.err
}

func (o *Owner) backgroundError(err error) {
	o.config.Logger.Error("background write failed", "dir", o.config.Dir, "error", err)
}
