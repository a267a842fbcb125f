package store

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// fullLog is what OnDiskFull was told.
type fullLog struct {
	sync.Mutex
	told []bool
	err  error
}

func (l *fullLog) add(full bool, _ string, err error) {
	l.Lock()
	defer l.Unlock()
	l.told = append(l.told, full)
	if full {
		l.err = err
	}
}

func (l *fullLog) get() ([]bool, error) {
	l.Lock()
	defer l.Unlock()
	return slices.Clone(l.told), l.err
}

// workload opens a database, counts to n in it with a flush now and then, and
// closes it. It returns the last position that was applied.
func workload(c Config, n int) (last int, err error) {
	o, err := Open(c)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	if m := o.Meta(); m != nil {
		if last, err = strconv.Atoi(string(m)); err != nil {
			return 0, err
		}
	}
	pad := make([]byte, 16<<10)
	for i := last + 1; i <= n; i++ {
		tx := o.Transaction()
		if err := errors.Join(tx.Put([]byte("n"), strconv.AppendInt(nil, int64(i), 10)), tx.Put(fmt.Append(nil, i%7), pad)); err != nil {
			return last, err
		}
		if _, err := o.Seal(); err != nil {
			return last, err
		}
		if err := o.Apply(strconv.AppendInt(nil, int64(i), 10)); err != nil {
			return last, err
		}
		last = i
		if i%10 == 0 {
			if err := o.Flush(); err != nil {
				return last, err
			}
		}
	}
	return last, nil
}

// verify checks that the database is at a position of at least so much, with
// the state of that position.
func verify(fs vfs.FS, least int) error {
	o, err := Open(Config{Dir: "db", Logger: slog.New(slog.DiscardHandler), fs: fs})
	if err != nil {
		return err
	}
	v, ok, err := o.DB().Get([]byte("n"))
	if err == nil && string(v) != string(o.Meta()) || ok != (o.Meta() != nil) {
		err = fmt.Errorf("n is %q at position %q", v, o.Meta())
	}
	if at, _ := strconv.Atoi(string(o.Meta())); err == nil && at < least {
		err = fmt.Errorf("position %d, want at least %d", at, least)
	}
	return errors.Join(err, o.Close())
}

// waits stands in for the time that writes wait: it tells when the first one
// does, and ends all waits at once.
type waits struct {
	began chan struct{}
	over  chan time.Time
}

func newWaits() *waits { return &waits{make(chan struct{}, 1), make(chan time.Time)} }

func (w *waits) after(time.Duration) (<-chan time.Time, func()) {
	select {
	case w.began <- struct{}{}:
	default:
	}
	return w.over, func() {}
}

// worked is how far a workload came, and why no further.
type worked struct {
	last int
	err  error
}

// beginWorkload runs a workload on a goroutine of its own, and says how it went.
func beginWorkload(c Config, n int) <-chan worked {
	done := make(chan worked, 1)
	go func() {
		last, err := workload(c, n)
		done <- worked{last, err}
	}()
	return done
}

// A disk that fills up at any write makes that write wait; OnDiskFull is told;
// nothing fails and nothing is lost once there is space.
func TestDiskFullWaitsAtEveryWrite(t *testing.T) {
	const n = 60
	config := func(fs vfs.FS, l *fullLog, w *waits) Config {
		return Config{Dir: "db", Options: Options{MemTableSize: memTableFloor}, Logger: slog.New(slog.DiscardHandler), OnDiskFull: l.add, fs: fs, after: w.after}
	}
	dry := newFaultFS(vfs.NewMem())
	if _, err := workload(config(dry, &fullLog{}, newWaits()), n); err != nil {
		t.Fatal(err)
	}
	writes, _ := dry.counts()
	if writes < 50 {
		t.Fatalf("%d writes, want many", writes)
	}
	tested := 0
	for at := 1; at <= writes; at++ {
		mem := vfs.NewCrashableMem()
		fs := newFaultFS(mem)
		fs.fail(at, "", errNoSpace)
		var log fullLog
		w := newWaits()
		done := beginWorkload(config(fs, &log, w), n)
		var r worked
		select {
		case <-w.began:
			tested++
			if told, err := log.get(); !slices.Equal(told, []bool{true}) || !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("write %d: told %v, %v while full; want [true] and ENOSPC", at, told, err)
			}
			// A power cut now leaves a database that is whole.
			if err := verify(mem.CrashClone(vfs.CrashCloneCfg{}), 0); err != nil {
				t.Errorf("write %d: after a power cut while full: %v", at, err)
			}
			fs.fail(0, "", nil)
			close(w.over)
			r = <-done
			if told, _ := log.get(); told[len(told)-1] {
				t.Errorf("write %d: told %v in the end, want false last", at, told)
			}
		case r = <-done:
		}
		if r.err != nil || r.last != n {
			t.Errorf("write %d: reached %d, %v; want %d", at, r.last, r.err, n)
		}
		if err := verify(mem.CrashClone(vfs.CrashCloneCfg{}), n); err != nil {
			t.Errorf("write %d: after close and a power cut: %v", at, err)
		}
		if t.Failed() {
			return
		}
	}
	if tested < writes*3/4 {
		t.Errorf("%d of %d writes met the full disk, want most", tested, writes)
	}
}

