package messaging

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pawlstream/pawl/topic"
)

var testPlace = place{id: topic.ID{1, 2, 3}, partition: 4, offset: 1000}

// drawWindow returns a window whose oldest item is unsettled, and which of its
// offsets are settled.
func drawWindow(t *rapid.T, base int64) (*window, map[int64]bool) {
	w := newWindow(1 << 30)
	settled := make(map[int64]bool)
	n := rapid.IntRange(1, 3000).Draw(t, "items")
	mean := rapid.IntRange(1, 400).Draw(t, "mean run")
	rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	at, is := base, false
	for i := range n {
		seq, err := w.add(at, nil)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && rnd.IntN(mean) == 0 {
			is = !is
		}
		if is {
			w.settle(seq)
			settled[at] = true
		}
		at++
		if rnd.IntN(20) == 0 {
			at += rnd.Int64N(50) // transaction markers, compaction
		}
	}
	return w, settled
}

// What a snapshot says is settled is settled; what it does not say is all above
// what it covers, the oldest being kept; and it fits.
func TestSnapshotProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := place{partition: rapid.Int32Min(0).Draw(t, "partition"), offset: rapid.Int64Range(0, 1<<40).Draw(t, "offset")}
		w, settled := drawWindow(t, at.offset)
		s := snapshot{settled: w.settledSpans(), suspect: -1, rounds: rapid.Uint64Range(0, 5).Draw(t, "rounds")}
		if rapid.Bool().Draw(t, "suspect") {
			s.suspect, s.crashes = at.offset+rapid.Int64Range(0, 1000).Draw(t, "above"), 2
		}
		text, covered := s.encode(at)
		if len(text) > snapshotMax {
			t.Fatalf("%d characters, want at most %d", len(text), snapshotMax)
		}
		got, err := decodeSnapshot(text, at)
		if err != nil {
			t.Fatal(err)
		}
		if got.rounds != s.rounds || got.suspect != s.suspect || got.crashes != s.crashes {
			t.Fatalf("rounds %d, suspect %d, crashes %d, want %d, %d, %d", got.rounds, got.suspect, got.crashes, s.rounds, s.suspect, s.crashes)
		}
		has := func(o int64) bool {
			return slices.ContainsFunc(got.settled, func(sp span) bool { return sp.from <= o && o < sp.to })
		}
		lost := 0
		for i := range w.n {
			o := w.at(i).id
			switch {
			case has(o) && !settled[o]:
				t.Fatalf("offset %d came back settled, and is not", o)
			case settled[o] && !has(o) && o < covered:
				t.Fatalf("offset %d is settled, below %d, and did not come back", o, covered)
			case settled[o] && !has(o):
				lost++
			}
		}
		if n := w.settledFrom(covered); n < lost {
			t.Fatalf("%d settled offsets lost, %d counted", lost, n)
		}
	})
}

// A span of 20,000 of which half is settled at random fits whole.
func TestSnapshotFits20000(t *testing.T) {
	w := newWindow(1 << 20)
	rnd := rand.New(rand.NewPCG(1, 2))
	want := 0
	for o := range int64(20_000) {
		seq, err := w.add(testPlace.offset+o, nil)
		if err != nil {
			t.Fatal(err)
		}
		if o > 0 && rnd.IntN(2) == 0 {
			w.settle(seq)
			want++
		}
	}
	s := snapshot{settled: w.settledSpans(), suspect: -1}
	text, covered := s.encode(testPlace)
	got, err := decodeSnapshot(text, testPlace)
	if err != nil {
		t.Fatal(err)
	}
	n := int64(0)
	for _, sp := range got.settled {
		n += sp.to - sp.from
	}
	if n != int64(want) || w.settledFrom(covered) != 0 {
		t.Errorf("%d offsets came back settled, want %d; %d characters", n, want, len(text))
	}
}

// What does not fit is the newest: at 500 messages a second with one that is
// stuck, and with every second one settled.
func TestSnapshotOverflow(t *testing.T) {
	w := newWindow(1 << 20)
	stuck := newWindow(1 << 20)
	for o := range int64(100_000) {
		seq, err := w.add(o, nil)
		if err != nil {
			t.Fatal(err)
		}
		if o%2 == 1 {
			w.settle(seq)
		}
		if seq, err = stuck.add(o, nil); err != nil {
			t.Fatal(err)
		}
		if o > 0 {
			stuck.settle(seq)
		}
	}
	at := place{}
	s := snapshot{settled: w.settledSpans(), suspect: -1}
	text, covered := s.encode(at)
	got, err := decodeSnapshot(text, at)
	if err != nil {
		t.Fatal(err)
	}
	if covered < 24_000 || len(text) > snapshotMax {
		t.Errorf("%d characters cover %d offsets, want at least 24,000", len(text), covered)
	}
	if n, last := int64(len(got.settled)), got.settled[len(got.settled)-1]; n != covered/2 || last.to > covered {
		t.Errorf("%d offsets came back, the last %d; want %d, all below %d", n, last.to-1, covered/2, covered)
	}
	if got, want := w.settledFrom(covered), int((100_000-covered+1)/2); got != want {
		t.Errorf("%d settled offsets do not fit, want %d", got, want)
	}
	s = snapshot{settled: stuck.settledSpans(), suspect: -1}
	if text, covered := s.encode(at); covered != 100_000 || len(text) > 50 {
		t.Errorf("one stuck message: %d characters cover %d", len(text), covered)
	}
}

