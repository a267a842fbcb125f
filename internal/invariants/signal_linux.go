package invariants

import (
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// signalSelf sends the signal to this very thread, so that it does not get past
// the point: a signal to the process takes effect a little later.
func signalSelf(sig syscall.Signal) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return unix.Tgkill(os.Getpid(), unix.Gettid(), sig)
}
