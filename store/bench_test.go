package store_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

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

// reportCPU reports the processor time that an operation takes, background work
// included, which unlike the clock says something on a busy machine too. It is
// called where the measuring begins, and what it returns where it ends.
func reportCPU(b *testing.B) (end func(per float64)) {
	begin := cpuTime(b)
	return func(per float64) {
		b.ReportMetric(float64(cpuTime(b)-begin)/float64(b.N)/per, "cpu-ns/op")
	}
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchOwner has the memory of a process's only shard.
func benchOwner(b *testing.B) *store.Owner {
	c := memConfig(vfs.NewMem())
	c.Budget = store.NewBudget(256 << 20)
	c.Budget.Expect(1)
	b.Cleanup(c.Budget.Close)
	return open(b, c)
}

// One key again and again, which one encoding pays for.
func BenchmarkUpdateHot(b *testing.B) {
	tx := benchOwner(b).Transaction()
	inc := add(1)
	b.ReportAllocs()
	end := reportCPU(b)
	for b.Loop() {
		if _, err := counts.Update(tx, "hot", inc); err != nil {
			b.Fatal(err)
		}
	}
	end(1)
}

// 100,000 cached keys in random order, a commit for every 65,536 updates.
func BenchmarkUpdate100k(b *testing.B) {
	o := benchOwner(b)
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
	end := reportCPU(b)
	for b.Loop() {
		if _, err := counts.Update(tx, ks[order[i&(1<<20-1)]], inc); err != nil {
			b.Fatal(err)
		}
		if i++; i&(1<<16-1) == 0 {
			commit(b, o, "p")
		}
	}
	end(1)
}

// The same without the commits' cost: what the hot loop alone takes.
func BenchmarkUpdate100kOpen(b *testing.B) {
	o := benchOwner(b)
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
	end := reportCPU(b)
	for b.Loop() {
		if _, err := counts.Update(tx, ks[order[i&(1<<20-1)]], inc); err != nil {
			b.Fatal(err)
		}
		i++
	}
	end(1)
}

// Commits of 10,000 updates of random keys, of which nine in ten are changed
// keys: cpu-ns/op is for one of the updates and its part of the commit.
func BenchmarkSealApply(b *testing.B) {
	o := benchOwner(b)
	tx := o.Transaction()
	ks := keys(100_000)
	inc := add(1)
	r := rand.New(rand.NewPCG(1, 2))
	const n = 10_000
	b.ReportAllocs()
	end := reportCPU(b)
	for b.Loop() {
		for range n {
			if _, err := counts.Update(tx, ks[r.IntN(len(ks))], inc); err != nil {
				b.Fatal(err)
			}
		}
		commit(b, o, "p")
	}
	end(n)
}

// The loop of a process with four shards and 100,000 keys, as a stream that is
// far behind drives it: each message updates its key's count, each 16,384
// messages of a shard are a commit, whose changes are published from Flush and
// logged from Seal. cpu-ns/op is for one message with its part of all that.
func BenchmarkShardLoop(b *testing.B) {
	for _, keys := range []int{1_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprint(keys), func(b *testing.B) { shardLoop(b, keys) })
	}
}

const (
	loopShards = 4
	loopCommit = 16_384
)

func shardLoop(b *testing.B, keys int) {
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	budget := store.NewBudget(256 << 20)
	budget.Expect(loopShards)
	b.Cleanup(budget.Close)
	var owners [loopShards]*store.Owner
	for i := range owners {
		c := memConfig(vfs.NewMem())
		c.Budget = budget
		owners[i] = open(b, c)
	}
	inc := add(1)
	r := rand.New(rand.NewPCG(1, 2))
	messages := make([]byte, 0, 10<<20)
	for range cap(messages) / 10 {
		messages = fmt.Appendf(messages, "k%09d", r.IntN(keys/loopShards)*loopShards)
	}
	var logged, published []store.Change
	var values []byte
	at := 0
	step := func(o *store.Owner) {
		tx := o.Transaction()
		for range loopCommit {
			if at == len(messages) {
				at = 0
			}
			if _, err := counts.Update(tx, string(messages[at:at+10]), inc); err != nil {
				b.Fatal(err)
			}
			at += 10
		}
		published, values = published[:0], values[:0]
		for k, c := range counts.Changes(tx) {
			n := len(values)
			values = append(binary.BigEndian.AppendUint64(values, uint64(c.New)), k...)
			published = append(published, store.Change{Key: values[n+8:], Value: values[n : n+8]})
		}
		changes, err := o.Seal()
		must(b, err)
		logged = append(logged[:0], changes...)
		must(b, o.Apply([]byte("p")))
	}
	for range 2 + 3*keys/loopCommit/loopShards {
		for _, o := range owners {
			step(o)
		}
	}
	i := 0
	b.ReportAllocs()
	b.ResetTimer()
	end := reportCPU(b)
	for b.Loop() {
		step(owners[i%loopShards])
		i++
	}
	end(loopCommit)
}

// Keys that were never there, against a database of a million: what a cold
// stream pays.
func BenchmarkGetAbsent(b *testing.B) {
	o := benchOwner(b)
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
	end := reportCPU(b)
	for b.Loop() {
		_, _, err := counts.Get(tx, fmt.Sprintf("key-%08d", r.IntN(1_000_000)*2+1))
		must(b, err)
		if i++; i%10_000 == 0 {
			o.Abort()
		}
	}
	end(1)
}

// Polls of 10,000 messages whose keys are cold and there, of a million in a
// database that a cache of a tenth of it is before: one by one, and read ahead.
func BenchmarkColdPoll(b *testing.B) {
	for _, ahead := range []bool{false, true} {
		b.Run(fmt.Sprintf("ahead=%v", ahead), func(b *testing.B) {
			c := memConfig(vfs.NewMem())
			c.Options.TableCache = 4 << 20
			o := open(b, c)
			l := o.NewLoader()
			for i := range 1_000_000 {
				must(b, l.Set(fmt.Appendf(nil, "\x02\x06countskey-%08d", i), []byte{2, 0, 2}))
				if l.Size() > 4<<20 {
					must(b, l.Commit(nil))
				}
			}
			must(b, l.Commit(nil))
			must(b, o.Flush())
			r := rand.New(rand.NewPCG(1, 2))
			ks, inc := make([]string, 10_000), add(1)
			end := reportCPU(b)
			for b.Loop() {
				for i := range ks {
					ks[i] = fmt.Sprintf("key-%08d", r.IntN(1_000_000))
				}
				if ahead {
					must(b, counts.Prefetch(o.Transaction(), ks))
				}
				for _, k := range ks {
					if _, err := counts.Update(o.Transaction(), k, inc); err != nil {
						b.Fatal(err)
					}
				}
				commit(b, o, "p")
			}
			end(10_000)
		})
	}
}

// Opening a database that exists: its version is read first, with nothing
// written, and then it is opened.
func BenchmarkReopen(b *testing.B) {
	c := memConfig(vfs.NewMem())
	o := open(b, c)
	must(b, o.Transaction().Put([]byte("k"), nil))
	commit(b, o, "1")
	must(b, o.Close())
	end := reportCPU(b)
	for b.Loop() {
		o, err := store.Open(c)
		must(b, err)
		must(b, o.Close())
	}
	end(1)
}
