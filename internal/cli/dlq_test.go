package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/pawlstream/pawl/internal/devbroker"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/topic"
)

const (
	testDLQ     = "shop.mailer.dlq"
	testRedrive = "shop.mailer.redrive"
)

// deadLetters is a broker with the topics of a queue whose dead letters are to
// be worked with.
type deadLetters struct {
	t        *testing.T
	broker   *devbroker.Broker
	kafka    kafka.Config
	admin    *kafka.Admin
	producer *kafka.Producer
	written  int // letters
}

func newDeadLetters(t *testing.T) *deadLetters {
	t.Helper()
	b, err := devbroker.Start(devbroker.Config{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	d := &deadLetters{t: t, broker: b, kafka: kafka.Config{Cluster: b.Cluster()}}
	if d.admin, err = kafka.NewAdmin(d.kafka); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.admin.Close)
	if d.producer, err = kafka.NewProducer(d.kafka); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.producer.Close)
	for _, name := range []string{"orders", testDLQ, testRedrive} {
		d.create(kafka.TopicSpec{Name: name, Partitions: 2})
	}
	return d
}

func (d *deadLetters) create(spec kafka.TopicSpec) {
	d.t.Helper()
	if _, err := d.admin.CreateTopic(d.t.Context(), spec); err != nil {
		d.t.Fatal(err)
	}
}

// letter is a dead letter as a queue writes it, in partition 0.
func (d *deadLetters) letter(key, value, reason, problem string, headers ...topic.Header) kafka.Record {
	at := d.written
	d.written++
	add := func(name, value string) { headers = append(headers, topic.Header{Key: name, Value: []byte(value)}) }
	add("pawl-topic", "orders")
	add("pawl-partition", "0")
	add("pawl-offset", fmt.Sprint(at))
	add("pawl-timestamp", "1700000000000")
	add("pawl-group", "shop.mailer")
	add("pawl-attempts", "6")
	add("pawl-reason", reason)
	add("pawl-failed", "1700000001000")
	add("pawl-error", problem)
	add("pawl-history", "6 1700000001000 "+problem)
	return kafka.Record{Topic: testDLQ, Partition: 0, Key: []byte(key), Value: []byte(value), Headers: headers}
}

func (d *deadLetters) publish(recs ...kafka.Record) {
	d.t.Helper()
	if err := d.producer.Publish(d.t.Context(), recs...); err != nil {
		d.t.Fatal(err)
	}
}

// run runs a command on the dead letters.
func (d *deadLetters) run(args ...string) (status int, stdout, stderr string) {
	return pawl(append([]string{"dlq", args[0], "--brokers", d.broker.Addr(), "--application", "shop", "--consumer", "mailer"}, args[1:]...)...)
}

// want runs a command and compares its status and all that it prints to
// standard output.
func (d *deadLetters) want(status int, stdout string, args ...string) {
	d.t.Helper()
	gotStatus, got, stderr := d.run(args...)
	if gotStatus != status || got != stdout {
		d.t.Errorf("pawl dlq %v: status %d, standard output\n%s\nwant %d and\n%s\nstandard error:\n%s", args, gotStatus, got, status, stdout, stderr)
	}
}

// list returns the letters that a command lists, by name.
func (d *deadLetters) list(args ...string) (names []string) {
	d.t.Helper()
	status, stdout, stderr := d.run(append([]string{"list", "-o", "json"}, args...)...)
	if status != exitOK {
		d.t.Fatalf("list %v: status %d: %s", args, status, stderr)
	}
	for line := range strings.Lines(stdout) {
		var l struct{ Partition, Offset, Redrives int }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			d.t.Fatalf("list %v: %q: %v", args, line, err)
		}
		names = append(names, fmt.Sprintf("%d:%d", l.Partition, l.Offset))
	}
	return names
}

