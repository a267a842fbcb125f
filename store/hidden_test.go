package store

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// What a handler does for each message that counts allocates nothing once the
// key is at hand: neither the string made of its bytes nor anything else.
func TestCountingAllocatesNothing(t *testing.T) {
	byName := NewTable("hidden/name", String, Int64)
	byPair := NewTable("hidden/pair", PairOf(String, Int64), Int64)
	o := memOwner(t, vfs.NewMem(), Options{})
	defer closeOwner(t, o)
	tx := o.Transaction()
	add := func(n int64) int64 { return n + 1 }
	key := []byte("key")
	long := bytes.Repeat([]byte("key"), 20)
	for name, handle := range map[string]func() error{
		"update": func() error { _, err := byName.Update(tx, string(key), add); return err },
		"get":    func() error { _, _, err := byName.Get(tx, string(key)); return err },
		"put":    func() error { return byName.Put(tx, string(key), 7) },
		"delete": func() error { return byName.Delete(tx, string(key)) },
		"pair":   func() error { _, err := byPair.Update(tx, Pair[string, int64]{string(key), 7}, add); return err },
	} {
		count := func() {
			if err := handle(); err != nil {
				t.Error(err)
			}
		}
		count()
		if n := testing.AllocsPerRun(100, count); n != 0 {
			t.Errorf("%s allocates %v times, want none", name, n)
		}
	}
	// A string of more than 32 bytes is allocated by whoever makes it.
	if n := testing.AllocsPerRun(100, func() {
		if _, err := byName.Update(tx, string(long), add); err != nil {
			t.Error(err)
		}
	}); n > 1 {
		t.Errorf("an update with a long key allocates %v times, want once", n)
	}
}

// keeper is a codec that keeps the keys it has seen, as one may.
type keeper struct {
	StringCodec
	seen *[]string
}

func (k keeper) AppendKey(dst []byte, s string) []byte {
	*k.seen = append(*k.seen, s)
	return append(dst, s...)
}

type pairKeeper struct {
	PairCodec[string, int64]
	seen *[]string
}

func (k pairKeeper) AppendKey(dst []byte, p Pair[string, int64]) []byte {
	*k.seen = append(*k.seen, p.First)
	return k.PairCodec.AppendKey(dst, p)
}

// A codec that is not ours may keep a key, although whoever made it overwrites
// the bytes.
func TestCodecKeepsAKey(t *testing.T) {
	var names, firsts, parts []string
	byName := NewTable("hidden/keeper", KeyCodec[string](keeper{seen: &names}), Int64)
	byPair := NewTable("hidden/pair keeper", KeyCodec[Pair[string, int64]](pairKeeper{PairOf(String, Int64), &firsts}), Int64)
	byPart := NewTable("hidden/part keeper", PairOf(KeyCodec[string](keeper{seen: &parts}), Int64), Int64)
	o := memOwner(t, vfs.NewMem(), Options{})
	defer closeOwner(t, o)
	tx := o.Transaction()
	for _, k := range []string{"one", "two", "six"} {
		updateAll(t, tx, []byte(k), byName, byPair, byPart)
	}
	overwriteStack(100)
	for name, seen := range map[string][]string{"string": names, "pair": firsts, "part": parts} {
		if got := strings.Join(seen, " "); got != "one two six" {
			t.Errorf("the codec of a %s has kept %q, want the keys in order", name, got)
		}
	}
}

func updateAll(t *testing.T, tx *Transaction, key []byte, byName *Table[string, int64], byPair, byPart *Table[Pair[string, int64], int64]) {
	err := byName.Put(tx, string(key), 1)
	if err == nil {
		err = byPair.Put(tx, Pair[string, int64]{string(key), 1}, 1)
	}
	if err == nil {
		err = byPart.Put(tx, Pair[string, int64]{string(key), 1}, 1)
	}
	if err != nil {
		t.Error(err)
	}
	clear(key)
}

// overwriteStack uses some stack, and returns how much.
func overwriteStack(depth int) int {
	var b [256]byte
	for i := range b {
		b[i] = byte(depth)
	}
	if depth == 0 {
		return int(b[7])
	}
	return overwriteStack(depth-1) + int(b[depth])
}
