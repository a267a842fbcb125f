package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// consume -o json | produce is the identity: bytes, nulls, headers, timestamps,
// partitions and order.
func TestConsumeIntoProduce(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		const partitions = 3
		n := 0
		rapid.Check(t, func(t *rapid.T) {
			n++
			if n > 20 {
				return // the cluster is slower than what is checked
			}
			kept := map[string]string{"retention.ms": "-1"} // whatever the timestamps
			from, to := o.create(fmt.Sprintf("from%d", n), partitions, kept), o.create(fmt.Sprintf("to%d", n), partitions, kept)
			var recs []kafka.Record
			for _, e := range rapid.SliceOfN(anyMessage(from, partitions), 1, 30).Draw(t, "messages") {
				recs = append(recs, kafka.Record{Topic: from, Partition: e.Partition, Key: e.Key, Value: e.Value, Headers: e.Headers, Timestamp: e.Timestamp})
			}
			o.publish(recs...)
			printed := o.run("", "consume", from, "--until", "end", "-o", "json")
			o.run(printed, "produce", to, "--keep-partitions")
			want, got := o.read(from), o.read(to)
			if diff := cmp.Diff(want, got, sameTime, cmp.Comparer(func(x, y *topic.Description) bool { return true })); diff != "" {
				t.Fatalf("the copy differs (-from +to):\n%s\nprinted:\n%s", diff, printed)
			}
		})
	})
}

// Large and awkward values come through whole, and without a topic on the
// command line each goes back to its own.
func TestAwkwardMessagesComeThrough(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		name := o.create("awkward", 1, map[string]string{"max.message.bytes": "2097152"})
		random := bytes.Repeat([]byte("\x00\xff\xfe pawl \n"), 1<<20/10)
		o.publish(
			kafka.Record{Topic: name, Key: []byte{0xff}, Value: random},
			kafka.Record{Topic: name, Value: []byte("\n\r\x00")},
			kafka.Record{Topic: name, Value: []byte(`{"data":1}`), Headers: []topic.Header{{Key: "h", Value: nil}, {Key: "h", Value: []byte{}}, {Key: "\xff", Value: []byte("v")}}},
		)
		o.run(o.run("", "consume", name, "--until", "end", "-o", "json"), "produce")
		all := o.read(name)[0]
		if len(all) != 6 {
			t.Fatalf("%d messages, want 6", len(all))
		}
		for i := range 3 {
			want, got := all[i], all[i+3]
			got.Offset = want.Offset
			if diff := cmp.Diff(want, got, sameTime, cmp.Comparer(func(x, y *topic.Description) bool { return true })); diff != "" {
				t.Errorf("message %d differs:\n%.2000s", i, diff)
			}
		}
	})
}

// A terminal is shown nothing raw, in any form.
func TestConsumeIsPlain(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		name := o.create("evil", 1, nil)
		evil := []byte("\x1b[2J\x07\u202e\u0085\x7f\r\nend")
		o.publish(kafka.Record{Topic: name, Key: evil, Value: evil, Headers: []topic.Header{{Key: string(evil), Value: evil}}})
		for _, form := range []string{asTable, asJSON, asYAML} {
			out := o.run("", "consume", name, "--until", "end", "-o", form)
			if i := strings.IndexFunc(out, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
				t.Errorf("-o %s prints %q", form, out[i:])
			}
		}
	})
}

