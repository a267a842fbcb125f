package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

var tallyTable = store.NewTable("tallies", store.String, store.Int64)

// tallier counts words, and publishes each count.
type tallier struct {
	words, totals *topic.Description
	seen          chan<- seenAt
}

type seenAt struct {
	partition int32
	offset    int64
}

func (c tallier) Topics() []*topic.Description  { return []*topic.Description{c.words} }
func (c tallier) Outputs() []*topic.Description { return []*topic.Description{c.totals} }

func (c tallier) Consume(e topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
	_, err := tallyTable.Update(s.Transaction(), string(e.Key), func(n int64) int64 { return n + 1 })
	c.seen <- seenAt{e.Partition, e.Offset}
	return err
}

func (c tallier) Flush(s consumer.Shard, p *topic.Publisher) error {
	for word, n := range tallyTable.Changes(s.Transaction()) {
		if err := p.Publish(fmt.Append(nil, n.New), c.totals, topic.Key([]byte(word))); err != nil {
			return err
		}
	}
	return nil
}

// tallied is an application that can be run again and again on one state
// directory, and whose every total can be recomputed from its input.
type tallied struct {
	*operated
	t             *testing.T
	app           string
	words, totals string
	set           string // that words is declared to be of, unless it is empty
	dir           string
	published     map[string]int64
}

const tallyPartitions = 2

func newTallied(t *testing.T, o *operated) *tallied {
	a := &tallied{operated: o, t: t, app: strings.TrimSuffix(o.name("app"), "-"), dir: t.TempDir(), published: make(map[string]int64)}
	a.words, a.totals = o.create("words", tallyPartitions, nil), o.create("totals", 1, nil)
	return a
}

// publish writes n words.
func (a *tallied) publish(n int) {
	a.t.Helper()
	var recs []kafka.Record
	for i := range n {
		word := fmt.Sprintf("word%d", i%7)
		a.published[word]++
		recs = append(recs, kafka.Record{Topic: a.words, Partition: -1, Key: []byte(word), Value: []byte("x")})
	}
	a.operated.publish(recs...)
}

// tallyRun is a run of the application.
type tallyRun struct {
	a     *tallied
	stop  context.CancelFunc
	seen  chan seenAt
	ended chan error
}

func (a *tallied) start() *tallyRun {
	ctx, cancel := context.WithCancel(context.Background())
	r := &tallyRun{a: a, stop: cancel, seen: make(chan seenAt, 100_000), ended: make(chan error, 1)}
	cfg := consumer.Config{Application: a.app, Cluster: a.kafka.Cluster, StateDir: a.dir, TopicsInterval: 200 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
	words := topic.Bytes(a.words)
	if a.set != "" {
		words = words.With(topic.Set(a.set))
	}
	c := tallier{words.Description, topic.Bytes(a.totals).Description, r.seen}
	go func() { r.ended <- consumer.Run(ctx, cfg, c) }()
	a.t.Cleanup(func() { cancel() })
	return r
}

// until waits until a message is consumed in each partition that is at its end.
// Those below from were consumed before.
func (r *tallyRun) until(from map[int32]int64) {
	r.a.t.Helper()
	ends := r.a.ends()
	deadline := time.After(servedTime)
	for p, end := range ends {
		if from[p] >= end {
			delete(ends, p)
		}
	}
	for len(ends) > 0 {
		select {
		case at := <-r.seen:
			if at.offset == ends[at.partition]-1 {
				delete(ends, at.partition)
			}
		case err := <-r.ended:
			r.a.t.Fatalf("the application has ended: %v", err)
		case <-deadline:
			r.a.t.Fatalf("not consumed up to %v", ends)
		}
	}
}

// finish stops the application, which commits what it has consumed.
func (r *tallyRun) finish() {
	r.a.t.Helper()
	r.stop()
	if err := <-r.ended; err != nil {
		r.a.t.Fatalf("the application has ended: %v", err)
	}
}

// consume runs the application until all is consumed that is not below from.
func (a *tallied) consume(from map[int32]int64) {
	a.t.Helper()
	r := a.start()
	r.until(from)
	r.finish()
}

func (a *tallied) ends() map[int32]int64 {
	a.t.Helper()
	d, err := a.admin.DescribeTopic(a.t.Context(), a.words)
	if err != nil {
		a.t.Fatal(err)
	}
	ends := make(map[int32]int64)
	for _, p := range d.Parts {
		ends[p.Number] = p.StableEnd
	}
	return ends
}

// want compares the last totals that were published.
func (a *tallied) want(when string, want map[string]int64) {
	a.t.Helper()
	got := make(map[string]int64)
	for _, e := range a.read(a.totals)[0] {
		var n int64
		if err := json.Unmarshal(e.Value, &n); err != nil {
			a.t.Fatal(err)
		}
		got[string(e.Key)] = n
	}
	if diff := cmp.Diff(want, got); diff != "" {
		a.t.Errorf("%s: totals differ (-want +got):\n%s", when, diff)
	}
}

func times(n int64, m map[string]int64) map[string]int64 {
	all := make(map[string]int64)
	for k, v := range m {
		all[k] = n * v
	}
	return all
}

// Begun anew, an application comes to exactly the totals of its input, on the
// state directory of before as on an empty one.
func TestAppReset(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		a := newTallied(t, o)
		a.publish(300)
		a.consume(nil)
		a.want("before", a.published)
		half := a.ends()
		a.publish(100)

		status, stdout, stderr := o.try("", "app", "reset", a.app, "--to", "earliest")
		if status != exitUsage || stdout != "" || !strings.Contains(stderr, "state: all of it is deleted") || !strings.Contains(stderr, "no terminal") {
			t.Errorf("with nobody to ask: status %d, %q, %q", status, stdout, stderr)
		}
		plan := o.run("", "app", "reset", a.app, "--to", "earliest", "--dry-run", "-o", "json")
		if !strings.Contains(plan, fmt.Sprintf(`"from": %d`, half[0])) || !strings.Contains(plan, `"done": false`) {
			t.Errorf("plan: %s", plan)
		}
		a.consume(half)
		a.want("after what was only planned", a.published)

		o.run("", "app", "reset", a.app, "--to", "earliest", "--yes")
		shown := o.run("", "offsets", "show", "--application", a.app, "-o", "json")
		if !strings.Contains(shown, `"lag": 400`) {
			t.Errorf("after the reset: %s", shown)
		}
		a.consume(nil)
		a.want("anew", a.published)

		o.run("", "app", "reset", a.app, "--to", "earliest", "--yes")
		a.dir = t.TempDir()
		a.consume(nil)
		a.want("anew, elsewhere", a.published)

		// From the end, nothing of before is left.
		o.run("", "app", "reset", a.app, "--to", "latest", "--yes")
		end, before := a.ends(), maps.Clone(a.published)
		a.publish(70)
		a.consume(end)
		for word := range before {
			before[word] = a.published[word] - before[word]
		}
		a.want("from the end", before)
	})
}

