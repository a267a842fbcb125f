package store

import (
	"fmt"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A key that each of many transactions changes is given to the storage library
// once, with what the last made of it, and any read makes it be.
func TestPendingGivesEachKeyOnce(t *testing.T) {
	counts := NewTable("pending", String, Int64)
	o := memOwner(t, vfs.NewMem(), Options{})
	defer closeOwner(t, o)
	const commits, keys = 50, 100
	for n := range int64(commits) {
		for k := range keys {
			if err := counts.Put(o.Transaction(), fmt.Sprint("key", k), n+1); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := o.Seal(); err != nil {
			t.Fatal(err)
		}
		if err := o.Apply(fmt.Append(nil, n+1)); err != nil {
			t.Fatal(err)
		}
	}
	if n := o.pending.mu.taken.commits; n != commits {
		t.Fatalf("%d commits are pending, want all %d: nothing has read", n, commits)
	}
	err := o.DB().View(func(v *Transaction) error {
		seen := 0
		for k, n := range counts.All(v) {
			if seen++; n != commits {
				t.Errorf("%s is %d, want %d", k, n, commits)
			}
		}
		if seen != keys {
			t.Errorf("%d keys, want %d", seen, keys)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if o.pending.any.Load() {
		t.Error("something is pending after a read")
	}
	if size := o.pending.size; size > keys*40 {
		t.Errorf("the batch has %d bytes for %d keys", size, keys)
	}
	b, err := o.d.own(keyMeta)
	if string(b) != fmt.Sprint(commits) || err != nil {
		t.Errorf("the stored position is %q, %v, want %d", b, err, commits)
	}
}

// A position that is set while a transaction is open leaves it as it is: the
// memory of what it has changed is not used again.
func TestPositionBesideAnOpenTransaction(t *testing.T) {
	counts := NewTable("pending/position", String, Int64)
	o := memOwner(t, vfs.NewMem(), Options{})
	defer closeOwner(t, o)
	const keys = 60_000 // some chunks full
	for n := range keys {
		if err := counts.Put(o.Transaction(), fmt.Sprintf("key %06d", n), int64(n)); err != nil {
			t.Fatal(err)
		}
		if n%20_000 == 0 {
			if err := o.SetMeta(fmt.Append(nil, n)); err != nil {
				t.Fatal(err)
			}
			if err := o.settle(); err != nil {
				t.Fatal(err)
			}
		}
	}
	changes := sealAndApply(t, o)
	if len(changes) != keys {
		t.Fatalf("%d changes, want %d", len(changes), keys)
	}
	for n, c := range changes {
		want := fmt.Sprintf("\x02\x10pending/positionkey %06d", n)
		v, err := Int64.Decode(c.Value[2:])
		if string(c.Key) != want || v != int64(n) || err != nil {
			t.Fatalf("change %d is %q = %q, %v, want %q = %d", n, c.Key, c.Value, err, want, n)
		}
	}
}

// Whoever reads at any moment sees each commit whole and in its turn, however
// many read and settle at once.
func TestPendingIsSeenByAllReaders(t *testing.T) {
	o := memOwner(t, vfs.NewMem(), Options{MemTableSize: memTableFloor})
	defer closeOwner(t, o)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			last := -1
			for {
				select {
				case <-stop:
					return
				default:
				}
				a, _, err := o.DB().Get([]byte("a"))
				if err != nil {
					t.Error(err)
					return
				}
				at := -1
				if len(a) > 0 {
					at = len(a)
				}
				if at < last {
					t.Errorf("a commit that was seen is gone: %d after %d", at, last)
					return
				}
				last = at
			}
		})
	}
	for n := range 3000 {
		if err := o.Transaction().Put([]byte("a"), make([]byte, n+1)); err != nil {
			t.Fatal(err)
		}
		if _, err := o.Seal(); err != nil {
			t.Fatal(err)
		}
		if err := o.Apply(nil); err != nil {
			t.Fatal(err)
		}
		if v, _, err := o.DB().Get([]byte("a")); len(v) != n+1 || err != nil {
			t.Fatalf("after commit %d: %d bytes, %v", n, len(v), err)
		}
	}
	close(stop)
	readers.Wait()
}
