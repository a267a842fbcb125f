package store

import (
	"bytes"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"
)

// Whatever is added, found and removed in whatever order, entries are a map.
func TestEntriesAreAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s entries[int]
		want := make(map[string]int)
		genKey := rapid.Custom(func(t *rapid.T) string {
			n := rapid.SampledFrom([]int{0, 1, 2, keyInline - 1, keyInline, keyInline + 1, 100}).Draw(t, "length")
			return string(bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, n))
		})
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				for range rapid.IntRange(1, 20).Draw(t, "n") {
					key := genKey.Draw(t, "key")
					if _, ok := want[key]; ok {
						continue
					}
					next++
					s.add(hashKey([]byte(key)), []byte(key)).val = next
					want[key] = next
				}
			},
			"remove": func(t *rapid.T) {
				if len(want) == 0 {
					return
				}
				key := rapid.SampledFrom(slices.Sorted(maps.Keys(want))).Draw(t, "key")
				s.remove(s.find(hashKey([]byte(key)), []byte(key)))
				delete(want, key)
			},
			"compact": func(*rapid.T) { s.compact() },
			"absent": func(t *rapid.T) {
				key := genKey.Draw(t, "key")
				if _, ok := want[key]; !ok && s.find(hashKey([]byte(key)), []byte(key)) != nil {
					t.Fatalf("key %q is found and not there", key)
				}
			},
			"": func(t *rapid.T) {
				if s.live != len(want) {
					t.Fatalf("%d entries, want %d", s.live, len(want))
				}
				for key, v := range want {
					e := s.find(hashKey([]byte(key)), []byte(key))
					if e == nil || e.val != v || string(s.key(e)) != key {
						t.Fatalf("key %q: %+v, want value %d", key, e, v)
					}
				}
			},
		})
	})
}

// Keys are sorted as comparing them does, and equal ones stay in their order.
func TestSorterSortsStably(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SampledFrom([]string{"", "\x00", "a", "b", "\xff", "0123456", "01234567", "table one ", "table two "})
		keys := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) []byte {
			n := rapid.IntRange(0, 5).Draw(t, "parts")
			var key []byte
			for range n {
				key = append(key, parts.Draw(t, "part")...)
			}
			return key
		}), 0, 300).Draw(t, "keys")
		skip := rapid.IntRange(0, 9).Draw(t, "skip")
		for i := range keys {
			keys[i] = append(bytes.Repeat([]byte("="), skip), keys[i]...)
		}
		want := make([]int32, len(keys))
		for i := range want {
			want[i] = int32(i)
		}
		slices.SortStableFunc(want, func(a, b int32) int { return bytes.Compare(keys[a], keys[b]) })
		s := sorter{keys: keys}
		var got []int32
		for _, w := range s.sort(skip) {
			got = append(got, w.at)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("keys %q in order %v, want %v", keys, got, want)
		}
	})
}

// What the account says that a table keeps is what it keeps, within a third.
func TestI8CacheAccountIsHonest(t *testing.T) {
	measure := func(fill func(tx *Transaction)) (heap, account int64) {
		o := memOwner(t, vfs.NewMem(), Options{TableCache: 1 << 30})
		defer closeOwner(t, o)
		tx := o.Transaction()
		used := func() int64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		before := used()
		fill(tx)
		heap = used() - before
		account = tx.cache.used
		runtime.KeepAlive(o)
		return heap, account
	}
	numbers := NewTable("account/numbers", Int64, Int64)
	names := NewTable("account/names", String, Bytes)
	const n = 150_000
	for what, fill := range map[string]func(*Transaction) error{
		"numbers": func(tx *Transaction) error {
			for i := range int64(n) {
				if _, _, err := numbers.Get(tx, i); err != nil {
					return err
				}
			}
			return nil
		},
		"long keys": func(tx *Transaction) error {
			for i := range int64(n) {
				if _, _, err := names.Get(tx, fmt.Sprintf("a key that does not fit into its entry %d", i)); err != nil {
					return err
				}
			}
			tx.clear(true)
			return nil
		},
	} {
		heap, account := measure(func(tx *Transaction) {
			if err := fill(tx); err != nil {
				t.Fatal(err)
			}
		})
		if heap > account*4/3 || account > heap*4/3 {
			t.Errorf("%s: %d bytes of memory, the account says %d", what, heap, account)
		}
	}
}
