package pawl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/pawlstream/pawl"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/messaging"
)

// startWork starts a program that works on the topic "words".
func startWork(t *testing.T, args []string, h messaging.Handler, opts ...pawl.WorkOption) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{t, newOutput(), newOutput(), cancel, make(chan int, 1)}
	o := pawl.Options{Name: "/usr/local/bin/Word_Work", Args: append([]string{"--log-format=json"}, args...), Env: []string{"HOME=" + t.TempDir()}, Stdout: r.stdout, Stderr: r.stderr}
	go func() { r.ended <- pawl.RunWork(ctx, o, "words", h, opts...) }()
	return r
}

// next returns what comes from a channel, or fails the test.
func next[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s in %v", what, patience)
		panic("unreachable")
	}
}

// A program works on a queue: a message that fails comes again, the admin port
// shows how it is, it drains when it is told to stop, and another one goes on
// where it was.
func TestWork(t *testing.T) {
	b, publish := broker(t, "words")
	args := []string{"--brokers", b.Addr(), "--application", "shop", "--consumer", "mailer", "--retry-backoff-min=1ms", "--retry-backoff-max=2ms", "--commit-interval=10ms"}
	handled := make(chan string, 10)
	p := startWork(t, args, func(_ context.Context, d messaging.Delivery) error {
		handled <- fmt.Sprintf("%s %d", d.Key(), d.Attempt())
		if d.Attempt() == 1 {
			return errors.New("not yet")
		}
		return nil
	})
	publish("words", "one")
	for _, want := range []string{"one 1", "one 2"} {
		if got := next(t, handled, "message"); got != want {
			t.Errorf("handled %s, want %s", got, want)
		}
	}
	for path, want := range map[string]string{"/readyz": "ready", "/healthz": "alive", "/metrics": `pawl_messaging_failed_attempts_total{application="shop",consumer="mailer"} 1`} {
		if status, body := p.get(path); status != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, want 200 and %s", path, status, body, want)
		}
	}
	var st struct {
		Application string
		Ready       bool
		Queue       struct {
			Group, Topic string
			Failed       int `json:"failed_attempts"`
			Partitions   []struct{ Phase string }
		}
	}
	_, body := p.get("/v1/status")
	if err := json.Unmarshal([]byte(body), &st); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(st), "{shop true {shop.mailer words 1 [{running} {running}]}}"; got != want {
		t.Errorf("/v1/status is %s, want %s", got, want)
	}
	if status := p.status(); status != 0 {
		t.Errorf("exit status %d, want 0:\n%s", status, p.stderr)
	}

	p = startWork(t, args, func(_ context.Context, d messaging.Delivery) error {
		handled <- string(d.Key())
		return nil
	})
	publish("words", "two")
	if got := next(t, handled, "message"); got != "two" {
		t.Errorf("handled %s after a restart, want two: one was settled", got)
	}
	if status := p.status(); status != 0 {
		t.Errorf("exit status %d, want 0:\n%s", status, p.stderr)
	}
}

