//go:build unix

package cli

import (
	"context"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// unreadInterval is how often a pipe is asked whether anybody reads from it.
const unreadInterval = 200 * time.Millisecond

// whileRead calls unread once nobody reads any more from the pipe that is
// written to, if it is one, and returns then, or when ctx ends. Who waits for
// messages would learn so only when the next one comes, which may be never.
func whileRead(ctx context.Context, to io.Writer, unread func()) {
	f, ok := to.(*os.File)
	if !ok {
		return
	}
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		return
	}
	tick := time.NewTicker(unreadInterval)
	defer tick.Stop()
	for {
		fds := []unix.PollFd{{Fd: int32(f.Fd())}}
		if _, err := unix.Poll(fds, 0); err == nil && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0 {
			unread()
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
