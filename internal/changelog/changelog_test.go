package changelog

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/pawlstream/pawl/topic"
)

var someOffsets = Offsets{
	Inputs: []Offset{
		{Topic: "words", ID: topic.ID{1, 2, 3}, Partition: 7, Next: 1234},
		{Topic: "a.b-c_D", ID: topic.ID{255}, Partition: 0, Next: 0},
	},
	Partitions: 8,
}

// The formats are frozen: these are the bytes that every release writes and
// reads.
func TestFormats(t *testing.T) {
	wantOffsets := `{"v":1,"offsets":[` +
		`{"topic":"words","id":"AQIDAAAAAAAAAAAAAAAAAA","partition":7,"next":1234},` +
		`{"topic":"a.b-c_D","id":"_wAAAAAAAAAAAAAAAAAAAA","partition":0,"next":0}],"partitions":8}`
	if got := string(AppendOffsets(nil, someOffsets)); got != wantOffsets {
		t.Errorf("offsets record:\n got %s\nwant %s", got, wantOffsets)
	}
	p := Position{Changelog: topic.ID{9}, Next: 42, Offsets: someOffsets, AtEnd: time.UnixMilli(1700000000123)}
	wantPosition := `{"v":1,"changelog":"CQAAAAAAAAAAAAAAAAAAAA","next":42,` + wantOffsets[len(`{"v":1,`):len(wantOffsets)-1] + `,"at_end_ms":1700000000123}`
	if got := string(AppendPosition(nil, p)); got != wantPosition {
		t.Errorf("position:\n got %s\nwant %s", got, wantPosition)
	}
	start := Start{Instance: "host:/state", Producer: 4000, Epoch: 3, Version: "v0.1.0", At: time.Unix(1700000000, 0).UTC()}
	wantStart := `{"v":1,"instance":"host:/state","producer":4000,"epoch":3,"version":"v0.1.0","at":"2023-11-14T22:13:20Z"}`
	got, err := start.Marshal()
	if err != nil || string(got) != wantStart {
		t.Errorf("start record: error %v\n got %s\nwant %s", err, got, wantStart)
	}
	if string(StartKey) != "\x00start" || string(OffsetsKey) != "\x00offsets" {
		t.Errorf("keys are %q and %q", StartKey, OffsetsKey)
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		offset := rapid.Custom(func(t *rapid.T) Offset {
			o := Offset{
				Topic:     rapid.StringMatching(`[a-zA-Z0-9_-]{1,40}`).Draw(t, "topic"),
				Partition: rapid.Int32Min(0).Draw(t, "partition"),
				Next:      rapid.Int64Min(0).Draw(t, "next"),
			}
			copy(o.ID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
			return o
		})
		p := Position{
			Next:    rapid.Int64Min(0).Draw(t, "position"),
			Offsets: Offsets{Inputs: rapid.SliceOfNDistinct(offset, 1, 4, func(o Offset) string { return o.Topic }).Draw(t, "inputs"), Partitions: rapid.IntRange(1, 1000).Draw(t, "partitions")},
		}
		if rapid.Bool().Draw(t, "at end") {
			p.AtEnd = time.UnixMilli(rapid.Int64Range(1, 1<<45).Draw(t, "ms"))
		}
		got, err := ParsePosition(AppendPosition(nil, p))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(p, got); diff != "" {
			t.Fatalf("position (-want +got):\n%s", diff)
		}
		offsets, err := ParseOffsets(AppendOffsets(nil, p.Offsets))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(p.Offsets, offsets); diff != "" {
			t.Fatalf("offsets (-want +got):\n%s", diff)
		}
	})
}

func TestNewerFormatIsNamed(t *testing.T) {
	for _, val := range []string{`{"v":2}`, `{"v":2,"offsets":"of another shape"}`, `{}`} {
		_, err := ParseOffsets([]byte(val))
		var format *FormatError
		if !errors.As(err, &format) {
			t.Errorf("ParseOffsets(%s) = %v, want a FormatError", val, err)
		}
	}
	if _, err := ParseStart([]byte(`{"v":1,"instance":"a","added":"later"}`)); err != nil {
		t.Errorf("a start record with an unknown member: %v", err)
	}
}

