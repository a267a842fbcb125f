package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// lock is the right to a data directory, by an advisory lock of the operating
// system on a file that says who has it. It ends with the process, however that
// ends.
type lock struct {
	file *os.File  // on the operating system's file system
	mem  io.Closer // on one of a test
}

// lockFile is the file whose lock is the right to the directory.
const lockFile = "broker.lock"

// holder is what a lock file says about who has it.
type holder struct {
	PID   int       `json:"pid"`
	Host  string    `json:"host"`
	Since time.Time `json:"since"`
}

// takeLock makes the directory and locks it. It touches nothing else.
func takeLock(fs vfs.FS, dir string) (*lock, error) {
	if err := makeDir(fs, dir); err != nil {
		return nil, permitted(err)
	}
	name := filepath.Join(dir, lockFile)
	if fs != vfs.Default {
		c, err := fs.Lock(name)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrLocked, err)
		}
		return &lock{mem: c}, nil
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, permitted(err)
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		defer f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", ErrLocked, whoHas(f))
		}
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "an unnamed host"
	}
	text, err := json.Marshal(holder{PID: os.Getpid(), Host: host, Since: time.Now().UTC().Truncate(time.Second)})
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt(append(text, '\n'), 0)
	}
	if err != nil && !isFull(err) { // the lock holds without its text
		return nil, errors.Join(fmt.Errorf("write %s: %w", name, err), f.Close())
	}
	return &lock{file: f}, nil
}

// permitted adds to an error that says that something is not permitted what would
// be.
func permitted(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w: this user needs write permission there", err)
	}
	return err
}

// whoHas says in words what a lock file says.
func whoHas(f *os.File) string {
	text, err := io.ReadAll(io.LimitReader(f, 4096))
	var h holder
	if err != nil || json.Unmarshal(text, &h) != nil {
		return "it doesn't say by whom"
	}
	return fmt.Sprintf("process %d on %s has it since %s", h.PID, h.Host, h.Since.Format(time.RFC3339))
}

func (l *lock) release() error {
	if l.mem != nil {
		return l.mem.Close()
	}
	return l.file.Close()
}

// makeDir makes a directory and what is missing above it, so that it is there
// after a power cut.
func makeDir(fs vfs.FS, dir string) error {
	var made []string
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		if _, err := fs.Stat(at); !errors.Is(err, os.ErrNotExist) {
			break
		}
		made = append(made, filepath.Dir(at))
		if at == filepath.Dir(at) {
			break
		}
	}
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, parent := range made {
		if err := syncDir(fs, parent); err != nil {
			return err
		}
	}
	return nil
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
