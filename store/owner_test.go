package store

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

func memOwner(t *testing.T, fs vfs.FS, options Options) *Owner {
	t.Helper()
	o, err := Open(Config{Dir: "db", Options: options, Logger: slog.New(slog.DiscardHandler), fs: fs})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// A reader at any moment, and a power cut at any moment, finds the position of
// the state that it finds. The state is a counter, in raw keys and in a table,
// that equals the position.
func TestI2StateAndMetaInOneBatch(t *testing.T) {
	table := NewTable("i2", String, Int64)
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	fs := vfs.NewCrashableMem()
	o := memOwner(t, fs, Options{MemTableSize: memTableFloor})
	defer func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	}()
	pad := make([]byte, 4<<10)

	read := func(d *database, from pebble.Reader) (meta, raw, typed string, err error) {
		for _, r := range []struct {
			key string
			to  *string
		}{{string(keyMeta), &meta}, {"\x01n", &raw}, {string(tablePrefix("i2")) + "n", &typed}} {
			b, _, err := d.get(from, []byte(r.key), nil)
			if err != nil {
				return "", "", "", err
			}
			*r.to = string(b)
		}
		return meta, raw, typed, nil
	}
	check := func(where string, d *database, from pebble.Reader) {
		meta, raw, typed, err := read(d, from)
		if err != nil {
			t.Errorf("%s: %v (seed %d)", where, err, seed)
			return
		}
		wantRaw, wantTyped := "", ""
		if meta != "" {
			var n int64
			if _, err := fmt.Sscan(meta, &n); err != nil {
				t.Errorf("%s: position %q: %v", where, meta, err)
				return
			}
			b, _ := Int64.Append(appendTableHeader(nil, 0), n)
			wantRaw, wantTyped = string(appendPlain(nil, []byte(meta))), string(b)
		}
		if raw != wantRaw || typed != wantTyped {
			t.Errorf("%s: at position %q raw %q, table %q; want %q, %q (seed %d)", where, meta, raw, typed, wantRaw, wantTyped, seed)
		}
	}

	stop := make(chan struct{})
	var reading sync.WaitGroup
	reads := 0
	reading.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			snap, err := o.d.snapshot()
			if err != nil {
				t.Error(err)
				return
			}
			check("read", o.d, snap)
			if err := o.d.release(snap.Snapshot); err != nil {
				t.Error(err)
			}
			reads++
		}
	})
	var cuts []*vfs.MemFS
	cutting := make(chan uint64)
	reading.Go(func() {
		for s := range cutting {
			cuts = append(cuts, fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: int(s % 101), RNG: rand.New(rand.NewPCG(s, 0))}))
		}
	})

	for n := int64(1); n <= 2000; n++ {
		tx := o.Transaction()
		if err := tx.Put([]byte("n"), fmt.Append(nil, n)); err != nil {
			t.Fatal(err)
		}
		if err := tx.Put(fmt.Append(nil, "pad", n%64), pad); err != nil {
			t.Fatal(err)
		}
		if err := table.Put(tx, "n", n); err != nil {
			t.Fatal(err)
		}
		if _, err := o.Seal(); err != nil {
			t.Fatal(err)
		}
		if n%50 == 0 {
			cutting <- rng.Uint64()
		}
		if err := o.Apply(fmt.Append(nil, n)); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	close(cutting)
	reading.Wait()
	if reads == 0 || len(cuts) < 30 {
		t.Fatalf("%d reads and %d power cuts, want some and at least 30", reads, len(cuts))
	}
	moved := 0
	for i, c := range cuts {
		r := memOwner(t, c, Options{MemTableSize: memTableFloor})
		check(fmt.Sprintf("power cut %d", i), r.d, r.d.db)
		if r.Meta() != nil {
			moved++
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if moved == 0 {
		t.Error("no power cut left a position: nothing was flushed")
	}
}

// A database that was opened before still compacts: opening reads the version
// with a database of its own, which must not take the scheduler with it.
func TestReopenedDatabaseCompacts(t *testing.T) {
	fs := vfs.NewMem()
	o := memOwner(t, fs, Options{})
	put(t, o, "a", "1", "1")
	closeOwner(t, o)
	o = memOwner(t, fs, Options{})
	put(t, o, "a", "2", "2")
	if err := o.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := o.d.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false); err != nil {
		t.Error(err)
	}
	if n := o.d.db.Metrics().Total().TablesCount; n != 1 {
		t.Errorf("%d tables after a compaction of all, want 1", n)
	}
	closeOwner(t, o)
}

func closeOwner(t *testing.T, o *Owner) {
	t.Helper()
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
}

// Close makes durable what was applied, without a Flush before it.
func TestI6CloseFlushes(t *testing.T) {
	fs := vfs.NewCrashableMem()
	o := memOwner(t, fs, Options{})
	put(t, o, "k", "v", "7")
	closeOwner(t, o)
	o = memOwner(t, fs.CrashClone(vfs.CrashCloneCfg{}), Options{})
	defer closeOwner(t, o)
	v, ok, err := o.DB().Get([]byte("k"))
	if string(v) != "v" || !ok || err != nil || string(o.Meta()) != "7" {
		t.Errorf("after close and a power cut: k = %q, %v, %v at position %q; want v at 7", v, ok, err, o.Meta())
	}
}

// A crash costs what was not flushed, state and position alike, and Unflushed
// says how much that is.
func TestI6FlushBoundsWhatACrashCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewCrashableMem()
		o := memOwner(t, fs, Options{})
		if n, since := o.Unflushed(); n != 0 || !since.IsZero() {
			t.Errorf("a new database has %d bytes unflushed since %v", n, since)
		}
		put(t, o, "k", "1", "1")
		if err := o.Flush(); err != nil {
			t.Fatal(err)
		}
		if n, _ := o.Unflushed(); n != 0 {
			t.Errorf("%d bytes unflushed after a flush", n)
		}
		begin := time.Now()
		put(t, o, "k", "2", "2")
		small, _ := o.Unflushed()
		time.Sleep(time.Minute) // virtual time
		put(t, o, "k", strings.Repeat("3", 1000), "3")
		n, since := o.Unflushed()
		if n < small+1000 || !since.Equal(begin) {
			t.Errorf("%d bytes unflushed since %v, want more than %d since %v", n, since, small+1000, begin)
		}
		clone := fs.CrashClone(vfs.CrashCloneCfg{})
		closeOwner(t, o)
		o = memOwner(t, clone, Options{})
		v, _, err := o.DB().Get([]byte("k"))
		if string(v) != "1" || err != nil || string(o.Meta()) != "1" {
			t.Errorf("after a crash: k = %q, %v at position %q; want 1 at 1", v, err, o.Meta())
		}
		closeOwner(t, o)
	})
}

