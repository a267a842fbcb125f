package store

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A name with two codecs is found, with one and the same it is one table.
func TestTableOneNameTwoCodecs(t *testing.T) {
	one := NewTable("table-test/same", String, Int64)
	two := NewTable("table-test/same", String, Int64)
	pairs := NewTable("table-test/pairs", PairOf(String, Int64), JSON[[]int]())
	again := NewTable("table-test/pairs", PairOf(String, Int64), JSON[[]int]())
	if one.index != two.index || pairs.index != again.index {
		t.Errorf("the same table twice is %d and %d, %d and %d", one.index, two.index, pairs.index, again.index)
	}
	all := func(kv ...any) codecs {
		return codecs{keyType: reflect.TypeFor[string](), valType: reflect.TypeFor[int64](), key: kv[0], val: kv[1]}
	}
	err := checkTables([]string{"a", "b", "a"}, []codecs{all(String, Int64), all(String, Int64), all(String, Uint64)})
	if err == nil || !strings.Contains(err.Error(), `"a"`) || strings.Contains(err.Error(), `"b"`) {
		t.Errorf("a name with two codecs: %v, want an error that names it alone", err)
	}
	if err := CheckTables(); err != nil {
		t.Errorf("CheckTables = %v with no such name", err)
	}
	o := memOwner(t, vfs.NewMem(), Options{})
	if err := one.Put(o.Transaction(), "k", 5); err != nil {
		t.Fatal(err)
	}
	if v, ok, err := two.Get(o.Transaction(), "k"); v != 5 || !ok || err != nil {
		t.Errorf("the other variable of the same table sees %d, %v, %v, want 5", v, ok, err)
	}
	closeOwner(t, o)
}

