package cli

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// started is a command in a process of its own.
type started struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout *bufio.Reader
	stderr bytes.Buffer
}

func start(t *testing.T, env []string, args ...string) *started {
	t.Helper()
	s := &started{t: t, cmd: exec.Command(os.Args[0], args...)}
	s.cmd.Env = append(os.Environ(), env...)
	s.cmd.Stderr = &s.stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.stdout = bufio.NewReader(out)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.cmd.Process.Kill() }) // it may have ended
	return s
}

// line reads a line that begins with a word.
func (s *started) line(word string) string {
	s.t.Helper()
	for {
		line, err := s.stdout.ReadString('\n')
		if err != nil {
			s.t.Fatalf("no line begins with %q: %v\n%s", word, err, s.stderr.String())
		}
		if rest, ok := strings.CutPrefix(line, word); ok {
			return strings.TrimSpace(rest)
		}
	}
}

// stop sends a signal, and returns the status.
func (s *started) stop(sig syscall.Signal) int {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
	timer := time.AfterFunc(servedTime, func() { _ = s.cmd.Process.Kill() }) // its status says that it did not end
	defer timer.Stop()
	// How it ended is in its state.
	_ = s.cmd.Wait()
	return s.cmd.ProcessState.ExitCode()
}

// A broker to try things on is there at once, and nothing of it afterwards.
func TestDev(t *testing.T) {
	tmp := t.TempDir()
	dev := start(t, []string{"TMPDIR=" + tmp}, "dev", "--listen", "127.0.0.1:0", "--topic", "orders:3", "--topic", "totals")
	brokers := dev.line("export      PAWL_BROKERS=")
	status, stdout, stderr := pawl("topic", "list", "--brokers", brokers)
	if status != exitOK || !strings.Contains(stdout, "\norders  3 ") || !strings.Contains(stdout, "\ntotals  1 ") {
		t.Errorf("topics: status %d, %q, %q", status, stdout, stderr)
	}
	if made, err := filepath.Glob(tmp + "/pawl-dev-*"); err != nil || len(made) != 1 {
		t.Errorf("its directory: %v, %v", made, err)
	}
	if status := dev.stop(syscall.SIGINT); status != exitOK {
		t.Errorf("status %d: %s", status, dev.stderr.String())
	}
	if want := "nothing survives this broker"; !strings.Contains(dev.stderr.String(), want) {
		t.Errorf("it says %q, want %q", dev.stderr.String(), want)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A signal ends what has no other end with status 0, and what has not come to
// its end with 130.
func TestConsumeIsInterrupted(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		name := o.create("endless", 1, nil)
		o.publish(record(name, "first"))
		for _, tt := range []struct {
			args []string
			want int
		}{{nil, exitOK}, {[]string{"--count", "2"}, exitInterrupted}, {[]string{"--group", o.name("g")}, exitOK}} {
			c := start(t, nil, append([]string{"consume", name, "--brokers", o.brokers, "-o", "json"}, tt.args...)...)
			c.line("{")
			if got := c.stop(syscall.SIGINT); got != tt.want || c.stderr.String() != "" {
				t.Errorf("consume %v: status %d, %q, want %d and silence", tt.args, got, c.stderr.String(), tt.want)
			}
		}
		// What it had printed when it was told to stop is committed.
		if got := o.run("", "consume", name, "--group", o.name("g"), "--until", "end"); got != "" {
			t.Errorf("consumed again: %q", got)
		}
	})
}
