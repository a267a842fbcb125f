package store_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/pawlstream/pawl/store"
)

func keys(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("key-%08d", i)
	}
	return out
}

// One key again and again, which one encoding pays for.
func BenchmarkUpdateHot(b *testing.B) {
	tx := open(b, memConfig(vfs.NewMem())).Transaction()
	inc := add(1)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := counts.Update(tx, "hot", inc); err != nil {
			b.Fatal(err)
		}
	}
}

// 100,000 cached keys in random order, a commit for every 65,536 updates.
func BenchmarkUpdate100k(b *testing.B) {
	o := open(b, memConfig(vfs.NewMem()))
	tx := o.Transaction()
	ks := keys(100_000)
	inc := add(1)
	for _, k := range ks {
		if err := counts.Put(tx, k, 0); err != nil {
			b.Fatal(err)
		}
	}
	commit(b, o, "p")
	r := rand.New(rand.NewPCG(1, 2))
	order := make([]int32, 1<<20)
	for i := range order {
		order[i] = r.Int32N(int32(len(ks)))
	}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		if _, err := counts.Update(tx, ks[order[i&(1<<20-1)]], inc); err != nil {
			b.Fatal(err)
		}
		if i++; i&(1<<16-1) == 0 {
			commit(b, o, "p")
		}
	}
}

// The same without the commits' cost: what the hot loop alone takes.
func BenchmarkUpdate100kOpen(b *testing.B) {
	o := open(b, memConfig(vfs.NewMem()))
	tx := o.Transaction()
	ks := keys(100_000)
	inc := add(1)
	r := rand.New(rand.NewPCG(1, 2))
	order := make([]int32, 1<<20)
	for i := range order {
		order[i] = r.Int32N(int32(len(ks)))
	}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		if _, err := counts.Update(tx, ks[order[i&(1<<20-1)]], inc); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

// A commit of 10,000 changed keys in random order. ns/key is what counts.
func BenchmarkSealApply(b *testing.B) {
	o := open(b, memConfig(vfs.NewMem()))
	tx := o.Transaction()
	ks := keys(100_000)
	inc := add(1)
	r := rand.New(rand.NewPCG(1, 2))
	const n = 10_000
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		for range n {
			if _, err := counts.Update(tx, ks[r.IntN(len(ks))], inc); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
		commit(b, o, "p")
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/key")
}

// Keys that were never there, against a database of a million: what a cold
// stream pays.
func BenchmarkGetAbsent(b *testing.B) {
	c := memConfig(vfs.NewMem())
	c.Budget = store.NewBudget(256 << 20)
	b.Cleanup(c.Budget.Close)
	o := open(b, c)
	l := o.NewLoader()
	for i := range 1_000_000 {
		key := fmt.Appendf(nil, "\x02\x06countskey-%08d", i*2)
		must(b, l.Set(key, []byte{2, 0, 2}))
		if l.Size() > 4<<20 {
			must(b, l.Commit(nil))
		}
	}
	must(b, l.Commit(nil))
	must(b, o.Flush())
	r := rand.New(rand.NewPCG(1, 2))
	tx := o.Transaction()
	i := 0
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		_, _, err := counts.Get(tx, fmt.Sprintf("key-%08d", r.IntN(1_000_000)*2+1))
		must(b, err)
		if i++; i%10_000 == 0 {
			o.Abort()
		}
	}
}
