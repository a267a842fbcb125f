package broker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A disk that fills refuses produces, serves reads, loses nothing, and goes on
// by itself when there is space.
func TestB8FullDisk(t *testing.T) {
	var full atomic.Bool
	inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpFileSync && op.Kind != errorfs.OpFileSyncData && op.Kind != errorfs.OpFileSyncTo {
			return syscall.ENOSPC
		}
		return nil
	})
	c := quiet()
	c.fs = errorfs.Wrap(vfs.NewMem(), inject)
	k := start(t, c)
	k.create("out", 1)
	cl := k.client(manual())
	k.produceTo(cl, "out", 0, "a", "b")

	full.Store(true)
	raw := k.client()
	if _, err := k.topicID(raw, "out"); err != nil {
		t.Fatal(err)
	}
	late := make(chan error, 1)
	go func() { // it is on its way when the disk fills, and waits
		_, err := k.produceRaw(raw, "", "out", 0, rawBatch(0, 0, -1, false, "c"))
		late <- err
	}()
	for !k.outOfSpace() {
		waitFor(k.ctx, time.Millisecond)
	}
	other := k.client()
	_, err := k.produceRaw(other, "", "out", 0, rawBatch(0, 0, -1, false, "d"))
	wantError(t, "produce to a full disk", err, kerr.KafkaStorageError)
	if got := k.read("out", 0, false); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("read %q from a full disk", got)
	}
	if !k.Snapshot().DiskFull {
		t.Error("the snapshot does not say that the disk is full")
	}
	select {
	case err := <-late:
		t.Errorf("a produce is answered, and nothing can be written: %v", err)
	default:
	}

	full.Store(false)
	if err := <-late; err != nil {
		t.Errorf("the produce that waited: %v", err)
	}
	for k.outOfSpace() {
		waitFor(k.ctx, time.Millisecond)
	}
	k.produceTo(cl, "out", 0, "e")
	for range 2 {
		if got := k.read("out", 0, false); !slices.Equal(got, []string{"a", "b", "c", "e"}) {
			t.Errorf("read %q afterwards", got)
		}
		k.restart()
	}
}

// With little space left produces are refused before there is none.
func TestLittleSpace(t *testing.T) {
	var free atomic.Uint64
	free.Store(1 << 40)
	c := quiet()
	c.FreeSpace = 1 << 30
	c.freeSpace = func(string) (uint64, error) { return free.Load(), nil }
	k := start(t, c)
	k.create("out", 1)
	cl := k.client()
	write := func() error {
		_, err := k.produceRaw(cl, "", "out", 0, rawBatch(0, 0, -1, false, "v"))
		return err
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	free.Store(1 << 20)
	k.checkSpace()
	wantError(t, "produce with little space", write(), kerr.KafkaStorageError)
	free.Store(2 << 30)
	k.checkSpace()
	if err := write(); err != nil {
		t.Errorf("produce with space again: %v", err)
	}
}

// An error that the storage can't go on after stops the broker and not the
// process; what was acked is there afterwards.
func TestB8FatalErrorStopsTheBroker(t *testing.T) {
	for _, kind := range []string{"write", "sync"} {
		t.Run(kind, func(t *testing.T) {
			mem := vfs.NewMem()
			var broken atomic.Bool
			c := quiet()
			c.fs = errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if broken.Load() && strings.HasSuffix(op.Path, ".log") && (kind == "write" && op.Kind == errorfs.OpFileWrite || kind == "sync" && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData)) {
					return syscall.EIO
				}
				return nil
			}))
			b, err := Open("broker", c)
			if err != nil {
				t.Fatal(err)
			}
			k := &kit{TB: t, Broker: b, ctx: t.Context(), config: c, dir: "broker"}
			k.create("out", 1)
			cl := k.client(manual())
			raw := k.client(kgo.RequestRetries(0), kgo.RetryTimeout(time.Second))
			if _, err := k.topicID(raw, "out"); err != nil {
				t.Fatal(err)
			}
			k.produceTo(cl, "out", 0, "acked")
			broken.Store(true)
			if _, err := k.produceRaw(raw, "", "out", 0, rawBatch(0, 0, -1, false, "not")); err == nil {
				t.Error("a produce is acked that was not written")
			}
			<-b.Done()
			for b.Err() == nil {
				waitFor(k.ctx, time.Millisecond)
			}
			if err := b.Err(); !errors.Is(err, ErrFatal) {
				t.Errorf("the broker stopped by %v, want ErrFatal", err)
			}
			if err := b.Close(); !errors.Is(err, ErrFatal) {
				t.Errorf("close: %v, want ErrFatal", err)
			}
			broken.Store(false)
			k = start(t, c)
			if got := k.read("out", 0, false); len(got) == 0 || got[0] != "acked" {
				t.Errorf("read %q afterwards, want what was acked", got)
			}
		})
	}
}

