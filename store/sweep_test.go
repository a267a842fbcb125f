package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// An expired entry is gone from every read at once, and after a sweep from the
// changelog too; one that is written again lives on from there.
func TestTTL(t *testing.T) {
	now := time.Unix(1000, 0)
	sessions := NewTable("ttl/sessions", String, String, TTL(time.Minute))
	o, err := Open(Config{Dir: "db", fs: vfs.NewMem(), Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer closeOwner(t, o)
	tx := o.Transaction()
	put := func(k string) {
		t.Helper()
		if err := sessions.Put(tx, k, "v"); err != nil {
			t.Fatal(err)
		}
	}
	keys := func(tx *Transaction) (all string) {
		for k := range sessions.All(tx) {
			all += k
		}
		return all
	}
	put("a")
	put("b")
	changes := sealAndApply(t, o)
	if want := "\x04\x00\x00\x00\x00\x00\x00\x0f\x42\x40v"; string(changes[0].Value) != want {
		t.Errorf("stored %q, want %q", changes[0].Value, want)
	}
	now = now.Add(30 * time.Second)
	put("b")
	sealAndApply(t, o)
	now = now.Add(30 * time.Second)

	if _, ok, err := sessions.Get(tx, "a"); ok || err != nil {
		t.Errorf("an expired entry is there: %v, %v", ok, err)
	}
	if _, ok, err := sessions.In(o.DB()).Get("a"); ok || err != nil {
		t.Errorf("an expired entry is there past the transaction: %v, %v", ok, err)
	}
	if v, err := sessions.Update(tx, "a", func(s string) string { return s + "new" }); v != "new" || err != nil {
		t.Errorf("an update of an expired entry = %q, %v, want new", v, err)
	}
	for k, c := range sessions.Changes(tx) {
		if k != "a" || c.HadOld || c.New != "new" {
			t.Errorf("change of %q: %+v, want a that is new", k, c)
		}
	}
	o.Abort()
	if got := keys(tx); got != "b" {
		t.Errorf("the transaction sees %q, want b", got)
	}
	if err := o.DB().View(func(v *Transaction) error {
		if got := keys(v); got != "b" {
			t.Errorf("a View sees %q, want b", got)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}

	s := o.NewSweep(nil)
	done, err := s.Step(10)
	if !done || err != nil {
		t.Errorf("Step = %v, %v, want the end", done, err)
	}
	changes = sealAndApply(t, o)
	if len(changes) != 1 || string(changes[0].Key) != "\x02\x0cttl/sessionsa" || changes[0].Value != nil {
		t.Errorf("the sweep logged %q, want the delete of a", changes)
	}
	if _, ok, err := o.d.get(o.d.db, []byte("\x02\x0cttl/sessionsa"), nil); ok || err != nil {
		t.Errorf("a is stored after the sweep: %v, %v", ok, err)
	}
	if _, err := s.Step(10); err != nil {
		t.Fatal(err)
	}
	if changes = sealAndApply(t, o); len(changes) != 0 {
		t.Errorf("a second sweep logged %q", changes)
	}
}

// What was written before the table had a TTL is there until it is written, and
// what was written with one can be read without.
func TestTTLComesAndGoes(t *testing.T) {
	o := memOwner(t, vfs.NewMem(), Options{})
	defer closeOwner(t, o)
	l := o.NewLoader()
	for k, v := range map[string]string{"\x02\x0attl/beforea": "\x02\x00\x08", "\x02\x09ttl/aftera": "\x04\x00\x00\x00\x00\x00\x00\x00\x00\x01\x08"} {
		if err := l.Set([]byte(k), []byte(v)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Commit(nil); err != nil {
		t.Fatal(err)
	}
	for _, table := range []*Table[string, int64]{NewTable("ttl/before", String, Int64, TTL(time.Minute)), NewTable("ttl/after", String, Int64)} {
		if n, ok, err := table.Get(o.Transaction(), "a"); n != 4 || !ok || err != nil {
			t.Errorf("%s: %d, %v, %v, want 4", table.Name(), n, ok, err)
		}
	}
}

// A sweep shows every committed key once a round, a few at a step, and what the
// filter says of it is part of the transaction: in tables at once, in the
// changelog with the commit, and forgotten with an abort.
func TestSweepFilters(t *testing.T) {
	o := memOwner(t, vfs.NewMem(), Options{})
	defer closeOwner(t, o)
	tx := o.Transaction()
	counts := NewTable("sweep/counts", String, Int64)
	for i := range int64(5) {
		if err := errors.Join(tx.Put(fmt.Append(nil, "raw", i), fmt.Append(nil, i)), counts.Put(tx, fmt.Sprint("count", i), i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.SetTimer([]byte("timer"), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	sealAndApply(t, o)
	if err := counts.Put(tx, "count4", 40); err != nil { // the transaction's own
		t.Fatal(err)
	}

	var seen []string
	s := o.NewSweep(func(k SweptKey, val []byte) (bool, []byte) {
		seen = append(seen, fmt.Sprintf("%s/%s", k.Table, k.Key))
		switch string(k.Key) {
		case "raw1", "count1":
			return true, nil
		case "raw2":
			return false, append(bytes.Clone(val), '!')
		case "count2":
			return false, binary.AppendVarint(nil, 20)
		}
		return false, nil
	})
	steps := 0
	for done := false; !done; steps++ {
		var err error
		if done, err = s.Step(3); err != nil {
			t.Fatal(err)
		}
	}
	want := "/raw0 /raw1 /raw2 /raw3 /raw4 sweep/counts/count0 sweep/counts/count1 sweep/counts/count2 sweep/counts/count3"
	if got := strings.Join(seen, " "); got != want {
		t.Errorf("the filter saw %s, want %s", got, want)
	}
	if steps != 4 {
		t.Errorf("%d steps of 3 for 10 keys, want 4", steps)
	}
	read := func() string {
		var out []string
		for k, v := range tx.Scan(nil) {
			out = append(out, fmt.Sprintf("%s=%s", k, v))
		}
		for i := range 5 {
			n, ok, err := counts.Get(tx, fmt.Sprint("count", i))
			out = append(out, fmt.Sprint(n, ok, err))
		}
		return strings.Join(out, " ")
	}
	swept := "raw0=0 raw2=2! raw3=3 raw4=4 0 true <nil> 0 false <nil> 20 true <nil> 3 true <nil> 40 true <nil>"
	if got := read(); got != swept {
		t.Errorf("swept: %s, want %s", got, swept)
	}
	o.Abort()
	if got, want := read(), "raw0=0 raw1=1 raw2=2 raw3=3 raw4=4 0 true <nil> 1 true <nil> 2 true <nil> 3 true <nil> 4 true <nil>"; got != want {
		t.Errorf("aborted: %s, want %s", got, want)
	}
	if done, err := s.Step(100); !done || err != nil {
		t.Fatalf("Step = %v, %v", done, err)
	}
	if changes := sealAndApply(t, o); len(changes) != 4 {
		t.Errorf("logged %d changes, want 4", len(changes))
	}
}

// upper is a codec of a later version.
type upperCodec struct{ StringCodec }

func (upperCodec) Append(dst []byte, v string) ([]byte, error) {
	return append(dst, strings.ToUpper(v)...), nil
}

func (upperCodec) Decode(src []byte) (string, error) { return strings.ToLower(string(src)), nil }

// Values are decoded by the codec that wrote them, and take the newest form when
// they are written again; what no codec is there for is an error that says so.
func TestTableVersions(t *testing.T) {
	fs := vfs.NewMem()
	o := memOwner(t, fs, Options{})
	defer closeOwner(t, o)
	tx := o.Transaction()
	table := NewTable("versions", String, upperCodec{}, Version(2, String, ValueCodec[string](nil)))
	l := o.NewLoader()
	for k, v := range map[string]string{"zero": "\x02\x00abc", "one": "\x02\x01abc", "two": "\x02\x02ABC", "three": "\x02\x03abc"} {
		if err := l.Set([]byte("\x02\x08versions"+k), []byte(v)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Commit(nil); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"zero", "two"} {
		if v, ok, err := table.Get(tx, k); v != "abc" || !ok || err != nil {
			t.Errorf("%s = %q, %v, %v, want abc", k, v, ok, err)
		}
	}
	for k, want := range map[string]string{"one": "version 1 is one that this program no longer has", "three": "version 3 is newer than this program's 2"} {
		if _, _, err := table.Get(tx, k); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"versions"`) {
			t.Errorf("%s: %v, want an error with %q and the table's name", k, err, want)
		}
	}
	if _, err := table.Update(tx, "zero", func(s string) string { return s + "d" }); err != nil {
		t.Fatal(err)
	}
	changes := sealAndApply(t, o)
	if got, want := string(changes[0].Value), "\x02\x02ABCD"; got != want {
		t.Errorf("written again as %q, want %q", got, want)
	}
}

// Options that can't be are said at start.
func TestTableOptionsAreChecked(t *testing.T) {
	for want, option := range map[string]TableOption{
		"TTL": TTL(0), "version 2": Version(2, ValueCodec[int64](Int64)), "want those of int64": Version(1, ValueCodec[string](String)),
	} {
		err := checkOption(option)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
}

// checkOption says what is wrong with an option, without a table that the
// program has from then on.
func checkOption(option TableOption) error {
	registry.Lock()
	n := len(registry.names)
	registry.Unlock()
	NewTable("options", String, Int64, option)
	registry.Lock()
	names, codecs := registry.names[n:], registry.codecs[n:]
	registry.names, registry.codecs, registry.tables = registry.names[:n:n], registry.codecs[:n:n], registry.tables[:n:n]
	registry.Unlock()
	return checkTables(names, codecs)
}

// A direct write that comes while a sweep is at work, or between its look and
// the commit, is not undone by what the sweep made of the value before.
func TestSweepUndidADirectWrite(t *testing.T) {
	now := time.Unix(1000, 0)
	table := NewTable("sweep/direct", String, Int64, TTL(time.Minute))
	for _, when := range []string{"before the look", "in the filter", "after the look"} {
		o, err := Open(Config{Dir: "db", fs: vfs.NewMem(), Now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		defer closeOwner(t, o)
		tx := o.Transaction()
		put := func() {
			err := errors.Join(o.DB().Put([]byte("removed"), []byte("fresh"), nil), o.DB().Put([]byte("rewritten"), []byte("fresh"), nil), table.In(o.DB()).Put("expired", 2))
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(tx.Put([]byte("a"), nil), tx.Put([]byte("removed"), []byte("old")), tx.Put([]byte("rewritten"), []byte("old")), table.Put(tx, "expired", 1)); err != nil {
			t.Fatal(err)
		}
		sealAndApply(t, o)
		now = now.Add(2 * time.Minute)

		s := o.NewSweep(func(k SweptKey, val []byte) (bool, []byte) {
			if string(k.Key) == "a" && when == "before the look" || string(k.Key) == "rewritten" && when == "in the filter" {
				put()
			}
			switch {
			case string(val) == "old" && string(k.Key) == "removed":
				return true, nil
			case string(val) == "old" && string(k.Key) == "rewritten":
				return false, []byte("by the filter")
			}
			return false, nil
		})
		if done, err := s.Step(100); !done || err != nil {
			t.Fatalf("%s: Step = %v, %v", when, done, err)
		}
		if when == "after the look" {
			put()
		}
		check := func(moment string) {
			t.Helper()
			for _, k := range []string{"removed", "rewritten"} {
				if v, _, err := tx.Get([]byte(k)); string(v) != "fresh" || err != nil {
					t.Errorf("%s, %s: the transaction has %s = %q, %v, want fresh", when, moment, k, v, err)
				}
				if v, _, err := o.DB().Get([]byte(k)); string(v) != "fresh" || err != nil {
					t.Errorf("%s, %s: %s = %q, %v, want fresh", when, moment, k, v, err)
				}
			}
			if n, ok, err := table.Get(tx, "expired"); n != 2 || !ok || err != nil {
				t.Errorf("%s, %s: the table has %d, %v, %v, want 2", when, moment, n, ok, err)
			}
			for k, n := range table.All(tx) {
				if n != 2 {
					t.Errorf("%s, %s: a scan shows %s = %d, want 2", when, moment, k, n)
				}
			}
		}
		check("before the commit")
		for k, c := range table.Changes(tx) {
			t.Errorf("%s: the sweep has changed %s: %+v", when, k, c)
		}
		if changes := sealAndApply(t, o); len(changes) != 3 {
			t.Errorf("%s: logged %q, want the three direct writes", when, changes)
		}
		check("after the commit")
	}
}