// A database of a later version is refused, and not a byte of it changes.
func TestNewerFormatIsRefused(t *testing.T) {
	fs := vfs.NewMem()
	o := memOwner(t, fs, Options{})
	put(t, o, "k", "v", "1")
	if err := o.d.db.Set(keyVersion, []byte{9}, pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	closeOwner(t, o)
	before := fs.String()
	_, err := Open(Config{Dir: "db", Logger: slog.New(slog.DiscardHandler), fs: fs})
	if !errors.Is(err, ErrNewerFormat) {
		t.Fatalf("Open = %v, want ErrNewerFormat", err)
	}
	for _, want := range []string{"db", "9", "1"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error %q doesn't name %q", err, want)
		}
	}
	if after := fs.String(); after != before {
		t.Errorf("the refused database changed:\n%s\nwas\n%s", after, before)
	}
}

// A database whose files are damaged says so, when it is opened or when the
// damage is read, and is made anew by the Open after.
func TestCorruptDatabase(t *testing.T) {
	for _, c := range []struct {
		where  string
		at     int64 // of the damage in the table
		opened bool  // without noticing
	}{{"first block", 10, false}, {"last block", 1100, true}} {
		fs := vfs.NewMem()
		o := memOwner(t, fs, Options{})
		for i := range 100 {
			put(t, o, fmt.Sprint("k", i), strings.Repeat("v", 100), "1")
		}
		closeOwner(t, o)
		damage(t, fs, c.at)

		met := make(chan error, 1)
		o, err := Open(Config{Dir: "db", Logger: slog.New(slog.DiscardHandler), OnFatal: func(err error) { met <- err }, fs: fs})
		if opened := err == nil; opened != c.opened {
			t.Fatalf("%s: Open = %v, want it to succeed %v", c.where, err, c.opened)
		}
		if err == nil {
			_, _, err = o.DB().Get([]byte("k99"))
			if err := o.Close(); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s: Close = %v, want ErrCorrupt", c.where, err)
			}
		}
		if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "db") {
			t.Errorf("%s: %v, want ErrCorrupt with the directory", c.where, err)
		}
		if err := <-met; !errors.Is(err, ErrCorrupt) || !errors.Is(err, ErrFatal) {
			t.Errorf("%s: OnFatal got %v, want ErrFatal and ErrCorrupt", c.where, err)
		}
		o = memOwner(t, fs, Options{})
		if !o.Discarded() || o.Meta() != nil {
			t.Errorf("%s: opened again: discarded %v, position %q; want a new database", c.where, o.Discarded(), o.Meta())
		}
		closeOwner(t, o)
	}
}

