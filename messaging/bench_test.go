package messaging_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pawlstream/pawl"
	"github.com/pawlstream/pawl/broker"
	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/messaging"
)

// loaded is a topic with messages in it, on the Kafka that PAWL_TEST_KAFKA
// names or on the embedded broker.
type loaded struct {
	cl    cluster.Cluster
	admin *kafka.Admin
	name  string
	app   string
}

const benchPartitions = 4

func newLoaded(tb testing.TB) *loaded {
	tb.Helper()
	l := &loaded{}
	if addr := os.Getenv("PAWL_TEST_KAFKA"); addr != "" {
		l.cl = cluster.Cluster{Brokers: strings.Split(addr, ",")}
	} else {
		b, err := broker.Open(tb.TempDir(), broker.Config{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() {
			if err := b.Close(); err != nil {
				tb.Error(err)
			}
		})
		l.cl = b.Cluster()
	}
	admin, err := kafka.NewAdmin(kafka.Config{Cluster: l.cl})
	if err != nil {
		tb.Fatal(err)
	}
	l.admin = admin
	l.app = fmt.Sprintf("bench%d", time.Now().UnixNano())
	l.name = l.app + ".work"
	if _, err := admin.CreateTopic(context.Background(), kafka.TopicSpec{Name: l.name, Partitions: benchPartitions}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		all, err := admin.Topics(context.Background())
		if err != nil {
			tb.Error(err)
		}
		for name := range all {
			if strings.HasPrefix(name, l.app+".") {
				if err := admin.DeleteTopics(context.Background(), name); err != nil {
					tb.Error(err)
				}
			}
		}
		admin.Close()
	})
	return l
}

// zipf returns n keys, Zipf-distributed over so many different ones, and the
// share of the hottest.
func zipf(n, different int) (keys []string, hottest float64) {
	z := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.2, 10, uint64(different-1))
	counts := make(map[string]int)
	for range n {
		k := fmt.Sprint("key-", z.Uint64())
		keys = append(keys, k)
		counts[k]++
	}
	most := 0
	for _, c := range counts {
		most = max(most, c)
	}
	return keys, float64(most) / float64(n)
}

func (l *loaded) fill(tb testing.TB, keys []string) {
	tb.Helper()
	p, err := kafka.NewProducer(kafka.Config{Cluster: l.cl})
	if err != nil {
		tb.Fatal(err)
	}
	defer p.Close()
	value := make([]byte, 100)
	for chunk := range slices.Chunk(keys, 10_000) {
		recs := make([]kafka.Record, len(chunk))
		for i, k := range chunk {
			recs[i] = kafka.Record{Topic: l.name, Partition: -1, Key: []byte(k), Value: value}
		}
		if err := p.Publish(context.Background(), recs...); err != nil {
			tb.Fatal(err)
		}
	}
}

// reader is the plain client, which reads the topic from its beginning.
func (l *loaded) reader(tb testing.TB) *kgo.Client {
	tb.Helper()
	offsets := make(map[int32]kgo.Offset)
	for p := range int32(benchPartitions) {
		offsets[p] = kgo.NewOffset().At(0)
	}
	opts := []kgo.Opt{kgo.SeedBrokers(l.cl.Brokers...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{l.name: offsets}), kgo.FetchIsolationLevel(kgo.ReadCommitted())}
	if dial := l.cl.Dial; dial != nil {
		opts = append(opts, kgo.Dialer(dial))
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		tb.Fatal(err)
	}
	return cl
}

// raw reads n messages with the plain client, and does nothing with them. It
// returns how many a second that is, from when a third is read.
func (l *loaded) raw(tb testing.TB, n int) (rate float64) {
	tb.Helper()
	cl := l.reader(tb)
	defer cl.Close()
	var start time.Time
	read, from := 0, 0
	for read < n {
		fs := cl.PollFetches(context.Background())
		if err := fs.Err(); err != nil {
			tb.Fatal(err)
		}
		read += fs.NumRecords()
		if start.IsZero() && read >= n/3 {
			start, from = time.Now(), read
		}
	}
	return float64(read-from) / time.Since(start).Seconds()
}

