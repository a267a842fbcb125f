package cli

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/pawlstream/pawl/examples/filestats"
	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/store"
)

// copyOf leaves a copy of a shard's store, at a position of its changelog.
func copyOf(t *testing.T, dir string, next int64, path string, events int64) {
	t.Helper()
	db, err := store.Open(store.Config{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := filestats.Paths.Put(db.Transaction(), path, filestats.Totals{Events: events}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Seal(); err != nil {
		t.Fatal(err)
	}
	if err := db.Apply(changelog.AppendPosition(nil, changelog.Position{Next: next})); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// Of two copies of a shard the newest counts, in whichever directory it is.
func TestReadStores(t *testing.T) {
	a, b, c := t.TempDir(), t.TempDir(), t.TempDir()
	copyOf(t, filepath.Join(a, "app", "changes-000"), 7, "x", 3)
	copyOf(t, filepath.Join(b, "app", "changes-000"), 9, "x", 4)
	copyOf(t, filepath.Join(a, "app", "changes-001"), 20, "y", 6)
	copyOf(t, filepath.Join(b, "app", "changes-001"), 10, "y", 5)
	copyOf(t, filepath.Join(b, "app", "changes-002"), 1, "z", 1)
	copyOf(t, filepath.Join(b, "other", "changes-003"), 1, "not this application's", 1)
	for _, dirs := range [][]string{{a, b, c}, {b, c, a}} {
		got, err := readStores(slog.New(slog.DiscardHandler), "app", dirs...)
		if err != nil {
			t.Fatal(err)
		}
		want := newTotals()
		want.paths = map[string]tally{"x": {Events: 4}, "y": {Events: 6}, "z": {Events: 1}}
		var f findings
		f.compare("the stores", got, want)
		if f.count > 0 {
			t.Error(f)
		}
	}
}

// A key that is in two shards comes out as wrong.
func TestReadStoresAddsUp(t *testing.T) {
	a := t.TempDir()
	copyOf(t, filepath.Join(a, "app", "changes-000"), 7, "x", 3)
	copyOf(t, filepath.Join(a, "app", "changes-001"), 7, "x", 3)
	got, err := readStores(slog.New(slog.DiscardHandler), "app", a)
	if err != nil {
		t.Fatal(err)
	}
	if want := (tally{Events: 6}); got.paths["x"] != want {
		t.Errorf("x has %v, want %v", got.paths["x"], want)
	}
}

// A store that can't be read is an error, not one that is left out.
func TestReadStoresOfNonsense(t *testing.T) {
	a := t.TempDir()
	dir := filepath.Join(a, "app", "changes-000")
	copyOf(t, dir, 7, "x", 3)
	files, err := filepath.Glob(filepath.Join(dir, "MANIFEST-*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests to damage (%v)", err)
	}
	for _, f := range files {
		if err := os.WriteFile(f, []byte("nonsense"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := readStores(slog.New(slog.DiscardHandler), "app", a); err == nil {
		t.Errorf("no error, and %v", got.paths)
	}
}