// Moved without its state, an application counts again what comes again, and
// never what is skipped.
func TestOffsetsResetKeepsState(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		a := newTallied(t, o)
		a.publish(140)
		a.consume(nil)
		out := o.run("", "offsets", "reset", "--application", a.app, "--keep-state", "--to", "earliest", "--yes")
		if want := "2 partitions reset\n"; out != want {
			t.Errorf("printed %q, want %q", out, want)
		}
		a.consume(nil)
		a.want("all again", times(2, a.published))

		was := times(2, a.published)
		a.publish(70) // which are skipped
		o.run("", "offsets", "reset", "--application", a.app, "--keep-state", "--to", "latest", "--yes")
		a.dir = t.TempDir()
		end, skipped := a.ends(), maps.Clone(a.published)
		a.publish(7)
		a.consume(end)
		for word := range was {
			was[word] += a.published[word] - skipped[word]
		}
		a.want("some skipped", was)

		for args, want := range map[string]string{
			"--to earliest --topic " + a.totals:              "nothing has been consumed of it here",
			"--to earliest --partition 9 --topic " + a.words: "nothing has been consumed of it here",
			"--to 99999": "holds offsets 0 to",
			"--to 5 --topic " + a.words + " --partition 0 --dry-run": "",
			"--to now-1h --dry-run":                                  "",
			"--to 2001-01-01 --dry-run":                              "",
		} {
			status, stdout, stderr := o.try("", append([]string{"offsets", "reset", "--application", a.app, "--keep-state"}, strings.Fields(args)...)...)
			if want == "" && status != exitOK || want != "" && (status != exitError || !strings.Contains(stderr, want)) {
				t.Errorf("offsets reset %s: status %d, %q, %q, want %q", args, status, stdout, stderr, want)
			}
		}
		if status, _, stderr := o.try("", "offsets", "reset", "--application", a.app, "--to", "latest", "--yes"); status != exitUsage || !strings.Contains(stderr, "belong to its state") {
			t.Errorf("without --keep-state: status %d, %q", status, stderr)
		}
		if status, _, stderr := o.try("", "offsets", "reset", "--group", a.app, "--to", "latest", "--yes"); status != exitError || !strings.Contains(stderr, "say --application") {
			t.Errorf("the group of an application: status %d, %q", status, stderr)
		}
		if status, _, stderr := o.try("", "app", "reset", o.name("nobody"), "--to", "latest", "--yes"); status != exitError || !strings.Contains(stderr, "has never run") {
			t.Errorf("an application that never ran: status %d, %q", status, stderr)
		}
	})
}

