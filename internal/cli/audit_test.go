package cli

import (
	"encoding/json"
	"strings"
	"testing"
)

// run plays a whole run of both consumers over someLines, as it should be.
func run(t *testing.T) (in *input, changes []position, paths, authors []json.RawMessage) {
	t.Helper()
	in, err := readInput(strings.NewReader(someLines))
	if err != nil {
		t.Fatal(err)
	}
	return in,
		[]position{{0, 0}, {0, 1}, {1, 0}},
		[]json.RawMessage{
			[]byte(`{"author":"a","path":"x","added":1,"deleted":2,"totals":{"events":1,"added":1,"deleted":2},"input":{"partition":0,"offset":0}}`),
			[]byte(`{"author":"a","path":"x","added":0,"deleted":0,"totals":{"events":2,"added":1,"deleted":2},"input":{"partition":0,"offset":1}}`),
			[]byte(`{"author":"b","path":"y","added":4,"deleted":0,"totals":{"events":1,"added":4,"deleted":0},"input":{"partition":1,"offset":0}}`),
		},
		[]json.RawMessage{
			[]byte(`{"author":"a","day":"1970-01-01","added":1,"deleted":2,"totals":{"events":1,"added":1,"deleted":2},"day_totals":{"events":1,"added":1,"deleted":2},"input":{"partition":3,"offset":0}}`),
			[]byte(`{"author":"a","day":"1970-01-02","added":0,"deleted":0,"totals":{"events":2,"added":1,"deleted":2},"day_totals":{"events":1,"added":0,"deleted":0},"input":{"partition":3,"offset":1}}`),
			[]byte(`{"author":"b","day":"1969-12-31","added":4,"deleted":0,"totals":{"events":1,"added":4,"deleted":0},"day_totals":{"events":1,"added":4,"deleted":0},"input":{"partition":3,"offset":2}}`),
		}
}

func play(changes []position, paths, authors []json.RawMessage) *audit {
	a := newAudit()
	for _, at := range changes {
		a.change(at)
	}
	for i, v := range paths {
		a.pathTotals(position{3, int64(i)}, v)
	}
	for i, v := range authors {
		a.authorTotals(position{6, int64(i)}, v)
	}
	return a
}

func TestAuditOfARightRun(t *testing.T) {
	in, changes, paths, authors := run(t)
	a := play(changes, paths, authors)
	if f := a.verdict(in, in.want); f.count > 0 {
		t.Errorf("%d findings, want none:\n%v", f.count, f)
	}
	if done, progress := a.through(); done != 3 || progress != 3 {
		t.Errorf("%d through and progress %d, want 3 and 3", done, progress)
	}
}

// Each kind of fault is found.
func TestAuditFinds(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault func(changes *[]position, paths, authors *[]json.RawMessage, stores *totals)
		want  string
	}{
		{"a change fed twice", func(c *[]position, _, _ *[]json.RawMessage, _ *totals) {
			*c = append(*c, position{1, 1})
		}, "messages in the input topic: 4, want 3"},
		{"a change lost by path", func(_ *[]position, p, a *[]json.RawMessage, _ *totals) {
			*p, *a = (*p)[:2], (*a)[:2]
		}, "lost by path: 1, want 0"},
		{"a change counted twice by path", func(_ *[]position, p, _ *[]json.RawMessage, _ *totals) {
			*p = append(*p, (*p)[2])
		}, "duplicated by path: 1, want 0"},
		{"a message lost by author", func(_ *[]position, _, a *[]json.RawMessage, _ *totals) {
			*a = (*a)[:2]
		}, "lost by author: 1, want 0"},
		{"a message counted twice by author", func(_ *[]position, _, a *[]json.RawMessage, _ *totals) {
			*a = append(*a, (*a)[2])
		}, "duplicated by author: 1, want 0"},
		{"an output for no input", func(_ *[]position, _, a *[]json.RawMessage, _ *totals) {
			*a = append(*a, []byte(strings.ReplaceAll(string((*a)[2]), `"offset":2`, `"offset":99`)))
		}, "positions named by author at which there is no message: 1, want 0"},
		{"outputs out of order", func(_ *[]position, p, _ *[]json.RawMessage, _ *totals) {
			(*p)[0], (*p)[1] = (*p)[1], (*p)[0]
		}, "outputs by path that are out of order: 1, want 0"},
		{"a wrong total of a path", func(_ *[]position, p, _ *[]json.RawMessage, _ *totals) {
			(*p)[2] = []byte(strings.ReplaceAll(string((*p)[2]), `"events":1,"added":4`, `"events":2,"added":8`))
		}, "the last output, path y: 2 events, 8 added, 0 deleted, want 1 events, 4 added, 0 deleted"},
		{"a total of an author that was wrong for a while", func(_ *[]position, _, a *[]json.RawMessage, _ *totals) {
			(*a)[0] = []byte(strings.ReplaceAll(string((*a)[0]), `"totals":{"events":1`, `"totals":{"events":2`))
		}, "author a has 2 events"},
		{"a store that is behind", func(_ *[]position, _, _ *[]json.RawMessage, s *totals) {
			s.authorDays[authorDay{"a", "1970-01-01"}] = tally{}
		}, "the stores, author and day a 1970-01-01: 0 events"},
		{"a store that knows a path too many", func(_ *[]position, _, _ *[]json.RawMessage, s *totals) {
			s.paths["z"] = tally{1, 0, 0}
		}, "the stores, path z: 1 events, 0 added, 0 deleted, want 0 events"},
		{"an output that can't be read", func(_ *[]position, p, _ *[]json.RawMessage, _ *totals) {
			(*p)[1] = []byte(`{"author":`)
		}, "the topic keyed by author holds"},
		{"an output without totals", func(_ *[]position, _, a *[]json.RawMessage, _ *totals) {
			(*a)[1] = []byte(`{}`)
		}, "the topic of totals holds"},
	} {
		in, changes, paths, authors := run(t)
		stores, err := readInput(strings.NewReader(someLines))
		if err != nil {
			t.Fatal(err)
		}
		tt.fault(&changes, &paths, &authors, &stores.want)
		f := play(changes, paths, authors).verdict(in, stores.want)
		if !strings.Contains(f.String(), tt.want) {
			t.Errorf("%s: findings\n%v\nwant one with %q", tt.name, f, tt.want)
		}
	}
}

func TestFindingsAreBounded(t *testing.T) {
	var f findings
	for i := range 1000 {
		f.add("finding %d", i)
	}
	if got, want := len(strings.Split(f.String(), "\n")), findingsShown+1; got != want {
		t.Errorf("%d lines, want %d", got, want)
	}
	if !strings.HasSuffix(f.String(), "and 980 more") {
		t.Errorf("findings end with %q, want how many more there are", f.String()[len(f.String())-20:])
	}
}