// File descriptors that run out at any open, of a database that exists and that
// is written to, make that open wait; OnDiskFull is told; nothing fails, nothing
// is discarded and nothing is lost once there are some again.
func TestOutOfFilesWaitsAtEveryOpen(t *testing.T) {
	const n = 60
	config := func(fs vfs.FS, l *fullLog, w *waits) Config {
		return Config{Dir: "db", Options: Options{MemTableSize: memTableFloor}, Logger: slog.New(slog.DiscardHandler), OnDiskFull: l.add, fs: fs, after: w.after}
	}
	before := func() (*vfs.MemFS, *faultFS) {
		mem := vfs.NewCrashableMem()
		fs := newFaultFS(mem)
		if _, err := workload(config(fs, &fullLog{}, newWaits()), n/2); err != nil {
			t.Fatal(err)
		}
		return mem, fs
	}
	_, dry := before()
	first := dry.opens() + 1
	if _, err := workload(config(dry, &fullLog{}, newWaits()), n); err != nil {
		t.Fatal(err)
	}
	opens, tested := dry.opens(), 0
	if opens < first+20 {
		t.Fatalf("%d opens, want many", opens-first)
	}
	for at := first; at <= opens; at++ {
		mem, fs := before()
		fs.failOpens(at)
		var log fullLog
		w := newWaits()
		done := beginWorkload(config(fs, &log, w), n)
		var r worked
		select {
		case <-w.began:
			tested++
			if told, err := log.get(); !slices.Equal(told, []bool{true}) || !OutOfFiles(err) {
				t.Errorf("open %d: told %v, %v while there is no descriptor; want [true] and EMFILE", at, told, err)
			}
			fs.failOpens(0)
			close(w.over)
			r = <-done
			if told, _ := log.get(); told[len(told)-1] {
				t.Errorf("open %d: told %v in the end, want false last", at, told)
			}
		case r = <-done:
		}
		if r.err != nil || r.last != n {
			t.Errorf("open %d: reached %d, %v; want %d", at, r.last, r.err, n)
		}
		if err := verify(mem.CrashClone(vfs.CrashCloneCfg{}), n); err != nil {
			t.Errorf("open %d: after close and a power cut: %v", at, err)
		}
		if t.Failed() {
			return
		}
	}
	if tested < (opens-first)*3/4 {
		t.Errorf("%d of %d opens found no descriptor, want most", tested, opens-first)
	}
}

// Interrupt ends the waiting for a file descriptor as that for space, also of a
// database that is being opened.
func TestOutOfFilesInterrupt(t *testing.T) {
	for at := 1; at <= 12; at++ {
		mem := vfs.NewCrashableMem()
		fs := newFaultFS(mem)
		if _, err := workload(Config{Dir: "db", Logger: slog.New(slog.DiscardHandler), fs: fs}, 20); err != nil {
			t.Fatal(err)
		}
		fs.failOpens(fs.opens() + at)
		w := newWaits()
		interrupt := make(chan struct{})
		done := make(chan error, 1)
		go func() {
			_, err := workload(Config{Dir: "db", Logger: slog.New(slog.DiscardHandler), fs: fs, after: w.after, Interrupt: interrupt}, 40)
			done <- err
		}()
		<-w.began
		close(interrupt)
		if err := <-done; !errors.Is(err, ErrInterrupted) && !OutOfFiles(err) {
			t.Errorf("open %d: %v, want ErrInterrupted or EMFILE", at, err)
		}
		fs.failOpens(0)
		if err := verify(mem.CrashClone(vfs.CrashCloneCfg{}), 20); err != nil {
			t.Errorf("open %d: after a power cut: %v", at, err)
		}
	}
}