// redriven returns what came back to the consumer.
func (d *deadLetters) redriven() int64 {
	d.t.Helper()
	ends, err := d.admin.Offsets(d.t.Context(), kafka.StableEnd, topic.Partition{Topic: testRedrive}, topic.Partition{Topic: testRedrive, Number: 1})
	if err != nil {
		d.t.Fatal(err)
	}
	n := int64(0)
	for _, end := range ends {
		n += end
	}
	return n
}

// One letter, a range, or those that a query finds.
func TestDLQQueries(t *testing.T) {
	d := newDeadLetters(t)
	d.publish(
		d.letter("ann", "1", "failed", "dial: timeout", topic.Header{Key: "tenant", Value: []byte("a")}),
		d.letter("bob", "2", "failed", "dial: refused", topic.Header{Key: "tenant", Value: []byte("b")}),
		d.letter("ann", "3", "decode", "unexpected end of JSON input"),
		d.letter("", "4", "rejected", "no such customer"),
	)
	elsewhere := kafka.Record{Topic: testDLQ, Partition: 1, Key: nil, Value: []byte("5")}
	d.publish(elsewhere)
	for _, tt := range []struct {
		args string
		want string
	}{
		{"", "[0:0 0:1 0:2 0:3 1:0]"},
		{"0:1", "[0:1]"},
		{"0:1-2", "[0:1 0:2]"},
		{"0:1-9", "[0:1 0:2 0:3]"},
		{"1:0", "[1:0]"},
		{"--error timeout", "[0:0]"},
		{"--error dial", "[0:0 0:1]"},
		{"--reason decode", "[0:2]"},
		{"--key ann", "[0:0 0:2]"},
		{"--key ann --error JSON", "[0:2]"},
		{"--key=", "[0:3]"},
		{"--null-key", "[1:0]"},
		{"--header tenant", "[0:0 0:1]"},
		{"--header tenant=b", "[0:1]"},
		{"--since 1h", "[0:0 0:1 0:2 0:3 1:0]"},
		{"--until 1h", "[]"},
		{"--since 2001-01-02 --until 2001-01-03T00:00:00Z", "[]"},
		{"--limit 2", "[0:0 0:1]"},
		{"--limit 2 --after 0:2", "[0:3 1:0]"},
		{"--after 0:3", "[1:0]"},
		{"--after 1:0", "[]"},
	} {
		if got := fmt.Sprint(d.list(strings.Fields(tt.args)...)); got != tt.want {
			t.Errorf("list %s: %s, want %s", tt.args, got, tt.want)
		}
	}
}

// A letter that is named and is not there, or a topic that letters can't go to, is
// no success: neither for what looks only, nor for what acts.
func TestDLQNamesWhatIsMissing(t *testing.T) {
	d := newDeadLetters(t)
	d.publish(d.letter("ann", "1", "failed", "timeout"), d.letter("bob", "2", "failed", "timeout"))
	for args, want := range map[string]string{
		"list 7:0":                            "no partition 7: there is no such dead letter",
		"show 7:0":                            "no partition 7: there is no such dead letter",
		"discard 0:99 --yes":                  "offset 99: there is no such dead letter",
		"discard 7:0-9 --yes":                 "no partition 7: there is no such dead letter",
		"redrive 0:99 --dry-run":              "offset 99: there is no such dead letter",
		"redrive --all --dry-run --to nosuch": "topic nosuch, which letters would go to: unknown topic",
		"redrive --all --yes --to nosuch":     "topic nosuch, which letters would go to: unknown topic",
		"list --consumer other":               "no message was set aside there yet, or the application or the consumer has another name",
	} {
		status, stdout, stderr := d.run(strings.Fields(args)...)
		if status != exitError || stdout != "" && !strings.HasPrefix(stdout, "0 letters ") || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, %q, %q; want %d and %q", args, status, stdout, stderr, exitError, want)
		}
	}
	if status, _, stderr := d.run("list", "--key", "a", "--null-key"); status != exitUsage || !strings.Contains(stderr, "exclude each other") {
		t.Errorf("--key with --null-key: status %d, %q", status, stderr)
	}
	d.want(exitOK, "2 letters would be redriven, 0 left\n", "redrive", "--all", "--dry-run")
}