// Metadata of others, damaged, cut short, or of another offset, says nothing,
// and says that.
func TestSnapshotForeign(t *testing.T) {
	s := snapshot{settled: []span{{1002, 1005}, {1010, 1500}}, suspect: -1}
	text, _ := s.encode(testPlace)
	moved := testPlace
	moved.offset++
	other := testPlace
	other.id = topic.ID{9}
	for _, tt := range []struct {
		text string
		at   place
		want error
	}{
		{"", testPlace, nil},
		{text, testPlace, nil},
		{text, moved, errChecksum},
		{text, other, errAnother},
		{text, place{partition: testPlace.partition, offset: testPlace.offset}, nil}, // brokers that know no IDs
		{"pawl1.UB_mLQIAAAAAAgMF6gM", testPlace, nil},
		{"pawl1.UB_mLQIAAAAAAgMF6gM", other, errChecksum},
		{text[:len(text)-2], testPlace, errChecksum},
		{text[:len(text)-1] + "!", testPlace, errChecksum},
		{"pawl1.", testPlace, errChecksum},
		{"pawl2.AAAA", testPlace, errChecksum},
		{"pawl3.AAAA", testPlace, errVersion},
		{"some consumer's own words", testPlace, errForeign},
		{"\x00\xff", testPlace, errForeign},
		{strings.Repeat("x", 5000), testPlace, errForeign},
	} {
		got, err := decodeSnapshot(tt.text, tt.at)
		if !errors.Is(err, tt.want) || err == nil && tt.want != nil {
			t.Errorf("%.30q: error %v, want %v", tt.text, err, tt.want)
		}
		if err != nil && len(got.settled) > 0 {
			t.Errorf("%.30q: settles %v", tt.text, got.settled)
		}
	}
}

// The form is frozen, and the one before is read.
func TestSnapshotGolden(t *testing.T) {
	for _, tt := range []struct {
		want, before string
		s            snapshot
	}{
		{"pawl2.KcnAyQECAwAAAAAAAAAAAAAAAAAAAAAAAA", "", snapshot{suspect: -1, read: 1000}},
		{"pawl2.UB_mLQECAwAAAAAAAAAAAAAAAAACAAAAAAIDBeoD", "pawl1.UB_mLQIAAAAAAgMF6gM", snapshot{settled: []span{{1002, 1005}, {1010, 1500}}, suspect: -1, read: 1000}},
		{"pawl2.av_VBAECAwAAAAAAAAAAAAAAAAABAQIDABUV", "pawl1.av_VBAEBAgMAFRU", snapshot{settled: []span{{1001, 1002}, {1003, 1004}, {1005, 1006}, {1009, 1010}, {1011, 1012}, {1013, 1014}}, suspect: 1001, rounds: 1, crashes: 3, read: 1000}},
	} {
		if got, _ := tt.s.encode(testPlace); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.s, got, tt.want)
		}
		for _, text := range []string{tt.want, tt.before} {
			if got, err := decodeSnapshot(text, testPlace); text != "" && (err != nil || !reflect.DeepEqual(got, tt.s)) {
				t.Errorf("%s: %+v, %v, want %+v", text, got, err, tt.s)
			}
		}
	}
}

func FuzzSnapshot(f *testing.F) {
	s := snapshot{settled: []span{{1002, 1005}, {1010, 1500}}, suspect: -1}
	text, _ := s.encode(testPlace)
	f.Add(text, []byte{2, 0, 0, 0, 2, 3}, int64(1000))
	f.Add("pawl1.AAAA", []byte{1, 1, 2, 3, 0x15, 0x15}, int64(0))
	f.Fuzz(func(t *testing.T, text string, body []byte, offset int64) {
		at := place{offset: offset}
		// Text as it is, and a body with a right checksum.
		for _, text := range []string{text, seal(append(make([]byte, snapshotHead), body...), at)} {
			got, err := decodeSnapshot(text, at)
			if err != nil {
				if len(got.settled) > 0 || got.suspect >= 0 {
					t.Fatalf("an error, and %+v", got)
				}
				continue
			}
			last := offset
			for _, sp := range got.settled {
				if sp.from <= last || sp.to <= sp.from {
					t.Fatalf("spans %v above offset %d", got.settled, offset)
				}
				last = sp.to
			}
			if text == "" {
				continue
			}
			again, covered := got.encode(at)
			if n := len(got.settled); n > 0 && covered < got.settled[n-1].to && len(again) < snapshotMax-100 {
				t.Fatalf("%d characters cover %d of %v", len(again), covered, got.settled)
			}
		}
	})
}
