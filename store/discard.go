package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// discardMark is the file whose presence says that a database must not be used
// any more.
const discardMark = "DISCARD"

// Discard removes a database and its directory. A crash in the middle leaves it
// marked, so that the rest is removed when it is opened. A database that is
// open answers ErrInUse.
func Discard(dir string) error {
	if err := discard(vfs.Default, dir); err != nil {
		return fmt.Errorf("discard database %s: %w", dir, err)
	}
	return nil
}

func discard(fs vfs.FS, dir string) (err error) {
	if _, err := fs.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	lock, err := pebble.LockDirectory(dir, fs)
	if err != nil {
		return openError(err)
	}
	defer func() {
		if lock != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	marked, err := isMarked(fs, dir)
	if err != nil {
		return err
	}
	if !marked {
		if err := mark(fs, dir, errors.New("it was being discarded")); err != nil {
			return err
		}
	}
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		if n != discardMark && n != lockFile {
			if err := fs.RemoveAll(fs.PathJoin(dir, n)); err != nil {
				return err
			}
		}
	}
	if err := syncDir(fs, dir); err != nil {
		return err
	}
	if err := fs.Remove(fs.PathJoin(dir, discardMark)); err != nil {
		return err
	}
	err = lock.Close()
	lock = nil
	return errors.Join(err, fs.RemoveAll(dir))
}

// Marked returns why the database in a directory is marked for discard, which
// Open would do; the empty string if it isn't, or isn't there.
func Marked(dir string) (why string, err error) {
	b, err := os.ReadFile(filepath.Join(dir, discardMark))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", nil
	case err != nil:
		return "", err
	}
	if why = strings.TrimSpace(string(b)); why == "" {
		why = "it does not say why"
	}
	return why, nil
}

// lockFile is the storage library's name for it.
const lockFile = "LOCK"

func isMarked(fs vfs.FS, dir string) (bool, error) {
	_, err := fs.Stat(fs.PathJoin(dir, discardMark))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// mark leaves word in the directory, durably, that the database is to be
// discarded, and why.
func mark(fs vfs.FS, dir string, why error) error {
	f, err := fs.Create(fs.PathJoin(dir, discardMark), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	// The file says it by being there; why is for who looks.
	_, err = f.Write([]byte(why.Error() + "\n"))
	return errors.Join(err, f.Sync(), f.Close(), syncDir(fs, dir))
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// isLocked reports whether opening failed because the database is open.
func isLocked(err error) bool {
	if path := (*os.PathError)(nil); errors.As(err, &path) {
		return false // the file could not even be opened
	}
	return errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) ||
		strings.Contains(err.Error(), "lock held by current process")
}
