package pawl_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/pawlstream/pawl"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/topic"
)

// program runs a program that is expected to end by itself.
func program(t *testing.T, args, env []string, consumers ...consumer.Consumer) (status int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out, errs strings.Builder
	status = pawl.Run(ctx, pawl.Options{Name: "wordcount", Args: append([]string{"--log-level=error"}, args...), Env: append([]string{"HOME=" + t.TempDir()}, env...), Stdout: &out, Stderr: &errs}, consumers...)
	if ctx.Err() != nil {
		t.Errorf("%q has not ended in %v", args, patience)
	}
	return status, out.String(), errs.String()
}

// Each mistake in how a program is called is one line, and status 2.
func TestUsageErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	brokers := []string{"--brokers=127.0.0.1:9", "--state-dir=" + t.TempDir()}
	for _, tt := range []struct {
		args []string
		env  []string
		want []string // the lines
	}{
		{[]string{"--drian", "20s"}, nil, []string{"unknown flag --drian: did you mean --drain?"}},
		{nil, []string{"PAWL_BROKER=a:1"}, []string{"unknown variable PAWL_BROKER: did you mean PAWL_BROKERS?"}},
		{[]string{"--drain", "20"}, nil, []string{`--drain "20": want a unit with it: say 20s for seconds or 20ms for milliseconds`}},
		{[]string{"--on-failure", "ignore"}, nil, []string{`--on-failure "ignore": want stop, retry, dead-letter or skip`}},
		{[]string{"--start", "yesterday"}, nil, []string{`--start "yesterday": want earliest, latest or a time such as 2006-01-02T15:04:05Z`}},
		{[]string{"--admin", "8080"}, nil, []string{`--admin "8080": want HOST:PORT or :PORT, such as 127.0.0.1:8080`}},
		{[]string{"--listen", "localhost:http"}, nil, []string{`--listen "localhost:http": want HOST:PORT or :PORT, such as 127.0.0.1:8080`}},
		{[]string{"--log-level", "loud"}, nil, []string{`--log-level "loud": want debug, info, warn or error`}},
		{[]string{"--drain", "20", "--memory", "x"}, []string{"PAWL_NO=1"}, []string{
			"unknown variable PAWL_NO",
			`--drain "20": want a unit with it: say 20s for seconds or 20ms for milliseconds`,
			`--memory "x": want a size such as 64MiB or 1.5GiB`,
		}},
		{[]string{"--brokers=127.0.0.1:9"}, nil, []string{"--brokers is set and no state directory: set --state-dir to a directory that outlives the process, so that a restart need not restore"}},
		{[]string{"--admin=:9999"}, nil, []string{`--admin ":9999": others can reach this address: set PAWL_ADMIN_TOKEN or --admin-token-file, and whoever asks must know it`}},
		{nil, []string{"PAWL_ADMIN=0.0.0.0:9999"}, []string{`PAWL_ADMIN "0.0.0.0:9999": others can reach this address: set PAWL_ADMIN_TOKEN or --admin-token-file, and whoever asks must know it`}},
		{[]string{"--print-confg"}, nil, []string{"unknown flag --print-confg: did you mean --print-config?"}},
		{[]string{"-o", "json"}, nil, []string{"--output is for --print-config, which is not set"}},
		{append(brokers, "--listen=:0"), nil, []string{"--listen opens the broker within the process, and --brokers names others: set one of them"}},
		{append(brokers, "--insecure"), nil, []string{"--insecure is for the broker within the process, and --brokers names others"}},
		{[]string{"--listen=0.0.0.0:0"}, nil, []string{"--listen 0.0.0.0:0: others can reach this address, and nobody has to say who they are: set --insecure to let everybody in, or run pawl serve, which knows users"}},
		{[]string{"--advertise=here:9092"}, nil, []string{"--advertise is set and --listen is not: the broker within the process is open to this process alone"}},
		{append(brokers, "--partitions=3"), nil, []string{"--partitions is for the broker within the process: on others, create the topics, or give their descriptions topic.Partitions"}},
		{[]string{"--tls"}, nil, []string{"TLS or SASL is set and no brokers are named: set --brokers"}},
		{nil, []string{"PAWL_SASL_PASSWORD=hunter2"}, []string{"TLS or SASL is set and no brokers are named: set --brokers"}},
		{append(brokers, "--tls-ca="+missing), nil, []string{"--tls-ca: open " + missing + ": no such file or directory"}},
		{append(brokers, "--tls-ca="+text), nil, []string{"--tls-ca: " + text + " holds no certificate in PEM form"}},
		{append(brokers, "--tls-cert="+text), nil, []string{"--tls-cert goes together with tls-key, which is not set"}},
		{append(brokers, "--sasl-mechanism=PLAIN", "--sasl-username=ann"), nil, []string{"SASL PLAIN needs a password: set PAWL_SASL_PASSWORD or --sasl-password-file"}},
		{append(brokers, "--application=Word.Count", "--drain=5h"), nil, []string{
			`--application "Word.Count": application name "Word.Count": want lower-case letters, digits and hyphens`,
			`--drain "5h": drain timeout is 5h0m0s: want 10ms to 1h0m0s`,
		}},
		{[]string{"--application=../../../x", "--drain=5h"}, nil, []string{
			`--application "../../../x": application name "../../../x": want lower-case letters, digits and hyphens`,
			`--drain "5h": drain timeout is 5h0m0s: want 10ms to 1h0m0s`,
		}},
	} {
		home := t.TempDir()
		status, stdout, stderr := program(t, tt.args, append(slices.Clone(tt.env), "HOME="+home), counter{})
		if left, err := os.ReadDir(home); err != nil || len(left) > 0 {
			t.Errorf("%q %q: %v is made for a program that does not start, %v", tt.args, tt.env, left, err)
		}
		want := ""
		for _, line := range tt.want {
			want += "wordcount: " + line + "\n"
		}
		if !strings.Contains(want, "drain timeout") { // which is only known when the consumers are
			want += "wordcount: --help lists the flags\n"
		}
		if status != 2 || stdout != "" || stderr != want {
			t.Errorf("%q %q:\ngot  status %d, %s%s\nwant status 2, %s", tt.args, tt.env, status, stdout, stderr, want)
		}
	}
}

