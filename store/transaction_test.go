package store_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/pawlstream/pawl/store"
)

// What a transaction has written is nowhere but in it, before and after an
// abort: not in the DB, not in a View, not in what tables keep.
func TestI1NothingUncommittedIsSeen(t *testing.T) {
	fs := vfs.NewMem()
	o := open(t, memConfig(fs))
	tx := o.Transaction()
	must(t, tx.Put([]byte("k"), []byte("old")))
	must(t, counts.Put(tx, "c", 1))
	must(t, lists.Put(tx, 1, []string{"a"}))
	commit(t, o, "1")

	committed := func(when string) {
		t.Helper()
		v, ok, err := o.DB().Get([]byte("k"))
		if string(v) != "old" || !ok || err != nil {
			t.Errorf("%s: DB.Get = %q, %v, %v, want old", when, v, ok, err)
		}
		if n, err := o.DB().Count(nil); n != 1 || err != nil {
			t.Errorf("%s: DB.Count = %d, %v, want 1", when, n, err)
		}
		must(t, o.DB().View(func(tx *store.Transaction) error {
			if c, ok, err := counts.Get(tx, "c"); c != 1 || !ok || err != nil {
				t.Errorf("%s: count = %d, %v, %v in a View, want 1", when, c, ok, err)
			}
			if l := maps.Collect(lists.All(tx)); fmt.Sprint(l) != "map[1:[a]]" {
				t.Errorf("%s: lists = %v in a View, want map[1:[a]]", when, l)
			}
			return nil
		}))
		if string(o.Meta()) != "1" {
			t.Errorf("%s: position %q, want 1", when, o.Meta())
		}
	}
	write := func() {
		must(t, tx.Put([]byte("k"), []byte("new")))
		must(t, tx.Put([]byte("l"), []byte("new")))
		must(t, counts.Put(tx, "c", 2))
		_, err := lists.Update(tx, 1, func(l []string) []string {
			l[0] = "changed in place"
			return append(l, "b")
		})
		must(t, err)
	}
	write()
	committed("open")
	if _, err := o.Seal(); err != nil {
		t.Fatal(err)
	}
	committed("sealed")
	o.Abort()
	committed("aborted")
	if v, _, err := tx.Get([]byte("k")); string(v) != "old" || err != nil {
		t.Errorf("after the abort k = %q, %v, want old", v, err)
	}
	if _, ok, err := tx.Get([]byte("l")); ok || err != nil {
		t.Errorf("after the abort l is there: %v", err)
	}
	if c, _, err := counts.Get(tx, "c"); c != 1 || err != nil {
		t.Errorf("after the abort the count is %d, %v, want 1", c, err)
	}
	if l, _, err := lists.Get(tx, 1); fmt.Sprint(l) != "[a]" || err != nil {
		t.Errorf("after the abort the list is %v, %v, want [a]", l, err)
	}
	if n := tx.Size(); n > 1<<10 {
		t.Errorf("after the abort the transaction takes %d bytes", n)
	}
	write()
	changes := commit(t, o, "2")
	if len(changes) != 4 {
		t.Errorf("%d changes, want 4", len(changes))
	}
	if v, _, err := o.DB().Get([]byte("k")); string(v) != "new" || err != nil {
		t.Errorf("after the commit k = %q, %v, want new", v, err)
	}
}

// A value that was read and changed in place, without being put, doesn't
// outlive an abort in the cache either.
func TestI1ReadValuesAreForgottenOnAbort(t *testing.T) {
	o := open(t, memConfig(vfs.NewMem()))
	tx := o.Transaction()
	must(t, lists.Put(tx, 1, []string{"a"}))
	commit(t, o, "1")
	l, _, err := lists.Get(tx, 1)
	must(t, err)
	l[0] = "spoilt"
	o.Abort()
	if l, _, err = lists.Get(tx, 1); fmt.Sprint(l) != "[a]" || err != nil {
		t.Errorf("after the abort the list is %v, %v, want [a]", l, err)
	}
}

