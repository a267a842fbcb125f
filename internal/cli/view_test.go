package cli

import (
	"bytes"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var someSnapshot = snapshot{
	phase: "running", total: 101_229, fed: 64_241, done: 53_092, progress: 53_400, added: 1_202_111, deleted: 600_211,
	kills: 3, planned: 5, middle: 2, takeovers: 1,
	processes: []processView{{"a", killed, 4711}, {"b", running, 4712}},
	shards:    [][]string{{"a", "a", "b", "b", "", "b", "a", "a"}, {"b", "b", "b", "b", "b", "b", "b", "b"}},
	rows:      []string{"by path", "by author"},
}

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")

func TestViewLines(t *testing.T) {
	want := `
  running    ████████████████████░░░░░░░░░░░░░░░░░░░░  52%  01:05
  events     64,241 fed, 53,092 through both, 5,017 a second
  lines      1,202,111 added, 600,211 deleted
  shards     a a b b · b a a  by path
             b b b b b b b b  by author
  processes  a killed   b running, pid 4712
  kill -9    3 of 5, 2 mid-transaction; takeovers 1; duplicated 0`
	got := strings.Join(someSnapshot.lines(5017, 65*time.Second, false), "\n")
	if got != want {
		t.Errorf("lines:\n%s\nwant:\n%s", got, want)
	}
	painted := strings.Join(someSnapshot.lines(5017, 65*time.Second, true), "\n")
	if painted == got {
		t.Error("nothing is painted")
	}
	if plain := escapes.ReplaceAllString(painted, ""); plain != want {
		t.Errorf("without its colours:\n%s\nwant:\n%s", plain, want)
	}
}

// A line that wraps would stay on the screen.
func TestViewLinesAreNarrow(t *testing.T) {
	s := someSnapshot
	s.total, s.fed, s.done, s.progress = 9_999_999_999, 9_999_999_999, 9_999_999_999, 9_999_999_999
	s.added, s.deleted, s.kills, s.planned, s.middle, s.takeovers = 9_999_999_999, 9_999_999_999, 999, 999, 999, 999
	s.processes = []processView{{"a", running, 4_194_304}, {"b", running, 4_194_304}}
	for _, l := range s.lines(999_999, 10*time.Hour, false) {
		if n := utf8.RuneCountInString(l); n > 78 {
			t.Errorf("%d columns, want at most 78: %s", n, l)
		}
	}
}

func TestViewOfNothing(t *testing.T) {
	if got := len((snapshot{}).lines(0, 0, true)); got == 0 {
		t.Error("no lines")
	}
	if got := (snapshot{}).percent(); got != 0 {
		t.Errorf("%d%%, want 0", got)
	}
}

// What happens is written above the live part, which is drawn anew.
func TestViewLive(t *testing.T) {
	var out bytes.Buffer
	v := newView(&out, func(string) string { return "" })
	if v.live {
		t.Fatal("a buffer is taken for a terminal")
	}
	v.live = true
	v.draw(someSnapshot)
	v.say("something happened")
	v.draw(someSnapshot)
	v.end()
	parts := strings.Split(out.String(), "\x1b[8A\x1b[J")
	if len(parts) != 3 {
		t.Fatalf("%d parts, want 3: lines, what happened and lines, nothing:\n%q", len(parts), out.String())
	}
	if !strings.Contains(parts[1], "s  something happened\n\n  running") || parts[2] != "" {
		t.Errorf("after the first picture:\n%q", parts[1:])
	}
}

func TestViewPlain(t *testing.T) {
	var out bytes.Buffer
	v := newView(&out, func(string) string { return "" })
	for range 50 {
		v.draw(someSnapshot)
	}
	v.end()
	want := "running: 64,241 fed, 53,092 through (52%), 0/s; 3 of 5 kills; duplicated 0; a killed, 4 shards; b running, 11 shards\n"
	if got := out.String(); !strings.HasSuffix(got, want) || strings.Count(got, "\n") != 1 || escapes.MatchString(got) {
		t.Errorf("50 pictures within a moment:\n%q\nwant one line that ends with\n%q", got, want)
	}
}

type brokenPipe struct{ writes int }

var errBroken = errors.New("broken pipe")

func (b *brokenPipe) Write([]byte) (int, error) {
	b.writes++
	return 0, errBroken
}

// Nothing more is written to whoever has stopped to read.
func TestViewOfABrokenPipe(t *testing.T) {
	var out brokenPipe
	v := newView(&out, func(string) string { return "" })
	stopped := 0
	v.broken = func() { stopped++ }
	v.say("one")
	v.say("two")
	if out.writes != 1 || stopped != 1 || !errors.Is(v.failed(), errBroken) {
		t.Errorf("%d writes, told %d times, and error %v; want 1, 1 and %v", out.writes, stopped, v.failed(), errBroken)
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 7: "7", 999: "999", 1000: "1,000", 101_229: "101,229", 2_946_061: "2,946,061", -1_234: "-1,234", -100: "-100"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%d) = %s, want %s", n, got, want)
		}
	}
}
