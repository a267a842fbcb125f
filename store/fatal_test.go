package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A manifest that can't be written is fatal to the storage library: the process
// lives, the owner's calls say what happened, and the next Open begins afresh.
func TestFatalErrorMarksForDiscard(t *testing.T) {
	mem := vfs.NewMem()
	fs := newFaultFS(mem)
	met := make(chan error, 1)
	config := Config{Dir: "db", Logger: slog.New(slog.DiscardHandler), OnFatal: func(err error) { met <- err }, fs: fs}
	o, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	put(t, o, "k", "v", "1")
	fs.fail(1, "MANIFEST", syscall.EIO)
	if err := o.Flush(); !errors.Is(err, ErrFatal) {
		t.Errorf("Flush = %v, want ErrFatal", err)
	}
	if err := <-met; !errors.Is(err, ErrFatal) {
		t.Errorf("OnFatal got %v, want ErrFatal", err)
	}
	if err := o.Apply([]byte("2")); !errors.Is(err, ErrFatal) {
		t.Errorf("Apply = %v, want ErrFatal", err)
	}
	if _, err := o.Seal(); !errors.Is(err, ErrFatal) {
		t.Errorf("Seal = %v, want ErrFatal", err)
	}
	if err := o.Close(); !errors.Is(err, ErrFatal) {
		t.Errorf("Close = %v, want ErrFatal", err)
	}
	if err := o.Close(); err != nil {
		t.Errorf("a second Close = %v, want nil", err)
	}
	fs.fail(0, "", nil)

	if o, err = Open(config); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := o.DB().Get([]byte("k")); ok || err != nil || o.Meta() != nil {
		t.Errorf("after the discard: k there %v, %v, position %q; want an empty database", ok, err, o.Meta())
	}
	if !o.Discarded() {
		t.Error("Discarded = false, want true")
	}
	put(t, o, "k", "w", "1")
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	if o, err = Open(config); err != nil {
		t.Fatal(err)
	}
	if o.Discarded() {
		t.Error("Discarded = true at the Open after, want false")
	}
	if err := o.Close(); err != nil {
		t.Error(err)
	}
}

// onError calls a function when an error is logged.
type onError struct {
	slog.Handler
	call func()
}

func (h *onError) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelError }

func (h *onError) Handle(context.Context, slog.Record) error {
	h.call()
	return nil
}

// The same at any write of any kind, and while a new database is made: an I/O
// error is an error, or fatal, and never the process's end; what is opened
// after holds a position with its state, or nothing.
func TestIOErrorAtEveryWrite(t *testing.T) {
	const n = 40
	fatal := 0
	for at := 1; at <= 80; at++ {
		mem := vfs.NewCrashableMem()
		fs := newFaultFS(mem)
		fs.fail(at, "", syscall.EIO)
		done := make(chan error, 1)
		// A flush that fails is tried again for ever: the disk works again once
		// it was heard to fail.
		heard := slog.New(&onError{slog.DiscardHandler, func() { fs.fail(0, "", nil) }})
		config := Config{Dir: "db", Options: Options{MemTableSize: memTableFloor}, Logger: heard, fs: fs}
		go func() {
			_, err := workload(config, n)
			done <- err
		}()
		err := <-done
		if errors.Is(err, ErrFatal) {
			fatal++
		}
		fs.fail(0, "", nil)
		if e := verify(mem.CrashClone(vfs.CrashCloneCfg{}), 0); e != nil {
			t.Errorf("write %d ended in %v; after a power cut: %v", at, err, e)
		}
		if t.Failed() {
			return
		}
	}
	if fatal == 0 {
		t.Error("no write's error was fatal, want those of the manifest")
	}
}

