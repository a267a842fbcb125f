package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// work returns lines of an input: messages of a few keys.
func work(messages int) string {
	var b strings.Builder
	for i := range messages {
		fmt.Fprintf(&b, `{"author":"a","authored_at":%d,"path":"p%d","added":1,"deleted":0}`+"\n", i, i%50)
	}
	return b.String()
}

// A run from end to end, with a kill, accounts for every message, and leaves
// nothing behind.
func TestQueueDemo(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	const messages = 3000
	stdout, stderr, status := demoWithin(strings.NewReader(work(messages)), "--queue", "--input", "-", "--kills", "1", "--seed", "3", "--rate", "0", "-o", "json")
	if status != exitOK {
		t.Fatalf("status %d:\n%s\n%s", status, stdout, stderr)
	}
	var r struct {
		Messages, Acked, Retried, Redriven, Redelivered, Lost, Kills int64
		DeadLettered                                                 int64 `json:"dead_lettered"`
		Verified                                                     bool
	}
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || strings.Count(stdout, "\n") != 1 {
		t.Fatalf("standard output %q: %v; want one line of JSON", stdout, err)
	}
	if r.Messages != messages || r.Acked != messages || r.Lost != 0 || r.Kills != 1 || !r.Verified {
		t.Errorf("result %+v, want %d messages, all of them acked, none lost, 1 kill, verified", r, messages)
	}
	if r.Retried == 0 || r.DeadLettered == 0 || r.Redriven != r.DeadLettered {
		t.Errorf("result %+v, want some retried, and some dead-lettered and as many redriven", r)
	}
	for _, name := range []string{`"messages":`, `"acked":`, `"retried":`, `"dead_lettered":`, `"redriven":`, `"redelivered":`, `"lost":0`, `"kills":1`, `"verified":true`} {
		if !strings.Contains(stdout, name) {
			t.Errorf("%q is not in %s", name, stdout)
		}
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("%v is left in the temporary directory (error %v)", left, err)
	}
}

// The broker may be killed too, and every message is accounted for.
func TestQueueDemoKillsTheBroker(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	stdout, stderr, status := demoWithin(strings.NewReader(work(3000)), "--queue", "--input", "-", "--kills", "1", "--broker-kills", "2", "--seed", "4", "--rate", "0", "-o", "json")
	if status != exitOK {
		t.Fatalf("status %d:\n%s\n%s", status, stdout, stderr)
	}
	for _, want := range []string{`"messages":3000,"acked":3000,`, `"lost":0,"kills":1,"broker_kills":2,`, `"verified":true`} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%s is not in %s\n%s", want, stdout, stderr)
		}
	}
}

// The text ends with a table; --dir keeps the logs.
func TestQueueDemoText(t *testing.T) {
	dir := t.TempDir()
	stdout, stderr, status := demoWithin(strings.NewReader(work(20)), "--queue", "--input", "-", "--kills", "0", "--seed", "1", "--rate", "0", "--dir", dir)
	if status != exitOK || stderr != "" {
		t.Fatalf("status %d:\n%s\n%s", status, stdout, stderr)
	}
	for _, want := range []string{"standard input: 20 events\n", "seed 1\n", "\nacked                            20           20\n", "\nlost                              0            0\n", "\nverified: every message was settled"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("standard output holds no %q:\n%s", want, stdout)
		}
	}
	for _, name := range []string{"demo.log", "a.log", "b.log"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

// A result that is not what it should be says so, in text and by its status.
func TestQueueResultText(t *testing.T) {
	for _, tt := range []struct {
		r    queueResult
		want string
	}{
		{queueResult{Verified: true}, "\nverified: "},
		{queueResult{Interrupted: true}, "\ninterrupted: "},
		{queueResult{}, "\nNOT verified\n"},
	} {
		var b strings.Builder
		if err := tt.r.writeText(&b); err != nil || !strings.Contains(b.String(), tt.want) {
			t.Errorf("%+v: %q, %v, want %q", tt.r, b.String(), err, tt.want)
		}
	}
}

// No line of the live part is wider than a terminal, and none is without what
// it is about.
func TestQueueSnapshotLines(t *testing.T) {
	s := queueSnapshot{phase: "redriving", total: 10_000_000, fed: 9_999_999, kills: 100, planned: 100,
		audit:     queueAudit{acked: 9_999_999, retried: 1_234_567, deadLettered: 123_456, redriven: 123_456, redelivered: 123_456},
		processes: []processView{{"a", running, 1234567}, {"b", killed, 1234568}}}
	for _, line := range s.lines(123_456, 0, false) {
		if n := len([]rune(line)); n > 78 {
			t.Errorf("%q is %d characters wide, want 78 at most", line, n)
		}
	}
	if line, want := s.line(1), "redriving: 9,999,999 fed, 9,999,999 acked (99%), 1/s; 1,234,567 retried,"; !strings.HasPrefix(line, want) {
		t.Errorf("the line is %q, want it to begin with %q", line, want)
	}
}