// Each bound of what is read is obeyed.
func TestConsumeBounds(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		name := o.create("bounds", 2, map[string]string{"retention.ms": "-1"})
		at := func(m int) time.Time { return time.Date(2026, 1, 1, 10, m, 0, 0, time.UTC) }
		for i := range 10 {
			o.publish(kafka.Record{Topic: name, Partition: 0, Value: fmt.Append(nil, i), Timestamp: at(i)})
		}
		o.publish(kafka.Record{Topic: name, Partition: 1, Value: []byte("x"), Timestamp: at(5)})
		for _, tt := range []struct{ args, want string }{
			{"--until end --partition 0", "0123456789"},
			{"--until end --partition 1", "x"},
			{"--partition 0 --from 7 --until end", "789"},
			{"--partition 0 --from 7 --until 9", "78"},
			{"--partition 0 --from 7 --until 99", "789"},
			{"--partition 0 --from 10 --until end", ""},
			{"--partition 0 --from 0 --count 3", "012"},
			{"--partition 0 --count 1", "0"},
			{"--partition 0 --from 2026-01-01T10:07:00Z --until end", "789"},
			{"--partition 0 --from 2026-01-01T10:06:30Z --until 2026-01-01T10:08:30Z", "78"},
			{"--from 2026-01-01T10:09:00Z --until end", "9"},
			{"--from now-1m --until end", ""},
			{"--from 2020-01-01 --until now --partition 0", "0123456789"},
			{"--from 2001-01-01 --until 2001-01-02", ""},
		} {
			out := o.run("", append([]string{"consume", name, "-o", "json"}, strings.Fields(tt.args)...)...)
			got := ""
			for line := range strings.Lines(out) {
				m, err := parseMessage([]byte(line))
				if err != nil || m.Value == nil {
					t.Fatalf("%s: %q: %v", tt.args, line, err)
				}
				got += *m.Value
			}
			if got != tt.want {
				t.Errorf("consume %s: %q, want %q", tt.args, got, tt.want)
			}
		}
		for args, want := range map[string]string{
			"--partition 0 --from 11 --until end": "holds offsets 0 to 10",
			"--partition 7 --until end":           "there is no partition 7",
		} {
			if status, _, stderr := o.try("", append([]string{"consume", name}, strings.Fields(args)...)...); status != exitError || !strings.Contains(stderr, want) {
				t.Errorf("consume %s: status %d, %q, want %q", args, status, stderr, want)
			}
		}
	})
}

// A group goes on where it has come: at what was printed, and no further.
func TestConsumeByGroup(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		name, group := o.create("grouped", 1, nil), o.name("readers")
		for i := range 6 {
			o.publish(kafka.Record{Topic: name, Value: fmt.Append(nil, i)})
		}
		values := func(args ...string) (got string) {
			for line := range strings.Lines(o.run("", append([]string{"consume", name, "--group", group, "-o", "json"}, args...)...)) {
				m, err := parseMessage([]byte(line))
				if err != nil {
					t.Fatal(err)
				}
				got += *m.Value
			}
			return got
		}
		for i, want := range []string{"01", "23"} {
			if got := values("--count", "2"); got != want {
				t.Errorf("call %d: %q, want %q", i, got, want)
			}
		}
		if got := values("--until", "end"); got != "45" {
			t.Errorf("until the end: %q, want 45", got)
		}
		if got := values("--until", "end"); got != "" {
			t.Errorf("again until the end: %q, want nothing", got)
		}
		shown := o.run("", "offsets", "show", "--group", group, "-o", "json")
		if !strings.Contains(shown, `"position": 6`) || !strings.Contains(shown, `"lag": 0`) {
			t.Errorf("offsets show: %s", shown)
		}
	})
}

// A group that has found nothing yet goes on from there all the same: what comes
// between two calls is not passed over.
func TestConsumeByGroupFromLatest(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		name, group := o.create("late", 2, nil), o.name("latecomers")
		o.publish(record(name, "before"))
		late := []string{"consume", name, "--group", group, "--from", "latest", "--until", "end"}
		if out := o.run("", late...); out != "" {
			t.Errorf("from the end on: %q", out)
		}
		o.publish(kafka.Record{Topic: name, Partition: 0, Value: []byte("p0")}, kafka.Record{Topic: name, Partition: 1, Value: []byte("p1")})
		if out := o.run("", late...); strings.Count(out, "(null)") != 2 || strings.Contains(out, "before") {
			t.Errorf("what came meanwhile: %q, want two messages", out)
		}
	})
}

// Read committed is the default.
func TestConsumeCommitted(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		name := o.create("transactional", 1, nil)
		hung := hang(t, o, name, "open", false)
		defer hung()
		if out := o.run("", "consume", name, "--until", "end"); out != "" {
			t.Errorf("printed %q of an open transaction", out)
		}
		if out := o.run("", "consume", name, "--until", "end", "--uncommitted", "-o", "json"); !strings.Contains(out, `"value":"hidden"`) {
			t.Errorf("--uncommitted printed %q", out)
		}
	})
}
