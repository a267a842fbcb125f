package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable/block"
)

// pebbleFormat is the format of the files on disk. Raising it needs a release
// that has read the new one before.
const pebbleFormat = pebble.FormatValueSeparation

// Open opens the database in a directory, or makes a new one. One that is
// marked for discard is removed first: see Discarded.
func Open(c Config) (*Owner, error) {
	c = c.withDefaults()
	o, err := open(c)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", c.Dir, err)
	}
	return o, nil
}

func open(c Config) (_ *Owner, err error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	o := &Owner{config: c, failure: newFailure()}
	o.fatal.met = make(chan struct{})
	o.disk = newDisk(c.fs, c.OnDiskFull)
	if c.after != nil {
		o.disk.after = c.after
	}
	o.disk.giveUp = c.Interrupt
	if err := o.disk.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, err
	}
	if o.discarded, err = isMarked(c.fs, c.Dir); err != nil {
		return nil, err
	}
	if o.discarded {
		c.Logger.Warn("database is marked for discard and begins empty", "dir", c.Dir)
		if err := discard(c.fs, c.Dir); err != nil {
			return nil, err
		}
		if err := o.disk.MkdirAll(c.Dir, 0o755); err != nil {
			return nil, err
		}
	}

	budget := c.Budget
	if budget == nil {
		budget = NewBudget(budgetDefault)
		budget.Expect(1)
		o.budget = budget
	}
	defer func() {
		if err != nil {
			if o.size > 0 {
				budget.giveBack(o.size)
			}
			o.closeBudget()
			o.fatal.told.Wait()
		}
	}()
	var tight bool
	if o.size, tight = budget.take(c.Options.MemTableSize); tight {
		c.Logger.Warn("the memory budget has no room for another database: all of them are slower", "dir", c.Dir, "budget", budget.bytes)
	}

	o.compactions = newCompactions()
	opts := o.pebbleOptions(budget)
	if err := checkVersion(c, opts); err != nil {
		if e := o.ended(); e != nil {
			return nil, e // what a disk says that has stopped is no damage
		}
		return nil, err
	}
	db, err := pebble.Open(c.Dir, opts)
	if e := o.ended(); e != nil {
		if db != nil {
			// What was opened after the disk froze is nothing to look at.
			_ = db.Close()
		}
		return nil, e
	}
	if err != nil {
		return nil, openError(err)
	}
	o.d = newDatabase(c.Dir, db)
	o.d.settle, o.d.settled = o.settle, func() bool { return !o.pending.any.Load() }
	o.d.now, o.d.failure = c.Now, o.failure
	filters := c.Options.TableCache / 4
	o.d.exists.max = max(filters/2, filterFloor) // two, while one is made anew
	o.pending.limit = o.size / 2
	o.db.o = o
	o.tx = newTransaction(o.d, db, c.Options.TableCache-filters)
	o.tx.merge = c.Options.Merge
	if err := o.readOwn(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return o, nil
}

// readOwn reads the position, and gives a new database its version. Neither is
// on disk before the first flush, and without it the database is new again.
func (o *Owner) readOwn() (err error) {
	if o.meta, err = o.d.own(keyMeta); err != nil {
		return err
	}
	version, err := o.d.own(keyVersion)
	if err != nil || version != nil {
		return err
	}
	return o.d.db.Set(keyVersion, binary.AppendUvarint(nil, formatVersion), pebble.NoSync)
}

