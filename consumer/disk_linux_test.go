package consumer_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// mountDisk gives a directory a file system of its own, of so many bytes, that
// only this process sees.
func mountDisk(dir string, bytes int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes))
}

// ownMounts lets a process that is started mount file systems of its own, as root
// or not.
func ownMounts(attr *syscall.SysProcAttr) {
	attr.Cloneflags = syscall.CLONE_NEWNS
	if uid := os.Getuid(); uid != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	attr.Unshareflags = syscall.CLONE_NEWNS // and what they mount stays among them
}

// errNoDisk says that a process can't have a file system of its own.
var errNoDisk = errors.New("no file system of its own")

// ballast fills the file system of a process until nothing more fits in, and
// returns what takes it away again.
func (p *process) ballast(t *testing.T, dir string) (remove func()) {
	t.Helper()
	name := filepath.Join(fmt.Sprintf("/proc/%d/root", p.cmd.Process.Pid), dir, "ballast")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 16; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			size /= 2
		}
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Error(err)
		}
	}
}

// logs returns what the process has logged so far.
func (p *process) logs(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(p.log)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// awaitLog publishes a few messages at a time until the process has logged a text
// more than so many times.
func (s *stage) awaitLog(t *testing.T, p *process, text string, times int) {
	t.Helper()
	for deadline := time.Now().Add(processPatience); strings.Count(p.logs(t), text) <= times; {
		if time.Now().After(deadline) {
			t.Fatalf("the process does not log %q", text)
		}
		select {
		case err := <-p.ended:
			p.ended <- err
			t.Fatalf("the process has ended: %v", err)
		default:
		}
		s.publish(t, 5)
	}
}

// What a process logs when its disk is full, and when it is not any more.
const (
	diskIsFull = "the disk is full"
	diskIsFree = "there is space on the disk again"
)

// C59: the disk is full. The process lives, says so, and goes on by itself when
// there is space; a stop in between ends in time; and nothing is lost.
func TestFullDisk(t *testing.T) {
	onBrokers(t, func(t *testing.T, brokers string) {
		s := newStage(t, brokers)
		s.w = newWitness(s.spec.Prefix, 0)
		spec := s.as(t, "a")
		spec.Padding, spec.Disk, spec.Drain = 2000, 24<<20, 5*time.Second
		a := startWitness(t, spec, "")
		s.publish(t, 300)
		if !s.begins(t, a) {
			return
		}
		s.verify(t)
		for range 2 {
			full, free := strings.Count(a.logs(t), diskIsFull), strings.Count(a.logs(t), diskIsFree)
			remove := a.ballast(t, spec.Dir)
			s.awaitLog(t, a, diskIsFull, full)
			remove()
			s.awaitLog(t, a, diskIsFree, free)
			s.publish(t, 100)
			s.verify(t)
		}

		// Stopped while it waits for space.
		full := strings.Count(a.logs(t), diskIsFull)
		a.ballast(t, spec.Dir)
		s.awaitLog(t, a, diskIsFull, full)
		begun := time.Now()
		a.drain(t)
		if took := time.Since(begun); took > 2*spec.Drain {
			t.Errorf("the stop took %v, with a deadline of %v", took, spec.Drain)
		}
		b := startWitness(t, s.as(t, "b"), "")
		s.publish(t, 50)
		s.verify(t)
		b.drain(t)
	})
}

// begins waits until a process with a file system of its own has consumed
// everything, or says why it can't have one.
func (s *stage) begins(t *testing.T, p *process) bool {
	t.Helper()
	for range 400 {
		if got := s.testimonies(t, s.total, 100*time.Millisecond); len(got) == s.total {
			return true
		}
		select {
		case err := <-p.ended:
			p.ended <- err
			if !strings.Contains(p.logs(t), errNoDisk.Error()) {
				t.Fatalf("the process has ended: %v", err)
			}
			t.Skipf("this system lets no process mount a file system: %s", p.logs(t)) // and no disk can be filled without harm to others
		default:
		}
	}
	t.Fatal("the process does not begin")
	return false
}