// Nobody reads the end of a list that | head has seen enough of: no error.
func TestDLQListToAClosedPipe(t *testing.T) {
	d := newDeadLetters(t)
	d.publish(d.letter("ann", "1", "failed", "timeout"))
	for _, args := range [][]string{{"list"}, {"list", "-o", "json"}, {"show", "0:0"}, {"export"}} {
		var errs strings.Builder
		args = append([]string{"dlq", args[0], "--brokers", d.broker.Addr(), "--application", "shop", "--consumer", "mailer"}, args[1:]...)
		if status := Run(args, strings.NewReader(""), broken{}, &errs); status != exitOK || errs.String() != "" {
			t.Errorf("pawl %v | true: status %d, %s", args, status, errs.String())
		}
	}
}

// A redrive is counted, done once, and on record; a discard likewise.
func TestDLQSettles(t *testing.T) {
	d := newDeadLetters(t)
	for i := range 5 {
		d.publish(d.letter("ann", fmt.Sprint(i), "failed", "timeout"))
	}
	d.want(exitOK, "1 letter would be redriven, 0 left\n", "redrive", "0:0", "--dry-run")
	if got := d.redriven(); got != 0 {
		t.Errorf("a dry run has redriven %d letters", got)
	}
	d.want(exitOK, "1 letter redriven, 0 failed, 0 left\n", "redrive", "0:0", "--yes", "--why", "try it")
	d.want(exitOK, "0 letters redriven, 0 failed, 0 left\n", "redrive", "0:0", "--yes")
	d.want(exitOK, "2 letters discarded, 0 failed, 0 left\n", "discard", "0:1-2", "--yes", "--why", "garbage")
	d.want(exitOK, `{"action":"redriven","topic":"shop.mailer.dlq","moved":2,"failed":0,"left":0,"whole":true}`+"\n", "redrive", "--all", "--yes", "-o", "json")
	if got, want := d.redriven(), int64(3); got < want { // markers of transactions have offsets, too
		t.Errorf("the topic by which letters come back ends at %d, want %d at least", got, want)
	}
	if got := d.list(); got != nil {
		t.Errorf("%v are listed, want none: all are settled", got)
	}
	if got, want := fmt.Sprint(d.list("--settled")), "[0:0 0:1 0:2 0:3 0:4]"; got != want {
		t.Errorf("with the settled ones %s are listed, want %s", got, want)
	}
	status, stdout, _ := d.run("show", "0:1")
	for _, want := range []string{"\nfrom        orders, partition 0, offset 1, of 2023-11-14T22:13:20Z\n", "\nreason      failed\n", "\nkey         ann\n", "\nvalue       1\n", ": garbage\n", "\nattempt 6   2023-11-14T22:13:21Z  timeout\n"} {
		if status != exitOK || !strings.Contains(stdout, want) {
			t.Errorf("show: status %d, standard output\n%s\nwant %q in it", status, stdout, want)
		}
	}
	if status, stdout, stderr := d.run("show", "0:17"); status != exitError || stdout != "" || !strings.Contains(stderr, "there is no such dead letter") {
		t.Errorf("show of a letter that is not there: status %d, %q, %q", status, stdout, stderr)
	}
}

