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

// anyBytes draws null, empty, text, or bytes.
func anyBytes() *rapid.Generator[[]byte] {
	return rapid.OneOf(
		rapid.Just[[]byte](nil), rapid.Just([]byte{}), rapid.SliceOfN(rapid.Byte(), 1, 40),
		rapid.Map(anyText(), func(s string) []byte { return []byte(s) }),
		rapid.SampledFrom([][]byte{[]byte(`{"data":1}`), []byte("\n\r\x00"), {0xff, 0xfe}, []byte("null"), []byte("/w==")}),
	)
}

func anyMessage(name string, partitions int) *rapid.Generator[topic.Envelope] {
	return rapid.Custom(func(t *rapid.T) topic.Envelope {
		e := topic.Envelope{
			Topic: topic.Bytes(name).Description, Partition: rapid.Int32Range(0, int32(partitions-1)).Draw(t, "partition"),
			Key: anyBytes().Draw(t, "key"), Value: anyBytes().Draw(t, "value"),
			Timestamp: time.UnixMilli(rapid.OneOf(rapid.Int64Range(-1, time.Now().UnixMilli()), rapid.SampledFrom([]int64{-1, 0, 1, 1 << 40})).Draw(t, "ms")),
		}
		for range rapid.IntRange(0, 4).Draw(t, "headers") {
			e.Headers = append(e.Headers, topic.Header{Key: string(rapid.OneOf(rapid.Just([]byte("h")), anyBytes()).Draw(t, "name")), Value: anyBytes().Draw(t, "header")})
		}
		return e
	})
}

var sameTime = cmp.Comparer(func(x, y time.Time) bool { return x.UnixMilli() == y.UnixMilli() })

// What is printed of a message says all of it, on one line that a terminal can
// show.
func TestMessageForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := anyMessage("orders", 3).Draw(t, "message")
		var b bytes.Buffer
		p := newMessagePrinter(&b, asJSON, false)
		if err := p.print(want); err != nil {
			t.Fatal(err)
		}
		if err := p.flush(); err != nil {
			t.Fatal(err)
		}
		line := strings.TrimSuffix(b.String(), "\n")
		if i := strings.IndexFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
			t.Fatalf("%q holds %q", line, line[i:])
		}
		m, err := parseMessage([]byte(line))
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		got, err := m.envelope()
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		got.Topic = want.Topic
		if diff := cmp.Diff(want, got, sameTime, cmp.AllowUnexported(topic.Description{}), cmp.Comparer(func(x, y *topic.Description) bool { return x == y })); diff != "" {
			t.Fatalf("%s says something else (-want +got):\n%s", line, diff)
		}
	})
}

// A message that is not clear is refused, and never half understood.
func TestRefusedMessages(t *testing.T) {
	for _, tt := range []struct{ line, want string }{
		{`{"vlaue":"x"}`, `unknown member "vlaue": did you mean value?`},
		{`{"Value":"x"}`, `unknown member "Value"`},
		{`{"key":"a"}`, `no "value"`},
		{`{"value":"a","value":"b"}`, `member "value" is there twice`},
		{`{"value":1}`, "value is a JSON number: want a string"},
		{`{"value":{"data":1}}`, "value is a JSON object: want a string"},
		{`{"value":"x","value_encoding":"hex"}`, `encoding "hex": want utf-8 or base64`},
		{`{"value":"?","value_encoding":"base64"}`, "not base64"},
		{`{"value":null,"value_encoding":"base64"}`, "null has no encoding"},
		{`{"value":"x","headers":{"a":"b"}}`, "headers are not a list"},
		{`{"value":"x","headers":[{"nam":"a"}]}`, `unknown member "nam"`},
		{`{"value":"x","headers":[{"name":"a","name":"b"}]}`, `member "name" is there twice`},
		{`{"value":"x"} {"value":"y"}`, "something follows"},
		{`{"value":"x"`, "cut short"},
		{`hello`, "invalid character"},
		{`[1]`, "not a JSON object"},
		{`"x"`, "not a JSON object"},
		{`{"value":"x","partition":-1}`, "partition -1"},
		{`{"value":"x","partition":4294967296}`, "partition is a JSON number"},
		{`{"value":"x","timestamp_ms":1755933141855875000}`, "is it in milliseconds?"},
	} {
		m, err := parseMessage([]byte(tt.line))
		if err == nil {
			_, err = m.envelope()
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.line, err, tt.want)
		}
	}
}

