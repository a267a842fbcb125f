package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/broker"
	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// operated is a cluster that commands work on, with names of the test's own.
type operated struct {
	testing.TB
	brokers string
	kafka   kafka.Config
	admin   *kafka.Admin
	prefix  string // of the names of topics, groups and transactional IDs
	real    bool   // an Apache Kafka
}

var operations atomic.Int64

// onClusters runs a test on the embedded broker and, where PAWL_TEST_KAFKA
// names one, on a real Kafka.
func onClusters(t *testing.T, test func(t *testing.T, o *operated)) {
	t.Run("embedded", func(t *testing.T) {
		b, err := broker.Open(t.TempDir(), broker.Config{Listen: "127.0.0.1:0", Unsynced: true, Logger: silent})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
		test(t, newOperated(t, b.Addr(), false))
	})
	if addr := os.Getenv("PAWL_TEST_KAFKA"); addr != "" {
		t.Run("kafka", func(t *testing.T) { test(t, newOperated(t, addr, true)) })
	}
}

func newOperated(t testing.TB, brokers string, real bool) *operated {
	t.Helper()
	o := &operated{TB: t, brokers: brokers, real: real, prefix: fmt.Sprintf("t%d-%d-", time.Now().UnixNano()%1e12, operations.Add(1))}
	o.kafka = kafka.Config{Cluster: cluster.Cluster{Brokers: strings.Split(brokers, ",")}, Logger: slog.New(slog.DiscardHandler)}
	var err error
	if o.admin, err = kafka.NewAdmin(o.kafka); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.admin.Close)
	return o
}

func (o *operated) name(s string) string { return o.prefix + s }

func (o *operated) create(name string, partitions int, settings map[string]string) string {
	o.Helper()
	if _, err := o.admin.CreateTopic(o.Context(), kafka.TopicSpec{Name: o.name(name), Partitions: partitions, Settings: settings}); err != nil {
		o.Fatal(err)
	}
	return o.name(name)
}

// try runs a command on the cluster.
func (o *operated) try(stdin string, args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = Run(append(args, "--brokers", o.brokers), strings.NewReader(stdin), &out, &errs)
	return status, out.String(), errs.String()
}

// run runs a command that has to succeed, and returns what it prints.
func (o *operated) run(stdin string, args ...string) string {
	o.Helper()
	status, stdout, stderr := o.try(stdin, args...)
	if status != exitOK {
		o.Fatalf("pawl %v: status %d: %s", args, status, stderr)
	}
	return stdout
}

// publish writes messages.
func (o *operated) publish(recs ...kafka.Record) {
	o.Helper()
	p, err := kafka.NewProducer(o.kafka)
	if err != nil {
		o.Fatal(err)
	}
	defer p.Close()
	if err := p.Publish(o.Context(), recs...); err != nil {
		o.Fatal(err)
	}
}

// read returns the messages of a topic, by partition.
func (o *operated) read(name string) map[int32][]topic.Envelope {
	o.Helper()
	d, err := o.admin.DescribeTopic(o.Context(), name)
	if err != nil {
		o.Fatal(err)
	}
	var spans []kafka.Span
	for _, p := range d.Parts {
		spans = append(spans, kafka.Span{Partition: topic.Partition{Topic: name, Number: p.Number}, From: p.Earliest, To: p.StableEnd})
	}
	all := make(map[int32][]topic.Envelope)
	err = kafka.Scan(o.Context(), o.kafka, kafka.ReaderConfig{Committed: true}, spans, func(es []topic.Envelope, _ map[topic.Partition]int64) error {
		for _, e := range es {
			all[e.Partition] = append(all[e.Partition], e)
		}
		return nil
	})
	if err != nil {
		o.Fatal(err)
	}
	return all
}

// What differs from run to run in what a command prints.
var (
	shownTime  = regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	shownID    = regexp.MustCompile(`(ID |id: "?)[A-Za-z0-9_-]{22}"?`)
	shownWhy   = regexp.MustCompile(`(INVALID_[A-Z]+): .*`) // in the broker's own words
	shownClock = regexp.MustCompile(`"timestamp_ms":1[5-9]\d{11}`)
)

// The stories in testdata/topics are command lines, each with the status and
// all that it prints: first to standard output, then, after a line "stderr:",
// to standard error. NAME/ stands for what makes the test's names its own.
func TestTopicStories(t *testing.T) {
	stories, err := filepath.Glob("testdata/topics/*.txt")
	if err != nil || len(stories) == 0 {
		t.Fatalf("%d stories, %v", len(stories), err)
	}
	for _, file := range stories {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			onClusters(t, func(t *testing.T, o *operated) {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				got := o.tell(string(text))
				if got == string(text) {
					return
				}
				if *rewrite && !o.real {
					if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
						t.Fatal(err)
					}
					return
				}
				t.Errorf("%s went otherwise (-want +got):\n%s", file, cmp.Diff(strings.Split(string(text), "\n"), strings.Split(got, "\n")))
			})
		})
	}
}