func TestOpenErrors(t *testing.T) {
	fill := func(t *testing.T) string {
		k := start(t, quiet().onDisk())
		k.create("out", 1)
		k.produceTo(k.client(manual()), "out", 0, "a")
		if err := k.Broker.Close(); err != nil {
			t.Fatal(err)
		}
		return k.dir
	}
	files := func(t *testing.T, dir, pattern string) []string {
		all, err := filepath.Glob(filepath.Join(dir, dataDir, pattern))
		if err != nil || len(all) == 0 {
			t.Fatalf("no %s: %v", pattern, err)
		}
		return all
	}
	for name, tt := range map[string]struct {
		spoil func(t *testing.T, dir string)
		want  error
		says  string
	}{
		"a newer format": {func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, formatFile), "2\n")
		}, ErrNewerFormat, "format 2"},
		"a format that is none": {func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, formatFile), "x")
		}, ErrCorrupt, formatFile},
		"a manifest cut short": {func(t *testing.T, dir string) {
			for _, f := range files(t, dir, "MANIFEST-*") {
				if err := os.Truncate(f, 20); err != nil {
					t.Fatal(err)
				}
			}
		}, nil, ""},
		"a table that is gone": {func(t *testing.T, dir string) {
			for _, f := range files(t, dir, "*.sst") {
				if err := os.Remove(f); err != nil {
					t.Fatal(err)
				}
			}
		}, nil, ""},
		"a directory without permission": {func(t *testing.T, dir string) {
			if os.Getuid() == 0 {
				// Root may do anything: a file in its place is as bad.
				if err := os.RemoveAll(dir); err != nil {
					t.Fatal(err)
				}
				write(t, dir, "")
				return
			}
			if err := os.Chmod(dir, 0); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.Chmod(dir, 0o700) })
		}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := fill(t)
			// The storage is closed, and its log empty or flushed: make it flush.
			b, err := Open(dir, quiet().onDisk())
			if err != nil {
				t.Fatal(err)
			}
			if err := b.db.Flush(); err != nil {
				t.Fatal(err)
			}
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			tt.spoil(t, dir)
			b, err = Open(dir, quiet().onDisk())
			if err == nil {
				_ = b.Close()
				t.Fatal("it opens")
			}
			if tt.want != nil && !errors.Is(err, tt.want) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("open: %v, want %v, the directory and %q", err, tt.want, tt.says)
			}
		})
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A backup of a running broker is a broker of the same content.
func TestBackup(t *testing.T) {
	k := start(t, quiet().onDisk())
	k.create("out", 2)
	cl := k.client(manual(), kgo.TransactionalID("x"))
	stop := make(chan struct{})
	some, done := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for {
			if n == 3 {
				close(some)
			}
			if n >= 3 { // however long those took
				select {
				case <-stop:
					done <- n
					return
				default:
				}
			}
			if err := cl.BeginTransaction(); err != nil {
				t.Error(err)
			}
			k.produceTo(cl, "out", 0, fmt.Sprint(n))
			k.produceTo(cl, "out", 1, fmt.Sprint(n))
			if err := cl.EndTransaction(k.ctx, kgo.TryCommit); err != nil {
				t.Error(err)
			}
			n++
		}
	}()
	select {
	case <-some:
	case <-k.ctx.Done():
		t.Fatal("no transactions were committed")
	}
	dir := filepath.Join(t.TempDir(), "backup")
	if err := k.Backup(dir); err != nil {
		t.Fatal(err)
	}
	close(stop)
	n := <-done
	if err := k.Backup(dir); err == nil {
		t.Error("a backup over another one is taken")
	}
	copied := &kit{TB: t, ctx: k.ctx, config: k.config, dir: dir}
	copied.open()
	a, b := copied.read("out", 0, true), copied.read("out", 1, true)
	if !slices.Equal(a, b) || len(a) == 0 || len(a) > n || !slices.Equal(a, numbered("", len(a))) {
		t.Errorf("the backup holds %q and %q of %d", a, b, n)
	}
	if copied.Snapshot().ClusterID != k.Snapshot().ClusterID {
		t.Error("the backup is of another cluster")
	}
	if err := copied.Broker.Close(); err != nil {
		t.Error(err)
	}
	if got := len(k.read("out", 0, true)); got != n {
		t.Errorf("the original holds %d, want %d", got, n)
	}
}
