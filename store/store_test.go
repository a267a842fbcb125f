package store_test

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/pawlstream/pawl/store"
)

var (
	counts = store.NewTable("counts", store.String, store.Int64)
	lists  = store.NewTable("lists", store.Uint64, store.JSON[[]string]())
)

// memConfig is a database in memory whose log goes nowhere.
func memConfig(fs vfs.FS) store.Config {
	return store.WithFS(store.Config{Dir: "db", Logger: slog.New(slog.DiscardHandler)}, fs)
}

func open(t testing.TB, c store.Config) *store.Owner {
	t.Helper()
	o, err := store.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	return o
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// commit applies the transaction, and returns a copy of what it changed.
func commit(t testing.TB, o *store.Owner, meta string) []store.Change {
	t.Helper()
	changes, err := o.Seal()
	must(t, err)
	var copied []store.Change
	if _, measured := t.(*testing.B); !measured {
		for _, c := range changes {
			copied = append(copied, store.Change{Key: bytes.Clone(c.Key), Value: bytes.Clone(c.Value)})
		}
	}
	must(t, o.Apply([]byte(meta)))
	return copied
}

func add(n int64) func(int64) int64 { return func(m int64) int64 { return m + n } }
