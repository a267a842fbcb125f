package cli

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/examples/filestats"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/topic"
)

// The processes of a demo are this program again, and so are the demos and the
// brokers that tests send signals to.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{"consume", "demo", "dev", "dlq", "serve"}, os.Args[1]) {
		os.Exit(Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// demoWithin runs a demo within this process.
func demoWithin(stdin io.Reader, args ...string) (stdout, stderr string, status int) {
	var out, errs bytes.Buffer
	status = Run(append([]string{"demo"}, args...), stdin, &out, &errs)
	return out.String(), errs.String(), status
}

func TestDemoFlags(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--kills", "-1"}, "--kills -1: want 0 or more"},
		{[]string{"--kills", "many"}, `--kills "many": want a whole number`},
		{[]string{"--broker-kills", "-1"}, "--broker-kills -1: want 0 or more"},
		{[]string{"--broker-kills", "1", "--brokers", "127.0.0.1:9"}, "--broker-kills: the demo kills a broker of its own"},
		{[]string{"--rate", "-5"}, "--rate -5: want events a second"},
		{[]string{"--rate", "abc"}, `--rate "abc": want a whole number`},
		{[]string{"--seed", "-1"}, `--seed "-1": want at least 0`},
		{[]string{"-o", "yaml"}, `--output "yaml": want text or json`},
		{[]string{"--keep"}, "--keep: there is nothing to keep without --brokers"},
		{[]string{"--brokers", "localhost"}, `--brokers "localhost": broker "localhost": want HOST:PORT`},
		{[]string{"--brokers", ""}, `--brokers "": want items between commas`},
		{[]string{"--tls"}, "TLS or SASL is set and no brokers are named: set --brokers"},
		{[]string{"--kill", "3"}, "unknown flag --kill"},
		{[]string{"now"}, `unexpected argument "now"`},
	} {
		stdout, stderr, status := demoWithin(nil, tt.args...)
		if status != exitUsage || !strings.Contains(stderr, tt.want) || stdout != "" {
			t.Errorf("%v: status %d, standard error %q, standard output %q; want %d and %q", tt.args, status, stderr, stdout, exitUsage, tt.want)
		}
	}
}

func TestDemoErrors(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	file := filepath.Join(t.TempDir(), "changes.jsonl")
	if err := os.WriteFile(file, []byte(someLines+"{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--input", file}, "read the input, " + file + `: line 4: there is no "path"`},
		{[]string{"--input", file + ".gone"}, "no such file"},
		{[]string{"--input", "-"}, "read the input, standard input: it is empty"},
		{[]string{"--dir", filepath.Join(file, "below")}, "not a directory"},
		{[]string{"--brokers", "127.0.0.1:1"}, "127.0.0.1:1"},
	} {
		stdout, stderr, status := demoWithin(strings.NewReader(""), append(tt.args, "-o", "json")...)
		if status != exitError || !strings.Contains(stderr, tt.want) || stdout != "" {
			t.Errorf("%v: status %d, standard error %q, standard output %q; want %d and %q", tt.args, status, stderr, stdout, exitError, tt.want)
		}
	}
	left, err := os.ReadDir(temporary)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		t.Errorf("%s is left behind", f.Name())
	}
}

// A run over an input of one's own, from end to end, prints what it adds up
// to, on one line, and leaves nothing behind.
func TestDemo(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	stdout, stderr, status := demoWithin(strings.NewReader(someLines), "--input", "-", "--kills", "0", "--rate", "0", "-o", "json")
	if status != exitOK {
		t.Fatalf("status %d:\n%s", status, stderr)
	}
	want := `{"events":3,"added":5,"deleted":2,"paths":2,"authors":2,"days":3,"author_days":3,"kills":0,"broker_kills":0,"takeovers":0,"lost":0,"duplicated":0,"seconds":S,"verified":true}` + "\n"
	if got := regexp.MustCompile(`"seconds":[0-9.]+`).ReplaceAllString(stdout, `"seconds":S`); got != want {
		t.Errorf("standard output %q, want %q", got, want)
	}
	dir := regexp.MustCompile(`stores and logs are in (.*)`).FindStringSubmatch(stderr)
	if dir == nil {
		t.Fatalf("standard error doesn't say where stores and logs are:\n%s", stderr)
	}
	if _, err := os.Stat(dir[1]); !os.IsNotExist(err) {
		t.Errorf("%s is there after the run (error %v)", dir[1], err)
	}
}

