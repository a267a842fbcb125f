package consumer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pawlstream/pawl/store"
)

// dirLock holds a state directory for this process. The operating system lets
// go of it when the process ends, however it ends.
type dirLock struct{ file *os.File }

// lockPoll is how often a held directory is tried again.
const lockPoll = 50 * time.Millisecond

// lockDir takes the directory, which it makes if need be. While another
// process holds it, as one does that is draining, it waits up to patience;
// then its error names the holder.
func lockDir(ctx context.Context, log *slog.Logger, dir, instance string, patience time.Duration) (*dirLock, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make state directory %s: %w", dir, permitted(err))
	}
	name := filepath.Join(dir, "lock")
	file, err := openLock(ctx, log, name, patience)
	if err != nil {
		return nil, fmt.Errorf("lock state directory %s: %w", dir, permitted(err))
	}
	deadline := time.Now().Add(patience)
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			file.Close()
			return nil, fmt.Errorf("lock state directory %s: %w", dir, err)
		}
		if time.Now().After(deadline) {
			holder, readErr := os.ReadFile(name)
			file.Close()
			who := strings.TrimSpace(string(holder))
			if readErr != nil || who == "" {
				who = "another process"
			}
			return nil, fmt.Errorf("state directory %s is in use by %s: give each process its own, or stop that one", dir, who)
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("lock state directory %s: %w", dir, context.Cause(ctx))
		}
	}
	host, err := os.Hostname()
	if err != nil {
		host = "this host"
	}
	text := fmt.Sprintf("process %d on %s (instance %s)\n", os.Getpid(), host, instance)
	if err := errors.Join(file.Truncate(0), writeAt(file, text)); err != nil {
		file.Close()
		return nil, fmt.Errorf("write %s: %w", name, err)
	}
	return &dirLock{file}, nil
}

// openLock opens the file of the lock. It waits up to patience for a file
// descriptor, where the process has none left.
func openLock(ctx context.Context, log *slog.Logger, name string, patience time.Duration) (*os.File, error) {
	for tries, deadline := 1, time.Now().Add(patience); ; tries++ {
		file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
		if !store.OutOfFiles(err) || time.Now().After(deadline) {
			return file, err
		}
		if tries == 1 {
			log.Error("out of file descriptors", "path", name, "error", err, "waiting for at most", patience)
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			return nil, errors.Join(err, context.Cause(ctx))
		}
	}
}

// permitted adds to an error that says that something is not permitted what would
// be.
func permitted(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: this user needs write permission there", err)
	}
	return err
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// release lets go of the directory.
func (l *dirLock) release() {
	l.file.Close() // which unlocks it
}