// run runs a worker until n messages are acked, and returns how many a second
// that is. It counts from when a third is acked: by then all partitions run.
func (l *loaded) run(tb testing.TB, cfg messaging.Config, n int, h messaging.Handler) (rate float64) {
	tb.Helper()
	cfg.Cluster, cfg.Topic, cfg.Application = l.cl, l.name, l.app
	cfg.Consumer = fmt.Sprintf("c%d", time.Now().UnixNano())
	cfg.Logger = slog.New(slog.DiscardHandler)
	w, err := messaging.New(cfg, h)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	var start time.Time
	from := int64(0)
	for acked := int64(0); acked < int64(n); acked = w.Stats().Acked {
		if start.IsZero() && acked >= int64(n/3) {
			start, from = time.Now(), acked
		}
		<-look.C
	}
	rate = float64(int64(n)-from) / time.Since(start).Seconds()
	cancel()
	if err := <-done; err != nil {
		tb.Fatal(err)
	}
	return rate
}

// plain reads with the plain client for a while, from the beginning, and does
// 1 ms of simulated work for each message in its turn. It returns how many a
// second that is.
func (l *loaded) plain(tb testing.TB, within time.Duration) (rate float64) {
	tb.Helper()
	cl := l.reader(tb)
	defer cl.Close()
	var start time.Time
	n := 0
	for {
		fs := cl.PollRecords(context.Background(), 500)
		if err := fs.Err(); err != nil {
			tb.Fatal(err)
		}
		if start.IsZero() {
			start = time.Now()
		}
		for range fs.Records() {
			time.Sleep(time.Millisecond) // real time: the work that is measured
			n++
			if took := time.Since(start); took >= within {
				return float64(n) / took.Seconds()
			}
		}
	}
}

// BenchmarkNoWork compares the rate of handlers that do nothing with that of
// the plain client that reads and does nothing, turn by turn in one run, in a
// process tuned as pawl.Work tunes it. It reports medians, and how long
// processors work for a message, the embedded broker's share included: which a
// machine that has more to do changes least.
func BenchmarkNoWork(b *testing.B) {
	const n = 1_500_000
	b.Cleanup(pawl.TuneGC(512 << 20))
	l := newLoaded(b)
	keys, _ := zipf(n, 10_000)
	l.fill(b, keys)
	l.raw(b, n) // once to warm up
	nothing := func(context.Context, messaging.Delivery) error { return nil }
	for _, order := range []messaging.Order{messaging.Unordered, messaging.ByKey} {
		b.Run(string(order), func(b *testing.B) {
			var raw, rates, shares, rawWork, work, workShares []float64
			for b.Loop() {
				before := cpuTime(b)
				r := l.raw(b, n)
				rw := perMessage(b, before, n)
				before = cpuTime(b)
				rate := l.run(b, messaging.Config{Order: order}, n, nothing)
				w := perMessage(b, before, n)
				raw, rates, shares = append(raw, r), append(rates, rate), append(shares, 100*rate/r)
				rawWork, work, workShares = append(rawWork, rw), append(work, w), append(workShares, 100*rw/w)
				b.Logf("raw %.0f/s, %.3f µs; %s %.0f/s, %.3f µs: %.0f %% of the rate, %.0f %% for each second of a processor", r, rw, order, rate, w, 100*rate/r, 100*rw/w)
			}
			b.ReportMetric(median(raw), "raw/s")
			b.ReportMetric(median(rates), "msgs/s")
			b.ReportMetric(median(shares), "%-of-raw")
			b.ReportMetric(median(rawWork), "raw-cpu-µs")
			b.ReportMetric(median(work), "cpu-µs")
			b.ReportMetric(median(workShares), "%-of-raw-per-cpu")
		})
	}
}

