package consumer_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// node is a Kafka that a test may end, freeze and start again: one that
// scripts/kafka run has started for the tests alone.
type node struct{ dir string }

// ownNode returns the node, or nil where there is none.
func ownNode() *node {
	dir := os.Getenv("PAWL_TEST_KAFKA_DIR")
	if dir == "" || os.Getenv("PAWL_TEST_KAFKA") == "" || os.Getenv("PAWL_TEST_KAFKA_PID") == "" {
		return nil
	}
	return &node{dir}
}

// restart ends the node with a signal and starts it again, with its data.
func (n *node) restart(t *testing.T, signal string) {
	t.Helper()
	cmd := exec.Command(filepath.Join("..", "scripts", "kafka"), "restart", signal)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("restart the node with %s: %v\n%s", signal, err, out)
	}
}

func (n *node) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(n.dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

// The broker goes away under load, in whatever way, and comes back: two
// processes go on by themselves, and each message has its one testimony.
func TestBrokerGoesAway(t *testing.T) {
	onKafka(t, func(t *testing.T, brokers string) {
		n := ownNode()
		if n == nil {
			t.Skip("this Kafka is not this test's to restart: see scripts/kafka run") // a Kafka that others use is not to be killed; make kafka-test starts one
		}
		s := newStage(t, brokers)
		s.publish(t, 500)
		a, b := startWitness(t, s.as(t, "a"), ""), startWitness(t, s.as(t, "b"), "")
		s.verify(t)
		for _, away := range []struct {
			how string
			do  func()
		}{
			{"killed", func() { n.restart(t, "KILL") }},
			{"stopped", func() { n.restart(t, "TERM") }},
			{"frozen for a moment", func() {
				n.signal(t, syscall.SIGSTOP)
				awayFor(2 * time.Second)
				n.signal(t, syscall.SIGCONT)
			}},
			{"frozen for longer than a session and a transaction", func() {
				n.signal(t, syscall.SIGSTOP)
				awayFor(15 * time.Second)
				n.signal(t, syscall.SIGCONT)
			}},
		} {
			began := time.Now()
			s.publish(t, 3000) // they are in the middle of these
			away.do()
			s.publish(t, 500)
			s.verify(t)
			t.Logf("%s: all is consumed %v after", away.how, time.Since(began).Round(time.Millisecond))
		}
		a.drain(t)
		b.drain(t)
		s.verify(t)
	})
}

// awayFor waits, while other processes do what is tested.
func awayFor(d time.Duration) { <-time.After(d) }