// tell runs the commands of a story, and returns the story as it went.
func (o *operated) tell(story string) string {
	var b strings.Builder
	input := ""
	for line := range strings.Lines(story) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "#"):
			b.WriteString(line + "\n")
		case strings.HasPrefix(line, "< "):
			b.WriteString(line + "\n")
			input += strings.ReplaceAll(line[2:], "NAME/", o.prefix) + "\n"
		case strings.HasPrefix(line, "$ pawl "):
			status, stdout, stderr := o.try(input, o.words(line[len("$ pawl "):])...)
			input = ""
			fmt.Fprintf(&b, "%s\n%s", line, o.masked(stdout))
			if stderr != "" {
				fmt.Fprintf(&b, "stderr:\n%s", o.masked(stderr))
			}
			fmt.Fprintf(&b, "status %d\n\n", status)
		}
	}
	return b.String()
}

// words are the arguments of a line; a space in one is written as %.
func (o *operated) words(line string) []string {
	args := strings.Fields(strings.ReplaceAll(line, "NAME/", o.prefix))
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "%", " ")
	}
	return args
}

// masked is what a command has printed, without what differs from run to run.
func (o *operated) masked(s string) string {
	// Columns are as wide as the names in them.
	s = strings.ReplaceAll(s, o.prefix, "NAME/")
	s = shownTime.ReplaceAllString(s, "TIME")
	s = shownID.ReplaceAllString(s, "$1…")
	s = shownWhy.ReplaceAllString(s, "$1 …")
	s = shownClock.ReplaceAllString(s, `"timestamp_ms":…`)
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return b.String()
}

// Each pair of flags that exclude each other is refused, whatever the values.
func TestConflictingFlagsAreRefused(t *testing.T) {
	for _, tt := range []struct {
		args string
		es   exclusions
	}{
		{"produce orders", produceExclusions},
		{"consume orders", consumeExclusions},
		{"offsets show", offsetsExclusions},
		{"offsets reset", resetExclusions},
		{"txn list", txnListExclusions},
		{"txn abort", txnAbortExclusions},
		{"topic alter orders", exclusions{dryRunNeedsNoYes}},
		{"topic delete orders", exclusions{dryRunNeedsNoYes}},
	} {
		args := strings.Fields(tt.args)
		cmd, _, err := newRoot().Find(args)
		if err != nil {
			t.Fatal(err)
		}
		set := func(name string) string {
			f := cmd.Flags().Lookup(name)
			if f == nil {
				t.Fatalf("pawl %s has no --%s", tt.args, name)
			}
			switch f.Value.Type() {
			case "bool":
				return "--" + name
			case "duration":
				return "--" + name + "=1s"
			}
			return "--" + name + "=1"
		}
		for _, e := range tt.es {
			status, stdout, stderr := pawl(append(args, "--brokers", "127.0.0.1:1", set(e.a), set(e.b))...)
			want := fmt.Sprintf("pawl: --%s and --%s exclude each other: %s\n", e.a, e.b, e.why)
			if status != exitUsage || stdout != "" || !strings.HasPrefix(stderr, want) {
				t.Errorf("pawl %s with --%s and --%s: status %d, %q, %q, want %d and %q", tt.args, e.a, e.b, status, stdout, stderr, exitUsage, want)
			}
		}
	}
}

