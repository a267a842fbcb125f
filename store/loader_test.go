package store

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"
)

func newLoading(t interface{ Fatal(...any) }) *Owner {
	o, err := Open(Config{Dir: "db", Logger: slog.New(slog.DiscardHandler), Options: Options{MemTableSize: memTableFloor}, fs: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// stored is a raw key and its value as they are logged.
func storedRaw(key, val string) (k, v []byte) {
	return appendRawKey(nil, []byte(key)), appendPlain(nil, []byte(val))
}

// However records come in batches, the last of each key is what is there, and the
// position that of the last batch.
func TestLoaderKeepsTheLastOfEachKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := newLoading(t)
		defer func() {
			if err := o.Close(); err != nil {
				t.Fatal(err)
			}
		}()
		l := o.NewLoader()
		want := make(map[string]string)
		n := rapid.IntRange(1, 200).Draw(t, "records")
		for i := range n {
			key := rapid.SampledFrom([]string{"", "a", "a\x00", "ab", "b", "long key that has more than eight bytes", "long key that has more than eight bytez"}).Draw(t, "key")
			k, v := storedRaw(key, fmt.Sprint(i))
			var err error
			if rapid.IntRange(0, 3).Draw(t, "delete") == 0 {
				delete(want, key)
				err = l.Delete(k)
			} else {
				want[key] = fmt.Sprint(i)
				err = l.Set(k, v)
			}
			if err != nil {
				t.Fatal(err)
			}
			switch rapid.IntRange(0, 9).Draw(t, "end") {
			case 0:
				err = l.Begin(fmt.Append(nil, i))
			case 1:
				err = l.Commit(fmt.Append(nil, i))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(l.Commit([]byte("end")), l.Close()); err != nil {
			t.Fatal(err)
		}
		got := make(map[string]string)
		all, failed := o.DB().Scan(nil)
		for k, v := range all {
			got[string(k)] = string(v)
		}
		if err := failed(); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(got, want) {
			t.Errorf("loaded %q, want %q", got, want)
		}
		if got := string(o.Meta()); got != "end" {
			t.Errorf("the position is %q, want %q", got, "end")
		}
	})
}

// While a database is loaded no compaction begins; once it is, they do without
// being asked again.
func TestLoaderHoldsCompactions(t *testing.T) {
	o := newLoading(t)
	defer func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	}()
	compactions := func() int64 {
		m := o.d.db.Metrics().Compact
		return m.Count + m.NumInProgress
	}
	l := o.NewLoader()
	for i := range 20 {
		for j := range 100 {
			k, v := storedRaw(fmt.Sprint(j), fmt.Sprint(i))
			if err := l.Set(k, v); err != nil {
				t.Fatal(err)
			}
		}
		write := l.Commit
		if i == 0 {
			write = l.Begin
		}
		if err := write(nil); err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			if err := o.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := compactions(); got != 0 {
		t.Errorf("%d compactions while it is loaded, want none", got)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := compactions(); got == 0 {
		t.Error("no compaction after it is loaded, want one")
	}
}

// What keeps a batch from being written the next call says, and Close.
func TestLoaderSaysWhatABatchMet(t *testing.T) {
	for name, next := range map[string]func(*Loader) error{
		"Begin":  func(l *Loader) error { return l.Begin(nil) },
		"Commit": func(l *Loader) error { return l.Commit(nil) },
		"Close":  (*Loader).Close,
	} {
		o := newLoading(t)
		l := o.NewLoader()
		o.Fence()
		if err := l.Begin(nil); err != nil {
			t.Errorf("the first Begin = %v, want its error from the next call", err)
		}
		if err := next(l); !errors.Is(err, ErrFenced) {
			t.Errorf("%s = %v, want %v", name, err, ErrFenced)
		}
		if err := errors.Join(l.Close(), o.CloseWithoutFlush()); err != nil {
			t.Error(err)
		}
	}
}
