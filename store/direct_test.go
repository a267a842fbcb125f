package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/pawlstream/pawl/store"
)

// A direct write is seen at once by everyone, also through a table that had the
// key decoded, stays when the transaction aborts, and is logged with the next
// that commits.
func TestDirectWrites(t *testing.T) {
	o := open(t, memConfig(vfs.NewMem()))
	tx, db := o.Transaction(), o.DB()
	must(t, counts.Put(tx, "k", 1))
	must(t, tx.Put([]byte("own"), []byte("old")))
	commit(t, o, "1")

	must(t, tx.Put([]byte("own"), []byte("mine")))
	must(t, counts.In(db).Put("k", 10))
	must(t, counts.In(db).Put("new", 5))
	must(t, db.Put([]byte("own"), []byte("theirs"), nil))
	must(t, db.Put([]byte("other"), []byte("theirs"), nil))
	if n, err := counts.Update(tx, "k", add(1)); n != 11 || err != nil {
		t.Errorf("an update makes the value that was written directly %d, %v, want 11", n, err)
	}
	if n, _, err := counts.Get(tx, "new"); n != 5 || err != nil {
		t.Errorf("a key that was absent is %d, %v, want 5", n, err)
	}
	get := func(key, want string) {
		t.Helper()
		if v, _, err := tx.Get([]byte(key)); string(v) != want || err != nil {
			t.Errorf("the transaction has %s = %q, %v, want %q", key, v, err, want)
		}
	}
	get("own", "mine")
	get("other", "theirs")
	if v, _, err := db.Get([]byte("own")); string(v) != "theirs" || err != nil {
		t.Errorf("the database has own = %q, %v, want theirs", v, err)
	}
	for k, c := range counts.Changes(tx) {
		if k != "k" || c.Old != 10 || c.New != 11 {
			t.Errorf("change of %s from %d to %d, want k from 10 to 11 alone", k, c.Old, c.New)
		}
	}

	o.Abort()
	get("own", "theirs")
	if n, _, err := counts.Get(tx, "k"); n != 10 || err != nil {
		t.Errorf("after the abort k is %d, %v, want 10", n, err)
	}
	must(t, tx.Put([]byte("own"), []byte("again")))
	var got []string
	for _, c := range commit(t, o, "2") {
		got = append(got, fmt.Sprintf("%q=%q", c.Key, c.Value))
	}
	want := []string{`"\x01other"="\x01theirs"`, `"\x01own"="\x01again"`, `"\x02\x06countsk"="\x02\x00\x14"`, `"\x02\x06countsnew"="\x02\x00\n"`}
	if !slices.Equal(got, want) {
		t.Errorf("logged %v, want %v", got, want)
	}
	if changes := commit(t, o, "3"); len(changes) != 0 {
		t.Errorf("logged again: %d changes", len(changes))
	}
	get("own", "again")
	if n := o.DirectBytes(); n != 0 {
		t.Errorf("%d bytes wait after the commit", n)
	}
}

// Sync returns when what was written before is committed, not before and not
// with an abort; a context, a fence and a close end it.
func TestSyncWaitsForTheCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := open(t, memConfig(vfs.NewMem()))
		must(t, o.DB().Sync(t.Context())) // nothing waits
		done := make(chan error, 1)
		sync := func(ctx context.Context) {
			must(t, o.DB().Put([]byte("k"), nil, nil))
			go func() { done <- o.DB().Sync(ctx) }()
			synctest.Wait()
		}
		waits := func(when string) {
			t.Helper()
			synctest.Wait()
			select {
			case err := <-done:
				t.Errorf("%s: Sync = %v, want it to wait", when, err)
			default:
			}
		}
		sync(t.Context())
		waits("written")
		<-o.DirectWrites()
		_, err := o.Seal()
		must(t, err)
		waits("sealed")
		o.Abort()
		waits("aborted")
		commit(t, o, "1")
		must(t, <-done)

		ctx, cancel := context.WithCancelCause(t.Context())
		sync(ctx)
		why := errors.New("the caller's reason")
		cancel(why)
		if err := <-done; !errors.Is(err, why) {
			t.Errorf("Sync = %v, want the context's cause", err)
		}
		sync(t.Context())
		o.Fence()
		if err := <-done; !errors.Is(err, store.ErrFenced) {
			t.Errorf("Sync = %v after a fence, want ErrFenced", err)
		}
		for what, err := range map[string]error{
			"Put": o.DB().Put(nil, nil, nil), "Delete": o.DB().Delete(nil, nil), "DeleteRange": o.DB().DeleteRange(nil, nil, nil),
			"In.Put": counts.In(o.DB()).Put("k", 1), "Sync": o.DB().Sync(t.Context()),
		} {
			if !errors.Is(err, store.ErrFenced) {
				t.Errorf("%s = %v after a fence, want ErrFenced", what, err)
			}
		}
	})
}