// What can't be obeyed is refused before a broker is asked for anything.
func TestRefusedCommandLines(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"topic create", "which topic?"},
		{"topic create a --partitions 0", "--partitions 0"},
		{"topic create a --set retention.ms", "want NAME=VALUE"},
		{"topic create a --set a=1 --set a=2", "names a twice"},
		{"topic list -o xml", "want table, json or yaml"},
		{"topic alter a", "what is to change?"},
		{"topic alter a b --partitions 2", "which topic?"},
		{"topic alter a --set b=1 --unset b", "set at the same time"},
		{"topic delete", "which topic?"},
		{"consume", "which topic?"},
		{"consume a --from 5", "an offset is one of a partition"},
		{"consume a b --partition 0", "--partition is for one topic"},
		{"consume a --partition 0 --from 5 --until 4", "is before"},
		{"consume a --from now-1h --until now-2h", "is before"},
		{"consume a --from now+1h", "want earliest, latest, an offset, or a time"},
		{"consume a --from now-x", "is no duration"},
		{"consume a --from latest --until end", "there is nothing"},
		{"consume a --from latest --until now-1h", "there is nothing"},
		{"consume a --until tomorrow", "--until \"tomorrow\": want end, an offset, or a time, such as"},
		{"consume a --partition 0 --from 99999999999999999999", "no offset is as large"},
		{"consume a --until earliest", "nothing is before it"},
		{"consume a --count 0", "--count 0"},
		{"consume a --partition -1", "want 0 or more"},
		{"consume a --partition 1 --partition 1", "each once"},
		{"consume a --group g --from 3", "exclude each other"},
		{"consume a --group g --until now", "exclude each other"},
		{"produce a --input xml", "want json, lines or whole"},
		{"produce --input lines", "which topic?"},
		{"produce a --key k", "is not for JSON messages"},
		{"produce a --header k=v", "is not for JSON messages"},
		{"produce a --timestamp now", "is not for JSON messages"},
		{"produce a --tombstone", "which? Set --key"},
		{"produce a --key-separator :", "is for --input lines"},
		{"produce a --input lines --keep-partitions", "is for --input json"},
		{"produce a --value v --header x", "want NAME=VALUE"},
		{"produce a --value v --timestamp tomorrow", "want a time"},
		{"produce a b", "unexpected argument"},
		{"group describe", "which group?"},
		{"offsets show", "whose offsets?"},
		{"offsets show --application A.b", "lower-case"},
		{"txn list --topic a", "are for --hanging"},
		{"txn abort", "which transaction?"},
		{"txn abort --topic a --partition 0", "which transaction?"},
		{"dev --listen 0.0.0.0:0", "others can reach this address"},
		{"dev --topic a:0", "NAME:PARTITIONS"},
	} {
		args := strings.Fields(tt.args)
		if args[0] != "dev" {
			args = append(args, "--brokers", "127.0.0.1:1")
		}
		status, stdout, stderr := pawl(args...)
		if status != exitUsage || stdout != "" || !strings.Contains(stderr, tt.want) {
			t.Errorf("pawl %s: status %d, %q, %q, want %d and %q", tt.args, status, stdout, stderr, exitUsage, tt.want)
		}
	}
}

// Without a terminal to ask at, what destroys something is refused, not done.
func TestNobodyToAsk(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		name := o.create("orders", 1, nil)
		for _, args := range [][]string{{"topic", "delete", name}, {"topic", "alter", name, "--set", "retention.ms=1"}} {
			status, stdout, stderr := o.try("y\n", args...)
			if status != exitUsage || stdout != "" || !strings.Contains(stderr, "standard input is no terminal to ask at") {
				t.Errorf("pawl %v: status %d, %q, %q, want a refusal", args, status, stdout, stderr)
			}
		}
		d, err := o.admin.DescribeTopic(o.Context(), name)
		if err != nil || len(d.Settings) == 0 {
			t.Fatalf("the topic is gone: %v", err)
		}
		for _, s := range d.Settings {
			if s.Name == "retention.ms" && s.Own {
				t.Errorf("retention.ms is %s now", s.Value)
			}
		}
	})
}

func TestAnswers(t *testing.T) {
	for _, tt := range []struct {
		answer string
		yes    bool
	}{{"y\n", true}, {"YES\n", true}, {" yes \n", true}, {"\n", false}, {"n\n", false}, {"yess\n", false}, {"y", false}, {"", false}} {
		var asked strings.Builder
		err := answered(strings.NewReader(tt.answer), &asked, "It will go.")
		if (err == nil) != tt.yes || err != nil && !errors.Is(err, errNothingDone) {
			t.Errorf("answer %q: %v", tt.answer, err)
		}
		if want := "It will go. Go on? [y/N] "; asked.String() != want {
			t.Errorf("asked %q, want %q", asked.String(), want)
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if isTerminal(null, func(string) string { return "" }) {
		t.Errorf("%s passes for a terminal, and would be asked", os.DevNull)
	}
}

// The shell completes names that are there.
func TestLiveNames(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		name := o.create("orders", 1, nil)
		o.create("totals", 1, nil)
		o.run("", "consume", name, "--group", o.name("readers"), "--until", "end")
		for _, tt := range []struct {
			args []string
			want string
		}{
			{[]string{"topic", "describe", o.name("or")}, name + "\n"},
			{[]string{"topic", "describe", name, o.name("")}, o.name("totals") + "\n"},
			{[]string{"topic", "alter", name, o.name("")}, ""},
			{[]string{"group", "describe", o.name("")}, o.name("readers") + "\n"},
			{[]string{"consume", name, "--group", o.name("")}, o.name("readers") + "\n"},
		} {
			last := len(tt.args) - 1
			args := append([]string{"__complete"}, tt.args[:last]...)
			args = append(args, "--brokers", o.brokers)
			if tt.args[last-1] == "--group" {
				args = append([]string{"__complete"}, tt.args[:last-1]...)
				args = append(args, "--brokers", o.brokers, "--group")
			}
			_, stdout, _ := pawl(append(args, tt.args[last])...)
			if want := tt.want + ":4\n"; stdout != want {
				t.Errorf("completion of %v: %q, want %q", tt.args, stdout, want)
			}
		}
	})
}