func FuzzMessage(f *testing.F) {
	f.Add([]byte(`{"key":"a","value":null,"headers":[{"name":"h","value":""}],"timestamp_ms":-1,"partition":1}`))
	f.Add([]byte(`{"value":"/w==","value_encoding":"base64"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := parseMessage(line)
		if err != nil {
			return
		}
		e, err := m.envelope()
		if err != nil {
			return
		}
		e.Partition = max(e.Partition, 0)
		if e.Timestamp.IsZero() { // that of its writing
			e.Timestamp = time.UnixMilli(0)
		}
		again, err := newMessage(e).envelope()
		if err != nil {
			t.Fatalf("%s: printed as what can't be read: %v", line, err)
		}
		if diff := cmp.Diff(e, again, sameTime); diff != "" {
			t.Fatalf("%s: printed as something else (-read +again):\n%s", line, diff)
		}
	})
}

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

// Lines, a whole, one value, a tombstone: each arrives as what it is.
func TestProduceForms(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		name := o.create("forms", 2, nil)
		o.run("a:1\nb:2:3\n:\nlast:4", "produce", name, "--input", "lines", "--key-separator", ":", "--partition", "0", "--header", "tenant=x=y")
		o.run("all\nof it\n", "produce", name, "--input", "whole", "--key", "w", "--partition", "0")
		o.run("", "produce", name, "--value", "", "--key", "", "--partition", "0", "--timestamp", "2026-01-01")
		o.run("", "produce", name, "--tombstone", "--key", "a", "--partition", "0")
		o.run("\n{\"value\":\"j\"}\n\n", "produce", name, "--partition", "0")
		var got []string
		for _, e := range o.read(name)[0] {
			got = append(got, fmt.Sprintf("%s=%s%v", bytesText(e.Key), bytesText(e.Value), len(e.Headers)))
		}
		if want := "[a=11 b=2:31 =1 last=41 w=all\\nof it\\n0 =0 a=(null)0 (null)=j0]"; fmt.Sprint(got) != want {
			t.Errorf("got %v, want %s", got, want)
		}
		status, _, stderr := o.try("a:1\nno separator\n", "produce", name, "--input", "lines", "--key-separator", ":")
		if status != exitError || !strings.Contains(stderr, `line 2: "no separator" has no ":" after its key`) {
			t.Errorf("a line without a key: status %d, %q", status, stderr)
		}
		status, _, stderr = o.try(`{"value":"x"}`, "produce", o.name("missing"))
		if status != exitError || !strings.Contains(stderr, o.name("missing")) {
			t.Errorf("to a topic that is missing: status %d, %q", status, stderr)
		}
		status, _, stderr = o.try(`{"value":"x","partition":9}`, "produce", name, "--keep-partitions")
		if status != exitError || !strings.Contains(stderr, "line 1: ") {
			t.Errorf("to a partition that is missing: status %d, %q", status, stderr)
		}
		status, _, stderr = o.try(`{"value":"`+strings.Repeat("x", 2<<20)+`"}`, "produce", name)
		if status != exitError || !strings.Contains(stderr, "max.message.bytes") {
			t.Errorf("a value that is too large: status %d, %.300q", status, stderr)
		}
	})
}

// A key goes to the same partition whoever writes it.
func TestProduceRoutesAsOthersDo(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		name := o.create("routed", 10, nil)
		o.run("", "produce", name, "--key", "wu", "--value", "v")
		if got := o.read(name); len(got[0]) != 1 {
			t.Errorf("key wu of 10 partitions went to %v, want 0", got)
		}
	})
}
