package consumer

import (
	"testing"

	"pgregory.net/rapid"
)

// Whatever the budget, and whatever the number of shards as long as each has
// its least of everything, all that shards may hold fits into twice the budget,
// with what the collector has counted double.
func TestMemoryAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Config{Memory: rapid.Int64Range(minMemory, 64<<30).Draw(t, "memory")}.withDefaults()
		// At the default, 256 shards are within it.
		shards := rapid.IntRange(1, int(256*c.Memory/defaultMemory)).Draw(t, "shards")
		s := c.sharesOf(shards)
		databases := c.databases()
		pending := databases / 3 / 2 // half of what the memtables take: see store's test of it
		heap := pending + int64(shards)*(s.tables+2*s.transaction+s.input+s.fetch)
		if got, most := databases+2*heap, 2*c.Memory; got > most {
			t.Errorf("%d shards hold %d bytes of %d, want at most %d: %+v", shards, got, c.Memory, most, s)
		}
	})
}

// With the defaults few shards have what makes them fast.
func TestMemoryOfFewShards(t *testing.T) {
	c := Config{}.withDefaults()
	if got, want := c.sharesOf(4), (shares{tables: 32 << 20, transaction: 16 << 20, input: 8 << 20, fetch: 4 << 20}); got != want {
		t.Errorf("the shares of 4 shards are %+v, want %+v", got, want)
	}
}
