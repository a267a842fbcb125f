package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// tempDir is a temporary directory that the next command of its kind removes if
// its own processes could not, since they were killed.
//
// Who uses it is told by the lock of a file in it, which all processes of the
// command share: it ends with the last of them, however they end. The file has
// a text as soon as it is locked for the first time, so that one that is being
// made is not taken for dead.
type tempDir struct {
	path string
	lock *os.File
}

const (
	tempPrefix = "pawl-"
	tempLock   = "pawl.lock"
)

// makeTempDir makes a directory of a kind, and removes the dead ones.
func makeTempDir(kind string) (_ *tempDir, err error) {
	removeDead(kind)
	path, err := os.MkdirTemp("", tempPrefix+kind+"-")
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(path, tempLock), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		if err = lockNow(f); err == nil {
			_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
		}
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	return &tempDir{path, f}, nil
}

// lockNow locks a file if nobody has the lock.
func lockNow(f *os.File) error {
	for {
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// remove removes the directory.
func (t *tempDir) remove() error {
	return errors.Join(os.RemoveAll(t.path), t.lock.Close())
}

// keep leaves the directory to the user: nothing removes it from then on.
func (t *tempDir) keep() error {
	return errors.Join(os.Remove(t.lock.Name()), t.lock.Close())
}

// removeDead removes the directories of a kind that nobody uses any more. What
// can't be removed, or is another user's, stays.
func removeDead(kind string) {
	found, err := filepath.Glob(filepath.Join(os.TempDir(), tempPrefix+kind+"-*"))
	if err != nil {
		return // of the pattern alone
	}
	for _, path := range found {
		if f, dead := deadTempDir(path); dead {
			// Somebody may have changed its rights: then it stays.
			_ = os.RemoveAll(path)
			_ = f.Close()
		}
	}
}

// deadTempDir says whether the processes of a directory have ended, and returns
// its lock then, which is to be closed.
func deadTempDir(path string) (*os.File, bool) {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() {
		return nil, false
	}
	if s, ok := info.Sys().(*syscall.Stat_t); !ok || int(s.Uid) != os.Getuid() {
		return nil, false
	}
	name := filepath.Join(path, tempLock)
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, false
	}
	text, err := os.ReadFile(name)
	if err == nil && strings.HasSuffix(string(text), "\n") && lockNow(f) == nil && isAt(f, name) {
		return f, true
	}
	_ = f.Close() // only read
	return nil, false
}

// isAt says whether an open file is still the one of that name: whoever keeps a
// directory removes its lock, and lets go of it after that.
func isAt(f *os.File, name string) bool {
	held, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(name)
	return err == nil && os.SameFile(held, there)
}