// The databases of a process keep no more files open than it may have.
func TestOpenFilesAreShared(t *testing.T) {
	for _, tt := range []struct {
		limit     uint64
		databases int
		want      int
	}{{1024, 1, 512}, {1024, 8, 64}, {1024, 256, 2}, {1 << 20, 8, filesMax}, {1<<64 - 1, 1, filesMax}} {
		if got := shareOfFiles(tt.limit, tt.databases); got != tt.want {
			t.Errorf("of %d files each of %d databases has %d, want %d", tt.limit, tt.databases, got, tt.want)
		}
	}
}

// While a write waits, what is committed can be read.
func TestDiskFullReadsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newFaultFS(vfs.NewMem())
		o := memOwner(t, fs, Options{})
		put(t, o, "k", "v1", "1")
		fs.fail(1, "", errNoSpace)
		flushed := make(chan error)
		go func() { flushed <- o.Flush() }()
		synctest.Wait()
		v, ok, err := o.DB().Get([]byte("k"))
		if string(v) != "v1" || !ok || err != nil {
			t.Errorf("Get while full = %q, %v, %v, want v1", v, ok, err)
		}
		select {
		case err := <-flushed:
			t.Errorf("Flush returned %v on a full disk", err)
		default:
		}
		fs.fail(0, "", nil)
		if err := <-flushed; err != nil {
			t.Error(err)
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
}

// put commits one raw key.
func put(t *testing.T, o *Owner, key, val, meta string) {
	t.Helper()
	if err := o.Transaction().Put([]byte(key), []byte(val)); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Seal(); err != nil {
		t.Fatal(err)
	}
	if err := o.Apply([]byte(meta)); err != nil {
		t.Fatal(err)
	}
}

// Interrupt ends the waiting at any write: Close returns, says so, and leaves a
// database that opens at some position with the state of that position.
func TestDiskFullInterruptAtEveryWrite(t *testing.T) {
	const n = 60
	tested := 0
	for at := 1; at <= 60; at++ {
		mem := vfs.NewCrashableMem()
		fs := newFaultFS(mem)
		w := newWaits()
		o, err := Open(Config{Dir: "db", Options: Options{MemTableSize: memTableFloor}, Logger: slog.New(slog.DiscardHandler), fs: fs, after: w.after})
		if err != nil {
			t.Fatal(err)
		}
		put(t, o, "n", "1", "1")
		if err := o.Flush(); err != nil {
			t.Fatal(err)
		}
		before, _ := fs.counts()
		fs.fail(before+at, "", errNoSpace)
		pad := make([]byte, 16<<10)
		type result struct {
			flushed int
			err     error
		}
		done := make(chan result, 1)
		go func() {
			r := result{flushed: 1}
			for i := 2; i <= n && r.err == nil; i++ {
				tx := o.Transaction()
				r.err = errors.Join(tx.Put([]byte("n"), strconv.AppendInt(nil, int64(i), 10)), tx.Put(fmt.Append(nil, "pad", i), pad))
				if r.err == nil {
					_, r.err = o.Seal()
				}
				if r.err == nil {
					r.err = o.Apply(strconv.AppendInt(nil, int64(i), 10))
				}
				if i%7 == 0 && r.err == nil {
					if r.err = o.Flush(); r.err == nil {
						r.flushed = i
					}
				}
			}
			r.err = errors.Join(r.err, o.Close())
			done <- r
		}()
		var r result
		select {
		case <-w.began:
			tested++
			o.Interrupt()
			if r = <-done; r.err != nil && !errors.Is(r.err, ErrInterrupted) {
				t.Errorf("write %d: %v, want ErrInterrupted", at, r.err)
			}
		case r = <-done:
			if r.err != nil {
				t.Errorf("write %d: %v with space left", at, r.err)
			}
		}
		fs.fail(0, "", nil)
		// What is left opens after a power cut, and as it is.
		if err := verify(mem.CrashClone(vfs.CrashCloneCfg{}), r.flushed); err != nil {
			t.Errorf("write %d: after a power cut: %v", at, err)
		}
		if err := verify(mem, r.flushed); err != nil {
			t.Errorf("write %d: %v", at, err)
		}
		if t.Failed() {
			return
		}
	}
	if tested < 40 {
		t.Errorf("%d writes were interrupted, want 40", tested)
	}
}
