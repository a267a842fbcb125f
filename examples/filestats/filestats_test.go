package filestats_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/examples/filestats"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

var program = filestats.New("")

// Each change publishes its path's new totals, and where it was consumed from.
func TestByPath(t *testing.T) {
	s := consumertest.NewShard(t, program.ByPath)
	in := program.ByPath.In
	s.Consume(in, "", filestats.Change{Author: "ann", AuthoredAt: 86_399, Path: "README", Added: 10})
	s.Consume(in, "", filestats.Change{Author: "bob", AuthoredAt: 86_400, Path: "LICENSE", Added: 202})
	s.Consume(in, "", filestats.Change{Author: "bob", AuthoredAt: 86_401, Path: "README", Added: 2, Deleted: 5})
	s.Commit()

	got := consumertest.Published(s, program.ByPath.Out)
	want := []filestats.PathTotals{
		{Author: "ann", AuthoredAt: 86_399, Path: "README", Added: 10, Totals: filestats.Totals{Events: 1, Added: 10}, Input: filestats.Position{Offset: 0}},
		{Author: "bob", AuthoredAt: 86_400, Path: "LICENSE", Added: 202, Totals: filestats.Totals{Events: 1, Added: 202}, Input: filestats.Position{Offset: 1}},
		{Author: "bob", AuthoredAt: 86_401, Path: "README", Added: 2, Deleted: 5, Totals: filestats.Totals{Events: 2, Added: 12, Deleted: 5}, Input: filestats.Position{Offset: 2}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("published, - want + got:\n%s", diff)
	}
}

// Lines that are null, as those of a binary file are, count as none.
func TestByPathOfABinaryFile(t *testing.T) {
	s := consumertest.NewShard(t, program.ByPath)
	value := []byte(`{"author":"ann","authored_at":1,"path":"logo.png","added":null,"deleted":null}`)
	if err := s.ConsumeEnvelope(topic.Envelope{Topic: program.ByPath.In.Description, Value: value}); err != nil {
		t.Fatal(err)
	}
	s.Commit()
	got := consumertest.Published(s, program.ByPath.Out)
	if len(got) != 1 || got[0].Totals != (filestats.Totals{Events: 1}) {
		t.Errorf("published %+v, want one of 1 event and no lines", got)
	}
}

// What was published by a transaction that is aborted, and what it stored, is
// gone.
func TestByPathAborted(t *testing.T) {
	s := consumertest.NewShard(t, program.ByPath)
	change := filestats.Change{Author: "ann", Path: "README", Added: 10}
	s.Consume(program.ByPath.In, "", change)
	s.Abort()
	s.Consume(program.ByPath.In, "", change)
	s.Commit()
	got := consumertest.Published(s, program.ByPath.Out)
	if len(got) != 1 || got[0].Totals != (filestats.Totals{Events: 1, Added: 10}) {
		t.Errorf("published %+v, want one of 1 event and 10 lines", got)
	}
}

// An author's totals are kept altogether and by day, where days end at
// midnight in UTC; they survive a restart.
func TestByAuthor(t *testing.T) {
	s := consumertest.NewShard(t, program.ByAuthor)
	in := program.ByAuthor.In
	s.Consume(in, "", filestats.PathTotals{Author: "ann", AuthoredAt: 86_399, Added: 10, Deleted: 1})
	s.Commit()
	s.Reopen()
	s.Consume(in, "", filestats.PathTotals{Author: "ann", AuthoredAt: 86_400, Added: 5})
	s.Consume(in, "", filestats.PathTotals{Author: "ann", AuthoredAt: 1, Added: 1})
	s.Commit()

	type published struct {
		day           string
		total, onDay  filestats.Totals
		added, offset int64
	}
	var got []published
	for _, p := range consumertest.Published(s, program.ByAuthor.Out) {
		got = append(got, published{p.Day, p.Totals, p.DayTotals, p.Added, p.Input.Offset})
	}
	want := []published{
		{"1970-01-01", filestats.Totals{Events: 1, Added: 10, Deleted: 1}, filestats.Totals{Events: 1, Added: 10, Deleted: 1}, 10, 0},
		{"1970-01-02", filestats.Totals{Events: 2, Added: 15, Deleted: 1}, filestats.Totals{Events: 1, Added: 5}, 5, 1},
		{"1970-01-01", filestats.Totals{Events: 3, Added: 16, Deleted: 1}, filestats.Totals{Events: 2, Added: 11, Deleted: 1}, 1, 2},
	}
	if !slices.Equal(got, want) {
		t.Errorf("published\n%v, want\n%v", got, want)
	}

	days := make(map[string]filestats.Totals)
	err := s.Shard().Database().View(func(tx *store.Transaction) error {
		for k, v := range filestats.AuthorDays.All(tx) {
			days[k.First+" "+k.Second] = v
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]filestats.Totals{"ann 1970-01-01": want[2].onDay, "ann 1970-01-02": want[1].onDay}, days); diff != "" {
		t.Errorf("days in the database, - want + got:\n%s", diff)
	}
}

// A change that can't be decoded fails, and leaves nothing.
func TestByPathOfNonsense(t *testing.T) {
	s := consumertest.NewShard(t, program.ByPath)
	if err := s.ConsumeEnvelope(topic.Envelope{Topic: program.ByPath.In.Description, Value: []byte("nonsense")}); err == nil {
		t.Error("nonsense was consumed without an error")
	}
	s.Commit()
	if got := consumertest.Published(s, program.ByPath.Out); len(got) > 0 {
		t.Errorf("published %+v, want nothing", got)
	}
}