// A fence ends reads and writes at once, also those of a Consume that still
// runs on another goroutine while its database is closed. (Under the race
// detector this shows that nothing is shared.)
func TestFenceBesideAConsumeThatRuns(t *testing.T) {
	for _, end := range []string{"close", "close without flush"} {
		fs := vfs.NewMem()
		o := open(t, memConfig(fs))
		tx := o.Transaction()
		for i := range 100 {
			must(t, tx.Put(fmt.Append(nil, "k", i), []byte("v")))
			must(t, counts.Put(tx, fmt.Sprint("old", i), 1))
		}
		commit(t, o, "1")
		started := make(chan struct{})
		var consume sync.WaitGroup
		consume.Go(func() {
			for i := 0; ; i++ {
				_, _, e1 := tx.Get(fmt.Append(nil, "k", i%100))
				e2 := tx.Put(fmt.Append(nil, "k", i%1000), []byte("w"))
				_, e3 := counts.Update(tx, fmt.Sprint("old", i%1000), add(1))
				for range tx.Scan(&store.ReadOptions{Limit: 10}) {
				}
				if i == 100 {
					close(started)
				}
				if err := errors.Join(e1, e2, e3, tx.Err()); err != nil {
					if !errors.Is(err, store.ErrFenced) {
						t.Errorf("a fenced Consume got %v, want ErrFenced", err)
					}
					if errors.Is(err, store.ErrClosed) {
						t.Errorf("a fenced Consume got %v, want ErrFenced alone", err)
					}
					return
				}
			}
		})
		<-started
		o.Fence()
		o.Abort()
		if _, err := o.Seal(); !errors.Is(err, store.ErrFenced) {
			t.Errorf("Seal = %v, want ErrFenced", err)
		}
		if _, _, err := o.DB().Get([]byte("k1")); !errors.Is(err, store.ErrFenced) {
			t.Errorf("DB.Get = %v, want ErrFenced", err)
		}
		if end == "close" {
			must(t, o.Close())
		} else {
			must(t, o.CloseWithoutFlush())
		}
		consume.Wait()
		if end == "close" {
			o = open(t, memConfig(fs))
			if v, _, err := o.DB().Get([]byte("k1")); string(v) != "v" || err != nil {
				t.Errorf("k1 = %q, %v after the fence, want v", v, err)
			}
		}
	}
}

// Close waits for the storage library and not for the code that reads: a scan
// that hangs in its loop ends at its next step.
func TestCloseDoesNotWaitForLoops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := open(t, memConfig(vfs.NewMem()))
		for i := range 10 {
			must(t, o.Transaction().Put(fmt.Append(nil, i), nil))
		}
		commit(t, o, "1")
		inLoop, resume := make(chan struct{}), make(chan struct{})
		var reader sync.WaitGroup
		reader.Go(func() {
			steps := 0
			seq, end := o.DB().Scan(nil)
			for k := range seq {
				if steps++; steps == 1 {
					close(inLoop)
					<-resume
					if string(k) != "0" {
						t.Errorf("key %q after the close, want 0", k)
					}
				}
			}
			if steps != 1 || !errors.Is(end(), store.ErrClosed) {
				t.Errorf("%d steps and %v after the close, want 1 and ErrClosed", steps, end())
			}
		})
		<-inLoop
		must(t, o.Close())
		close(resume)
		reader.Wait()
		if _, _, err := o.DB().Get(nil); !errors.Is(err, store.ErrClosed) {
			t.Errorf("DB.Get = %v, want ErrClosed", err)
		}
		if err := o.Transaction().Put(nil, nil); !errors.Is(err, store.ErrClosed) {
			t.Errorf("Put = %v, want ErrClosed", err)
		}
	})
}