// A letter that the broker refuses fails alone, is still there, and the status
// says so.
func TestDLQFailures(t *testing.T) {
	d := newDeadLetters(t)
	d.create(kafka.TopicSpec{Name: "small", Partitions: 1, Settings: map[string]string{"max.message.bytes": "2000"}})
	d.publish(d.letter("a", "1", "failed", "timeout"), d.letter("b", strings.Repeat("x", 5000), "failed", "timeout"), d.letter("c", "3", "failed", "timeout"))
	status, stdout, stderr := d.run("redrive", "--all", "--yes", "--to", "small", "-o", "json")
	want := `{"action":"redriven","topic":"shop.mailer.dlq","moved":2,"failed":1,"left":0,"whole":true}` + "\n"
	if status != exitError || stdout != want || !strings.Contains(stderr, "1 letter could not be") {
		t.Errorf("status %d, standard output %q, want %d and %q; standard error:\n%s", status, stdout, exitError, want, stderr)
	}
	if got, want := fmt.Sprint(d.list()), "[0:1]"; got != want {
		t.Errorf("%s are left, want %s", got, want)
	}
}

// Letters that came back too often are left where they are.
func TestDLQCap(t *testing.T) {
	d := newDeadLetters(t)
	d.publish(d.letter("a", "1", "failed", "timeout", topic.Header{Key: "pawl-redrives", Value: []byte("2")}), d.letter("b", "2", "failed", "timeout"))
	d.want(exitOK, "1 letter redriven, 0 failed, 1 left\n", "redrive", "--all", "--yes", "--max-redrives", "2")
}

// A redrive while the cause is still there ends with the letters that were
// there when it began, though each comes back before it has ended.
func TestRedriveWhileTheCauseExists(t *testing.T) {
	d := newDeadLetters(t)
	const letters = 40
	var recs []kafka.Record
	for i := range letters {
		recs = append(recs, d.letter(fmt.Sprint("key", i), fmt.Sprint(i), "failed", "no route"))
	}
	d.publish(recs...)
	handled := make(chan string, 10*letters)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- messaging.Run(ctx, messaging.Config{
			Cluster: d.broker.Cluster(), Topic: "orders", Application: "shop", Consumer: "mailer", Logger: slog.New(slog.DiscardHandler),
		}, func(_ context.Context, m messaging.Delivery) error {
			handled <- string(m.Value())
			return messaging.DeadLetter(errors.New("no route"))
		})
	}()
	// At this rate it takes a while, and the first are back long before the end.
	d.want(exitOK, fmt.Sprintf("%d letters redriven, 0 failed, 0 left\n", letters), "redrive", "--all", "--yes", "--rate", "90")
	seen := make(map[string]int)
	late := time.After(patience)
	for len(seen) < letters {
		select {
		case v := <-handled:
			seen[v]++
		case err := <-ended:
			t.Fatalf("the worker has ended: %v", err)
		case <-late:
			t.Fatalf("%d of %d letters came back in %v", len(seen), letters, patience)
		}
	}
	stop() // drains: what was handled is written
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for v, n := range seen {
		if n != 1 {
			t.Errorf("letter %s came back %d times, want once", v, n)
		}
	}
	status, stdout, stderr := d.run("list", "-o", "json")
	if n := strings.Count(stdout, `"redrives":1`); status != exitOK || n != letters {
		t.Errorf("%d letters are there again, want %d (status %d, %s)", n, letters, status, stderr)
	}
}

// patience is how long a test waits for what takes a moment.
const patience = 30 * time.Second

// Thousands of letters are all there to be seen, at once and by pages, and all
// go back.
func TestDLQHasNoCap(t *testing.T) {
	d := newDeadLetters(t)
	const letters = 12_000 // more than a page of tools that have one
	recs := make([]kafka.Record, letters)
	for i := range recs {
		recs[i] = d.letter("k", "v", "failed", "outage")
		recs[i].Partition = int32(i % 2)
	}
	d.publish(recs...)
	if got := len(d.list()); got != letters {
		t.Errorf("%d letters are listed, want %d", got, letters)
	}
	seen := make(map[string]bool)
	for after := []string(nil); ; {
		page := d.list(append([]string{"--limit", "5000"}, after...)...)
		for _, name := range page {
			if seen[name] {
				t.Fatalf("letter %s is on two pages", name)
			}
			seen[name] = true
		}
		if len(page) < 5000 {
			break
		}
		after = []string{"--after", page[len(page)-1]}
	}
	if len(seen) != letters {
		t.Errorf("%d letters are on pages, want %d", len(seen), letters)
	}
	d.want(exitOK, "12,000 letters redriven, 0 failed, 0 left\n", "redrive", "--all", "--yes")
	if got := d.list(); got != nil {
		t.Errorf("%d letters are left, want none", len(got))
	}
}

