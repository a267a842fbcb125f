package store

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// What a scan costs does not grow with the direct writes that wait outside its
// bounds: a Consume that writes directly and scans would be quadratic.
func TestScanBesideManyDirectWrites(t *testing.T) {
	o := memOwner(t, vfs.NewMem(), Options{})
	defer closeOwner(t, o)
	for n := range 10_000 {
		if err := o.DB().Put(fmt.Appendf(nil, "key %05d", n), []byte("v"), nil); err != nil {
			t.Fatal(err)
		}
	}
	scan := func() {
		if n, err := o.Transaction().Count(&ReadOptions{Lower: []byte("key 05000"), Upper: []byte("key 05010")}); n != 10 || err != nil {
			t.Errorf("Count = %d, %v, want 10", n, err)
		}
	}
	scan() // the first puts them in order
	if allocs := testing.AllocsPerRun(10, scan); allocs > 100 {
		t.Errorf("a scan of 10 keys allocates %v times beside 10,000 direct writes", allocs)
	}
	view := func() {
		err := o.DB().View(func(v *Transaction) error {
			_, ok, err := v.Get([]byte("key 07777"))
			if !ok && err == nil {
				err = errors.New("not there")
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	if allocs := testing.AllocsPerRun(10, view); allocs > 100 {
		t.Errorf("a view allocates %v times beside 10,000 direct writes", allocs)
	}
}

// A scan that is under way, and a snapshot, show what was written directly when
// they began, whatever is written and committed meanwhile.
func TestDirectWritesBesideAScan(t *testing.T) {
	o := memOwner(t, vfs.NewMem(), Options{})
	defer closeOwner(t, o)
	db := o.DB()
	write := func(round int, keys ...string) {
		t.Helper()
		for _, k := range keys {
			if err := db.Put([]byte(k), fmt.Append(nil, k, round), nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(1, "b", "d", "f")
	s, err := db.NewSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	for name, opts := range map[string]*ReadOptions{"now": nil, "snapshot": {Snapshot: s}, "backwards": {Reverse: true}} {
		want := "b1 d1 f1 "
		if name == "backwards" {
			want = "f1 d1 b1 "
		}
		if name != "snapshot" {
			write(1, "b", "d", "f")
			if err := errors.Join(db.Delete([]byte("a"), nil), db.Delete([]byte("c"), nil), db.Delete([]byte("e"), nil), db.Delete([]byte("g"), nil)); err != nil {
				t.Fatal(err)
			}
		}
		got := ""
		seq, end := db.Scan(opts)
		for _, v := range seq {
			if got == "" {
				write(2, "a", "b", "c", "d", "e", "f", "g")
				sealAndApply(t, o)
				write(3, "a", "c", "d", "f")
			}
			got += string(v) + " "
		}
		if err := end(); err != nil {
			t.Error(err)
		}
		if got != want {
			t.Errorf("%s: the scan shows %q, want %q", name, got, want)
		}
	}
}

// A fence that comes while a transaction is applied ends all waiting, once.
func TestFenceBesideApply(t *testing.T) {
	x := newDirect()
	if _, err := x.write([]byte("k"), []byte("v"), nil); err != nil {
		t.Fatal(err)
	}
	if got := x.seal(); len(got) != 1 {
		t.Fatalf("sealed %v, want one write", got)
	}
	x.end(ErrFenced)
	if err := x.apply(func() error { return nil }); err != nil {
		t.Error(err)
	}
	if err := x.sync(t.Context()); err != nil {
		t.Errorf("sync = %v: what was written is committed", err)
	}
	if _, err := x.write([]byte("k"), []byte("v"), nil); !errors.Is(err, ErrFenced) {
		t.Errorf("write = %v, want %v", err, ErrFenced)
	}
}

// Reads and writes past the transaction do not meet at a lock that all tables of
// the process share.
func TestDirectTakesNoLockOfAllTables(t *testing.T) {
	table := NewTable("directview/lock", String, Int64)
	o := memOwner(t, vfs.NewMem(), Options{})
	defer closeOwner(t, o)
	direct := table.In(o.DB())
	if err := direct.Put("k", 1); err != nil {
		t.Fatal(err)
	}
	registry.Lock()
	defer registry.Unlock()
	if n, ok, err := direct.Get("k"); n != 1 || !ok || err != nil {
		t.Errorf("Get = %d, %v, %v, want 1", n, ok, err)
	}
}
