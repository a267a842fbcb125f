package broker

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// disk is the file system that the storage library is given. A write that finds
// no space waits here until there is some, so that the library, which would end
// the process or try again without pause, never sees the error; reads go on
// meanwhile. A dead disk takes every write as if it had been done and does none:
// what is there stays as it was when the broker stopped.
type disk struct {
	vfs.FS
	onFull func(full bool, err error)
	dead   chan struct{} // closed by kill
	hurry  chan struct{} // closed when waiting ends in kill

	mu struct {
		sync.Mutex
		dead    bool
		hurry   bool
		waiting int
		told    bool // what onFull heard last
		telling bool
		err     error
	}
}

const (
	fullWaitMin = 20 * time.Millisecond
	fullWaitMax = time.Second
)

func newDisk(fs vfs.FS, onFull func(bool, error)) *disk {
	return &disk{FS: fs, onFull: onFull, dead: make(chan struct{}), hurry: make(chan struct{})}
}

// kill makes the disk dead. What died before it is done first, once.
func (d *disk) kill(before func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.mu.dead {
		d.mu.dead = true
		before()
		close(d.dead)
	}
}

// interrupt gives writes that wait for space, now or later, that long in all.
func (d *disk) interrupt(after time.Duration) {
	d.mu.Lock()
	full := d.mu.waiting > 0
	d.mu.Unlock()
	hurry := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !d.mu.hurry {
			d.mu.hurry = true
			close(d.hurry)
		}
	}
	if !full {
		hurry()
		return
	}
	time.AfterFunc(after, hurry)
}

func (d *disk) isDead() bool {
	select {
	case <-d.dead:
		return true
	default:
		return false
	}
}

func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// do runs a write until it meets another error than a full disk, or none. It
// says whether a dead disk swallowed it.
func (d *disk) do(write func() error) (swallowed bool, err error) {
	if d.isDead() {
		return true, nil
	}
	if err = write(); !isFull(err) {
		return false, err
	}
	d.wait(err, 1)
	defer d.wait(err, -1)
	for pause := fullWaitMin; ; pause = min(2*pause, fullWaitMax) {
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-d.dead:
			t.Stop()
			return true, nil
		case <-d.hurry:
			t.Stop()
			d.kill(func() {})
			return true, nil
		}
		if err = write(); !isFull(err) {
			return false, err
		}
	}
}

// wait counts the writes that wait, and tells of the first and of the end of
// the last. One goroutine tells at a time, without the lock.
func (d *disk) wait(err error, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.waiting += n
	d.mu.err = err
	for !d.mu.telling && d.mu.told != (d.mu.waiting > 0) {
		d.mu.told = d.mu.waiting > 0
		d.mu.telling = true
		full, err := d.mu.told, d.mu.err
		d.mu.Unlock()
		d.onFull(full, err)
		d.mu.Lock()
		d.mu.telling = false
	}
}

// waits says whether a write waits for space.
func (d *disk) waits() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.waiting > 0
}

func (d *disk) file(swallowed bool, f vfs.File, err error) (vfs.File, error) {
	if swallowed {
		return &diskFile{File: vfs.NewMemFile(nil), disk: d}, nil
	}
	if err != nil {
		return nil, err
	}
	return &diskFile{File: f, disk: d}, nil
}

func (d *disk) Create(name string, c vfs.DiskWriteCategory) (f vfs.File, err error) {
	swallowed, err := d.do(func() error { f, err = d.FS.Create(name, c); return err })
	return d.file(swallowed, f, err)
}

func (d *disk) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (f vfs.File, err error) {
	swallowed, err := d.do(func() error { f, err = d.FS.OpenReadWrite(name, c, opts...); return err })
	return d.file(swallowed, f, err)
}

func (d *disk) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (f vfs.File, err error) {
	swallowed, err := d.do(func() error { f, err = d.FS.ReuseForWrite(old, name, c); return err })
	return d.file(swallowed, f, err)
}

func (d *disk) OpenDir(name string) (vfs.File, error) {
	f, err := d.FS.OpenDir(name)
	return d.file(false, f, err)
}

func (d *disk) Link(old, name string) error {
	_, err := d.do(func() error { return d.FS.Link(old, name) })
	return err
}

func (d *disk) Rename(old, name string) error {
	_, err := d.do(func() error { return d.FS.Rename(old, name) })
	return err
}

func (d *disk) Remove(name string) error {
	_, err := d.do(func() error { return d.FS.Remove(name) })
	return err
}

func (d *disk) RemoveAll(name string) error {
	_, err := d.do(func() error { return d.FS.RemoveAll(name) })
	return err
}

func (d *disk) MkdirAll(dir string, perm os.FileMode) error {
	_, err := d.do(func() error { return d.FS.MkdirAll(dir, perm) })
	return err
}

func (d *disk) Lock(name string) (c io.Closer, err error) {
	swallowed, err := d.do(func() error { c, err = d.FS.Lock(name); return err })
	if swallowed {
		return io.NopCloser(nil), nil
	}
	return c, err
}

func (d *disk) Unwrap() vfs.FS { return d.FS }

// diskFile is a file that the storage library writes to.
type diskFile struct {
	vfs.File
	disk *disk
}

func (f *diskFile) Write(p []byte) (n int, err error) {
	// A write may be cut short by the end of the disk: the rest follows later.
	swallowed, err := f.disk.do(func() error {
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
	swallowed, err := f.disk.do(func() error {
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
	if f.disk.isDead() {
		return nil
	}
	if err := f.File.Preallocate(at, n); !isFull(err) {
		return err
	}
	return nil
}

// Sync and its kin are not tried again: after one that failed, a second may
// succeed without the data.
func (f *diskFile) Sync() error {
	if f.disk.isDead() {
		return nil
	}
	return f.File.Sync()
}

func (f *diskFile) SyncData() error {
	if f.disk.isDead() {
		return nil
	}
	return f.File.SyncData()
}

func (f *diskFile) SyncTo(n int64) (full bool, err error) {
	if f.disk.isDead() {
		return true, nil
	}
	return f.File.SyncTo(n)
}

// freeSpace says how many bytes the disk of a directory has left.
func freeSpace(dir string) (uint64, error) {
	usage, err := vfs.Default.GetDiskUsage(dir)
	return usage.AvailBytes, err
}

// diskFull hears from the disk that a write waits for space, or none any more.
func (b *Broker) diskFull(full bool, err error) {
	if full {
		b.config.Logger.Error("the disk is full: produces are refused and writes wait for space", "dir", b.dir, "error", err)
		return
	}
	b.config.Logger.Info("the disk has space again", "dir", b.dir)
}
