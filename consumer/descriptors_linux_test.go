package consumer_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// allowDescriptors lets a process have so many file descriptors open, and no
// more. It keeps those that it has.
func allowDescriptors(pid, n int) error {
	var l unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &l); err != nil {
		return fmt.Errorf("read the limit of process %d: %w", pid, err)
	}
	l.Cur = uint64(n)
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &l, nil); err != nil {
		return fmt.Errorf("let process %d open %d files: %w", pid, n, err)
	}
	return nil
}

const manyDescriptors = 1024

// allow changes how many file descriptors the process may have open.
func (p *process) allow(t *testing.T, n int) {
	t.Helper()
	if err := allowDescriptors(p.cmd.Process.Pid, n); err != nil {
		t.Fatal(err)
	}
}

// descriptors counts those that the process has open.
func (p *process) descriptors(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

// What a process logs when it is out of file descriptors, wherever it is.
const noDescriptor = "too many open files"

// File descriptors run out, at any point of a start and of a restore, and while
// messages are consumed and databases written. The process lives, says what is
// wrong, and goes on by itself when there are some; nothing is lost or doubled.
func TestDescriptorsRunOut(t *testing.T) {
	onBrokers(t, func(t *testing.T, brokers string) {
		seed := uint64(time.Now().UnixNano())
		rng := rand.New(rand.NewPCG(seed, 0))
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("seed %d", seed)
			}
		})
		s := newStage(t, brokers)
		s.w = newWitness(s.spec.Prefix, 0)
		s.publish(t, 200)
		kept := s.as(t, "a") // a state directory that is there
		// With 5 there is none for the first file of the application.
		for i, n := range []int{5 + rng.IntN(11), 16 + rng.IntN(16), 32 + rng.IntN(16)} {
			t.Logf("start %d with %d descriptors", i, n)
			spec := kept
			if i == 1 {
				spec = s.as(t, "b") // and one that is to be restored
			}
			spec.Padding, spec.Descriptors = 2000, n
			a := startWitness(t, spec, "")
			a.awaitDescriptors(t, s, 0)
			a.allow(t, manyDescriptors)
			s.verify(t)

			// While it runs: all that it has are taken.
			before := strings.Count(a.logs(t), noDescriptor)
			a.allow(t, a.descriptors(t)-rng.IntN(4))
			a.awaitDescriptors(t, s, before)
			a.allow(t, manyDescriptors)
			s.verify(t)
			a.drain(t)
		}
	})
}

// awaitDescriptors publishes until the process has said more than so many times
// that it has no file descriptor.
func (p *process) awaitDescriptors(t *testing.T, s *stage, times int) {
	t.Helper()
	s.awaitLog(t, p, noDescriptor, times)
	if logs := p.logs(t); strings.Contains(logs, "discard") {
		t.Error("a database is discarded, which only had to wait")
	}
}