// checkVersion reads the version of a database that exists, without a change
// to it, and refuses one newer than ours.
func checkVersion(c Config, opts *pebble.Options) error {
	desc, err := pebble.Peek(c.Dir, opts.FS)
	if err != nil {
		return openError(err)
	}
	if !desc.Exists {
		return nil
	}
	if desc.FormatMajorVersion > pebbleFormat {
		return fmt.Errorf("%w: its files have version %d, this program knows %d", ErrNewerFormat, desc.FormatMajorVersion, pebbleFormat)
	}
	ro := *opts
	ro.ReadOnly = true
	ro.FormatMajorVersion = desc.FormatMajorVersion
	ro.Experimental.CompactionScheduler = newCompactions() // it ends with its database
	db, err := pebble.Open(c.Dir, &ro)
	if err != nil {
		return openError(err)
	}
	d := newDatabase(c.Dir, db)
	b, err := d.own(keyVersion)
	if err := errors.Join(err, db.Close()); err != nil {
		return openError(err)
	}
	if b == nil {
		return nil // a crash came before its first flush
	}
	v, w := binary.Uvarint(b)
	if w != len(b) {
		return fmt.Errorf("%w: its version is %x", ErrCorrupt, b)
	}
	if v > formatVersion {
		return fmt.Errorf("%w: version %d, this program knows %d", ErrNewerFormat, v, formatVersion)
	}
	return nil
}

// openError says in the package's words why a database does not open. The
// storage library has no one error for files that are missing, cut short, or not
// what their names say. So what the machine or another version is not to blame
// for is damage: at worst, a copy that was whole is restored once more.
func openError(err error) error {
	text := err.Error()
	switch {
	case errors.Is(err, ErrInUse), errors.Is(err, ErrCorrupt), errors.Is(err, ErrNewerFormat), errors.Is(err, ErrInterrupted), errors.Is(err, ErrFatal):
		return err
	case isLocked(err):
		return fmt.Errorf("%w: %w", ErrInUse, err)
	case strings.Contains(text, "written in unknown format"), strings.Contains(text, "unknown format major version"): // of the storage library's own files
		return fmt.Errorf("%w: %w", ErrNewerFormat, err)
	case !pebble.IsCorruptionError(err) && ofTheMachine(err):
		return err
	}
	return fmt.Errorf("%w: %w", ErrCorrupt, err)
}

// ofTheMachine says whether an error is about what the process may and can do,
// not about what the files hold.
func ofTheMachine(err error) bool {
	for _, e := range []error{syscall.EACCES, syscall.EPERM, syscall.EROFS, syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EIO,
		syscall.ENAMETOOLONG, syscall.ENOTDIR, syscall.ELOOP, syscall.ENODEV, syscall.ENXIO, syscall.ESTALE, syscall.EBUSY, syscall.EINTR, syscall.ETIMEDOUT, syscall.ENODATA, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (o *Owner) pebbleOptions(b *Budget) *pebble.Options {
	c := o.config.Options
	p := &pebble.Options{
		FS:                          o.disk,
		Logger:                      pebbleLogger{o},
		Cache:                       b.cache,
		DisableWAL:                  true, // the changelog is the log
		FormatMajorVersion:          pebbleFormat,
		MemTableSize:                uint64(o.size),
		MemTableStopWritesThreshold: memTables,
		// Writes stop at the memtables' limit alone: a shard that restores
		// outruns its compactions for a while, and catches up after. A small
		// database that changes fast is rewritten whole by each of them, so they
		// begin late: the first level has filters like the others.
		L0CompactionThreshold: 8,
		L0StopWritesThreshold: 1000,
		LBaseMaxBytes:         64 << 20,
		MaxOpenFiles:          b.files(),
		// One compaction at a time for each database: there are many.
		CompactionConcurrencyRange: func() (int, int) { return 1, 2 },
	}
	p.Experimental.FileCacheShards = 1
	p.Experimental.CompactionScheduler = o.compactions
	p.EventListener = &pebble.EventListener{
		BackgroundError: o.backgroundError,
		// Whether a read or a compaction met it, what the file held is gone
		// here and whole in the changelog.
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			o.fail(fmt.Errorf("%w: %w: %s", ErrFatal, ErrCorrupt, info))
		},
	}
	profile := block.SnappyCompression
	if c.Compression == NoCompression {
		profile = block.NoCompression
	}
	p.ApplyCompressionSettings(func() pebble.DBCompressionSettings {
		return pebble.UniformDBCompressionSettings(profile)
	})
	for i := range p.Levels {
		p.Levels[i].BlockSize = c.BlockSize
		if c.FilterBits > 0 {
			p.Levels[i].FilterPolicy = bloom.FilterPolicy(c.FilterBits)
		}
	}
	return p
}