// The text ends with a table; --dir keeps stores and logs.
func TestDemoText(t *testing.T) {
	dir := t.TempDir()
	stdout, stderr, status := demoWithin(strings.NewReader(someLines), "--input", "-", "--kills", "1", "--seed", "1", "--rate", "0", "--dir", dir)
	if status != exitOK || stderr != "" {
		t.Fatalf("status %d:\n%s\n%s", status, stdout, stderr)
	}
	for _, want := range []string{
		"standard input: 3 events\n", "seed 1\n", "kill -9 of process",
		"\nevents                            3            3\nlines added                       5            5\n",
		"\nkills                             1\n", "\nverified: nothing is lost or duplicated;",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("standard output holds no %q:\n%s", want, stdout)
		}
	}
	for _, name := range []string{"demo.log", "a.log", "b.log", "a", "b"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

// The broker may be killed too: it comes back with what is on its disk, and the
// account is the same.
func TestDemoKillsTheBroker(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	stdout, stderr, status := demoWithin(nil, "--input", part(t, 4000), "--kills", "1", "--broker-kills", "3", "--seed", "5", "--rate", "2000", "-o", "json")
	if status != exitOK {
		t.Fatalf("status %d:\n%s\n%s", status, stdout, stderr)
	}
	for _, want := range []string{`"events":4000,`, `"kills":1,"broker_kills":3,`, `"lost":0,"duplicated":0,`, `"verified":true`} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%s is not in %s\n%s", want, stdout, stderr)
		}
	}
	if got := strings.Count(stderr, "kill -9 of the broker"); got != 3 {
		t.Errorf("it says %d times that the broker is killed, want 3:\n%s", got, stderr)
	}
}

// demoProcess is a demo that runs as a process of its own.
type demoProcess struct {
	*exec.Cmd
	dir    string
	stdout bytes.Buffer
	lines  chan string // of its standard error
	seen   []string
}

// part writes the first events of the real input to a file.
func part(t *testing.T, events int) (file string) {
	t.Helper()
	in, err := gzip.NewReader(filestats.Input())
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(in)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "changes.jsonl")
	if err := os.WriteFile(file, bytes.Join(bytes.SplitAfterN(all, []byte("\n"), events+1)[:events], nil), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const partEvents = 15_000

// startDemo starts a demo that would take half a minute.
func startDemo(t *testing.T, stdin *os.File, args ...string) *demoProcess {
	t.Helper()
	p := &demoProcess{dir: t.TempDir(), lines: make(chan string, 1000)}
	p.Cmd = exec.Command(os.Args[0], append([]string{"demo", "-o", "json", "--rate", "500", "--kills", "0", "--dir", p.dir, "--input", part(t, partEvents)}, args...)...)
	if stdin != nil {
		p.Stdin = stdin
	}
	p.Stdout = &p.stdout
	stderr, err := p.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(stderr); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		// It has ended, unless the test has failed.
		_ = p.Process.Kill()
	})
	return p
}

// untilTime is much longer than anything takes.
const untilTime = 3 * time.Minute

// until reads standard error up to a line that matches.
func (p *demoProcess) until(t *testing.T, pattern string) {
	t.Helper()
	late := time.After(untilTime)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				t.Fatalf("the demo ended before it said %q:\n%s", pattern, strings.Join(p.seen, "\n"))
			}
			p.seen = append(p.seen, line)
			if regexp.MustCompile(pattern).MatchString(line) {
				return
			}
		case <-late:
			t.Fatalf("the demo didn't say %q within %v:\n%s", pattern, untilTime, strings.Join(p.seen, "\n"))
		}
	}
}

