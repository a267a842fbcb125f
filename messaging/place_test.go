package messaging_test

import (
	"bufio"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/broker"
	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumertest"
)

// place is where a body of the suite runs.
type place struct {
	cluster  func(host string) cluster.Cluster // how a host reaches the brokers
	calm     bool                              // no broker dies: everything comes exactly as often as it must
	shared   bool                              // others use the brokers too
	patience time.Duration                     // for what is waited for
	slack    time.Duration                     // by which something may be late, beside what is promised
	look     time.Duration                     // how often the account looks

	// refuse makes the brokers refuse what a host writes to a topic of one
	// partition, until again is called. It may take with it what the topic holds.
	refuse func(s *stage, host, topic string) (again func())
}

// inVirtualTime runs a body in virtual time, on a broker in the process.
func inVirtualTime(t *testing.T, b body) {
	synctest.Test(t, func(t *testing.T) {
		c := consumertest.NewCluster(t)
		s := newStage(t, place{
			cluster: c.Host, calm: true, patience: 5 * time.Minute, slack: 100 * time.Millisecond, look: 100 * time.Millisecond,
			refuse: func(_ *stage, host, _ string) func() { return c.Fail(host, "Produce", "NOT_ENOUGH_REPLICAS", -1) },
		}, b.partitions)
		b.run(s)
		s.account.close()
	})
}

// onKafka runs a body on the Kafka that PAWL_TEST_KAFKA names.
func onKafka(t *testing.T, b body) {
	brokers := strings.Split(os.Getenv("PAWL_TEST_KAFKA"), ",")
	s := newStage(t, place{
		cluster: func(string) cluster.Cluster { return cluster.Cluster{Brokers: brokers} },
		calm:    true, shared: true, patience: time.Minute, slack: time.Second, look: 20 * time.Millisecond,
		refuse: (*stage).without,
	}, b.partitions)
	b.run(s)
	s.account.close()
}

// onKilledBroker runs a body on a broker of its own that is killed, so many times
// at moments that the seed says, and started again with what is on its disk.
func onKilledBroker(t *testing.T, seed uint64, kills int, b body) {
	name := fnv.New64()
	name.Write([]byte(b.name))
	v := &victim{t: t, dir: t.TempDir(), random: rand.New(rand.NewPCG(seed, name.Sum64()))}
	if err := v.start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.kill)
	s := newStage(t, place{
		cluster:  func(string) cluster.Cluster { return cluster.Cluster{Brokers: []string{v.addr}} },
		patience: time.Minute, slack: 5 * time.Second, look: 10 * time.Millisecond,
		refuse: (*stage).without,
	}, b.partitions)
	ctx, cancel := context.WithCancel(context.Background())
	var killing sync.WaitGroup
	t.Cleanup(killing.Wait)
	t.Cleanup(cancel)
	killing.Go(func() { v.killAtRandom(ctx, kills) })
	b.run(s)
	cancel()
	killing.Wait()
	s.account.close()
	if v.killed == 0 {
		t.Errorf("the body came to its end before the first kill")
	}
	t.Logf("%d kills", v.killed)
}

// without deletes a topic of one partition, and returns what makes it anew.
func (s *stage) without(_, topic string) func() {
	s.t.Helper()
	s.ask("delete "+topic, func(ctx context.Context) error { return s.admin.DeleteTopics(ctx, topic) })
	return func() { s.create(topic, 1) }
}

// change sets a setting of a topic, and returns what sets it to another value.
func (s *stage) change(topic, setting, value, back string) func() {
	set := func(value string) {
		s.t.Helper()
		s.ask("set "+setting, func(ctx context.Context) error { return s.admin.SetTopicSetting(ctx, topic, setting, value) })
	}
	set(value)
	return func() { set(back) }
}

// victim is a broker in a process of its own, which is killed.
type victim struct {
	t      *testing.T
	dir    string
	addr   string
	random *rand.Rand
	killed int

	mu  sync.Mutex
	cmd *exec.Cmd // nil: it is dead
}

// victimDir and victimListen tell this test binary, started again, to be the
// victim.
const (
	victimDir    = "PAWL_TEST_VICTIM"
	victimListen = "PAWL_TEST_VICTIM_LISTEN"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(victimDir); dir != "" {
		if err := runVictim(dir, os.Getenv(victimListen)); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runVictim is the victim. It ends when its standard input does, and so with the
// test.
func runVictim(dir, listen string) error {
	b, err := broker.Open(dir, broker.Config{Listen: listen, Memory: 64 << 20, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		return err
	}
	fmt.Println(b.Addr())
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return b.Close()
}

// start starts the process, and returns once it listens.
func (v *victim) start(listen string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), victimDir+"="+v.dir, victimListen+"="+listen)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // closed with the process of the test
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	v.mu.Lock()
	v.cmd = cmd
	v.mu.Unlock()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.HasPrefix(line, "error:") {
		return fmt.Errorf("start the broker at %s: it says %q, %v", listen, line, err)
	}
	if v.addr == "" {
		v.addr = strings.TrimSpace(line) // where it comes back
	}
	return nil
}

// kill ends the process as kill -9 does, and waits for that.
func (v *victim) kill() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.cmd == nil {
		return
	}
	_ = v.cmd.Process.Kill() // it may have ended
	_ = v.cmd.Wait()         // by a signal: that is what was asked for
	v.cmd = nil
}

// The longest that the victim lives at first, which is shorter than any body
// takes, and how often that may double; and the longest that it stays away.
const (
	lifeMax     = 60 * time.Millisecond
	lifeDoubles = 3
	deadMax     = 150 * time.Millisecond
)

// killAtRandom kills the victim so many times, or until ctx ends, at random
// moments, and starts it again where its clients look for it.
func (v *victim) killAtRandom(ctx context.Context, times int) {
	wait := func(most time.Duration) {
		timer := time.NewTimer(time.Duration(v.random.Int64N(int64(most))))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	life := lifeMax
	for range times {
		if wait(life); ctx.Err() != nil {
			return
		}
		v.kill()
		v.killed++
		wait(deadMax)
		if err := v.start(v.addr); err != nil {
			v.t.Error(err)
			return
		}
		life = lifeMax << v.random.IntN(lifeDoubles+1)
	}
}
