// Package invariants holds checks, crash points and faults that builds with the
// tag "invariants" turn on. Without the tag both cost nothing.
package invariants

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// Check panics with the message when ok is false, in builds with the tag
// "invariants". A broken invariant is a bug, not an error.
func Check(ok bool, format string, args ...any) {
	if Enabled && !ok {
		panic("invariant: " + fmt.Sprintf(format, args...))
	}
}

// Crash marks a named point of the protocol at which tests kill the process.
// In builds with the tag "invariants" it kills the process there, without any
// clean-up, if PAWL_CRASH names the point ("name", or "name:n" for the nth
// time it is passed), or calls what Arm armed. Otherwise it does nothing.
func Crash(name string) {
	if !Enabled {
		return
	}
	crash(name)
}

var points struct {
	sync.Mutex
	once  sync.Once
	env   string // the point that PAWL_CRASH names
	at    int    // how many more passes until it crashes
	stop  bool   // SIGSTOP instead of SIGKILL
	armed map[string]func()
}

func crash(name string) {
	points.Lock()
	points.once.Do(func() {
		spec := os.Getenv("PAWL_CRASH")
		// "stop=name:n" freezes the process at the point instead.
		spec, points.stop = strings.CutPrefix(spec, "stop=")
		var n string
		var ok bool
		points.env, n, ok = strings.Cut(spec, ":")
		points.at = 1
		if ok {
			v, err := strconv.Atoi(n)
			if err != nil || v < 1 {
				panic("PAWL_CRASH=" + spec + ": want NAME or NAME:N")
			}
			points.at = v
		}
	})
	kill := false
	if points.env == name {
		points.at--
		kill = points.at == 0
	}
	fn := points.armed[name]
	points.Unlock()

	if kill {
		sig := syscall.SIGKILL
		if points.stop {
			sig = syscall.SIGSTOP
		}
		if err := signalSelf(sig); err != nil {
			panic(fmt.Sprintf("crash point %s: %v: %v", name, sig, err))
		}
		if sig == syscall.SIGKILL {
			select {} // the signal is on its way
		}
	}
	if fn != nil {
		fn()
	}
}

// Arm makes fn run at each pass of the named point, until the function it
// returns is called. In builds without the tag nothing passes a point, and a
// test that relies on it has to skip.
func Arm(name string, fn func()) (disarm func()) {
	points.Lock()
	defer points.Unlock()
	if points.armed == nil {
		points.armed = make(map[string]func())
	}
	points.armed[name] = fn
	return func() {
		points.Lock()
		defer points.Unlock()
		delete(points.armed, name)
	}
}

var faults atomic.Pointer[func(op, path string) error]

// Fault marks an access to a disk that tests make slow, or fail. In builds with
// the tag "invariants" it calls what Misbehave has set, and the access fails with
// the error that it returns, if any. Otherwise it does nothing.
func Fault(op, path string) error {
	if !Enabled {
		return nil
	}
	if fn := faults.Load(); fn != nil {
		return (*fn)(op, path)
	}
	return nil
}

// Misbehave makes every access to a disk call fn first, with what is done (open,
// create, read, write or sync) and to which file, until the function it returns
// is called.
func Misbehave(fn func(op, path string) error) (end func()) {
	faults.Store(&fn)
	return func() { faults.Store(nil) }
}