// cpuTime is how long processors have worked for this process.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

func perMessage(tb testing.TB, since time.Duration, n int) (us float64) {
	tb.Helper()
	return float64((cpuTime(tb) - since).Nanoseconds()) / 1000 / float64(n)
}

func median(vs []float64) float64 {
	vs = slices.Sorted(slices.Values(vs))
	return vs[len(vs)/2]
}

func medianTime(ds []time.Duration) time.Duration {
	ds = slices.Sorted(slices.Values(ds))
	return ds[len(ds)/2]
}

// BenchmarkZipf has 1 ms of simulated work a message and Zipf-distributed keys
// that arrive, whatever is done with them, at 80 % of the bound: the lesser of
// the concurrency and 1 / the share of the hottest key, ÷ the work as measured.
// The p99 is from arrival to the end of the work. The plain client, which does
// the same work for one message after the other, is the baseline.
func BenchmarkZipf(b *testing.B) {
	const concurrency = 64
	for b.Loop() {
		keys, hottest := zipf(20_000, 1000)
		work := time.Duration(0)
		const samples = 50
		for range samples {
			start := time.Now()
			time.Sleep(time.Millisecond) // real time: the work that is measured
			work += time.Since(start) / samples
		}
		bound := min(concurrency, 1/hottest) / work.Seconds()
		rate := 0.8 * bound
		l := newLoaded(b)
		var mu sync.Mutex
		var took []time.Duration
		p, err := kafka.NewProducer(kafka.Config{Cluster: l.cl})
		if err != nil {
			b.Fatal(err)
		}
		n := min(len(keys), int(10*rate))
		start := time.Now()
		var sending sync.WaitGroup
		sending.Go(func() {
			sent := 0
			tick := time.NewTicker(2 * time.Millisecond)
			defer tick.Stop()
			for sent < n {
				<-tick.C
				due := min(n, int(time.Since(start).Seconds()*rate))
				if due <= sent {
					continue
				}
				recs := make([]kafka.Record, due-sent)
				now := time.Now().UTC().Format(time.RFC3339Nano)
				for i := range recs {
					recs[i] = kafka.Record{Topic: l.name, Partition: -1, Key: []byte(keys[sent+i]), Value: []byte(now)}
				}
				sent = due
				sending.Go(func() { // what is slow to be written does not slow down the arrivals
					if err := p.Publish(context.Background(), recs...); err != nil {
						b.Error(err)
					}
				})
			}
		})
		sustained := l.run(b, messaging.Config{Concurrency: concurrency}, n, func(_ context.Context, d messaging.Delivery) error {
			time.Sleep(time.Millisecond) // real time: the work that is measured
			at, err := time.Parse(time.RFC3339Nano, string(d.Value()))
			if err != nil {
				return err
			}
			mu.Lock()
			took = append(took, time.Since(at))
			mu.Unlock()
			return nil
		})
		sending.Wait()
		p.Close()
		// What is not sustained waits longer and longer.
		quarter := len(took) / 4
		early, late := medianTime(took[quarter:2*quarter]), medianTime(took[3*quarter:])
		holds, answer := late <= 2*early+50*time.Millisecond, "no"
		if holds {
			answer = "yes"
		}
		b.Logf("%.0f messages a second, 80 %% of the bound: sustained %s (half of them took %v at first, %v at the end)", rate, answer, early, late)
		if !holds {
			b.Errorf("the backlog grows at %.0f messages a second", rate)
		}
		slices.Sort(took)
		b.ReportMetric(bound, "bound/s")
		b.ReportMetric(sustained, "sustained/s")
		b.ReportMetric(float64(took[len(took)*99/100].Milliseconds()), "p99-ms")
		b.ReportMetric(float64(took[len(took)/2].Milliseconds()), "p50-ms")
		b.ReportMetric(l.plain(b, 3*time.Second), "plain-client/s")
		b.ReportMetric(100*sustained/rate, "%-of-arrivals")
	}
}
