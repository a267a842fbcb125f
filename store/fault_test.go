package store

import (
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// faultFS is a file system whose writes fail with an error from the nth on,
// until they are made to work again.
type faultFS struct {
	vfs.FS

	mu struct {
		sync.Mutex
		writes int    // so far
		from   int    // the first that fails; 0 for none
		name   string // of files that fail, a part of it
		err    error
		failed int

		removes     int // so far
		removesFrom int // the first that fails; 0 for none

		opens     int // so far, of files to be read or written, directories and locks
		opensFrom int // the first that finds no file descriptor; 0 for none
	}
}

func newFaultFS(fs vfs.FS) *faultFS { return &faultFS{FS: fs} }

// fail makes writes fail from the nth of all on, if the file's name contains
// name. An n of 0 ends it.
func (f *faultFS) fail(n int, name string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.from, f.mu.name, f.mu.err = n, name, err
}

// failRemoves makes removals fail from the nth on.
func (f *faultFS) failRemoves(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.removesFrom = n
}

// failOpens makes file descriptors run out at the nth open.
func (f *faultFS) failOpens(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.opensFrom = n
}

func (f *faultFS) opens() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.opens
}

func (f *faultFS) open(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.opens++
	if f.mu.opensFrom > 0 && f.mu.opens >= f.mu.opensFrom {
		return &os.PathError{Op: "open", Path: name, Err: syscall.EMFILE}
	}
	return nil
}

func (f *faultFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if err := f.open(name); err != nil {
		return nil, err
	}
	return f.FS.Open(name, opts...)
}

func (f *faultFS) OpenDir(name string) (vfs.File, error) {
	if err := f.open(name); err != nil {
		return nil, err
	}
	return f.FS.OpenDir(name)
}

func (f *faultFS) List(name string) ([]string, error) {
	if err := f.open(name); err != nil {
		return nil, err
	}
	return f.FS.List(name)
}

func (f *faultFS) remove() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.removes++
	if f.mu.removesFrom > 0 && f.mu.removes >= f.mu.removesFrom {
		return syscall.EIO
	}
	return nil
}

func (f *faultFS) Remove(name string) error {
	if err := f.remove(); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

func (f *faultFS) RemoveAll(name string) error {
	if err := f.remove(); err != nil {
		return err
	}
	return f.FS.RemoveAll(name)
}

func (f *faultFS) counts() (writes, failed int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.writes, f.mu.failed
}

func (f *faultFS) write(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.writes++
	if f.mu.from > 0 && f.mu.writes >= f.mu.from && strings.Contains(name, f.mu.name) {
		f.mu.failed++
		return f.mu.err
	}
	return nil
}

func (f *faultFS) file(name string, file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &faultFile{file, f, name}, nil
}

func (f *faultFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.write(name); err != nil {
		return nil, &os.PathError{Op: "create", Path: name, Err: err}
	}
	if err := f.open(name); err != nil {
		return nil, err
	}
	file, err := f.FS.Create(name, c)
	return f.file(name, file, err)
}

func (f *faultFS) Link(old, name string) error {
	if err := f.write(name); err != nil {
		return err
	}
	return f.FS.Link(old, name)
}

func (f *faultFS) Rename(old, name string) error {
	if err := f.write(name); err != nil {
		return err
	}
	return f.FS.Rename(old, name)
}

func (f *faultFS) MkdirAll(name string, perm os.FileMode) error {
	if err := f.write(name); err != nil {
		return err
	}
	return f.FS.MkdirAll(name, perm)
}

func (f *faultFS) Lock(name string) (io.Closer, error) {
	if err := errors.Join(f.write(name), f.open(name)); err != nil {
		return nil, err
	}
	return f.FS.Lock(name)
}

type faultFile struct {
	vfs.File
	fs   *faultFS
	name string
}

func (f *faultFile) Write(p []byte) (int, error) {
	if err := f.fs.write(f.name); err != nil {
		n, e := f.File.Write(p[:len(p)/2])
		if e != nil {
			return n, e
		}
		return n, &os.PathError{Op: "write", Path: f.name, Err: err}
	}
	return f.File.Write(p)
}

var errNoSpace error = syscall.ENOSPC