// Two consumers of one topic are a mistake of the program, found at start.
func TestTwoConsumersOfATopic(t *testing.T) {
	status, _, stderr := program(t, nil, nil, counter{}, newWordCounter())
	if want := "wordcount: configure application wordcount: topic words is named twice by the consumers of application wordcount: one consumes it\n"; status != 2 || stderr != want {
		t.Errorf("status %d, %s\nwant 2, %s", status, stderr, want)
	}
}

func TestHelpAndVersion(t *testing.T) {
	status, stdout, stderr := program(t, []string{"--help"}, nil, counter{})
	if status != 0 || stderr != "" || !strings.Contains(stdout, "  --commit-interval DURATION      longest time that a transaction stays open for more messages (default: 100ms)\n") {
		t.Errorf("--help: status %d, stderr %q, stdout:\n%s", status, stderr, stdout)
	}
	status, stdout, stderr = program(t, []string{"--version"}, nil, counter{})
	if status != 0 || stderr != "" || !strings.HasPrefix(stdout, "wordcount: Pawl "+consumer.Version+", go") {
		t.Errorf("--version: status %d, stderr %q, stdout %q", status, stderr, stdout)
	}
}

// orders is a consumer of a topic with no number of partitions.
type orders struct{ counter }

var orderTopic = topic.String("orders")

func (orders) Topics() []*topic.Description { return []*topic.Description{orderTopic.Description} }

