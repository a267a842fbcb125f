package cli

import (
	"bytes"
	"compress/gzip"
	"strings"
	"testing"

	"github.com/pawlstream/pawl/examples/filestats"
)

// The embedded input adds up to what is known of it.
func TestCountOfTheRealInput(t *testing.T) {
	in, err := readInput(filestats.Input())
	if err != nil {
		t.Fatal(err)
	}
	w := in.want
	for _, tt := range []struct {
		what      string
		got, want int64
	}{
		{"lines", int64(len(in.events)), 101_229},
		{"events", w.sum().Events, 101_229},
		{"added", w.sum().Added, 2_946_061},
		{"deleted", w.sum().Deleted, 1_502_209},
		{"paths", int64(len(w.paths)), 10_101},
		{"authors", int64(len(w.authors)), 1_491},
		{"days", int64(w.days()), 3_501},
		{"author days", int64(len(w.authorDays)), 12_160},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %d, want %d", tt.what, tt.got, tt.want)
		}
	}
	if got, want := w.paths["build.gradle"], (tally{693, 7_234, 3_407}); got != want {
		t.Errorf("build.gradle: %v, want %v", got, want)
	}
	if got, want := w.paths["core/src/main/scala/kafka/server/KafkaApis.scala"], (tally{649, 16_354, 11_545}); got != want {
		t.Errorf("KafkaApis.scala: %v, want %v", got, want)
	}
	busiest := tally{}
	for _, a := range w.authors {
		if a.Events > busiest.Events {
			busiest = a
		}
	}
	if got, want := busiest.Events, int64(6_739); got != want {
		t.Errorf("the busiest author has %d events, want %d", got, want)
	}
}

const someLines = `{"author":"a","authored_at":86399,"path":"x","added":1,"deleted":2}
{"author":"a","authored_at":86400,"path":"x","added":null,"deleted":null}
{"author":"b","authored_at":-1,"path":"y","added":4,"deleted":0,"more":[1]}
`

func TestReadInput(t *testing.T) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write([]byte(someLines)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"plain": someLines, "without a line feed at the end": strings.TrimSuffix(someLines, "\n"),
		"CRLF": strings.ReplaceAll(someLines, "\n", "\r\n"), "gzip": packed.String(),
	} {
		in, err := readInput(strings.NewReader(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, want := string(in.events[0].line), strings.Split(someLines, "\n")[0]; got != want {
			t.Errorf("%s: the first line is %q, want %q", name, got, want)
		}
		if got, want := string(in.events[2].key), "y"; got != want {
			t.Errorf("%s: key of the third event %q, want %q", name, got, want)
		}
		want := totals{
			paths:   map[string]tally{"x": {2, 1, 2}, "y": {1, 4, 0}},
			authors: map[string]tally{"a": {2, 1, 2}, "b": {1, 4, 0}},
			authorDays: map[authorDay]tally{
				{"a", "1970-01-01"}: {1, 1, 2}, {"a", "1970-01-02"}: {1, 0, 0}, {"b", "1969-12-31"}: {1, 4, 0},
			},
		}
		var f findings
		f.compare(name, in.want, want)
		if f.count > 0 {
			t.Error(f)
		}
	}
	if _, err := readInput(bytes.NewReader(packed.Bytes()[:packed.Len()-9])); err == nil || !strings.Contains(err.Error(), "after line") {
		t.Errorf("gzip cut off: error %v, want one that says after which line", err)
	}
}

func TestReadInputErrors(t *testing.T) {
	good := `{"author":"a","authored_at":1,"path":"x","added":1,"deleted":2}` + "\n"
	for _, tt := range []struct{ text, want string }{
		{"", "empty"},
		{good + "nonsense", "line 2: want a JSON object: invalid character"},
		{good + `[1]`, "line 2: want a JSON object: it is an array"},
		{good + `null`, "line 2: want a JSON object, not null"},
		{good + "\n" + good, "line 2: want a JSON object: the line is empty"},
		{good + `{"author":"a"`, "line 2: want a JSON object: the line ends in the middle"},
		{good + strings.TrimSpace(good) + good, "line 2: want one JSON object"},
		{`{"author":"a","authored_at":1,"added":1,"deleted":2}`, `line 1: there is no "path"`},
		{`{"author":"","authored_at":1,"path":"x","added":1,"deleted":2}`, `line 1: "author" is empty`},
		{`{"author":7,"authored_at":1,"path":"x","added":1,"deleted":2}`, `line 1: "author" is not text`},
		{`{"author":"a","authored_at":null,"path":"x","added":1,"deleted":2}`, `line 1: "authored_at" is not a whole number`},
		{`{"author":"a","authored_at":1,"path":"x","added":1.5,"deleted":2}`, `line 1: "added" is not a whole number`},
		{`{"author":"a","authored_at":1,"path":"x","added":"1","deleted":2}`, `line 1: "added" is not a whole number`},
		{`{"author":"a","authored_at":1,"path":"x","added":1}`, `line 1: there is no "deleted"`},
		{`{"author":"a","authored_at":1,"path":"x","added":1,"deleted":-2}`, "negative"},
		{good + `{"path":"` + strings.Repeat("x", 1_000_000) + `"}`, "line 2: it is longer than 1000000 bytes"},
		{"\x1f\x8bnonsense", "unpack"},
	} {
		_, err := readInput(strings.NewReader(tt.text))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("input %.80q: error %v, want one with %q", tt.text, err, tt.want)
		}
	}
}