// What waits for a commit is bounded, and so is one write, which a broker might
// refuse for ever.
func TestI8DirectWritesAreBounded(t *testing.T) {
	o := open(t, memConfig(vfs.NewMem()))
	db := o.DB()
	if err := db.Put([]byte("k"), make([]byte, 2<<20), nil); err == nil || !strings.Contains(err.Error(), "2097") {
		t.Errorf("a write of 2 MiB: %v, want an error with its size", err)
	}
	var err error
	n := 0
	for ; n < 1000 && err == nil; n++ {
		err = db.Put([]byte("k"), make([]byte, 100<<10), nil)
	}
	if !errors.Is(err, store.ErrDirectFull) || n < 100 {
		t.Errorf("after %d writes of 100 KiB: %v, want ErrDirectFull", n, err)
	}
	if size := o.Transaction().Size(); size < 15<<20 {
		t.Errorf("the transaction's size is %d, without the direct writes", size)
	}
	commit(t, o, "1")
	must(t, db.Put([]byte("k"), nil, nil))
}

// Merges and writes of many goroutines beside transactions all have their
// effect, and readers see a key's writes in their order.
func TestDirectWritesBesideTransactions(t *testing.T) {
	c := memConfig(vfs.NewMem())
	c.Options.Merge = func(_, val, operand []byte) ([]byte, error) { return append(slices.Clone(val), operand...), nil }
	o := open(t, c)
	const writers, each = 4, 200
	var writing sync.WaitGroup
	for range writers {
		writing.Go(func() {
			for i := range each {
				if err := errors.Join(o.DB().Merge([]byte("merged"), []byte("x"), nil), counts.In(o.DB()).Put(fmt.Sprint(i), int64(i))); err != nil {
					t.Error(err)
					return
				}
				n, _, err := counts.In(o.DB()).Get(fmt.Sprint(i))
				if err != nil || n != int64(i) {
					t.Errorf("%d was written and is %d, %v", i, n, err)
					return
				}
			}
		})
	}
	written := make(chan struct{})
	go func() { writing.Wait(); close(written) }()
	for i, done := 0, false; !done; i++ {
		select {
		case <-written:
			done = true
		default:
		}
		for k := range 20 {
			if _, _, err := counts.Get(o.Transaction(), fmt.Sprint(k)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := counts.Update(o.Transaction(), "own", add(1)); err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			o.Abort()
		} else {
			commit(t, o, "p")
		}
	}
	commit(t, o, "p")
	if v, _, err := o.DB().Get([]byte("merged")); len(v) != writers*each || err != nil {
		t.Errorf("%d merges have had an effect, %v, want %d", len(v), err, writers*each)
	}
	for i := range each {
		if n, _, err := counts.Get(o.Transaction(), fmt.Sprint(i)); n != int64(i) || err != nil {
			t.Errorf("the transaction has %d = %d, %v", i, n, err)
		}
	}
}

// Merge needs a function, and its error is the caller's.
func TestMergeNeedsAFunction(t *testing.T) {
	o := open(t, memConfig(vfs.NewMem()))
	if err := errors.Join(o.Transaction().Merge(nil, nil), nil); !errors.Is(err, store.ErrNoMerge) {
		t.Errorf("Transaction.Merge = %v, want ErrNoMerge", err)
	}
	if err := o.DB().Merge(nil, nil, nil); !errors.Is(err, store.ErrNoMerge) {
		t.Errorf("DB.Merge = %v, want ErrNoMerge", err)
	}
	c := memConfig(vfs.NewMem())
	bad := errors.New("these don't merge")
	c.Options.Merge = func(_, _, _ []byte) ([]byte, error) { return nil, bad }
	o = open(t, c)
	if err := o.Transaction().Merge([]byte("k"), nil); !errors.Is(err, bad) || !strings.Contains(err.Error(), `"k"`) {
		t.Errorf("Transaction.Merge = %v, want the function's error with the key", err)
	}
	if err := o.DB().Merge([]byte("k"), nil, nil); !errors.Is(err, bad) {
		t.Errorf("DB.Merge = %v, want the function's error", err)
	}
}
