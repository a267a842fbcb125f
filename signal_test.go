package pawl_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pawlstream/pawl"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// childVariable makes the test binary be a program: the one that it names.
const childVariable = "PAWL_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childVariable) {
	case "counter":
		pawl.Main(counter{})
	case "sleeper":
		pawl.Main(sleeper{})
	}
	os.Exit(m.Run())
}

// sleeper is a consumer that never returns from Consume.
type sleeper struct{ counter }

func (sleeper) Consume(topic.Envelope, consumer.Shard, *topic.Publisher) error {
	os.Stderr.WriteString("\nasleep\n")
	select {}
}

// child is a program in a process of its own.
type child struct {
	t      *testing.T
	cmd    *exec.Cmd
	stderr *output
	tmp    string
	state  string
	ended  chan error
}

func startChild(t *testing.T, name string, args ...string) *child {
	t.Helper()
	return startChildIn(t, t.TempDir(), name, args...)
}

// startChildIn starts a child that keeps its state in a directory.
func startChildIn(t *testing.T, state, name string, args ...string) *child {
	t.Helper()
	c := &child{t: t, stderr: newOutput(), tmp: t.TempDir(), state: state, ended: make(chan error, 1)}
	c.cmd = exec.Command(os.Args[0], append([]string{"--listen=127.0.0.1:0", "--partitions=2", "--log-format=json"}, args...)...)
	c.cmd.Env = append(os.Environ(), childVariable+"="+name, "TMPDIR="+c.tmp, "XDG_STATE_HOME="+c.state)
	c.cmd.Stderr = c.stderr
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		c.ended <- c.cmd.Wait()
		close(over)
	}()
	t.Cleanup(func() {
		if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
		<-over
	})
	c.stderr.wait(t, `"msg":"running"`, 2)
	return c
}

func (c *child) signal(s os.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

// insist sends a signal until the process has ended: at first it may be taken for
// the one before, once more.
func (c *child) insist(s os.Signal) {
	c.t.Helper()
	for tick := time.NewTicker(50 * time.Millisecond); ; {
		if err := c.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
			c.t.Fatal(err)
		}
		select {
		case err := <-c.ended:
			c.ended <- err
			tick.Stop()
			return
		case <-tick.C:
		}
	}
}

// status waits for the end and returns the exit status.
func (c *child) status() int {
	c.t.Helper()
	select {
	case err := <-c.ended:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			c.t.Fatal(err)
		}
		return c.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		c.t.Fatalf("the process has not ended in %v:\n%s", patience, c.stderr)
		return -1
	}
}

// consume gives the child a message.
func (c *child) consume(key string) {
	c.t.Helper()
	cfg := kafka.Config{}
	cfg.Cluster.Brokers = []string{c.stderr.wait(c.t, `"listen":"([^"]*)"`, 1)[0][1]}
	publisher(c.t, cfg)("words", key)
}

// The first signal drains.
func TestSignalDrains(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			c := startChild(t, "counter")
			c.signal(s)
			if status := c.status(); status != 0 {
				t.Errorf("exit status %d, want 0:\n%s", status, c.stderr)
			}
			if !strings.Contains(c.stderr.String(), `"msg":"stopping: a second signal exits at once","reason":"signal: `+s.String()) {
				t.Errorf("the log does not say why it stops:\n%s", c.stderr)
			}
			left, err := os.ReadDir(c.tmp)
			if err != nil || len(left) > 0 {
				t.Errorf("left in the temporary directory: %v, %v", left, err)
			}
		})
	}
}

// A signal that comes twice at once, as timeout(1) sends it, to the process and to
// its group, is one: it drains.
func TestSignalTwiceAtOnce(t *testing.T) {
	c := startChild(t, "counter")
	c.signal(syscall.SIGTERM)
	c.signal(syscall.SIGTERM)
	if status := c.status(); status != 0 {
		t.Errorf("exit status %d, want 0:\n%s", status, c.stderr)
	}
	if strings.Contains(c.stderr.String(), "second signal (") {
		t.Errorf("it was taken for two:\n%s", c.stderr)
	}
}

// A drain ends at its deadline, also in the middle of a call that does not.
func TestDrainDeadline(t *testing.T) {
	c := startChild(t, "sleeper", "--drain=500ms")
	c.consume("a")
	c.stderr.wait(t, "\nasleep\n", 1)
	began := time.Now()
	c.signal(syscall.SIGTERM)
	if status := c.status(); status != 0 {
		t.Errorf("exit status %d, want 0:\n%s", status, c.stderr)
	}
	if took := time.Since(began); took < 500*time.Millisecond || took > 5*time.Second {
		t.Errorf("the drain took %v, want its 500ms and little more:\n%s", took, c.stderr)
	}
	if !strings.Contains(c.stderr.String(), "user code is abandoned") {
		t.Errorf("the log does not say that a call was abandoned:\n%s", c.stderr)
	}
}

// The second signal exits at once, whatever runs.
func TestSecondSignal(t *testing.T) {
	for s, want := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		t.Run(s.String(), func(t *testing.T) {
			c := startChild(t, "sleeper", "--drain=1m")
			c.consume("a")
			c.stderr.wait(t, "\nasleep\n", 1)
			c.signal(syscall.SIGTERM)
			c.stderr.wait(t, `"msg":"stopping`, 1)
			began := time.Now()
			c.insist(s)
			if status := c.status(); status != want {
				t.Errorf("exit status %d, want %d:\n%s", status, want, c.stderr)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %v, want no wait", took)
			}
			if !strings.Contains(c.stderr.String(), "second signal ("+s.String()+"): exiting at once\n") {
				t.Errorf("stderr does not say why:\n%s", c.stderr)
			}
		})
	}
}

// What a program has counted, and what its broker was given, is there after
// kill -9.
func TestKilled(t *testing.T) {
	state := t.TempDir()
	for round := range int64(3) {
		c := startChildIn(t, state, "counter")
		cfg := kafka.Config{}
		cfg.Cluster.Brokers = []string{c.stderr.wait(t, `"listen":"([^"]*)"`, 1)[0][1]}
		createTopics(t, cfg, "totals")
		publisher(t, cfg)("words", "a", "b", "c")
		for _, w := range []string{"a", "b", "c"} {
			if got, want := readTotal(t, cfg, 2, w, round), (Total{w, round + 1}); got != want {
				t.Errorf("after %d kills total %d of %s is %v, want %v", round, round, w, got, want)
			}
		}
		c.signal(syscall.SIGKILL)
		c.status()
	}
}
