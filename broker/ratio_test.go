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
	fakeSync  = contender{"kfake-sync", func(b *testing.B) benched {
		return benchKfake(b, "", kfake.DataDir(b.TempDir()), kfake.SyncWrites())
	}}
)

// ratioRounds is how often each takes its turn. What other programs do
// meanwhile hits all of them alike, and the median is what counts.
const ratioRounds = 3

// compare lets contenders take turns, each on a broker of its own that begins
// empty, and returns their median rates.
func compare(b *testing.B, rate func(b *testing.B, t benched) float64, all ...contender) map[string]float64 {
	rates := make(map[string][]float64)
	for round := range ratioRounds {
		for i := range all {
			c := all[(i+round)%len(all)]
			t := c.start(b)
			rates[c.name] = append(rates[c.name], rate(b, t))
			t.stop()
		}
	}
	medians := make(map[string]float64)
	for name, of := range rates {
		slices.Sort(of)
		medians[name] = of[len(of)/2]
		b.Logf("%s: %.3g of %.3g a second", name, medians[name], of)
	}
	return medians
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
					rates := compare(b, func(b *testing.B, t benched) float64 { return t.consumeRate(b, size, n, recent) }, inProcess, overTCP, fake)
					b.ReportMetric(rates["in-process"]/rates["kfake"], "in-process/kfake")
					b.ReportMetric(rates["tcp"]/rates["kfake"], "tcp/kfake")
				}
			})
		}
	}
	b.Run("Acked32", func(b *testing.B) {
		for range b.N {
			rates := compare(b, func(b *testing.B, t benched) float64 { return t.ackRate(b, 10_000) }, inProcess, unsynced, fakeSync)
			b.ReportMetric(rates["in-process"]/rates["unsynced"], "synced/unsynced")
			b.ReportMetric(rates["in-process"]/rates["kfake-sync"], "synced/kfake-sync")
		}
	})
}

// consumeRate is how many messages a second a consumer reads: of what is stored,
// once from the beginning, or of what was written last, again and again.
func (t benched) consumeRate(b *testing.B, size, n int, recent bool) float64 {
	name, each := t.topic(b, 8), n
	if recent {
		each = (16 << 20) / (size + 30)
	}
	t.fill(b, name, size, each)
	if t.tidy != nil {
		t.tidy(b)
	}
	runtime.GC() // nobody pays for what another one left
	begun := time.Now()
	for left := n; left > 0; left -= each {
		t.readAll(b, name, min(left, each))
	}
	return float64(n) / time.Since(begun).Seconds()
}
