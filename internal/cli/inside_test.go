package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	program "github.com/pawlstream/pawl"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/admin"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

var seen = store.NewTable("inside-seen", store.String, store.JSON[sight]())

type sight struct{ N int }

// seer counts how often each key came.
type seer struct{ in *topic.Description }

func (s seer) Topics() []*topic.Description { return []*topic.Description{s.in} }

func (s seer) Consume(e topic.Envelope, sh consumer.Shard, _ *topic.Publisher) error {
	_, err := seen.Update(sh.Transaction(), string(e.Key), func(s sight) sight { return sight{s.N + 1} })
	return err
}

func (seer) Flush(consumer.Shard, *topic.Publisher) error { return nil }

// awaited is what a program writes; it tells when a line has come.
type awaited struct {
	bytes.Buffer
	line string
	came chan struct{}
	told bool
}

func (a *awaited) Write(p []byte) (int, error) { // by the logger, one at a time
	n, err := a.Buffer.Write(p)
	if !a.told && strings.Count(a.String(), a.line) > 0 {
		a.told = true
		close(a.came)
	}
	return n, err
}

// runApp runs a process of an application until the test ends, and returns its
// state directory.
func (o *operated) runApp(application, instance string, c consumer.Consumer) (stateDir string) {
	o.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	dir := o.TempDir()
	log := &awaited{line: "msg=assigned", came: make(chan struct{})}
	ended := make(chan int, 1)
	go func() {
		ended <- program.Run(ctx, program.Options{
			Name: application, Stdout: log, Stderr: log, Env: []string{"HOME=" + dir},
			Args: []string{"--application", application, "--brokers", o.brokers, "--state-dir", dir, "--instance", instance, "--log-format", "text"},
		}, c)
	}()
	o.Cleanup(func() {
		cancel()
		if status := <-ended; status != 0 {
			o.Errorf("process %s: status %d:\n%s", instance, status, log)
		}
	})
	select {
	case <-log.came:
	case <-time.After(time.Minute):
		o.Fatalf("process %s has not joined in a minute", instance)
	}
	return dir
}

// eventually runs a command until what it prints is as it should be.
func (o *operated) eventually(want func(stdout string) bool, args ...string) string {
	o.Helper()
	for over := time.Now().Add(time.Minute); ; {
		status, stdout, stderr := o.try("", args...)
		if status == exitOK && want(stdout) {
			return stdout
		}
		if time.Now().After(over) {
			o.Fatalf("pawl %v, for a minute: status %d: %s%s", args, status, stdout, stderr)
		}
	}
}