// A View stays as it was while commits go on, and can't be written or kept.
func TestView(t *testing.T) {
	o := open(t, memConfig(vfs.NewMem()))
	tx := o.Transaction()
	must(t, counts.Put(tx, "a", 1))
	commit(t, o, "1")
	var kept *store.Transaction
	must(t, o.DB().View(func(v *store.Transaction) error {
		kept = v
		must(t, counts.Put(tx, "a", 2))
		must(t, counts.Put(tx, "b", 2))
		commit(t, o, "2")
		if got := maps.Collect(counts.All(v)); fmt.Sprint(got) != "map[a:1]" {
			t.Errorf("the View has %v, want map[a:1]", got)
		}
		for what, err := range map[string]error{
			"Put": v.Put(nil, nil), "Delete": v.Delete(nil), "DeleteRange": v.DeleteRange(nil, nil),
			"Table.Put": counts.Put(v, "a", 3), "Table.Delete": counts.Delete(v, "a"),
		} {
			if !errors.Is(err, store.ErrReadOnly) {
				t.Errorf("%s in a View = %v, want ErrReadOnly", what, err)
			}
		}
		return nil
	}))
	if _, _, err := kept.Get(nil); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Get of a View that has ended = %v, want ErrClosed", err)
	}
	want := errors.New("the function's own")
	if err := o.DB().View(func(*store.Transaction) error { return want }); !errors.Is(err, want) {
		t.Errorf("View = %v, want the function's error", err)
	}
}

// Writes to a sealed transaction are refused, and Seal says the same again.
func TestSealed(t *testing.T) {
	o := open(t, memConfig(vfs.NewMem()))
	tx := o.Transaction()
	must(t, tx.Put([]byte("k"), nil))
	changes, err := o.Seal()
	must(t, err)
	for what, err := range map[string]error{
		"Put": tx.Put(nil, nil), "Delete": tx.Delete(nil), "DeleteRange": tx.DeleteRange(nil, nil), "Table.Put": counts.Put(tx, "a", 3),
	} {
		if !errors.Is(err, store.ErrSealed) {
			t.Errorf("%s after Seal = %v, want ErrSealed", what, err)
		}
	}
	again, err := o.Seal()
	if err != nil || len(again) != 1 || len(changes) != 1 {
		t.Errorf("Seal = %v, then %v, %v, want the same one change", changes, again, err)
	}
	must(t, o.Apply([]byte("1")))
	must(t, tx.Put([]byte("l"), nil))
}

