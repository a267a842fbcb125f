package store

import (
	"fmt"
	"hash/maphash"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"
)

// A filter knows every key that was added, and of others few.
func TestKeyFilter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5000).Draw(t, "keys")
		from := rapid.IntRange(0, 1<<40).Draw(t, "from")
		f := newKeyFilter(int64(n))
		hash := func(i int) uint64 { return maphash.Bytes(seed, fmt.Append(nil, "key", from+i)) }
		for i := range n {
			f.add(hash(i))
		}
		for i := range n {
			if !f.has(hash(i)) {
				t.Fatalf("key %d of %d is not there", i, n)
			}
		}
		through := 0
		for i := range 10_000 {
			if f.has(hash(n + i)) {
				through++
			}
		}
		if through > 500 {
			t.Errorf("%d of 10,000 absent keys are let through a filter of %d", through, n)
		}
		if got := f.keys.Load(); got > int64(n) || got < int64(n)*9/10 {
			t.Errorf("the filter counts %d keys of %d", got, n)
		}
	})
}

// Once lookups have found nothing a filter answers for absent keys, and for none
// that is stored: whether it was there before, came while the filter was made, or
// came after, by a transaction or directly. It is made anew when it is full, and
// forgotten when a Loader writes.
func TestExistence(t *testing.T) {
	table := NewTable("existence", String, Int64)
	o := memOwner(t, vfs.NewMem(), Options{TableCache: 1})
	defer closeOwner(t, o)
	tx := o.Transaction()
	n := 0
	more := func(keys int) {
		t.Helper()
		for range keys {
			if err := table.Put(tx, fmt.Sprint("key", n), int64(n)); err != nil {
				t.Fatal(err)
			}
			n++
		}
		if err := o.DB().Put(fmt.Append(nil, "direct", n), nil, nil); err != nil {
			t.Fatal(err)
		}
		sealAndApply(t, o)
	}
	look := func() {
		t.Helper()
		for i := range n {
			if v, ok, err := table.Get(tx, fmt.Sprint("key", i)); v != int64(i) || !ok || err != nil {
				t.Fatalf("key %d of %d is %d, %v, %v", i, n, v, ok, err)
			}
		}
		for i := range int(filterAfter) + 10 {
			if _, ok, err := table.Get(tx, fmt.Sprint("absent", n, i)); ok || err != nil {
				t.Fatalf("an absent key: %v, %v", ok, err)
			}
		}
		if _, ok, err := tx.Get(fmt.Append(nil, "direct", n)); !ok || err != nil {
			t.Fatalf("a direct write that is committed: %v, %v", ok, err)
		}
		o.Abort() // reads are forgotten
	}
	missing := func(key string) bool { return o.d.exists.missing(append(tablePrefix("existence"), key...)) }

	more(1000)
	look()
	more(1000) // beside the builder
	look()
	o.d.exists.builders.Wait()
	if missing("key7") || missing("key1500") || !missing("none") && !missing("neither") && !missing("nor this") {
		t.Error("the filter tells keys that are there from others wrongly")
	}
	first := o.d.exists.ready.Load()
	for o.d.exists.ready.Load() == first && n < 200_000 {
		more(10_000)
		o.d.exists.builders.Wait()
	}
	most := o.d.exists.most()
	if f := o.d.exists.ready.Load(); f == nil && int64(n) < most-most/4 || f != nil && f.room > most {
		t.Errorf("with %d keys the filter is %v, want room for at most %d", n, f, most)
	}
	look()

	l := o.NewLoader()
	if err := l.Set(append(tablePrefix("existence"), "loaded"...), []byte{valueTable, 0, 2}); err != nil {
		t.Fatal(err)
	}
	if err := l.Commit([]byte("p")); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if v, ok, err := table.Get(tx, "loaded"); v != 1 || !ok || err != nil {
		t.Errorf("what a Loader wrote is %d, %v, %v, want 1", v, ok, err)
	}
}
