package cli

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// cutOff leaves an application as a reset does that is cut off after the
// changelogs are made anew, and before any shard has its place. It returns the
// last offsets records.
func (a *tallied) cutOff() map[topic.Partition]topic.Envelope {
	a.t.Helper()
	name := a.app + "." + a.set + ".changelog"
	last, err := a.admin.LastRecords(a.t.Context(), changelog.OffsetsKey, topic.Partition{Topic: name}, topic.Partition{Topic: name, Number: 1})
	if err != nil {
		a.t.Fatal(err)
	}
	if err := a.admin.DeleteTopics(a.t.Context(), name); err != nil {
		a.t.Fatal(err)
	}
	if _, err := a.admin.CreateTopic(a.t.Context(), kafka.TopicSpec{Name: name, Partitions: tallyPartitions, Settings: map[string]string{"cleanup.policy": "compact"}}); err != nil {
		a.t.Fatal(err)
	}
	return last
}

// A reset that was cut off can be done again, also where a set of topics has a
// name of its own: every shard begins where it is told, by what another shard
// of the set consumes or by what the user says; never in silence elsewhere.
func TestAppResetAgain(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		a := newTallied(t, o)
		a.set = "pairs"
		a.publish(140)
		a.consume(nil)

		a.cutOff()
		reset := []string{"app", "reset", a.app, "--to", "latest", "--yes"}
		status, stdout, stderr := o.try("", reset...)
		if status != exitError || stdout != "" || !strings.Contains(stderr, "say --topic pairs=TOPIC") {
			t.Errorf("with nothing that says what the set consumes: status %d, %q, %q", status, stdout, stderr)
		}
		for arg, want := range map[string]string{
			"pairs":                      "want SET=TOPIC",
			"=x":                         "want SET=TOPIC",
			"pairs=" + o.name("nothing"): "unknown topic",
			"nosuch=" + a.words:          "has no set nosuch",
		} {
			if status, _, stderr := o.try("", append(reset, "--topic", arg)...); status == exitOK || !strings.Contains(stderr, want) {
				t.Errorf("--topic %s: status %d, %q, want %q", arg, status, stderr, want)
			}
		}
		if out := o.run("", append(reset, "--topic", "pairs="+a.words)...); out != "2 partitions reset\n" {
			t.Errorf("with --topic: %q", out)
		}
		end := a.ends()
		before := make(map[string]int64)
		for word, n := range a.published {
			before[word] = n
		}
		a.publish(70)
		a.consume(end)
		want := make(map[string]int64)
		for word, n := range a.published {
			want[word] = n - before[word]
		}
		a.want("from the end", want)

		// Of two shards one has its place: that says what the other consumes.
		last := a.cutOff()
		name := a.app + ".pairs.changelog"
		first := last[topic.Partition{Topic: name}]
		a.operated.publish(kafka.Record{Topic: name, Partition: 0, Key: changelog.OffsetsKey, Value: first.Value})
		if status, _, stderr := o.try("", append(reset, "--topic", "pairs="+a.totals)...); status != exitError || !strings.Contains(stderr, "set pairs consumes "+a.words) {
			t.Errorf("--topic against what is known: status %d, %q", status, stderr)
		}
		if out := o.run("", "app", "reset", a.app, "--to", "earliest", "--yes"); out != "2 partitions reset\n" {
			t.Errorf("with another shard's inputs: %q", out)
		}
		a.consume(nil)
		a.want("anew", a.published)
	})
}

// That a changelog is deleted is said only where it is.
func TestResetSaysWhatIsDeleted(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		name := o.create("app.words.changelog", 1, map[string]string{"cleanup.policy": "compact"})
		d, err := o.admin.DescribeTopic(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		if deleted, err := new(reset).renewLog(canceled, asked{o.admin, o.kafka}, d); deleted || !errors.Is(err, context.Canceled) {
			t.Errorf("a delete that fails: deleted is %v, and the error %v", deleted, err)
		}
		d.Partitions = -7 // which no topic can be made with
		if deleted, err := new(reset).renewLog(t.Context(), asked{o.admin, o.kafka}, d); !deleted || err == nil {
			t.Errorf("a topic that can't be made anew: deleted is %v, and the error %v", deleted, err)
		}
	})
}