// What is wrong around a program when it starts is said in one line that
// names it, soon, and with status 1.
func TestStartErrors(t *testing.T) {
	b, _ := broker(t, "words", "totals")
	secured, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser("PLAIN", "ann", "right"))
	if err != nil {
		t.Fatal(err)
	}
	defer secured.Close()
	dead := deadAddress(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	held := t.TempDir()
	holder := start(t, []string{"--brokers", b.Addr(), "--state-dir", held, "--instance=the-first"}, counter{})
	holder.stderr.wait(t, `"msg":"running"`, 2)

	sasl := []string{"--brokers", secured.ListenAddrs()[0], "--sasl-mechanism=PLAIN", "--sasl-username=ann"}
	state := func() string { return "--state-dir=" + t.TempDir() }
	for _, tt := range []struct {
		name string
		args []string
		env  []string
		want []string // each in the one line
	}{
		{"unreachable broker", []string{"--brokers", dead, "--start-timeout=300ms", state()}, nil, []string{"connect to broker " + dead, "without TLS", "nothing listens there", "connection refused"}},
		{"unknown host", []string{"--brokers", "no-such-host.invalid:9092", "--start-timeout=300ms", state()}, nil, []string{"connect to broker no-such-host.invalid:9092", "can't be resolved"}},
		{"wrong password", append(sasl, state()), []string{"PAWL_SASL_PASSWORD=hunter2"}, []string{"connect to broker", `SASL PLAIN as "ann"`, "password is wrong"}},
		{"no credentials", []string{"--brokers", secured.ListenAddrs()[0], state()}, nil, []string{"connect to broker", "without SASL", "want SASL"}},
		{"TLS to a plain port", []string{"--brokers", b.Addr(), "--tls", state()}, nil, []string{"connect to broker " + b.Addr(), "with TLS", "speak TLS, and this side is set to"}},
		{"state directory below a file", []string{"--brokers", b.Addr(), "--state-dir", filepath.Join(file, "state")}, nil, []string{"make state directory " + file, "not a directory"}},
		{"state directory in use", []string{"--brokers", b.Addr(), "--state-dir", held, "--drain=50ms"}, nil, []string{"state directory " + held + " is in use by", "the-first"}},
		{"admin port in use", []string{"--brokers", b.Addr(), "--admin", taken.Addr().String(), state()}, nil, []string{"serve the admin API: listen tcp " + taken.Addr().String(), "address already in use"}},
		{"broker's directory below a file", []string{"--state-dir", filepath.Join(file, "state")}, nil, []string{"open broker " + file, "not a directory"}},
		{"broker's port in use", []string{"--listen", taken.Addr().String()}, nil, []string{"listen tcp " + taken.Addr().String(), "address already in use"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			began := time.Now()
			status, stdout, stderr := program(t, tt.args, tt.env, counter{})
			checkStartError(t, status, stdout, stderr, tt.want)
			if took := time.Since(began); took > 12*time.Second {
				t.Errorf("it took %v to find out, want some 10 s at most", took)
			}
		})
	}
	t.Run("missing topic", func(t *testing.T) {
		status, stdout, stderr := program(t, []string{"--brokers", b.Addr(), state()}, nil, orders{})
		checkStartError(t, status, stdout, stderr, []string{"consumed topic orders does not exist", "create it"})
	})

	// None of it has disturbed the one that runs.
	if status, body := holder.get("/readyz"); status != 200 {
		t.Errorf("/readyz of the holder: %d %s", status, body)
	}
	if text, err := os.ReadFile(filepath.Join(held, "admin")); err != nil || "http://"+string(text) != holder.url()+"\n" {
		t.Errorf("the holder's admin file says %q, %v, want %s", text, err, holder.url())
	}
	if status := holder.status(); status != 0 {
		t.Errorf("exit status of the holder %d, want 0:\n%s", status, holder.stderr)
	}
}