// end waits for the demo's end.
func (p *demoProcess) end() (status int, said string) {
	for line := range p.lines {
		p.seen = append(p.seen, line)
	}
	// The status says how it ended.
	_ = p.Wait()
	return p.ProcessState.ExitCode(), strings.Join(p.seen, "\n")
}

// workers returns the processes that hold the demo's state directories.
func (p *demoProcess) workers(t *testing.T) (pids []int) {
	t.Helper()
	for _, name := range []string{"a", "b"} {
		text, err := os.ReadFile(filepath.Join(p.dir, name, "lock"))
		if err != nil {
			t.Fatal(err)
		}
		var pid int
		if _, err := fmt.Sscanf(string(text), "process %d ", &pid); err != nil {
			t.Fatalf("lock of process %s: %q: %v", name, text, err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// awaitEnd waits until whoever holds the state directories lets go of them, as
// the operating system does at the latest when they end.
func (p *demoProcess) awaitEnd(t *testing.T) {
	t.Helper()
	for _, name := range []string{"a", "b"} {
		f, err := os.Open(filepath.Join(p.dir, name, "lock"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		locked := make(chan error, 1)
		go func() { locked <- syscall.Flock(int(f.Fd()), syscall.LOCK_EX) }()
		select {
		case err := <-locked:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("process %s still runs a minute after its parent's end", name)
		}
	}
}

const consuming = `running: .* [1-9][0-9,]* through .*; a running, [1-9][0-9]* shards; b running, [1-9]`

// An interrupt drains: it says so, prints what there is, and is no failure.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	p := startDemo(t, nil)
	p.until(t, consuming)
	if err := p.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	status, said := p.end()
	if status != exitOK {
		t.Fatalf("status %d:\n%s", status, said)
	}
	var r result
	if err := json.Unmarshal(p.stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v: %q", err, p.stdout.String())
	}
	if !r.Interrupted || r.Verified || r.Lost != 0 || r.Duplicated != 0 || r.Events == 0 || r.Events >= partEvents {
		t.Errorf("%+v, want what was consumed until then, nothing lost or duplicated, interrupted and not verified", r)
	}
	p.awaitEnd(t)
}

// An interrupt while standard input is being read ends at once.
func TestDemoInterruptedAtItsInput(t *testing.T) {
	never, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer never.Close()
	defer w.Close()
	p := startDemo(t, never, "--input", "-")
	p.until(t, "reading standard input")
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	status, said := p.end()
	if want := `"verified":false,"interrupted":true}` + "\n"; status != exitOK || !strings.HasSuffix(p.stdout.String(), want) {
		t.Errorf("status %d and standard output %q, want %d and an end of %q:\n%s", status, p.stdout.String(), exitOK, want, said)
	}
}

// A reader who has seen enough ends the run, which still cleans up.
func TestDemoUnread(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "demo", "--rate", "500", "--kills", "0", "--input", part(t, partEvents))
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	for s := bufio.NewScanner(stdout); s.Scan(); {
		if strings.Contains(s.Text(), "running:") {
			break
		}
	}
	if err := stdout.Close(); err != nil {
		t.Fatal(err)
	}
	// Its status says that it couldn't write.
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != exitError {
		t.Errorf("status %d, want %d", got, exitError)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("%s is left behind", left[0].Name())
	}
}

// An interrupt just after a kill waits for the transaction that the victim
// left open, and takes nothing for lost that it hides.
func TestDemoInterruptedAfterAKill(t *testing.T) {
	t.Parallel()
	p := startDemo(t, nil, "--kills", "3", "--seed", "3", "--rate", "3000")
	p.until(t, "it stays down")
	if err := p.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	status, said := p.end()
	if want := `"lost":0,"duplicated":0,`; status != exitOK || !strings.Contains(p.stdout.String(), want) || !strings.Contains(p.stdout.String(), `"interrupted":true`) {
		t.Errorf("status %d and standard output %q, want %d and %s:\n%s", status, p.stdout.String(), exitOK, want, said)
	}
}

// A second signal ends everything at once.
func TestDemoInterruptedTwice(t *testing.T) {
	t.Parallel()
	p := startDemo(t, nil)
	p.until(t, consuming)
	workers := p.workers(t)
	for _, pid := range workers { // so that they don't drain
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	p.until(t, "interrupted: draining")
	ended, insisting := make(chan struct{}), sync.WaitGroup{}
	insisting.Go(func() { // at first it may be taken for the one before, once more
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			if err := p.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
				t.Error(err)
			}
			select {
			case <-ended:
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	})
	status, said := p.end()
	close(ended)
	insisting.Wait()
	if want := 128 + int(syscall.SIGINT); status != want {
		t.Errorf("status %d, want %d:\n%s", status, want, said)
	}
	p.awaitEnd(t)
}

// When the demo itself is killed, its processes end too: the system closes
// their standard input.
func TestDemoKilled(t *testing.T) {
	t.Parallel()
	p := startDemo(t, nil)
	p.until(t, consuming)
	if pids := p.workers(t); len(slices.Compact(append(pids, p.Process.Pid))) != 3 {
		t.Fatalf("processes %v of demo %d: want two others", pids, p.Process.Pid)
	} else {
		for _, pid := range pids { // so that a Ctrl-C in a terminal is the demo's alone
			if group, err := syscall.Getpgid(pid); err != nil || group != pid {
				t.Errorf("process %d of demo %d is in the process group %d, want its own (error %v)", pid, p.Process.Pid, group, err)
			}
		}
	}
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.end()
	p.awaitEnd(t)
}

// A process that ends by itself ends the demo, with its last words.
func TestDemoWorkerDies(t *testing.T) {
	t.Parallel()
	p := startDemo(t, nil)
	p.until(t, consuming)
	if err := syscall.Kill(p.workers(t)[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	status, said := p.end()
	if status != exitError || !strings.Contains(said, "process a ended by itself: signal: killed; its log ends with:") {
		t.Errorf("status %d, want %d, and which process it was:\n%s", status, exitError, said)
	}
	if p.stdout.Len() > 0 {
		t.Errorf("standard output %q, want nothing", p.stdout.String())
	}
	p.awaitEnd(t)
}

// runOf returns the name of a run, which it has said.
func runOf(t *testing.T, said string) string {
	t.Helper()
	m := regexp.MustCompile(`run (demo-[0-9a-z-]+) on `).FindStringSubmatch(said)
	if m == nil {
		t.Fatalf("the demo doesn't say what its run is called:\n%s", said)
	}
	return m[1]
}

// takeAway deletes the topics and groups of a cluster, and returns their names.
func takeAway(t *testing.T, at cluster.Cluster) (topics, groups []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), servedTime)
	defer cancel()
	a, err := kafka.NewAdmin(quietly(at))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	allTopics, err := a.ListTopics(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range allTopics {
		if !d.Internal {
			topics = append(topics, d.Name)
		}
	}
	allGroups, err := a.Groups(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range allGroups {
		groups = append(groups, g.Name)
		if err := a.DeleteGroup(ctx, g.Name); err != nil {
			t.Error(err)
		}
	}
	if err := a.DeleteTopics(ctx, topics...); err != nil {
		t.Error(err)
	}
	return topics, groups
}

// An output that comes twice is found, and ends the demo with an error.
func TestDemoFindsACorruptedOutput(t *testing.T) {
	t.Parallel()
	s := serving(t, t.TempDir())
	p := startDemo(t, nil, "--brokers", s.addr, "--rate", "100", "--input", part(t, 300))
	p.until(t, ` running: `)
	application := runOf(t, strings.Join(p.seen, "\n"))
	totals := namesOf(application, filestats.New(application+"-")).totals

	r, err := kafka.NewReader(quietly(s.cluster()), kafka.ReaderConfig{Committed: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for n := range int32(filestats.Partitions) {
		r.Consume(topic.Bytes(totals).Description, n, 0)
	}
	ctx, cancel := context.WithTimeout(t.Context(), servedTime)
	defer cancel()
	var batch kafka.Batch
	for len(batch.Envelopes) == 0 {
		batch.Reset()
		if err := r.Poll(ctx, 1, &batch); err != nil {
			t.Fatal(err)
		}
	}
	e := batch.Envelopes[0]
	again, err := kafka.NewProducer(quietly(s.cluster()))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := again.Publish(ctx, kafka.Record{Topic: totals, Partition: e.Partition, Key: e.Key, Value: e.Value}); err != nil {
		t.Fatal(err)
	}

	status, said := p.end()
	var got result
	if err := json.Unmarshal(p.stdout.Bytes(), &got); err != nil {
		t.Fatalf("%v: %q\n%s", err, p.stdout.String(), said)
	}
	if status != exitError || got.Verified || got.Duplicated != 1 || !strings.Contains(said, " differences (seed ") {
		t.Errorf("status %d, %+v; want %d, not verified and one duplicate:\n%s", status, got, exitError, said)
	}
}

// A demo runs on the Kafka that variables, contexts and files name, as whoever
// logs in there; and so do its processes, which are told no secret by a flag.
func TestDemoOnANamedKafka(t *testing.T) {
	contexts(t)
	t.Setenv("TMPDIR", t.TempDir())
	users := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(users, []byte("ann:s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serving(t, t.TempDir(), "--users", users)
	if status, _, stderr := runAlone("context", "add", "k", "--brokers", s.addr, "--sasl-mechanism", "scram-sha-256", "--sasl-username", "ann", "--sasl-password-env", "K_PASSWORD"); status != exitOK {
		t.Fatal(stderr)
	}
	t.Setenv("K_PASSWORD", "s3cret")
	t.Setenv("PAWL_CONTEXT", "k")
	at := s.cluster()
	at.SASL = cluster.SASL{Mechanism: cluster.ScramSHA256, Username: "ann", Password: "s3cret"}
	small := part(t, 300)
	for _, more := range [][]string{nil, {"--keep"}, {"--queue"}, {"--queue", "--keep"}} {
		stdout, stderr, status := demoWithin(nil, append([]string{"--kills", "1", "--rate", "0", "--seed", "1", "-o", "json", "--input", small}, more...)...)
		if status != exitOK || !strings.Contains(stderr, " on "+s.addr) || strings.Contains(stderr+stdout, "s3cret") {
			t.Errorf("demo %v: status %d, %s%s", more, status, stdout, stderr)
		}
		// It takes away what it has made there, unless it is to keep it.
		var wantTopics, wantGroups []string
		if slices.Contains(more, "--keep") {
			application := runOf(t, stderr)
			wantTopics, wantGroups = queueTopics(application), []string{messaging.Group(application, queueConsumer)}
			if !slices.Contains(more, "--queue") {
				n := namesOf(application, filestats.New(application+"-"))
				wantTopics, wantGroups = []string{n.changes, n.byAuthor, n.totals, n.changesLog, n.byAuthorLog}, []string{application}
			}
			slices.Sort(wantTopics)
		}
		topics, groups := takeAway(t, at)
		if !slices.Equal(topics, wantTopics) || !slices.Equal(groups, wantGroups) {
			t.Errorf("demo %v leaves topics %q and groups %q, want %q and %q", more, topics, groups, wantTopics, wantGroups)
		}
	}
	if got, stderr, _ := demoWithin(nil, "--print-config"); !strings.Contains(got, "ann") || strings.Contains(got, "s3cret") {
		t.Errorf("the settings are %s%s", got, stderr)
	}
	// Without one that is named it has a broker of its own, whatever is current.
	if status, _, stderr := runAlone("context", "use", "k"); status != exitOK {
		t.Fatal(stderr)
	}
	t.Setenv("PAWL_CONTEXT", "")
	if got, _, _ := demoWithin(nil, "--print-config"); !strings.Contains(got, "# brokers: not set (default: a broker of the command's own)") {
		t.Errorf("with a current context alone the settings are %s", got)
	}
}
