package broker

import (
	"errors"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestProduceAndRead(t *testing.T) {
	k := start(t, quiet())
	k.create("words", 3)
	cl := k.client(manual())
	want := numbered("v", 50)
	if got := k.produceTo(cl, "words", 1, want...); got[0] != 0 || got[49] != 49 {
		t.Errorf("offsets %v, want 0 to 49", got)
	}
	if got := k.read("words", 1, false); !slices.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
	k.restart()
	if got := k.read("words", 1, true); !slices.Equal(got, want) {
		t.Errorf("read after a restart %q, want %q", got, want)
	}
	if got := k.read("words", 0, true); len(got) != 0 {
		t.Errorf("read %q from a partition that nothing was written to", got)
	}
}

func TestTransactions(t *testing.T) {
	k := start(t, quiet())
	k.create("out", 2)
	cl := k.client(manual(), kgo.TransactionalID("x"))
	for i, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit, kgo.TryAbort} {
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		v := string(rune('a' + i))
		k.produceTo(cl, "out", 0, v)
		k.produceTo(cl, "out", 1, v)
		if err := cl.EndTransaction(k.ctx, end); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		for p := range int32(2) {
			if got, want := k.read("out", p, true), []string{"a", "c"}; !slices.Equal(got, want) {
				t.Errorf("committed in %d: %q, want %q", p, got, want)
			}
			if got, want := k.read("out", p, false), []string{"a", "b", "c", "d"}; !slices.Equal(got, want) {
				t.Errorf("written in %d: %q, want %q", p, got, want)
			}
		}
		k.restart()
	}
}

func TestOpenTwice(t *testing.T) {
	k := start(t, Config{Logger: quiet().Logger})
	if _, err := Open(k.dir, k.config); !errors.Is(err, ErrLocked) {
		t.Errorf("a second broker in the directory: %v, want ErrLocked", err)
	}
}