// An application of two processes is looked into from outside: who is there,
// which shards run where, and what they hold; and shards are paused and resumed.
func TestLookInside(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		in := topic.Bytes(o.create("in", 4, nil))
		app := o.name("app")
		var recs []kafka.Record
		want := make(map[string]int)
		for i := range 40 {
			key := fmt.Sprintf("key %d/%c", i%20, 'a'+i%3)
			want[key]++
			recs = append(recs, kafka.Record{Topic: in.Name(), Partition: -1, Key: []byte(key), Value: []byte("v")})
		}
		o.publish(recs...)
		one := o.runApp(app, "one", seer{in.Description})
		o.runApp(app, "two", seer{in.Description})
		of := func(args ...string) []string { return append(args, "--application", app) }

		// All shards run, two in each process, with nothing left to do.
		var rows []shardRow
		o.eventually(func(stdout string) bool {
			rows = nil
			if json.Unmarshal([]byte(stdout), &rows) != nil || len(rows) != 4 {
				return false
			}
			owners := make(map[string]int)
			for _, r := range rows {
				if r.Phase != "running" || r.Lag != 0 || r.Commits == 0 && r.Changelog == 0 {
					return false
				}
				owners[r.Owner]++
			}
			return owners["one"] == 2 && owners["two"] == 2
		}, of("shard", "list", "-o", "json")...)
		for _, r := range rows {
			if r.Bytes <= 0 || len(r.Offsets) != 1 || r.Offsets[0].Topic != in.Name() {
				t.Errorf("shard %+v", r)
			}
		}
		if got := o.run("", "app", "list"); !strings.Contains(got, app+" ") && !strings.Contains(got, app+"\t") {
			t.Errorf("app list prints %q", got)
		}
		if got := o.run("", of("app", "describe")...); !strings.Contains(got, "one") || !strings.Contains(got, "two") || strings.Count(got, "yes") != 2 {
			t.Errorf("app describe prints %q", got)
		}
		if got := o.run("", of("app", "topology")...); !strings.Contains(got, app+"."+in.Name()+".changelog") {
			t.Errorf("app topology prints %q", got)
		}
		if got := o.run("", of("shard", "describe", rows[3].ID)...); !strings.Contains(got, "running") || !strings.Contains(got, rows[3].Owner) {
			t.Errorf("shard describe prints %q", got)
		}

		// The state of all shards together is what was published.
		got := make(map[string]int)
		for line := range strings.Lines(o.run("", of("state", "export", "inside-seen")...)) {
			var e struct {
				Shard, Key string
				Value      sight
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("line %q: %v", line, err)
			}
			got[e.Key] += e.Value.N
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("the export holds %v, want %v", got, want)
		}
		// Each entry is found again, by its shard and its key, and by its process alone.
		var page admin.StatePage
		if err := json.Unmarshal([]byte(o.run("", of("state", "scan", rows[0].ID, "inside-seen", "--limit", "1", "-o", "json")...)), &page); err != nil || len(page.Entries) != 1 || page.Position.Changelog == 0 {
			t.Fatalf("scan: %+v, %v", page, err)
		}
		for _, tt := range []struct {
			args []string
			want string // the first that is offered
		}{
			{[]string{"shard", "describe"}, rows[0].ID},
			{[]string{"shard", "pause"}, rows[0].ID},
			{[]string{"state", "get"}, rows[0].ID},
			{[]string{"state", "scan", rows[0].ID}, "inside-seen"},
			{[]string{"state", "export"}, "inside-seen"},
			{[]string{"state", "export", "inside-seen", "--shard"}, rows[0].ID},
			{[]string{"state", "get", rows[0].ID, "inside-seen"}, ":4"}, // keys are not offered
		} {
			args := slices.Concat([]string{"__complete", tt.args[0], tt.args[1], "--brokers", o.brokers, "--application", app}, tt.args[2:], []string{""})
			if _, stdout, _ := pawl(args...); !strings.HasPrefix(stdout, tt.want+"\n") {
				t.Errorf("completion of pawl %s offers %q, want %s first", strings.Join(tt.args, " "), stdout, tt.want)
			}
		}
		if _, _, stderr := o.try("", of("state", "get", rows[0].ID, "inside-seen", page.Entries[0].Text)...); !strings.Contains(stderr, "as of changelog position ") {
			t.Errorf("state get says on standard error %q, want the position it is as of", stderr)
		}
		if got := o.run("", of("state", "get", rows[0].ID, "inside-seen", page.Entries[0].Text)...); !strings.Contains(got, `{"N":`) {
			t.Errorf("get prints %q", got)
		}
		alone := slices.IndexFunc(rows, func(r shardRow) bool { return r.Owner == "one" })
		if status, stdout, stderr := runAlone("shard", "describe", rows[alone].ID, "--state-dir", one); status != exitOK || !strings.Contains(stdout, rows[alone].ID) {
			t.Errorf("shard describe by the state directory: status %d, %s%s", status, stdout, stderr)
		}

		// What is not there is said to be not there.
		for _, test := range []struct {
			args []string
			want string
		}{
			{of("state", "get", rows[0].ID, "inside-seen", "no such key"), "has no key"},
			{of("state", "get", rows[0].ID, "nosuch", "k"), "no table"},
			{of("state", "get", "nosuch-000", "inside-seen", "k"), "no process that answers has shard"},
			{of("shard", "describe", "nosuch-000"), "no process that answers has shard"},
			{[]string{"shard", "list", "--application", "nosuch"}, "no process of application nosuch"},
		} {
			if status, _, stderr := o.try("", test.args...); status != exitError || !strings.Contains(stderr, test.want) {
				t.Errorf("pawl %v: status %d and %q, want %q", test.args, status, stderr, test.want)
			}
		}

		// A shard that is paused lags, and catches up once it is resumed.
		o.run("", of("shard", "pause", rows[0].ID)...)
		o.publish(kafka.Record{Topic: in.Name(), Partition: rows[0].Partition, Key: []byte("late"), Value: []byte("v")})
		o.eventually(func(stdout string) bool {
			var row shardRow
			return json.Unmarshal([]byte(stdout), &row) == nil && row.Paused && row.Lag == 1
		}, of("shard", "describe", rows[0].ID, "-o", "json")...)
		if status, _, stderr := o.try("", of("state", "get", rows[0].ID, "inside-seen", "late")...); status != exitError || !strings.Contains(stderr, "has no key") {
			t.Errorf("what a paused shard has not consumed is in its state: status %d, %s", status, stderr)
		}
		o.run("", of("shard", "resume", rows[0].ID)...)
		o.eventually(func(string) bool { return true }, of("state", "get", rows[0].ID, "inside-seen", "late")...)
		if got := o.run("", of("app", "pause")...); !strings.Contains(got, "paused: 4 shards in 2 processes") {
			t.Errorf("app pause prints %q", got)
		}
		if got := o.run("", of("app", "log-level", "debug")...); got != "level debug: set in 2 processes\n" {
			t.Errorf("app log-level prints %q", got)
		}
		if got := o.run("", of("app", "resume")...); !strings.Contains(got, "resumed: 4 shards in 2 processes") {
			t.Errorf("app resume prints %q", got)
		}
	})
}

