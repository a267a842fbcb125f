package broker

import (
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// contender is a kind of broker that takes part in a comparison.
type contender struct {
	name  string
	start func(b *testing.B) benched
}

var (
	inProcess = contender{"in-process", func(b *testing.B) benched { return benchBroker(b, "", Config{}) }}
	overTCP   = contender{"tcp", func(b *testing.B) benched { return benchTCP(b, "", Config{}) }}
	unsynced  = contender{"unsynced", func(b *testing.B) benched { return benchBroker(b, "", Config{Unsynced: true}) }}
	fake      = contender{"kfake", func(b *testing.B) benched { return benchKfake(b, "") }}
	fakeDisk  = contender{"kfake-disk", func(b *testing.B) benched { return benchKfake(b, "", kfake.DataDir(b.TempDir())) }}
	fakeSync  = contender{"kfake-sync", func(b *testing.B) benched {
		return benchKfake(b, "", kfake.DataDir(b.TempDir()), kfake.SyncWrites())
	}}
)

// ratioRounds is how often each takes its turn. What other programs do
// meanwhile hits all of them alike, and the median is what counts.
const ratioRounds = 3

// pace is how fast something is done: how much a second, and what client and
// broker take of a processor for each, which other programs change less.
type pace struct{ rate, cpu float64 }

// compare lets contenders take turns, each on a broker of its own that begins
// empty, and returns the medians.
func compare(b *testing.B, run func(b *testing.B, t benched) pace, all ...contender) map[string]pace {
	paces := make(map[string][]pace)
	for round := range ratioRounds {
		for i := range all {
			c := all[(i+round)%len(all)]
			t := c.start(b)
			paces[c.name] = append(paces[c.name], run(b, t))
			t.stop()
		}
	}
	medians := make(map[string]pace)
	for name, of := range paces {
		var rates, cpus []float64
		for _, p := range of {
			rates, cpus = append(rates, p.rate), append(cpus, p.cpu)
		}
		slices.Sort(rates)
		slices.Sort(cpus)
		medians[name] = pace{rates[len(rates)/2], cpus[len(cpus)/2]}
		b.Logf("%s: %.3g of %.3g a second; %.0f of %.0f ns of a processor each", name, medians[name].rate, rates, medians[name].cpu, cpus)
	}
	return medians
}

// paced says how fast run does n things.
func paced(b *testing.B, n int, run func()) pace {
	runtime.GC() // nobody pays for what another one left
	before, begun := cpuTime(b), time.Now()
	run()
	return pace{float64(n) / time.Since(begun).Seconds(), float64((cpuTime(b) - before).Nanoseconds()) / float64(n)}
}

// The ratios that matter, each within one run: how the brokers do beside each
// other is what can be compared between machines.
func BenchmarkRatios(b *testing.B) {
	for _, size := range []int{100, 1024} {
		for _, recent := range []bool{false, true} {
			name, n := "ConsumeStored", (300<<20)/size
			if recent {
				name = "ConsumeRecent"
			}
			if size < 1024 {
				n /= 3
			}
			b.Run(name+"/"+strconv.Itoa(size), func(b *testing.B) {
				for range b.N {
					of := compare(b, func(b *testing.B, t benched) pace { return t.consume(b, size, n, recent) }, inProcess, overTCP, fake)
					b.ReportMetric(of["in-process"].rate/of["kfake"].rate, "in-process/kfake")
					b.ReportMetric(of["tcp"].rate/of["kfake"].rate, "tcp/kfake")
					b.ReportMetric(of["in-process"].cpu/of["kfake"].cpu, "cpu-in-process/kfake")
					b.ReportMetric(of["tcp"].cpu/of["kfake"].cpu, "cpu-tcp/kfake")
				}
			})
		}
	}
	b.Run("Commit8", func(b *testing.B) {
		for range b.N {
			var all []benched
			for _, c := range []contender{inProcess, overTCP} {
				t := c.start(b)
				t.name = c.name
				all = append(all, t)
			}
			commitsBesideSync(b, all...)
			for _, t := range all {
				t.stop()
			}
		}
	})
	b.Run("Acked32", func(b *testing.B) {
		const n = 10_000
		for range b.N {
			of := compare(b, func(b *testing.B, t benched) pace {
				all := t.ackers(b)
				defer all.close()
				return paced(b, n, func() { all.produce(b, n) })
			}, inProcess, unsynced, fakeSync, fakeDisk)
			b.ReportMetric(of["in-process"].rate/of["unsynced"].rate, "synced/unsynced")
			b.ReportMetric(of["in-process"].rate/of["kfake-sync"].rate, "synced/kfake-sync")
			// Neither waits for a disk: what the client and the processors allow.
			b.ReportMetric(of["unsynced"].rate/of["kfake-sync"].rate, "unsynced/kfake-sync")
			b.ReportMetric(of["kfake-disk"].rate/of["kfake-sync"].rate, "kfake-disk/kfake-sync")
		}
	})
}

// consume reads what is stored, once from the beginning, or what was written
// last, again and again.
func (t benched) consume(b *testing.B, size, n int, recent bool) pace {
	name, each := t.topic(b, 8), n
	if recent {
		each = (16 << 20) / (size + 30)
	}
	t.fill(b, name, size, each)
	if t.tidy != nil {
		t.tidy(b)
	}
	return paced(b, n, func() {
		for left := n; left > 0; left -= each {
			t.readAll(b, name, min(left, each))
		}
	})
}
