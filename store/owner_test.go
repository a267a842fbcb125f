package store

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"

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
			b, _ := Int64.Append(appendTableHeader(nil), n)
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
			if err := o.d.release(snap); err != nil {
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
