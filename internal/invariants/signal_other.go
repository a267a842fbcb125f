//go:build !linux

package invariants

import (
	"os"
	"syscall"
)

// signalSelf sends the signal to the process. This thread may run on for a
// moment after it.
func signalSelf(sig syscall.Signal) error { return syscall.Kill(os.Getpid(), sig) }