// I7: a copy is resumed from the end, or if it stood there within the
// tombstone retention less its margin.
func TestI7Judge(t *testing.T) {
	id, now := topic.ID{1}, time.Unix(1_700_000_000, 0)
	log := Log{ID: id, Start: 100, End: 200, TombstoneRetention: 24 * time.Hour}
	for _, c := range []struct {
		name string
		p    *Position
		want Verdict
	}{
		{"no copy", nil, Empty},
		{"at the end", &Position{Changelog: id, Next: 200}, Resume},
		{"at the end but for the marker", &Position{Changelog: id, Next: 199}, Resume},
		{"behind, and nobody knows since when", &Position{Changelog: id, Next: 198}, TooOld},
		{"behind, young", &Position{Changelog: id, Next: 150, AtEnd: now.Add(-18 * time.Hour)}, Resume},
		{"behind, old", &Position{Changelog: id, Next: 150, AtEnd: now.Add(-18*time.Hour - time.Second)}, TooOld},
		{"behind, from the future", &Position{Changelog: id, Next: 150, AtEnd: now.Add(time.Hour)}, Resume},
		{"behind, from a future that no clock differs by", &Position{Changelog: id, Next: 150, AtEnd: now.Add(6*time.Hour + time.Second)}, TooOld},
		{"at the end, from such a future", &Position{Changelog: id, Next: 199, AtEnd: now.Add(24 * time.Hour)}, Resume},
		{"below the start", &Position{Changelog: id, Next: 99, AtEnd: now}, BelowStart},
		{"beyond the end", &Position{Changelog: id, Next: 201, AtEnd: now}, PastEnd},
		{"another topic", &Position{Changelog: topic.ID{2}, Next: 200, AtEnd: now}, OtherTopic},
	} {
		if got := Judge(c.p, log, now); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	// All of the log was trimmed away after a clean stop.
	if got := Judge(&Position{Changelog: id, Next: 199}, Log{ID: id, Start: 200, End: 200}, now); got != Resume {
		t.Errorf("a log trimmed up to its end: %q, want %q", got, Resume)
	}
}

func TestKinds(t *testing.T) {
	for _, c := range []struct {
		key             string
		change, foreign bool
	}{{"", false, true}, {"\x00start", false, false}, {"\x00offsets", false, false}, {"\x00later", false, false}, {"\x01k", true, false}, {"\x02\x01tk", true, false}, {"\x1f", true, false}, {" ", false, true}, {"stray", false, true}, {"\xff", false, true}} {
		if got := IsChange([]byte(c.key)); got != c.change {
			t.Errorf("IsChange(%q) = %v", c.key, got)
		}
		if got := IsForeign([]byte(c.key)); got != c.foreign {
			t.Errorf("IsForeign(%q) = %v", c.key, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(AppendOffsets(nil, someOffsets))
	f.Add(AppendPosition(nil, Position{Changelog: topic.ID{9}, Next: 42, Offsets: someOffsets}))
	f.Add([]byte(`{"v":1,"offsets":[{"topic":"..","id":"","partition":-1}]}`))
	f.Fuzz(func(t *testing.T, val []byte) {
		if o, err := ParseOffsets(val); err == nil {
			again, err := ParseOffsets(AppendOffsets(nil, o))
			if err != nil || !bytes.Equal(AppendOffsets(nil, o), AppendOffsets(nil, again)) {
				t.Errorf("%s: parsed to %+v, which comes back as %+v, %v", val, o, again, err)
			}
		}
		if p, err := ParsePosition(val); err == nil {
			again, err := ParsePosition(AppendPosition(nil, p))
			if err != nil || !bytes.Equal(AppendPosition(nil, p), AppendPosition(nil, again)) {
				t.Errorf("%s: parsed to %+v, which comes back as %+v, %v", val, p, again, err)
			}
		}
		if s, err := ParseStart(val); err == nil {
			if _, err := s.Marshal(); err != nil && s.At.Year() >= 0 && s.At.Year() < 10000 {
				t.Errorf("%s: parsed to %+v, which can't be written: %v", val, s, err)
			}
		}
	})
}