// What others have written reaches neither a terminal nor a file raw, and is
// exported whole.
func TestDLQPrintsNothingRaw(t *testing.T) {
	d := newDeadLetters(t)
	const evil = "\x1b[2J\x9b31m\u202e\u009b\r\n\x00end"
	rec := d.letter(evil, evil, "failed", "boom "+evil, topic.Header{Key: "h" + evil, Value: []byte(evil)})
	d.publish(rec)
	file := filepath.Join(t.TempDir(), "letters.jsonl")
	for _, args := range [][]string{{"list"}, {"list", "-o", "json"}, {"show", "0:0"}, {"show", "0:0", "-o", "json"}, {"export"}, {"export", "--file", file}} {
		status, stdout, stderr := d.run(args...)
		if status != exitOK || strings.ContainsFunc(stdout+stderr, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
			t.Errorf("%v: status %d, standard output %q, standard error %q, want 0 and nothing that is not visible", args, status, stdout, stderr)
		}
	}
	all, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var l struct{ Key, Value []byte }
	if err := json.Unmarshal(all, &l); err != nil || string(l.Key) != evil || string(l.Value) != evil {
		t.Errorf("exported %q, %q (error %v), want %q both", l.Key, l.Value, err, evil)
	}
	if status, _, stderr := d.run("export", "--file", file); status != exitError || !strings.Contains(stderr, "exists") {
		t.Errorf("export over a file that exists: status %d, %q, want it refused", status, stderr)
	}
}

func TestDLQFlags(t *testing.T) {
	where := "--brokers 127.0.0.1:9 --application shop --consumer mailer "
	for _, tt := range []struct {
		args string
		want string
	}{
		{"lst", `unknown command "lst": did you mean list?`},
		{"list --application shop --consumer mailer", "no brokers are named: set --brokers, PAWL_BROKERS or a context"},
		{"list --brokers 127.0.0.1:9", "whose dead letters? Set --application and --consumer, or --topic"},
		{"list --brokers nowhere --topic t", `broker "nowhere": want HOST:PORT`},
		{"list " + where + "-o yaml", `--output "yaml": want table or json`},
		{"list " + where + "0-1", `"0-1" names no letter: want PARTITION:OFFSET such as 0:17, or PARTITION:FROM-TO such as 0:17-40`},
		{"list " + where + "0:9-1", `"0:9-1" names no letter`},
		{"list " + where + "0:1 0:2", `unexpected argument "0:2"`},
		{"list " + where + "--since soon", `--since "soon": want a time`},
		{"list " + where + "--since 1h --until 2h", "--since is not before --until"},
		{"list " + where + "--reason tired", `--reason "tired": want one of failed, rejected, decode, crash`},
		{"list " + where + "--limit -1", "--limit -1: want 0 for all, or more"},
		{"list " + where + "--after 0:1-2", `--after "0:1-2": want PARTITION:OFFSET`},
		{"show " + where, "which letter? Name one, PARTITION:OFFSET"},
		{"show " + where + "0:1-2", `"0:1-2" names several letters: list lists them`},
		{"redrive " + where + "--yes", "which letters? Name them, ask for them with flags, or say --all"},
		{"discard " + where + "--yes --all 0:1", `--all is set and "0:1" is named`},
		{"redrive " + where + "--all", "standard input is no terminal to ask at: look with --dry-run, then say --yes"},
		{"redrive " + where + "--all --yes --rate -1", "--rate -1: want letters a second"},
	} {
		status, stdout, stderr := pawl(append([]string{"dlq"}, strings.Fields(tt.args)...)...)
		if status != exitUsage || stdout != "" || !strings.Contains(stderr, tt.want) {
			t.Errorf("pawl dlq %s: status %d, standard output %q, standard error %q, want %d and %q", tt.args, status, stdout, stderr, exitUsage, tt.want)
		}
	}
}

