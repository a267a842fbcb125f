package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	program "github.com/pawlstream/pawl"
	"github.com/pawlstream/pawl/internal/admin"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/messaging"
)

// runQueue runs a process that works on a queue until the test ends.
func (o *operated) runQueue(application, topic, instance string, h messaging.Handler) {
	o.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var log bytes.Buffer // by the logger alone, and read once that has ended
	ended := make(chan int, 1)
	go func() {
		ended <- program.RunWork(ctx, program.Options{
			Name: application, Stdout: &log, Stderr: &log, Env: []string{"HOME=" + o.TempDir()},
			Args: []string{"--application", application, "--consumer", "mailer", "--brokers", o.brokers, "--instance", instance, "--log-format", "text"},
		}, topic, h)
	}()
	o.Cleanup(func() {
		cancel()
		if status := <-ended; status != 0 {
			o.Errorf("process %s: status %d:\n%s", instance, status, &log)
		}
	})
}

// A program that works on a queue is looked into as an application of shards
// is: who is there, how each partition is, and what holds it back; and it is
// paused and resumed.
func TestLookIntoAQueue(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		in, app := o.create("in", 2, nil), strings.TrimSuffix(o.name("app"), "-")
		release := make(chan struct{})
		hold := func(ctx context.Context, _ messaging.Delivery) error {
			select {
			case <-release:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		o.runQueue(app, in, "one", hold)
		o.runQueue(app, in, "two", hold)
		for i := range 4 {
			o.publish(kafka.Record{Topic: in, Partition: int32(i % 2), Key: []byte("k"), Value: []byte("v")})
		}
		of := func(args ...string) []string { return append(args, "--application", app, "--consumer", "mailer") }
		var rows []processRow
		describe := func(want func(r processRow) bool) {
			t.Helper()
			o.eventually(func(stdout string) bool {
				rows = nil
				if json.Unmarshal([]byte(stdout), &rows) != nil || len(rows) != 2 {
					return false
				}
				for _, r := range rows {
					if r.Queue == nil || len(r.Queue.Partitions) != 1 || !want(r) {
						return false
					}
				}
				return true
			}, of("app", "describe", "-o", "json")...)
		}
		// A partition each, with a message in a handler, which holds the next
		// of its key back.
		describe(func(r processRow) bool {
			p := r.Queue.Partitions[0]
			return p.InFlight == 1 && p.Backlog == 2 && p.Committed == 0 && p.Oldest != nil && p.Oldest.Offset == 0 && p.Oldest.Attempt == 1 && !p.Oldest.Since.IsZero() && r.Queue.BreakerOpen.IsZero()
		})
		if out := o.run("", of("app", "describe")...); !strings.Contains(out, in+"-0") || !strings.Contains(out, in+"-1") || !strings.Contains(out, "0, attempt 1, here for ") || !strings.Contains(out, ", in a handler for ") {
			t.Errorf("app describe prints\n%s", out)
		}
		if out := o.run("", "app", "list"); !strings.Contains(strings.Join(strings.Fields(out), " "), app+" mailer 2 - 2") {
			t.Errorf("app list prints\n%s", out)
		}
		if out := o.run("", of("app", "topology")...); !strings.Contains(out, in) || !strings.Contains(out, app+".mailer.dlq") {
			t.Errorf("app topology prints\n%s", out)
		}
		// What is in a handler is settled while nothing more is handed out.
		if out := o.run("", of("app", "pause")...); out != "paused: 2 partitions in 2 processes\n" {
			t.Errorf("app pause prints %q", out)
		}
		close(release)
		describe(func(r processRow) bool {
			p := r.Queue.Partitions[0]
			return r.Paused && p.InFlight == 0 && p.Committed == 1 && p.Backlog == 1
		})
		if out := o.run("", of("app", "resume")...); out != "resumed: 2 partitions in 2 processes\n" {
			t.Errorf("app resume prints %q", out)
		}
		describe(func(r processRow) bool {
			p := r.Queue.Partitions[0]
			return !r.Paused && p.Committed == 2 && p.Lag == 0 && p.Oldest == nil
		})
		if out := o.run("", of("app", "log-level", "debug")...); out != "level debug: set in 2 processes\n" {
			t.Errorf("app log-level prints %q", out)
		}
		for _, test := range []struct {
			args   []string
			status int
			want   string
		}{
			{of("shard", "list"), exitError, "it works on a queue, and has no shards"},
			{[]string{"app", "describe", "--consumer", "mailer"}, exitUsage, "Set one of"},
			{[]string{"app", "describe", "--consumer", "mailer", "--admin", rows[0].Admin}, exitUsage, "--consumer is one of an application"},
			{[]string{"app", "describe", "--application", app}, exitError, "say the --consumer"},
			{[]string{"app", "describe", "--application", app, "--consumer", "nosuch"}, exitError, "no process of consumer nosuch"},
		} {
			if status, _, stderr := o.try("", test.args...); status != test.status || !strings.Contains(stderr, test.want) {
				t.Errorf("pawl %v: status %d and %q, want %q", test.args, status, stderr, test.want)
			}
		}
	})
}

// An open breaker shows as soon as it is open, long before it turns the process
// unready, with what handlers fail with; and when it does, once.
func TestOpenBreakerIsDescribed(t *testing.T) {
	now := time.Now()
	rows := []processRow{{Instance: "one", Ready: true, Queue: &admin.Queue{Breaker: "open", BreakerOpen: now.Add(-90 * time.Second), BreakerError: "no route to host"}}}
	for want, reasons := range map[string][]string{
		"the circuit breaker is open for 1m30s, as handlers fail: no route to host":             nil,
		"the circuit breaker is open since 03:01, as handlers fail: no route to host":           {"the circuit breaker is open since 03:01, as handlers fail: no route to host"},
		"not joined; the circuit breaker is open for 1m30s, as handlers fail: no route to host": {"not joined"},
	} {
		rows[0].Reasons = reasons
		if got := strings.Join(whyNot(rows[0], now), "; "); got != want {
			t.Errorf("with %q: %q, want %q", reasons, got, want)
		}
	}
	rows[0].Queue.BreakerOpen = time.Time{}
	rows[0].Reasons = nil
	if got := whyNot(rows[0], now); len(got) > 0 {
		t.Errorf("with a closed breaker: %q, want nothing", got)
	}
}