// damage overwrites some bytes of every table.
func damage(t *testing.T, fs vfs.FS, at int64) {
	t.Helper()
	names, err := fs.List("db")
	if err != nil {
		t.Fatal(err)
	}
	damaged := 0
	for _, n := range names {
		if !strings.HasSuffix(n, ".sst") {
			continue
		}
		f, err := fs.OpenReadWrite("db/"+n, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(bytes.Repeat([]byte{0xaa}, 50), at); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		damaged++
	}
	if damaged == 0 {
		t.Fatalf("no table among %v", names)
	}
}

// What was not sealed was not logged, and is not applied.
func TestApplyNeedsSeal(t *testing.T) {
	o := memOwner(t, vfs.NewMem(), Options{})
	if err := o.Apply([]byte("1")); err != nil {
		t.Errorf("Apply of an empty transaction = %v", err)
	}
	if err := o.Transaction().Put([]byte("k"), nil); err != nil {
		t.Fatal(err)
	}
	if err := o.Apply([]byte("2")); err == nil {
		t.Error("Apply of an unsealed transaction is accepted")
	}
	o.Abort()
	if n, err := o.DB().Count(nil); n != 0 || err != nil || string(o.Meta()) != "1" {
		t.Errorf("%d keys, %v at position %q, want none at 1", n, err, o.Meta())
	}
	closeOwner(t, o)
}

// A database that is open answers ErrInUse to a second opener and to Discard.
func TestDatabaseInUse(t *testing.T) {
	c := Config{Dir: t.TempDir() + "/db", Logger: slog.New(slog.DiscardHandler)}
	o, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(c); !errors.Is(err, ErrInUse) {
		t.Errorf("a second Open = %v, want ErrInUse", err)
	}
	if err := Discard(c.Dir); !errors.Is(err, ErrInUse) {
		t.Errorf("Discard of an open database = %v, want ErrInUse", err)
	}
	put(t, o, "k", "v", "1")
	closeOwner(t, o)
	if o, err = Open(c); err != nil {
		t.Fatal(err)
	}
	if v, _, err := o.DB().Get([]byte("k")); string(v) != "v" || err != nil {
		t.Errorf("k = %q, %v after it all; want v", v, err)
	}
	closeOwner(t, o)
	if err := Discard(c.Dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(c.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Discard the directory is there: %v", err)
	}
	if err := Discard(c.Dir); err != nil {
		t.Errorf("Discard of what isn't there = %v, want nil", err)
	}
}

// A Discard that is cut short at any write is finished by the next Open, or
// had not begun.
func TestDiscardCutShort(t *testing.T) {
	for at := 1; ; at++ {
		mem := vfs.NewCrashableMem()
		o := memOwner(t, mem, Options{})
		put(t, o, "k", "v", "1")
		closeOwner(t, o)
		fs := newFaultFS(mem)
		fs.failRemoves(at)
		err := discard(fs, "db")
		clone := mem.CrashClone(vfs.CrashCloneCfg{})
		o = memOwner(t, clone, Options{})
		v, ok, getErr := o.DB().Get([]byte("k"))
		if getErr != nil {
			t.Error(getErr)
		}
		if ok && (string(v) != "v" || string(o.Meta()) != "1") || !ok && o.Meta() != nil {
			t.Errorf("cut at %d: k = %q, %v at %q, want all or nothing", at, v, ok, o.Meta())
		}
		closeOwner(t, o)
		if err == nil {
			if at < 4 {
				t.Errorf("Discard had %d steps, want more", at-1)
			}
			return
		}
	}
}