// Codecs of one type that are set up differently are two codecs.
func TestSameCodec(t *testing.T) {
	type tuned struct{ n int }
	type bag struct{ m map[string]int }
	for _, c := range []struct {
		a, b any
		want bool
	}{
		{String, String, true}, {String, Bytes, false}, {JSON[int](), JSON[int](), true}, {JSON[int](), JSON[string](), false},
		{PairOf(String, Int64), PairOf(String, Int64), true},
		{tuned{1}, tuned{2}, false}, {bag{nil}, bag{map[string]int{}}, true},
	} {
		if got := sameCodec(c.a, c.b); got != c.want {
			t.Errorf("sameCodec(%#v, %#v) = %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

// I8: whatever is read and written, the values that tables keep stay within
// their limit once the transaction has ended, and still say the truth.
func TestI8TableCacheIsBounded(t *testing.T) {
	const limit = 256 << 10
	small := NewTable("i8/small", Int64, Int64)
	large := NewTable("i8/large", Int64, Bytes)
	o := memOwner(t, vfs.NewMem(), Options{TableCache: limit})
	tx := o.Transaction()
	seal := func() {
		t.Helper()
		if _, err := o.Seal(); err != nil {
			t.Fatal(err)
		}
		if err := o.Apply([]byte("p")); err != nil {
			t.Fatal(err)
		}
	}
	check := func(when string) {
		t.Helper()
		if tx.cache.used > limit {
			t.Errorf("%s: tables keep %d bytes, want at most %d", when, tx.cache.used, limit)
		}
		used := int64(0)
		for _, s := range tx.used {
			switch s := s.(type) {
			case *table[int64, int64]:
				used += costOf(&s.entries)
			case *table[int64, []byte]:
				used += costOf(&s.entries)
				if s.entries.wasteful() {
					t.Errorf("%s: %d places for %d entries", when, s.entries.made, s.entries.live)
				}
			}
		}
		if used != tx.cache.used {
			t.Errorf("%s: entries cost %d, the account says %d", when, used, tx.cache.used)
		}
		if tx.cache.held != 0 {
			t.Errorf("%s: %d bytes held by an empty transaction", when, tx.cache.held)
		}
	}
	for round := range int64(5) {
		for i := range int64(4000) {
			if _, err := small.Update(tx, i, func(n int64) int64 { return n + 1 }); err != nil {
				t.Fatal(err)
			}
			if i%10 == 0 {
				if err := large.Put(tx, i, make([]byte, 1000+i+round)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if n := tx.Size(); n < 4000*50+400*2000 {
			t.Errorf("round %d: the transaction says that it holds %d bytes", round, n)
		}
		seal()
		check(fmt.Sprint("committed ", round))
		for i := range int64(4000) {
			n, _, err := small.Get(tx, i)
			if n != round+1 || err != nil {
				t.Fatalf("round %d: key %d is %d, %v", round, i, n, err)
			}
			if tx.cache.used > limit+limit/8 && tx.cache.held == 0 {
				t.Fatalf("round %d: reading keeps %d bytes, want about %d", round, tx.cache.used, limit)
			}
		}
		for i := range int64(400) {
			if b, _, err := large.Get(tx, 10*i); int64(len(b)) != 1000+10*i+round || err != nil {
				t.Fatalf("round %d: key %d has %d bytes, %v", round, 10*i, len(b), err)
			}
		}
		o.Abort()
		check(fmt.Sprint("aborted ", round))
	}
	closeOwner(t, o)
}

func costOf[V any](s *entries[V]) (used int64) {
	for i := range s.made {
		used += int64(s.at(i).cost)
	}
	return used
}

// A value that grows within one transaction is seen to grow.
func TestTransactionSizeFollowsGrowingValues(t *testing.T) {
	lists := NewTable("growing", String, JSON[[]string]())
	o := memOwner(t, vfs.NewMem(), Options{})
	tx := o.Transaction()
	for range 1 << 10 {
		if _, err := lists.Update(tx, "k", func(l []string) []string { return append(l, strings.Repeat("x", 1000)) }); err != nil {
			t.Fatal(err)
		}
	}
	if n := tx.Size(); n < 1<<20 {
		t.Errorf("a value of 1 MiB: the size is %d", n)
	}
	o.Abort()
	if n := tx.Size(); n != 0 {
		t.Errorf("after the abort the size is %d, want 0", n)
	}
	closeOwner(t, o)
}

// A key that isn't equal to itself is refused, not stored once per look.
func TestNaNKey(t *testing.T) {
	floats := NewTable("floats", Float64, Int64)
	o := memOwner(t, vfs.NewMem(), Options{})
	tx := o.Transaction()
	for _, err := range []error{
		floats.Put(tx, math.NaN(), 1), floats.Delete(tx, math.NaN()),
		func() error { _, _, err := floats.Get(tx, math.NaN()); return err }(),
		func() error { _, err := floats.Update(tx, math.NaN(), func(n int64) int64 { return n }); return err }(),
	} {
		if err == nil || !strings.Contains(err.Error(), "NaN") {
			t.Errorf("a NaN key: %v, want an error that names it", err)
		}
	}
	if err := errors.Join(floats.Put(tx, 0, 1), floats.Put(tx, math.Copysign(0, -1), 2)); err != nil {
		t.Fatal(err)
	}
	if changes, err := o.Seal(); len(changes) != 1 || err != nil {
		t.Errorf("0 and −0 are %d keys, %v, want 1", len(changes), err)
	}
	o.Abort()
	closeOwner(t, o)
}

// Updating a key that is cached allocates nothing, before and after its first
// change in a transaction.
func TestUpdateAllocatesNothing(t *testing.T) {
	counts := NewTable("allocs", String, Int64)
	o := memOwner(t, vfs.NewMem(), Options{})
	tx := o.Transaction()
	key, inc := "a key of some length", func(n int64) int64 { return n + 1 }
	update := func() {
		if _, err := counts.Update(tx, key, inc); err != nil {
			t.Fatal(err)
		}
	}
	update()
	if n := testing.AllocsPerRun(1000, update); n != 0 {
		t.Errorf("%v allocations for an update, want none", n)
	}
	o.Abort()
	closeOwner(t, o)
}

// Types are told apart that can be kept as they are from those that share.
func TestIsPlain(t *testing.T) {
	type nested struct {
		A [2]struct{ B string }
		C float64
	}
	for _, c := range []struct {
		t            reflect.Type
		plain, fixed bool
	}{
		{reflect.TypeFor[int64](), true, true}, {reflect.TypeFor[bool](), true, true}, {reflect.TypeFor[complex128](), true, true},
		{reflect.TypeFor[string](), true, false}, {reflect.TypeFor[nested](), true, false}, {reflect.TypeFor[[4]uint8](), true, true},
		{reflect.TypeFor[[]byte](), false, false}, {reflect.TypeFor[map[string]int](), false, false}, {reflect.TypeFor[*int](), false, false},
		{reflect.TypeFor[any](), false, false}, {reflect.TypeFor[struct{ P *int }](), false, false}, {reflect.TypeFor[time.Time](), false, false},
		{reflect.TypeFor[func()](), false, false}, {reflect.TypeFor[chan int](), false, false}, {reflect.TypeFor[uintptr](), false, false},
	} {
		if got := isPlain(c.t, true); got != c.plain {
			t.Errorf("%v is plain: %v, want %v", c.t, got, c.plain)
		}
		if got := isPlain(c.t, false); got != c.fixed {
			t.Errorf("%v is fixed: %v, want %v", c.t, got, c.fixed)
		}
	}
}

// Databases that share a budget leave the block cache twice what their
// memtables take. What has no room opens all the same, with the least memory.
func TestBudget(t *testing.T) {
	b := NewBudget(12 << 20)
	b.Expect(2)
	open := func(dir string) *Owner {
		o, err := Open(Config{Dir: dir, Budget: b, Logger: slog.New(slog.DiscardHandler), fs: vfs.NewMem()})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	var owners []*Owner
	for i := range 6 {
		owners = append(owners, open(fmt.Sprint(i)))
		if i < 2 && 3*b.mu.memtables > b.bytes {
			t.Errorf("%d databases: memtables may take %d of %d", len(owners), b.mu.memtables, b.bytes)
		}
		if owners[i].size < memTableFloor {
			t.Errorf("database %d has memtables of %d bytes", i, owners[i].size)
		}
	}
	closeOwner(t, owners[0])
	owners[0] = open("again")
	for _, o := range owners {
		closeOwner(t, o)
	}
	if b.mu.memtables != 0 || b.mu.open != 0 {
		t.Errorf("all closed: %d bytes, %d databases", b.mu.memtables, b.mu.open)
	}
	b.Close()
}

// Everything wrong with a Config is said at once.
func TestOptionsValidate(t *testing.T) {
	_, err := Open(Config{Options: Options{MemTableSize: 1, BlockSize: 1, Compression: "zip", FilterBits: 1000, TableCache: -1}})
	if err == nil {
		t.Fatal("a Config with nothing right is accepted")
	}
	for _, want := range []string{"directory", "MemTableSize", "BlockSize", "Compression", "FilterBits", "TableCache"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: doesn't name %s", err, want)
		}
	}
}