// While shards run a reset is refused, and names who runs. Told to go on, it
// moves them: what they consume next is from there.
func TestResetWhileShardsRun(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		a := newTallied(t, o)
		a.publish(70)
		r := a.start()
		r.until(nil)
		for _, args := range [][]string{{"app", "reset", a.app, "--to", "earliest", "--yes"}, {"offsets", "reset", "--application", a.app, "--keep-state", "--to", "earliest", "--yes"}} {
			status, stdout, stderr := o.try("", args...)
			if status != exitError || stdout != "" || !strings.Contains(stderr, "1 member of "+a.app) || !strings.Contains(stderr, "--force") {
				t.Errorf("pawl %v: status %d, %q, %q, want a refusal", args, status, stdout, stderr)
			}
			args[len(args)-1] = "--dry-run"
			status, stdout, stderr = o.try("", args...)
			if status != exitError || !strings.Contains(stdout, "REPEATS") || !strings.Contains(stdout, a.words) || !strings.Contains(stderr, "this would be refused: 1 member of "+a.app) {
				t.Errorf("pawl %v: status %d, %q, %q, want the plan, and that it would be refused", args, status, stdout, stderr)
			}
		}
		r.finish()
		r = a.start()
		end := a.ends()
		a.publish(70)
		r.until(end)
		a.settled()
		o.run("", "offsets", "reset", "--application", a.app, "--keep-state", "--to", "earliest", "--force", "--yes")
		again := maps.Clone(a.published)
		a.publish(70)
		r.fromBeginning()
		r.finish()
		for word := range again {
			again[word] += a.published[word]
		}
		a.want("moved while it ran", again)

		// And with its state: from the beginning, as if there had been nothing,
		// also if no message comes.
		r = a.start()
		end = a.ends()
		a.publish(7)
		r.until(end)
		a.settled()
		o.run("", "app", "reset", a.app, "--to", "earliest", "--force", "--yes")
		r.fromBeginning()
		r.finish()
		a.want("begun anew while it ran", a.published)
	})
}

// fromBeginning waits until each partition is consumed from its beginning up to
// its end. Some of it comes before that at the old place, in vain.
func (r *tallyRun) fromBeginning() {
	r.a.t.Helper()
	ends, begun := r.a.ends(), make(map[int32]bool)
	deadline := time.After(servedTime)
	for len(ends) > 0 {
		select {
		case at := <-r.seen:
			begun[at.partition] = begun[at.partition] || at.offset == 0
			if begun[at.partition] && at.offset == ends[at.partition]-1 {
				delete(ends, at.partition)
			}
		case <-deadline:
			r.a.t.Fatalf("not consumed from the beginning: %v, up to %v", begun, ends)
		}
	}
}

// settled waits until all that is published is committed.
func (a *tallied) settled() {
	a.t.Helper()
	deadline := time.Now().Add(servedTime)
	for {
		out := a.run("", "offsets", "show", "--application", a.app, "-o", "json")
		var shown offsetsShown
		if err := json.Unmarshal([]byte(out), &shown); err != nil {
			a.t.Fatal(err)
		}
		if shown.Lag == 0 {
			return
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("lag %d", shown.Lag)
		}
	}
}

// A group without members is moved; one with members is not.
func TestGroupReset(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		name, group := o.create("moved", 1, nil), o.name("movers")
		for i := range 5 {
			o.publish(kafka.Record{Topic: name, Value: fmt.Append(nil, i)})
		}
		o.run("", "consume", name, "--group", group, "--until", "end")
		out := o.run("", "offsets", "reset", "--group", group, "--to", "2", "--dry-run")
		if !strings.Contains(out, "moved") || strings.Contains(out, "reset\n") {
			t.Errorf("plan: %s", out)
		}
		o.run("", "offsets", "reset", "--group", group, "--to", "2", "--yes")
		out = o.run("", "consume", name, "--group", group, "--until", "end", "-o", "json")
		if got := strings.Count(out, "\n"); got != 3 {
			t.Errorf("%d messages from offset 2 on, want 3", got)
		}
		// What a queue has set aside for later is not moved with its input.
		retries := o.create("movers.retry.1", 1, nil)
		o.publish(record(retries, "later"))
		o.run("", "consume", retries, "--group", group, "--until", "end")
		out = o.run("", "offsets", "reset", "--group", group, "--to", "earliest", "--dry-run")
		if strings.Contains(out, retries) || !strings.Contains(out, "1 partition of the queue's own topics") {
			t.Errorf("plan: %s", out)
		}
		if out = o.run("", "offsets", "reset", "--group", group, "--topic", retries, "--to", "earliest", "--dry-run"); !strings.Contains(out, retries) {
			t.Errorf("plan of a topic of its own: %s", out)
		}
		if status, _, stderr := o.try("", "offsets", "reset", "--group", o.name("nobody"), "--to", "2", "--yes"); status != exitError || !strings.Contains(stderr, "unknown group") {
			t.Errorf("a group that is not there: status %d, %q", status, stderr)
		}
	})
}
