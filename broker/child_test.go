package broker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pawlstream/pawl/internal/invariants"
)

// The test binary, started again with this variable set, is a broker whose
// configuration the variable holds. It prints its address, and runs until it is
// killed.
const childConfig = "PAWL_TEST_BROKER"

type childSettings struct {
	Dir      string
	Settings map[string]string
	Unsynced bool
	Memory   int64
	Kfake    bool   // not this broker, but kfake with a data directory
	Files    uint64 // how many files it may have open, if not as many as this process
}

func runChild() {
	text := os.Getenv(childConfig)
	if text == "" {
		return
	}
	var s childSettings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		panic(err)
	}
	if s.Files > 0 {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: s.Files, Max: s.Files}); err != nil {
			panic(err)
		}
	}
	if s.Kfake {
		runKfake(s.Dir)
	}
	b, err := Open(s.Dir, Config{Listen: "127.0.0.1:0", Settings: s.Settings, Unsynced: s.Unsynced, Logger: slog.New(slog.DiscardHandler), Memory: max(s.Memory, memoryMin)})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println(b.Addr())
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
	if err := b.Close(); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child is a broker in a process of its own.
type child struct {
	cmd  *exec.Cmd
	addr string
	out  *bufio.Reader
}

func startChild(t testing.TB, s childSettings, crash string) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: exec.Command(exe)}
	c.cmd.Env = append(os.Environ(), childConfig+"="+string(text), "PAWL_CRASH="+crash)
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	c.out = bufio.NewReader(out)
	line, err := c.out.ReadString('\n')
	if err != nil || strings.HasPrefix(line, "error:") {
		t.Fatalf("the child printed %q, %v", line, err)
	}
	c.addr = strings.TrimSpace(line)
	return c
}

// kill ends the child as kill -9 does, and waits for it.
func (c *child) kill() {
	if c.cmd.ProcessState == nil {
		_ = c.cmd.Process.Kill() // it may have ended
		_ = c.cmd.Wait()         // by a signal: that is what was asked for
	}
}

// remote is a kit of a child.
func remote(t testing.TB, s childSettings, crash string) *kit {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute+soak(t))
	t.Cleanup(cancel)
	return &kit{TB: t, ctx: ctx, dir: s.Dir, child: startChild(t, s, crash)}
}

// soak is how long the seeded tests run, as PAWL_SOAK says, or 0.
func soak(t testing.TB) time.Duration {
	text := os.Getenv("PAWL_SOAK")
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("PAWL_SOAK: %v", err)
	}
	return d
}

// rounds is how many rounds of something seeded a test runs: few, or for an
// eighth of the time that PAWL_SOAK says.
func rounds(t testing.TB, few int) func() bool {
	d := soak(t)
	if d == 0 {
		return func() bool { few--; return few >= 0 }
	}
	end := time.Now().Add(d / 8)
	return func() bool { return time.Now().Before(end) }
}

// kill -9 at random moments of producers' lives.
func TestB1KillAtRandom(t *testing.T) {
	s := seed(t)
	rng := rand.New(rand.NewPCG(s, 3))
	n := 0
	for more := rounds(t, 5); more(); n++ {
		settings := childSettings{Dir: t.TempDir()}
		k := remote(t, settings, "")
		k.create("out", 2)
		k.create("plain", 2)
		k.create("in", 1)
		var whole story
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(k.ctx)
		k.ctx = ctx
		go func() { ended <- k.tell(&whole, 200) }()
		wait := time.NewTimer(time.Duration(rng.IntN(150)) * time.Millisecond)
		<-wait.C
		before := whole.copy()
		k.child.kill()
		after := whole.copy()
		cancel()
		if err := <-ended; err == nil {
			t.Errorf("round %d: the story came to its end before the kill", n)
		}
		remote(t, settings, "").judge(before, after)
		if t.Failed() {
			t.Fatalf("round %d, PAWL_SEED=%d", n, s)
		}
	}
	t.Logf("%d kills, seed %d", n, s)
}

// kill -9 aimed at the end of a transaction over 50 partitions: before it is
// written, before it is synced, before it is applied, before it is answered.
func TestB2KillAtEndTxn(t *testing.T) {
	if !invariants.Enabled {
		t.Skip("needs the build tag invariants") // without it nothing to test is compiled in; make test sets it
	}
	const partitions = 50
	// One round each: topics, producer, 50 produces, the offset, then the end.
	const before = 2 + 1 + partitions + 1
	for _, point := range []string{"broker-write", "broker-sync", "broker-synced", "broker-applied"} {
		for _, commit := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/%t", point, commit), func(t *testing.T) {
				settings := childSettings{Dir: t.TempDir()}
				k := remote(t, settings, fmt.Sprintf("%s:%d", point, before+1))
				k.create("out", partitions)
				k.create("in", 1)
				p := k.rawProducer("x")
				for part := range int32(partitions) {
					if _, err := p.produce("out", part, "v"); err != nil {
						t.Fatal(err)
					}
				}
				if err := p.commitOffset("group", "in", 0, 7); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(k.ctx)
				k.ctx = ctx
				go func() {
					_ = k.child.cmd.Wait() // it kills itself, and the request with it
					cancel()
				}()
				if _, err := p.tryEnd(commit); err == nil {
					t.Fatal("the end was answered, and the child was to die at it")
				}

				k = remote(t, settings, "")
				p.k, p.cl = k, k.client()
				// What a reader of all sees is all or nothing before anybody asks again.
				stable := 0
				for part := range int32(partitions) {
					if k.offset("out", part, listLatest, true) == 2 {
						stable++
					}
				}
				if stable != 0 && stable != partitions {
					t.Errorf("%d of %d partitions have the marker", stable, partitions)
				}
				if _, err := p.tryEnd(commit); err != nil {
					t.Errorf("the end, sent again: %v", err)
				}
				if _, err := p.tryEnd(!commit); err == nil {
					t.Error("the opposite end is taken")
				}
				want, offset := []string{"v"}, int64(7)
				if !commit {
					want, offset = nil, -1
				}
				for part := range int32(partitions) {
					if got := k.read("out", part, true); !slices.Equal(got, want) {
						t.Errorf("committed in %d: %q, want %q", part, got, want)
					}
				}
				if got := k.committedOffset(p.cl, "group", "in", 0); got != offset {
					t.Errorf("offset %d, want %d", got, offset)
				}
			})
		}
	}
}

// A second broker on a directory says who has the first.
func TestB7OneProcess(t *testing.T) {
	settings := childSettings{Dir: t.TempDir()}
	k := remote(t, settings, "")
	_, err := Open(settings.Dir, quiet().onDisk())
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("process %d ", k.child.cmd.Process.Pid)) {
		t.Errorf("open: %v, want ErrLocked and process %d", err, k.child.cmd.Process.Pid)
	}
	k.child.kill()
	b, err := Open(settings.Dir, quiet().onDisk())
	if err != nil {
		t.Fatalf("after the kill: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func (c Config) onDisk() Config {
	c.fs = nil
	return c
}