// A program whose state directory, with the broker in it, another one still has
// waits for that to drain, as it does for a directory of state alone; when it does
// not end, the error says who has it and what to do.
func TestBrokerDirectoryIsWaitedFor(t *testing.T) {
	dir := t.TempDir()
	first := start(t, []string{"--state-dir", dir}, counter{})
	first.stderr.wait(t, `"msg":"running"`, 1)
	status, stdout, stderr := program(t, []string{"--state-dir", dir, "--drain=100ms"}, nil, counter{})
	checkStartError(t, status, stdout, stderr, []string{"open broker " + dir, "in use by another broker", fmt.Sprintf("process %d ", os.Getpid()), "stop that one, or give this one a --state-dir of its own"})

	second := start(t, []string{"--state-dir", dir, "--drain=1m"}, counter{})
	second.stderr.wait(t, `"msg":"another program has the state directory, and is waited for"`, 1)
	if status := first.status(); status != 0 {
		t.Errorf("exit status of the first %d, want 0:\n%s", status, first.stderr)
	}
	second.stderr.wait(t, `"msg":"running"`, 1)
	if status := second.status(); status != 0 {
		t.Errorf("exit status of the second %d, want 0:\n%s", status, second.stderr)
	}
}

// A directory that this user may not write says so, and what is needed.
func TestDirectoryWithoutPermission(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may write everywhere") // permissions do not bind root
	}
	b, _ := broker(t, "words", "totals")
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--state-dir", filepath.Join(dir, "new")}, {"--brokers", b.Addr(), "--state-dir", filepath.Join(dir, "new")}, {"--brokers", b.Addr(), "--state-dir", dir}} {
		status, stdout, stderr := program(t, args, nil, counter{})
		checkStartError(t, status, stdout, stderr, []string{dir, "permission denied", "this user needs write permission there"})
	}
}

// A broker that is not up yet when a program starts is waited for: the program
// says so once, and goes on when it is there.
func TestBrokerComesLater(t *testing.T) {
	for name, run := range map[string]func(t *testing.T, args []string) (r *running, done func()){
		"consumers": func(t *testing.T, args []string) (*running, func()) {
			words := newWordCounter()
			return start(t, append(args, "--state-dir="+t.TempDir()), words), func() { words.next(t) }
		},
		"a queue": func(t *testing.T, args []string) (*running, func()) {
			handled := make(chan bool, 10)
			r := startWork(t, args, func(context.Context, messaging.Delivery) error {
				handled <- true
				return nil
			})
			return r, func() { next(t, handled, "message") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, publish := broker(t, "words", "totals")
			publish("words", "a")
			address := deadAddress(t)
			p, done := run(t, []string{"--brokers", address, "--application=late"})
			p.stderr.wait(t, `"msg":"waiting for the cluster".*nothing listens there`, 1)
			forward(t, address, b.Addr())
			done()
			if status := p.status(); status != 0 {
				t.Errorf("exit status %d, want 0:\n%s", status, p.stderr)
			}
			if got := strings.Count(p.stderr.String(), "waiting for the cluster"); got != 1 {
				t.Errorf("it is said %d times that it waits, want once:\n%s", got, p.stderr)
			}
		})
	}
}

// forward listens at an address and passes on what comes to another, until the
// test ends.
func forward(t *testing.T, from, to string) {
	t.Helper()
	l, err := net.Listen("tcp", from)
	if err != nil {
		t.Fatal(err)
	}
	var open sync.WaitGroup
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		open.Wait()
	})
	open.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return // closed
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				t.Error(err)
				return
			}
			pass := func(from, to net.Conn) {
				// Either side may end first; then both do.
				_, _ = io.Copy(to, from)
				_, _ = from.Close(), to.Close()
			}
			open.Go(func() { pass(in, out) })
			open.Go(func() { pass(out, in) })
		}
	})
}

func checkStartError(t *testing.T, status int, stdout, stderr string, want []string) {
	t.Helper()
	if status != 1 || stdout != "" {
		t.Errorf("status %d, stdout %q, want 1 and nothing", status, stdout)
	}
	if strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "wordcount: ") {
		t.Errorf("stderr is not one line:\n%s", stderr)
	}
	for _, w := range want {
		if !strings.Contains(stderr, w) {
			t.Errorf("stderr does not say %q:\n%s", w, stderr)
		}
	}
	if strings.Contains(stderr, "hunter2") {
		t.Errorf("stderr shows the password:\n%s", stderr)
	}
}

// deadAddress returns an address where nothing listens.
func deadAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
