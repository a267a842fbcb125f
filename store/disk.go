package store

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/pawlstream/pawl/internal/invariants"
)

// disk is the file system that a database is given. A write that finds no space
// waits here until there is some, and so does what finds no file descriptor: the
// storage library, which would end the process or try again without pause, never
// sees the error. Reads of what is open go on meanwhile.
//
//	            no space                      space again
//	writing ───────────────► waiting ───────────────────────► writing
//	   │                        │ interrupt
//	   │ fatal error, interrupt ▼
//	   └────────────────────► frozen
//
// A frozen disk takes every write as if it had been done and does none, so that
// what is on disk stays as a power cut at that moment would leave it, while the
// storage library, none the wiser, can be closed in good order.
type disk struct {
	vfs.FS
	onFull func(full bool, path string, err error)
	after  func(time.Duration) (passed <-chan time.Time, stop func())

	failed atomic.Bool // after a fatal error, or one of a background write

	frozen      chan struct{}   // closed by freeze
	interrupted chan struct{}   // closed by interrupt
	giveUp      <-chan struct{} // closed by whoever opened the database, perhaps
	closing     chan struct{}   // closed when the database begins to close

	mu struct {
		sync.Mutex
		frozen      bool
		interrupted bool
		waiting     int  // what waits for space, or for a file descriptor
		told        bool // what onFull was last told
		telling     bool // a goroutine is in onFull
		path        string
		err         error
	}
}

// How long a write waits before it tries again: doubling from the first to the
// last.
const (
	fullWaitMin = 50 * time.Millisecond
	fullWaitMax = time.Second
)

func newDisk(fs vfs.FS, onFull func(bool, string, error)) *disk {
	if onFull == nil {
		onFull = func(bool, string, error) {}
	}
	return &disk{
		FS:          fs,
		onFull:      onFull,
		after:       timeAfter,
		frozen:      make(chan struct{}),
		interrupted: make(chan struct{}),
		closing:     make(chan struct{}),
	}
}

func timeAfter(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

// interrupt makes writes stop waiting for space, now and later: the next one, or
// the one that waits, freezes the disk.
func (d *disk) interrupt() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.mu.interrupted {
		d.mu.interrupted = true
		close(d.interrupted)
	}
}

func (d *disk) freeze() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.mu.frozen {
		d.mu.frozen = true
		close(d.frozen)
	}
}

func (d *disk) isFrozen() bool {
	select {
	case <-d.frozen:
		return true
	default:
		return false
	}
}

// isOver says whether the time to write is over.
func (d *disk) isOver() bool {
	select {
	case <-d.interrupted:
		return true
	case <-d.giveUp:
		return true
	default:
		return false
	}
}

func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// OutOfFiles says whether an error is that the process, or the machine, has as
// many files and connections open as it may have.
func OutOfFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// passes says whether an error is of what the machine is short of now, and may
// have again.
func passes(err error) bool { return isFull(err) || OutOfFiles(err) || errors.Is(err, syscall.EROFS) }

// do runs a write until it meets another error than one that passes, or none. It
// reports whether the write was swallowed by a frozen disk.
func (d *disk) do(path string, write func() error) (swallowed bool, err error) {
	if d.isFrozen() {
		return true, nil
	}
	if !d.isOver() {
		if ended, err := d.retry(path, write); !ended {
			return false, err
		}
	}
	d.freeze()
	return true, nil
}

// look runs what writes nothing until it meets another error than one that
// passes, or none, or waiting has ended.
func (d *disk) look(path string, read func() error) error {
	_, err := d.retry(path, read)
	return err
}

// retry runs op until it meets another error than one that passes, or none. It
// reports whether waiting has ended before.
func (d *disk) retry(path string, op func() error) (ended bool, err error) {
	err = op()
	if !passes(err) {
		return false, err
	}
	d.wait(path, err, 1)
	defer func() { d.wait(path, err, -1) }()
	for pause := fullWaitMin; ; pause = min(2*pause, fullWaitMax) {
		passed, stop := d.after(pause)
		select {
		case <-passed:
		case <-d.frozen:
			stop()
			return true, err
		case <-d.interrupted:
			stop()
			return true, err
		case <-d.giveUp:
			stop()
			return true, err
		}
		if err = op(); !passes(err) {
			return false, err
		}
	}
}

// wait counts what waits, and tells of the first and of the end of
// the last. One goroutine tells at a time, without the lock, and goes on until
// what it told is so: full and no longer full arrive in this order.
func (d *disk) wait(path string, err error, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.waiting += n
	if n > 0 {
		d.mu.path, d.mu.err = path, err
	}
	for !d.mu.telling && d.mu.told != (d.mu.waiting > 0) {
		d.mu.told = d.mu.waiting > 0
		d.mu.telling = true
		full, path, err := d.mu.told, d.mu.path, d.mu.err
		d.mu.Unlock()
		if !full {
			err = nil
		}
		d.onFull(full, path, err)
		d.mu.Lock()
		d.mu.telling = false
	}
}

// file wraps what a write opened. A swallowed one gets a file of nothing.
func (d *disk) file(name string, swallowed bool, f vfs.File, err error) (vfs.File, error) {
	if swallowed {
		return &diskFile{File: vfs.NewMemFile(nil), disk: d, name: name}, nil
	}
	if err != nil {
		return nil, err
	}
	return &diskFile{File: f, disk: d, name: name}, nil
}