// With no brokers named the program has its own, with the topic; what was
// settled is settled at the next start too.
func TestWorkWithoutBrokers(t *testing.T) {
	handled := make(chan string, 10)
	args := []string{"--listen", "127.0.0.1:0", "--partitions=3", "--state-dir", t.TempDir()}
	handle := func(_ context.Context, d messaging.Delivery) error {
		handled <- string(d.Key())
		return nil
	}
	p := startWork(t, args, handle)
	cfg := kafka.Config{}
	cfg.Cluster.Brokers = []string{p.stderr.wait(t, `"listen":"([^"]*)"`, 1)[0][1]}
	publisher(t, cfg)("words", "one")
	if got := next(t, handled, "message"); got != "one" {
		t.Errorf("handled %s, want one", got)
	}
	admin, err := kafka.NewAdmin(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	infos, err := admin.Topics(t.Context(), "words", "word-work.words.dlq")
	if err != nil || infos["words"].Partitions != 3 || infos["word-work.words.dlq"].Partitions != 3 {
		t.Errorf("topics are %v, %v, want words and word-work.words.dlq with 3 partitions", infos, err)
	}
	if status := p.status(); status != 0 {
		t.Errorf("exit status %d, want 0:\n%s", status, p.stderr)
	}

	p = startWork(t, args, handle)
	cfg.Cluster.Brokers = []string{p.stderr.wait(t, `"listen":"([^"]*)"`, 1)[0][1]}
	publisher(t, cfg)("words", "two")
	if got := next(t, handled, "message"); got != "two" {
		t.Errorf("handled %s after a restart, want two: one was settled", got)
	}
	if status, body := p.get("/v1/broker"); status != 200 || !strings.Contains(body, `"name": "word-work.words"`) {
		t.Errorf("/v1/broker: %d %s, want 200 and the group", status, body)
	}
	if status := p.status(); status != 0 {
		t.Errorf("exit status %d, want 0:\n%s", status, p.stderr)
	}
}

// spans is a tracer provider that tells the names of the spans that begin.
type spans struct {
	noop.TracerProvider
	begun chan string
}

type spanTracer struct {
	noop.Tracer
	begun chan string
}

func (s spans) Tracer(string, ...trace.TracerOption) trace.Tracer { return spanTracer{begun: s.begun} }

func (s spanTracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	s.begun <- name
	return s.Tracer.Start(ctx, name, opts...)
}

// A program that is given a tracer provider makes a span for each call of its
// handler.
func TestWorkIsTraced(t *testing.T) {
	b, publish := broker(t, "words")
	begun := make(chan string, 100)
	p := startWork(t, []string{"--brokers", b.Addr()}, func(context.Context, messaging.Delivery) error { return nil }, pawl.Traced(spans{begun: begun}))
	publish("words", "one")
	if got := next(t, begun, "span"); !strings.Contains(got, "words") {
		t.Errorf("a span is named %q, want the topic in it", got)
	}
	if status := p.status(); status != 0 {
		t.Errorf("exit status %d, want 0:\n%s", status, p.stderr)
	}
}

// Each mistake in how a program is called is one line, and status 2.
func TestWorkUsageErrors(t *testing.T) {
	for _, tt := range []struct {
		args string
		want string // a line each
	}{
		{"--order key-strict", `--order "key-strict": want key, key-relaxed, partition or unordered`},
		{"--retry-delays 10s,x", `--retry-delays "10s,x": want durations such as 10s,1m,10m, or none`},
		{"--retry-delays 1m,10s", `--retry-delays "1m,10s": delays of the tiers are [1m0s 10s]: want rising order`},
		{"--rate-limit 0", `--rate-limit "0": want a number above zero`},
		{"--start noon", `--start "noon": want earliest, latest or a time such as 2006-01-02T15:04:05Z`},
		{"--consumer a.b --concurrency 999999", "--consumer \"a.b\": consumer name \"a.b\": want letters, digits, '_' and '-'\n--concurrency \"999999\": concurrency is 999999: want 1 to 100000"},
		{"--brokers 127.0.0.1:9 --listen :0", "--listen opens the broker within the process, and --brokers names others: set one of them"},
		{"--brokers 127.0.0.1:9 --state-dir x", "--state-dir is for the broker within the process: a queue on others keeps nothing here"},
		{"--listen :0", "--listen :0: others can reach this address, and nobody has to say who they are: set --insecure to let everybody in, or run pawl serve, which knows users"},
	} {
		p := startWork(t, append([]string{"--log-level=error"}, strings.Fields(tt.args)...), func(context.Context, messaging.Delivery) error { return nil })
		status := p.wait()
		for line := range strings.SplitSeq(tt.want, "\n") {
			if !strings.Contains(p.stderr.String(), "Word_Work: "+line+"\n") || status != 2 {
				t.Errorf("%s: status %d, standard error\n%s\nwant 2 and %s", tt.args, status, p.stderr, line)
			}
		}
	}
}