// runAlone runs a command that needs no cluster.
func runAlone(args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = Run(args, strings.NewReader(""), &out, &errs)
	return status, out.String(), errs.String()
}

// Command lines that name no process, or too many, are refused.
func TestWhichProcesses(t *testing.T) {
	for _, test := range []struct {
		args []string
		want int
		says string
	}{
		{[]string{"shard", "list"}, exitUsage, "Set one of --admin, --state-dir and --application"},
		{[]string{"shard", "list", "--admin", "127.0.0.1:1", "--application", "a"}, exitUsage, "Set one of"},
		{[]string{"shard", "list", "--admin", "nowhere"}, exitUsage, "HOST:PORT"},
		{[]string{"shard", "list", "--admin", "127.0.0.1:1", "-o", "xml"}, exitUsage, "table, json or yaml"},
		{[]string{"shard", "list", "--admin", "127.0.0.1:1"}, exitError, "127.0.0.1:1"},
		{[]string{"shard", "list", "--state-dir", t.TempDir()}, exitError, "no process has state directory"},
		{[]string{"app", "log-level", "loud", "--admin", "127.0.0.1:1"}, exitUsage, "debug, info, warn or error"},
		{[]string{"shard", "describe", "--admin", "127.0.0.1:1"}, exitUsage, "which shard?"},
		{[]string{"state", "get", "a-000", "--admin", "127.0.0.1:1"}, exitUsage, "a shard, a table and a key"},
		{[]string{"state", "scan", "a-000", "t", "--limit", "0", "--admin", "127.0.0.1:1"}, exitUsage, "1 to 10000"},
		{[]string{"shard", "list", "--admin", "127.0.0.1:1", "--admin-token-file", "/nosuch"}, exitUsage, "--admin-token-file: read admin token: open /nosuch"},
	} {
		status, stdout, stderr := runAlone(test.args...)
		if status != test.want || !strings.Contains(stderr, test.says) || stdout != "" {
			t.Errorf("pawl %v: status %d, %q and %q; want %d and %q", test.args, status, stdout, stderr, test.want, test.says)
		}
	}
}