func (d *disk) Create(name string, c vfs.DiskWriteCategory) (f vfs.File, err error) {
	if d.failed.Load() {
		// The storage library tries again and again to write what it can't, a
		// new file each time: not without a pause.
		passed, stop := timeAfter(fullWaitMin)
		select {
		case <-passed:
		case <-d.closing:
			stop()
		}
	}
	swallowed, err := d.do(name, func() error {
		if err := invariants.Fault("create", name); err != nil {
			return err
		}
		f, err = d.FS.Create(name, c)
		return err
	})
	return d.file(name, swallowed, f, err)
}

func (d *disk) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (f vfs.File, err error) {
	swallowed, err := d.do(name, func() error { f, err = d.FS.OpenReadWrite(name, c, opts...); return err })
	return d.file(name, swallowed, f, err)
}

func (d *disk) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (f vfs.File, err error) {
	swallowed, err := d.do(name, func() error { f, err = d.FS.ReuseForWrite(old, name, c); return err })
	return d.file(name, swallowed, f, err)
}

// Open opens a file to be read.
func (d *disk) Open(name string, opts ...vfs.OpenOption) (f vfs.File, err error) {
	err = d.look(name, func() error {
		if err := invariants.Fault("open", name); err != nil {
			return err
		}
		f, err = d.FS.Open(name, opts...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &diskFile{File: f, disk: d, name: name}, nil
}

func (d *disk) OpenDir(name string) (f vfs.File, err error) {
	err = d.look(name, func() error { f, err = d.FS.OpenDir(name); return err })
	return d.file(name, false, f, err)
}

func (d *disk) List(dir string) (names []string, err error) {
	err = d.look(dir, func() error { names, err = d.FS.List(dir); return err })
	return names, err
}

func (d *disk) Link(old, name string) error {
	_, err := d.do(name, func() error { return d.FS.Link(old, name) })
	return err
}

func (d *disk) Rename(old, name string) error {
	_, err := d.do(name, func() error { return d.FS.Rename(old, name) })
	return err
}

func (d *disk) Remove(name string) error {
	_, err := d.do(name, func() error { return d.FS.Remove(name) })
	return err
}

func (d *disk) RemoveAll(name string) error {
	_, err := d.do(name, func() error { return d.FS.RemoveAll(name) })
	return err
}

func (d *disk) MkdirAll(dir string, perm os.FileMode) error {
	_, err := d.do(dir, func() error { return d.FS.MkdirAll(dir, perm) })
	return err
}

func (d *disk) Lock(name string) (c io.Closer, err error) {
	swallowed, err := d.do(name, func() error { c, err = d.FS.Lock(name); return err })
	if swallowed {
		return io.NopCloser(nil), nil
	}
	return c, err
}

func (d *disk) Unwrap() vfs.FS { return d.FS }

// diskFile is a file of a disk.
type diskFile struct {
	vfs.File
	disk *disk
	name string
}

func (f *diskFile) Read(p []byte) (int, error) {
	if err := invariants.Fault("read", f.name); err != nil {
		return 0, err
	}
	return f.File.Read(p)
}

// ReadAt fails once the time is over: what still reads then, such as a
// compaction, would keep the database from being closed in time.
func (f *diskFile) ReadAt(p []byte, at int64) (int, error) {
	if f.disk.isOver() {
		return 0, &os.PathError{Op: "read", Path: f.name, Err: ErrInterrupted}
	}
	if err := invariants.Fault("read", f.name); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, at)
}

func (f *diskFile) Write(p []byte) (n int, err error) {
	// A write may be cut short by the end of the disk: the rest follows later.
	swallowed, err := f.disk.do(f.name, func() error {
		if err := invariants.Fault("write", f.name); err != nil {
			return err
		}
		m, err := f.File.Write(p[n:])
		n += m
		return err
	})
	if swallowed {
		return len(p), nil
	}
	return n, err
}

func (f *diskFile) WriteAt(p []byte, at int64) (n int, err error) {
	swallowed, err := f.disk.do(f.name, func() error {
		m, err := f.File.WriteAt(p[n:], at+int64(n))
		n += m
		return err
	})
	if swallowed {
		return len(p), nil
	}
	return n, err
}

// Preallocate is a hint. What it can't have now, a write waits for.
func (f *diskFile) Preallocate(at, n int64) error {
	if f.disk.isFrozen() {
		return nil
	}
	if err := f.File.Preallocate(at, n); !isFull(err) {
		return err
	}
	return nil
}

// Sync and its kin are not tried again: after one that failed, a second may
// succeed without the data. A full disk shows at the write on every file system
// that reserves space then; where it shows at the sync, the file is lost. The
// storage library writes a table anew, and gives up, which marks the database
// for discard, only if it was the manifest.
func (f *diskFile) Sync() error {
	if f.disk.isFrozen() {
		return nil
	}
	if err := invariants.Fault("sync", f.name); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *diskFile) SyncData() error {
	if f.disk.isFrozen() {
		return nil
	}
	if err := invariants.Fault("sync", f.name); err != nil {
		return err
	}
	return f.File.SyncData()
}

func (f *diskFile) SyncTo(n int64) (full bool, err error) {
	if f.disk.isFrozen() {
		return true, nil
	}
	if err := invariants.Fault("sync", f.name); err != nil {
		return false, err
	}
	return f.File.SyncTo(n)
}