// Variables stand in for flags that are not set.
func TestDLQVariables(t *testing.T) {
	d := newDeadLetters(t)
	d.publish(d.letter("a", "1", "failed", "timeout"))
	t.Setenv("PAWL_BROKERS", d.broker.Addr())
	status, stdout, stderr := pawl("dlq", "list", "--topic", testDLQ, "-o", "json")
	if status != exitOK || strings.Count(stdout, "\n") != 1 {
		t.Errorf("status %d, standard output %q, standard error %q, want one letter", status, stdout, stderr)
	}
	t.Setenv("PAWL_TLS", "perhaps")
	if status, _, stderr := pawl("dlq", "list", "--topic", testDLQ); status != exitUsage || !strings.Contains(stderr, "PAWL_TLS") {
		t.Errorf("status %d, standard error %q, want %d and what is wrong with PAWL_TLS", status, stderr, exitUsage)
	}
}

func TestAsk(t *testing.T) {
	for _, tt := range []struct {
		answer string
		n      int
		ok     bool
		err    string
	}{
		{"y\n", 3, true, ""},
		{" YES \n", 3, true, ""},
		{"n\n", 3, false, "nothing is done"},
		{"\n", 3, false, "nothing is done"},
		{"", 3, false, "nothing is done: read the answer: EOF"},
		{"y\n", 0, false, ""},
	} {
		var out bytes.Buffer
		ok, err := ask(strings.NewReader(tt.answer), &out, tt.n, testDLQ, messaging.Redriven)
		if msg := fmt.Sprint(err); ok != tt.ok || (err != nil || tt.err != "") && msg != tt.err {
			t.Errorf("%q to %d letters: %v, %v, want %v, %s", tt.answer, tt.n, ok, err, tt.ok, tt.err)
		}
	}
}

// The bar is one line, which makes room for others, and is gone at the end.
func TestProgressBar(t *testing.T) {
	var out bytes.Buffer
	b := &progressBar{out: &out, live: true, action: messaging.Redriven}
	b.draw(messaging.Progress{Looked: 25, Of: 100, Result: messaging.Result{Moved: 20, Failed: 1, Capped: 4}})
	if got, want := out.String(), clearLine+"██████░░░░░░░░░░░░░░░░░░  25%  20 redriven, 1 failed, 4 left"; got != want {
		t.Errorf("drawn %q, want %q", got, want)
	}
	out.Reset()
	if _, err := io.WriteString(b, "a warning\n"); err != nil {
		t.Fatal(err)
	}
	b.erase() // there is nothing to erase any more
	if got, want := out.String(), clearLine+"a warning\n"; got != want {
		t.Errorf("written %q, want %q", got, want)
	}
	if line := barLine(messaging.Progress{Looked: 1e15, Of: 1e15, Result: messaging.Result{Moved: 1e15, Failed: 1e15, Capped: 1e15}}, messaging.Discarded); len([]rune(line)) > 78 {
		t.Errorf("the line is %d characters wide, want 78 at most", len([]rune(line)))
	}
	out.Reset()
	quiet := newProgressBar(&out, func(string) string { return "" }, messaging.Redriven)
	quiet.draw(messaging.Progress{Looked: 1, Of: 2})
	quiet.erase()
	if out.Len() > 0 {
		t.Errorf("%q is drawn where there is no terminal", out.String())
	}
}
