package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// audit holds what a demo run's outputs say, as they are read, read committed,
// from the broker. It believes nothing else, and decodes them on its own.
type audit struct {
	byPath   *hop // input to the topic keyed by author
	byAuthor *hop // that topic to the totals

	got  totals // as the last outputs say
	from map[string]int64
	runs totals // of authors: the increases so far

	increase tally // of all paths, so far

	wrong findings
}

func newAudit() *audit {
	return &audit{byPath: newHop(), byAuthor: newHop(), got: newTotals(), from: make(map[string]int64), runs: newTotals()}
}

// pathRecord is a message of the topic keyed by author.
type pathRecord struct {
	Author  string   `json:"author"`
	Path    string   `json:"path"`
	Added   int64    `json:"added"`
	Deleted int64    `json:"deleted"`
	Totals  *tally   `json:"totals"`
	Input   position `json:"input"`
}

// authorRecord is a message of the topic of totals.
type authorRecord struct {
	Author    string   `json:"author"`
	Day       string   `json:"day"`
	Added     int64    `json:"added"`
	Deleted   int64    `json:"deleted"`
	Totals    *tally   `json:"totals"`
	DayTotals *tally   `json:"day_totals"`
	Input     position `json:"input"`
}

// change takes a message of the input.
func (a *audit) change(at position) { a.byPath.input(at) }

// pathTotals takes a message of the topic keyed by author, which is an output
// of the first consumer and an input of the second.
func (a *audit) pathTotals(at position, value []byte) {
	a.byAuthor.input(at)
	var r pathRecord
	if err := json.Unmarshal(value, &r); err != nil || r.Totals == nil {
		a.wrong.add("the topic keyed by author holds %.200q, in partition %d at offset %d", value, at.Partition, at.Offset)
		return
	}
	a.byPath.output(at.Partition, r.Input)
	a.increase = a.increase.plus(tally{1, r.Added, r.Deleted})
	// A path's messages come from one partition and go to several: the last is
	// the one of the last input.
	if before, ok := a.from[r.Path]; !ok || r.Input.Offset > before {
		a.from[r.Path] = r.Input.Offset
		a.got.paths[r.Path] = *r.Totals
	}
}

// authorTotals takes a message of the topic of totals. All of an author's are
// in one partition, so that each must add its increase to the one before it.
func (a *audit) authorTotals(at position, value []byte) {
	var r authorRecord
	if err := json.Unmarshal(value, &r); err != nil || r.Totals == nil || r.DayTotals == nil {
		a.wrong.add("the topic of totals holds %.200q, in partition %d at offset %d", value, at.Partition, at.Offset)
		return
	}
	a.byAuthor.output(at.Partition, r.Input)
	one, day := tally{1, r.Added, r.Deleted}, authorDay{r.Author, r.Day}
	a.runs.authors[r.Author] = a.runs.authors[r.Author].plus(one)
	a.runs.authorDays[day] = a.runs.authorDays[day].plus(one)
	if want := a.runs.authors[r.Author]; *r.Totals != want {
		a.wrong.add("author %s has %v at offset %d of partition %d, where the increases so far make %v", r.Author, *r.Totals, at.Offset, at.Partition, want)
	}
	if want := a.runs.authorDays[day]; *r.DayTotals != want {
		a.wrong.add("author %s on %s has %v at offset %d of partition %d, where the increases so far make %v", r.Author, r.Day, *r.DayTotals, at.Offset, at.Partition, want)
	}
	a.got.authors[r.Author] = *r.Totals
	a.got.authorDays[day] = *r.DayTotals
}

// through is how many messages have passed both consumers, and how far the
// work has come, in messages: each has two halves.
func (a *audit) through() (done, progress int64) {
	return a.byAuthor.covered, (a.byPath.covered + a.byAuthor.covered) / 2
}

// verdict compares what was read with what the input adds up to, after the
// end: every message has passed both consumers once, in order, and the totals
// are those wanted, in the last outputs and in the stores.
func (a *audit) verdict(in *input, stores totals) findings {
	wrong := a.wrong
	wrong.want("messages in the input topic", a.byPath.inputs, int64(len(in.events)))
	for _, h := range a.hops() {
		wrong.want("lost "+h.name, h.lost(), 0)
		wrong.want("duplicated "+h.name, h.surplus, 0)
		wrong.want("positions named "+h.name+" at which there is no message", h.strays(), 0)
		wrong.want("outputs "+h.name+" that are out of order", h.disorder, 0)
	}
	wrong.compare("the last output", a.got, in.want)
	wrong.compare("the stores", stores, in.want)
	return wrong
}

// interrupted judges a run that was not brought to its end: what was consumed
// was consumed once, and nothing was passed over.
func (a *audit) interrupted() findings {
	wrong := a.wrong
	for _, h := range a.hops() {
		wrong.want("passed over "+h.name, h.skipped(), 0)
		wrong.want("duplicated "+h.name, h.surplus, 0)
		wrong.want("positions named "+h.name+" at which there is no message", h.strays(), 0)
		wrong.want("outputs "+h.name+" that are out of order", h.disorder, 0)
	}
	return wrong
}

type namedHop struct {
	name string
	*hop
}

func (a *audit) hops() []namedHop {
	return []namedHop{{"by path", a.byPath}, {"by author", a.byAuthor}}
}

// findings are what is wrong: how much, and of the first in words.
type findings struct {
	count int
	first []string
}

const findingsShown = 20

func (f *findings) add(format string, args ...any) {
	f.count++
	if len(f.first) < findingsShown {
		f.first = append(slices.Clip(f.first), fmt.Sprintf(format, args...))
	}
}

func (f *findings) want(what string, got, want int64) {
	if got != want {
		f.add("%s: %d, want %d", what, got, want)
	}
}

// compare adds where the totals differ from those wanted.
func (f *findings) compare(where string, got, want totals) {
	compareMaps(f, where+", path %s", got.paths, want.paths, strings.Compare)
	compareMaps(f, where+", author %s", got.authors, want.authors, strings.Compare)
	compareMaps(f, where+", author and day %s", got.authorDays, want.authorDays, func(x, y authorDay) int {
		return strings.Compare(x.author+" "+x.day, y.author+" "+y.day)
	})
}

func compareMaps[K comparable](f *findings, what string, got, want map[K]tally, order func(x, y K) int) {
	keys := maps.Clone(want)
	maps.Copy(keys, got)
	for _, k := range slices.SortedFunc(maps.Keys(keys), order) {
		if g, w := got[k], want[k]; g != w {
			f.add(what+": %v, want %v", k, g, w)
		}
	}
}

func (k authorDay) String() string { return k.author + " " + k.day }

func (t tally) String() string {
	return fmt.Sprintf("%d events, %d added, %d deleted", t.Events, t.Added, t.Deleted)
}

// String returns a finding a line.
func (f findings) String() string {
	s := strings.Join(f.first, "\n")
	if more := f.count - len(f.first); more > 0 {
		s += fmt.Sprintf("\nand %d more", more)
	}
	return s
}
