package store_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/pawlstream/pawl/store"
)

type place struct {
	City string
	Zip  int
}

var (
	inspectWords  = store.NewTable("inspect-words", store.String, store.Int64)
	inspectNumber = store.NewTable("inspect-numbers", store.Int64, store.JSON[place]())
)

// A tool that knows no types reads tables by text.
func TestAnyTable(t *testing.T) {
	o := open(t, memConfig(vfs.NewMem()))
	tx := o.Transaction()
	for i, w := range []string{"ab", "a", "b", "abc"} {
		if err := inspectWords.Put(tx, w, int64(i)); err != nil {
			t.Fatal(err)
		}
		if err := inspectNumber.Put(tx, int64(10*i-10), place{w, i}); err != nil {
			t.Fatal(err)
		}
	}
	commit(t, o, "1")
	tables := make(map[string]store.AnyTable)
	for _, a := range store.Tables() {
		tables[a.Name()] = a
	}
	if o.Size() <= 0 {
		t.Errorf("the database takes %d bytes", o.Size())
	}
	err := o.DB().View(func(tx *store.Transaction) error {
		if meta, err := store.MetaOf(tx); err != nil || string(meta) != "1" {
			t.Errorf("the position of the view is %q, %v, want 1", meta, err)
		}
		for _, test := range []struct {
			table string
			store.TextRange
			want []string
		}{
			{"inspect-words", store.TextRange{}, []string{"a", "ab", "abc", "b"}},
			{"inspect-words", store.TextRange{From: "ab"}, []string{"ab", "abc", "b"}},
			{"inspect-words", store.TextRange{From: "ab", To: "b"}, []string{"ab", "abc"}},
			{"inspect-words", store.TextRange{Prefix: "ab"}, []string{"ab", "abc"}},
			{"inspect-words", store.TextRange{Prefix: "ab", From: "abb"}, []string{"abc"}},
			{"inspect-words", store.TextRange{Prefix: "x"}, nil},
			{"inspect-numbers", store.TextRange{}, []string{"-10", "0", "10", "20"}},
			{"inspect-numbers", store.TextRange{From: "0", To: "20"}, []string{"0", "10"}},
		} {
			var got []string
			err := tables[test.table].ScanText(tx, test.TextRange, func(e store.Entry) bool {
				got = append(got, e.Text)
				return true
			})
			if err != nil || !slices.Equal(got, test.want) {
				t.Errorf("%s %+v: %q, %v, want %q", test.table, test.TextRange, got, err, test.want)
			}
		}
		e, ok, err := tables["inspect-numbers"].GetText(tx, "-10")
		if err != nil || !ok || e.Val != (place{"ab", 0}) || e.Key != int64(-10) {
			t.Errorf("get -10: %+v, %v, %v", e, ok, err)
		}
		if _, ok, err := tables["inspect-words"].GetText(tx, "nosuch"); ok || err != nil {
			t.Errorf("get a key that is not there: %v, %v", ok, err)
		}
		for _, text := range []string{"", "x", "1 2", "1.5", `{"a":1}`} {
			if _, _, err := tables["inspect-numbers"].GetText(tx, text); !errors.Is(err, store.ErrKeyText) {
				t.Errorf("get %q: %v, want an error that matches ErrKeyText", text, err)
			}
		}
		if err := tables["inspect-numbers"].ScanText(tx, store.TextRange{Prefix: "1"}, nil); !errors.Is(err, store.ErrKeyText) {
			t.Errorf("scan numbers by their beginning: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
