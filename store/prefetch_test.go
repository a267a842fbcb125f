package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

var prefetched = NewTable("prefetched", String, Int64)

func prefetchKeys(from, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("key-%08d", from+i)
	}
	return keys
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// coldOwner has so many keys in the table prefetched, each with its number, and none
// at hand.
func coldOwner(t *testing.T, n int, options Options) *Owner {
	o := memOwner(t, vfs.NewMem(), options)
	t.Cleanup(func() { closeOwner(t, o) })
	for i, k := range prefetchKeys(0, n) {
		ok(t, prefetched.Put(o.Transaction(), k, int64(i)))
	}
	sealAndApply(t, o)
	l := o.NewLoader() // which has tables forget
	ok(t, l.Commit([]byte("p")))
	return o
}

// What was read ahead is at hand: nothing is looked up for it.
func TestPrefetchReadsOnce(t *testing.T) {
	o := coldOwner(t, 1000, Options{})
	tx, ks := o.Transaction(), prefetchKeys(0, 1000)
	asked := append(append([]string{}, ks[500:]...), ks[500:]...) // each twice
	begun := o.Lookups()
	ok(t, prefetched.Prefetch(tx, asked))
	if got, want := o.Lookups()-begun, int64(500); got != want {
		t.Errorf("Prefetch of 500 keys looked up %d, want %d", got, want)
	}
	begun = o.Lookups()
	ok(t, prefetched.Prefetch(tx, asked))
	for i, k := range ks {
		v, has, err := prefetched.Get(tx, k)
		if err != nil || !has || v != int64(i) {
			t.Fatalf("prefetched[%s] = %d, %v, %v; want %d", k, v, has, err, i)
		}
	}
	if got, want := o.Lookups()-begun, int64(500); got != want {
		t.Errorf("reading all 1000 keys looked up %d, want %d, which were not read ahead", got, want)
	}
}

// What Prefetch reads has room beside what is at hand.
func TestI8PrefetchIsBounded(t *testing.T) {
	names := NewTable("prefetched-names", String, String)
	const value = 10_000
	o := memOwner(t, vfs.NewMem(), Options{TableCache: 1 << 20})
	defer closeOwner(t, o)
	ks := prefetchKeys(0, 300)
	for _, k := range ks {
		ok(t, names.Put(o.Transaction(), k, strings.Repeat("x", value)))
	}
	sealAndApply(t, o)
	l := o.NewLoader()
	ok(t, l.Commit([]byte("p")))
	begun := o.Lookups()
	ok(t, names.Prefetch(o.Transaction(), ks))
	if read := (o.Lookups() - begun) * value; read < 50_000 || read > 300_000 {
		t.Errorf("Prefetch of 3 MB into a cache of 1 MiB has read %d bytes, want a part of it", read)
	}
}

// Keys that are known to be absent are not looked up, nor kept.
func TestPrefetchOfAbsentKeys(t *testing.T) {
	o := coldOwner(t, 1000, Options{})
	tx := o.Transaction()
	absent := prefetchKeys(1000, int(filterAfter)+900)
	for _, k := range absent[900:] {
		if _, has, err := prefetched.Get(tx, k); has || err != nil {
			t.Fatalf("prefetched[%s] is there, or %v", k, err)
		}
	}
	o.d.exists.builders.Wait()
	begun := o.Lookups()
	ok(t, prefetched.Prefetch(tx, absent[:900]))
	if got := o.Lookups() - begun; got > 90 {
		t.Errorf("Prefetch of 900 absent keys looked up %d, want next to none", got)
	}
	for _, k := range absent {
		if _, has, err := prefetched.Get(tx, k); has || err != nil {
			t.Fatalf("prefetched[%s] is there, or %v", k, err)
		}
	}
}

// While a shard reads ahead, its transaction takes no write; and what fails then
// is no failure of the transaction.
func TestReadAheadOnlyReads(t *testing.T) {
	o := coldOwner(t, 10, Options{})
	tx := o.Transaction()
	met := errors.New("met")
	err := o.ReadAhead(func() error {
		for what, err := range map[string]error{
			"Put": tx.Put([]byte("k"), nil), "Delete": tx.Delete([]byte("k")), "Table.Put": prefetched.Put(tx, "k", 1),
			"Table.Delete": prefetched.Delete(tx, "k"), "SetTimer": tx.SetTimer([]byte("k"), time.Unix(1, 0)),
		} {
			if !errors.Is(err, ErrReadOnly) {
				t.Errorf("%s while reading ahead = %v, want ErrReadOnly", what, err)
			}
		}
		if v, has, err := prefetched.Get(tx, prefetchKeys(3, 1)[0]); v != 3 || !has || err != nil {
			t.Errorf("Get while reading ahead = %d, %v, %v; want 3", v, has, err)
		}
		for range tx.Scan(&ReadOptions{Snapshot: new(Snapshot)}) { // which fails
			t.Error("a transaction has read a snapshot")
		}
		return met
	})
	if !errors.Is(err, met) || err.Error() == met.Error() {
		t.Errorf("ReadAhead = %v, want what its function returned, and what the scan has met", err)
	}
	if err := tx.Err(); err != nil {
		t.Errorf("the transaction's error is %v, want none", err)
	}
	func() {
		defer func() { recover() }()
		_ = o.ReadAhead(func() error { panic("out") })
	}()
	ok(t, prefetched.Put(tx, "k", 1))
	sealAndApply(t, o)
}