// A flush that fails is told, once, and is waited for no longer; the storage
// library, which tries again for ever, does not turn in a circle; and what was
// flushed before is there when the database is opened again.
func TestFlushThatFailsIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewMem()
		fs := newFaultFS(mem)
		var told []error
		config := Config{Dir: "db", Logger: slog.New(slog.DiscardHandler), OnFailing: func(err error) { told = append(told, err) }, fs: fs}
		o, err := Open(config)
		if err != nil {
			t.Fatal(err)
		}
		put(t, o, "k", "v", "1")
		if err := o.Flush(); err != nil {
			t.Fatal(err)
		}
		put(t, o, "k", "w", "2")
		fs.fail(1, ".sst", syscall.EIO)
		if err := o.Flush(); !errors.Is(err, syscall.EIO) {
			t.Errorf("Flush = %v, want EIO", err)
		}
		select {
		case <-o.Failing():
		default:
			t.Error("Failing is not closed")
		}
		if err := o.Failure(); !errors.Is(err, syscall.EIO) {
			t.Errorf("Failure = %v, want EIO", err)
		}
		time.Sleep(10 * time.Second) // virtual time
		if _, failed := fs.counts(); failed > 500 {
			t.Errorf("the flush was tried %d times in 10 s", failed)
		}
		if err := o.Close(); !errors.Is(err, syscall.EIO) {
			t.Errorf("Close = %v, want EIO", err)
		}
		if len(told) != 1 || !errors.Is(told[0], syscall.EIO) {
			t.Errorf("OnFailing was told %v, want EIO once", told)
		}
		fs.fail(0, "", nil)
		if o, err = Open(config); err != nil {
			t.Fatal(err)
		}
		if v, ok, err := o.DB().Get([]byte("k")); string(v) != "v" && string(v) != "w" || !ok || err != nil {
			t.Errorf("opened again: k is %q, %v, %v", v, ok, err)
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A flush that fails keeps its memtable, and when all of them are full a write
// waits for it: no longer than until the failure is heard of. Neither Apply, nor a
// restore, nor Close hangs, and what was flushed before is there when the database
// is opened again.
func TestWriteBehindFlushThatFailsEnds(t *testing.T) {
	val := bytes.Repeat([]byte("v"), memTableFloor/8)
	for name, write := range map[string]func(t *testing.T, o *Owner, i int) error{
		"apply": func(t *testing.T, o *Owner, i int) error {
			if err := o.Transaction().Put(fmt.Appendf(nil, "k%d", i), val); err != nil {
				return err
			}
			if _, err := o.Seal(); err != nil {
				return err
			}
			return o.Apply([]byte("2"))
		},
		"restore": func(t *testing.T, o *Owner, i int) error {
			l := o.NewLoader()
			if err := l.Set(append([]byte{spaceRaw}, fmt.Sprint("k", i)...), append([]byte{valuePlain}, val...)); err != nil {
				return err
			}
			return errors.Join(l.Commit([]byte("2")), l.Close())
		},
		"close": func(t *testing.T, o *Owner, i int) error {
			// Until a settling that nobody waits for waits itself.
			if err := o.Transaction().Put(fmt.Appendf(nil, "k%d", i), val); err != nil {
				return err
			}
			if _, err := o.Seal(); err != nil {
				return err
			}
			if err := o.Apply([]byte("2")); err != nil {
				return err
			}
			synctest.Wait()
			o.pending.mu.Lock()
			defer o.pending.mu.Unlock()
			if o.pending.mu.busy != nil {
				return syscall.EIO
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := newFaultFS(vfs.NewMem())
				config := Config{Dir: "db", Options: Options{MemTableSize: memTableFloor}, Logger: slog.New(slog.DiscardHandler), fs: fs}
				o, err := Open(config)
				if err != nil {
					t.Fatal(err)
				}
				put(t, o, "k", "v", "1")
				if err := o.Flush(); err != nil {
					t.Fatal(err)
				}
				fs.fail(1, ".sst", syscall.EIO)
				done := make(chan error, 2)
				go func() {
					for i := range 200 { // many times what fits into the memtables
						if err := write(t, o, i); err != nil {
							done <- err
							break
						}
					}
					done <- o.Close()
				}()
				for _, what := range []string{"the write", "Close"} {
					select {
					case err := <-done:
						if !errors.Is(err, syscall.EIO) {
							t.Errorf("%s = %v, want EIO", what, err)
						}
					case <-time.After(time.Minute):
						t.Errorf("%s hangs", what)
						fs.fail(0, "", nil)
						return
					}
				}
				fs.fail(0, "", nil)
				if o, err = Open(config); err != nil {
					t.Fatal(err)
				}
				if v, ok, err := o.DB().Get([]byte("k")); string(v) != "v" || !ok || err != nil {
					t.Errorf("opened again: k is %q, %v, %v", v, ok, err)
				}
				if meta := string(o.Meta()); meta != "1" {
					t.Errorf("opened again: the position is %q, want 1", meta)
				}
				if err := o.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