// A hot key is one change per commit, a key that came and went is none, and
// what is logged is what the format says.
func TestSealedChanges(t *testing.T) {
	o := open(t, memConfig(vfs.NewMem()))
	tx := o.Transaction()
	for range 1000 {
		if _, err := counts.Update(tx, "hot", add(1)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := counts.Update(tx, "gone", add(1)); err != nil {
		t.Fatal(err)
	}
	must(t, counts.Delete(tx, "gone"))
	must(t, tx.Put([]byte("r"), nil))
	must(t, tx.Delete([]byte("s")))
	var got []string
	for _, c := range commit(t, o, "1") {
		v := "deleted"
		if c.Value != nil {
			v = fmt.Sprintf("%x", c.Value)
		}
		got = append(got, fmt.Sprintf("%q %s", c.Key, v))
	}
	want := []string{`"\x01r" 01`, `"\x01s" deleted`, `"\x02\x06countshot" 0200d00f`}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("sealed %q, want %q", got, want)
	}
}

// failing is a codec whose values can't be decoded, and can't be encoded when
// negative.
type failing struct{ store.Int64Codec }

var errCodec = errors.New("no such value")

func (failing) Decode([]byte) (int64, error) { return 0, errCodec }

func (f failing) Append(dst []byte, v int64) ([]byte, error) {
	if v < 0 {
		return nil, errCodec
	}
	return f.Int64Codec.Append(dst, v)
}

var broken = store.NewTable("broken", store.String, failing{})

// An error in the middle of an iteration ends it, stays with the transaction
// until it ends, and keeps it from being committed.
func TestIterationErrorsFailTheTransaction(t *testing.T) {
	o := open(t, memConfig(vfs.NewMem()))
	tx := o.Transaction()
	must(t, broken.Put(tx, "a", 1))
	commit(t, o, "1")
	o.Abort()
	fresh := open(t, memConfig(vfs.NewMem())) // nothing cached
	l := fresh.NewLoader()
	must(t, l.Set([]byte("\x02\x06brokena"), []byte{2, 0, 2}))
	must(t, l.Commit(nil))
	tx = fresh.Transaction()
	if _, _, err := broken.Get(tx, "a"); !errors.Is(err, errCodec) || !strings.Contains(err.Error(), "broken") {
		t.Errorf("Get = %v, want the codec's error with the table's name", err)
	}
	for name, seq := range map[string]iter.Seq2[string, int64]{"All": broken.All(tx), "Range": broken.Range(tx, "", "z")} {
		for k := range seq {
			t.Errorf("%s yields %q", name, k)
		}
		if err := tx.Err(); !errors.Is(err, errCodec) {
			t.Errorf("Err after %s = %v, want the codec's", name, err)
		}
		if _, err := fresh.Seal(); !errors.Is(err, errCodec) {
			t.Errorf("Seal after %s = %v, want the codec's error", name, err)
		}
		fresh.Abort()
		if err := tx.Err(); err != nil {
			t.Errorf("Err after an abort = %v", err)
		}
	}
	must(t, broken.Put(tx, "b", -1))
	if _, err := fresh.Seal(); !errors.Is(err, errCodec) || !strings.Contains(err.Error(), `"broken"`) {
		t.Errorf("Seal of a value that can't be encoded = %v, want the codec's error with the table's name", err)
	}
	fresh.Abort()
	_, err := fresh.Seal()
	must(t, err)
	must(t, fresh.Apply(nil))
}

// Any goroutine reads while the owner writes.
func TestReadersBesideTheOwner(t *testing.T) {
	o := open(t, memConfig(vfs.NewMem()))
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for ctx.Err() == nil {
				err := o.DB().View(func(tx *store.Transaction) error {
					a, _, e1 := counts.Get(tx, "a")
					b, _, e2 := tx.Get([]byte("b"))
					if err := errors.Join(e1, e2); err != nil {
						return err
					}
					if got, want := len(b), int(a); got != want {
						return fmt.Errorf("b has %d bytes beside a count of %d", got, want)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range 500 {
		must(t, o.Transaction().Put([]byte("b"), make([]byte, i+1)))
		must(t, counts.Put(o.Transaction(), "a", int64(i+1)))
		commit(t, o, "p")
	}
	cancel()
	readers.Wait()
}

// A snapshot stays as it was, direct writes among them, while commits go on, and
// scans read it where their options say so.
func TestSnapshot(t *testing.T) {
	o := open(t, memConfig(vfs.NewMem()))
	must(t, o.Transaction().Put([]byte("a"), []byte("1")))
	commit(t, o, "1")
	must(t, o.DB().Put([]byte("b"), []byte("1"), nil))
	s, err := o.DB().NewSnapshot()
	must(t, err)
	must(t, o.Transaction().Put([]byte("a"), []byte("2")))
	must(t, o.DB().Delete([]byte("b"), nil))
	must(t, o.DB().Put([]byte("c"), []byte("2"), nil))
	commit(t, o, "2")
	for _, c := range []struct {
		o    *store.ReadOptions
		want string
	}{{nil, "a=2 c=2"}, {&store.ReadOptions{Snapshot: s}, "a=1 b=1"}, {&store.ReadOptions{Snapshot: s, Reverse: true, Limit: 1}, "b=1"}} {
		var got []string
		seq, end := o.DB().Scan(c.o)
		for k, v := range seq {
			got = append(got, fmt.Sprintf("%s=%s", k, v))
		}
		must(t, end())
		if n, err := o.DB().Count(c.o); strings.Join(got, " ") != c.want || n != len(got) || err != nil {
			t.Errorf("Scan(%+v) = %v, Count %d, %v, want %s", c.o, got, n, err, c.want)
		}
	}
	if _, err := o.Transaction().Count(&store.ReadOptions{Snapshot: s}); err == nil {
		t.Error("a transaction reads a snapshot")
	}
	must(t, s.Close())
}
