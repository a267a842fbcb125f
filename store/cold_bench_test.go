package store_test

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/pawlstream/pawl/store"
)

// A shard's part of five million keys in four shards, each counted once, and then
// once more: with the tables' part of memory that a process has by default, which
// a tenth of them has room in. In the first pass no key is there, in the second
// all are, and no longer at hand. Read ahead for are so many messages at once, 0
// being none. cpu-ns/op is for one message with its part of the commits.
func BenchmarkColdPasses(b *testing.B) {
	for _, ahead := range []int{0, 250, 1000, 2000, 8000} {
		b.Run(fmt.Sprintf("ahead=%d", ahead), func(b *testing.B) {
			var first, second float64
			for b.Loop() {
				c := memConfig(vfs.NewMem())
				c.Options.TableCache = 32 << 20
				c.Budget = store.NewBudget(64 << 20)
				c.Budget.Expect(1)
				o := open(b, c)
				first += float64(coldPass(b, o, ahead))
				must(b, o.Flush())
				second += float64(coldPass(b, o, ahead))
				must(b, o.Close())
				c.Budget.Close()
			}
			per := float64(b.N) * coldKeys
			b.ReportMetric(first/per, "first-cpu-ns/op")
			b.ReportMetric(second/per, "second-cpu-ns/op")
		})
	}
}

const coldKeys = 1_250_000

// coldPass counts each key once, in an order that scatters them, and returns the
// processor time it took.
func coldPass(b *testing.B, o *store.Owner, ahead int) (took int64) {
	const (
		commitEach = 16_000
		step       = 2_654_435_761 // a prime that does not divide the number of keys
	)
	tx, inc := o.Transaction(), add(1)
	begun := cpuTime(b)
	var key []byte
	ks := make([]string, commitEach)
	for i := 0; i < coldKeys; i += commitEach {
		ks := ks[:min(commitEach, coldKeys-i)]
		for j := range ks {
			key = fmt.Appendf(key[:0], "k%09d", (i+j)*step%coldKeys*4)
			ks[j] = string(key)
		}
		for j, k := range ks {
			if ahead > 0 && j%ahead == 0 {
				must(b, counts.Prefetch(tx, ks[j:min(j+ahead, len(ks))]))
			}
			if _, err := counts.Update(tx, k, inc); err != nil {
				b.Fatal(err)
			}
		}
		commit(b, o, "p")
	}
	return int64(cpuTime(b) - begun)
}