// broken is a pipe that nobody reads from any more.
type broken struct{}

func (broken) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "|1", Err: syscall.EPIPE}
}

// A reader that has enough, as head has, is no error.
func TestNobodyReads(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		name := o.create("orders", 1, nil)
		o.publish(kafka.Record{Topic: name, Value: []byte("1")})
		for _, args := range [][]string{{"topic", "list"}, {"consume", name}, {"consume", name, "-o", "yaml"}, {"consume", name, "--group", o.name("g"), "-o", "json"}} {
			var errs strings.Builder
			if status := Run(append(args, "--brokers", o.brokers), strings.NewReader(""), broken{}, &errs); status != exitOK || errs.String() != "" {
				t.Errorf("pawl %v | true: status %d, %s", args, status, errs.String())
			}
		}
		// What nobody has read is not committed.
		if committed, err := o.admin.Committed(o.Context(), o.name("g")); err != nil || len(committed) > 0 {
			t.Errorf("committed %v, %v, want nothing", committed, err)
		}
	})
}

// full is a disk without space.
type full struct{}

func (full) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "out", Err: syscall.ENOSPC}
}

// That there are as many messages as were wanted does not hide that they could
// not be written: the command fails, and commits nothing.
func TestEnoughThatCannotBeWritten(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		name := o.create("orders", 1, nil)
		o.publish(kafka.Record{Topic: name, Value: []byte("1")}, kafka.Record{Topic: name, Value: []byte("2")})
		for _, args := range [][]string{{"consume", name, "--count", "1"}, {"consume", name, "--group", o.name("g"), "--count", "1"}} {
			var errs strings.Builder
			if status := Run(append(args, "--brokers", o.brokers), strings.NewReader(""), full{}, &errs); status != exitError || !strings.Contains(errs.String(), "no space left") {
				t.Errorf("pawl %v on a full disk: status %d, %s", args, status, errs.String())
			}
		}
		if committed, err := o.admin.Committed(o.Context(), o.name("g")); err != nil || len(committed) > 0 {
			t.Errorf("committed %v, %v, want nothing", committed, err)
		}
	})
}

// Who waits for messages is told that nobody reads any more.
func TestWaitingForMessagesEndsWithItsReader(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		name := o.create("orders", 1, nil)
		o.publish(kafka.Record{Topic: name, Value: []byte("1")})
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer write.Close()
		ended := make(chan int, 1)
		var errs strings.Builder
		go func() {
			ended <- Run([]string{"consume", name, "-o", "json", "--brokers", o.brokers}, strings.NewReader(""), write, &errs)
		}()
		if _, err := read.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if err := read.Close(); err != nil {
			t.Fatal(err)
		}
		select {
		case status := <-ended:
			if status != exitOK {
				t.Errorf("status %d: %s", status, errs.String())
			}
		case <-time.After(servedTime):
			t.Fatal("it still waits")
		}
	})
}

// What ends a command decides its status.
func TestEnding(t *testing.T) {
	live := context.Background()
	ended, cancel := context.WithCancel(live)
	cancel()
	for _, tt := range []struct {
		name string
		ctx  context.Context
		err  error
		want int
	}{
		{"done", live, nil, exitOK},
		{"done when the signal came", ended, nil, exitOK},
		{"nobody reads", live, fmt.Errorf("print: %w", syscall.EPIPE), exitOK},
		{"a signal", ended, fmt.Errorf("read: %w", context.Canceled), exitInterrupted},
		{"an error", live, errors.New("no"), exitError},
		{"an error, and a signal", ended, errors.New("no"), exitError},
		{"cancelled, without a signal", live, context.Canceled, exitError},
	} {
		root := newRoot()
		root.AddCommand(&cobra.Command{Use: "try", RunE: func(*cobra.Command, []string) error { return ending(tt.ctx, tt.err) }})
		var errs strings.Builder
		if got := execute(root, []string{"try"}, strings.NewReader(""), &errs, &errs); got != tt.want {
			t.Errorf("%s: status %d, want %d (%s)", tt.name, got, tt.want, errs.String())
		}
	}
}
