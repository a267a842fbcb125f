package broker

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A benched is a broker of some kind that a benchmark runs on.
type benched struct {
	name string
	opts []kgo.Opt
	stop func()
	tidy func(b *testing.B) // ends what storing has left to be done; nil if nothing is
}

func benchBroker(b *testing.B, name string, c Config) benched {
	c.Logger = slog.New(slog.DiscardHandler)
	br, err := Open(b.TempDir(), c)
	if err != nil {
		b.Fatal(err)
	}
	cl := br.Cluster()
	return benched{name: name, opts: []kgo.Opt{kgo.SeedBrokers(cl.Brokers...), kgo.Dialer(cl.Dial)}, tidy: br.tidy, stop: func() {
		if err := br.Close(); err != nil {
			b.Error(err)
		}
	}}
}

func benchTCP(b *testing.B, name string, c Config) benched {
	c.Logger, c.Listen = slog.New(slog.DiscardHandler), "127.0.0.1:0"
	br, err := Open(b.TempDir(), c)
	if err != nil {
		b.Fatal(err)
	}
	return benched{name: name, opts: []kgo.Opt{kgo.SeedBrokers(br.Addr())}, tidy: br.tidy, stop: func() {
		if err := br.Close(); err != nil {
			b.Error(err)
		}
	}}
}

// tidy puts what is in memory into files.
func (br *Broker) tidy(b *testing.B) {
	if err := br.db.Flush(); err != nil {
		b.Error(err)
	}
}

func benchKfake(b *testing.B, name string, opts ...kfake.Opt) benched {
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		b.Fatal(err)
	}
	return benched{name: name, opts: []kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...)}, stop: c.Close}
}

func benchKafka() (benched, bool) {
	addr := os.Getenv("PAWL_TEST_KAFKA")
	return benched{name: "kafka", opts: []kgo.Opt{kgo.SeedBrokers(strings.Split(addr, ",")...)}, stop: func() {}}, addr != ""
}

func (t benched) client(b *testing.B, opts ...kgo.Opt) *kgo.Client {
	cl, err := kgo.NewClient(append(append([]kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DisableClientMetrics(), kgo.ProducerBatchCompression(kgo.NoCompression())}, t.opts...), opts...)...)
	if err != nil {
		b.Fatal(err)
	}
	return cl
}

func (t benched) topic(b *testing.B, partitions int32) string {
	cl := t.client(b)
	defer cl.Close()
	name := fmt.Sprintf("bench-%d", rand.Uint64())
	if _, err := kadm.NewClient(cl).CreateTopic(context.Background(), partitions, 1, nil, name); err != nil {
		b.Fatal(err)
	}
	return name
}

func random(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(rand.Uint32())
	}
	return p
}

// 32 producers, each of which waits for its message to be acked before it sends
// the next one: what sharing syncs is about.
func BenchmarkAcked32(b *testing.B) {
	for _, start := range []func(b *testing.B) (benched, bool){
		func(b *testing.B) (benched, bool) { return benchBroker(b, "synced", Config{}), true },
		func(b *testing.B) (benched, bool) { return benchBroker(b, "unsynced", Config{Unsynced: true}), true },
		func(b *testing.B) (benched, bool) {
			return benchKfake(b, "kfake-sync", kfake.DataDir(b.TempDir()), kfake.SyncWrites()), true
		},
		func(*testing.B) (benched, bool) { return benchKafka() },
	} {
		t, ok := start(b)
		if !ok {
			continue
		}
		b.Run(t.name, func(b *testing.B) {
			b.SetBytes(1024)
			written := procNumber(b, os.Getpid(), "io", "write_bytes:")
			all := t.ackers(b)
			defer all.close()
			before := cpuTime(b)
			b.ResetTimer()
			all.produce(b, b.N)
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "acks/s")
			b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
			if t.tidy != nil {
				t.tidy(b)
			}
			b.ReportMetric(float64(procNumber(b, os.Getpid(), "io", "write_bytes:")-written)/float64(b.N<<10), "written/byte")
		})
		t.stop()
	}
}

// ackers are 32 producers, with a partition each.
type ackers struct {
	topic   string
	clients []*kgo.Client
}

func (t benched) ackers(b *testing.B) ackers {
	const producers = 32
	all := ackers{topic: t.topic(b, producers)}
	for range producers {
		all.clients = append(all.clients, t.client(b, kgo.ProducerLinger(0)))
	}
	return all
}

// produce writes n messages, each of which waits for the last one of its
// producer to be acked.
func (a ackers) produce(b *testing.B, n int) {
	value := random(1024)
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for i, cl := range a.clients {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := cl.ProduceSync(context.Background(), &kgo.Record{Topic: a.topic, Partition: int32(i), Value: value}).FirstErr(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func (a ackers) close() {
	for _, cl := range a.clients {
		cl.Close()
	}
}

func eachBenched(b *testing.B, run func(b *testing.B, t benched)) {
	for _, start := range []func(b *testing.B) (benched, bool){
		func(b *testing.B) (benched, bool) { return benchBroker(b, "in-process", Config{}), true },
		func(b *testing.B) (benched, bool) { return benchTCP(b, "tcp", Config{}), true },
		func(b *testing.B) (benched, bool) { return benchKfake(b, "kfake"), true },
		func(b *testing.B) (benched, bool) {
			return benchKfake(b, "kfake-disk", kfake.DataDir(b.TempDir())), true
		},
		func(*testing.B) (benched, bool) { return benchKafka() },
	} {
		if t, ok := start(b); ok {
			b.Run(t.name, func(b *testing.B) { run(b, t) })
			t.stop()
		}
	}
}

// One producer that keeps many messages in flight.
func BenchmarkProduce(b *testing.B) {
	for _, size := range []int{100, 1024} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			eachBenched(b, func(b *testing.B, t benched) {
				b.SetBytes(int64(size))
				t.fill(b, t.topic(b, 8), size, b.N)
			})
		})
	}
}

func (t benched) fill(b *testing.B, name string, size, n int) {
	cl := t.client(b, kgo.MaxBufferedRecords(50_000), kgo.ProducerLinger(5*time.Millisecond))
	defer cl.Close()
	value := random(size)
	for i := range n {
		cl.Produce(context.Background(), &kgo.Record{Topic: name, Partition: int32(i / 512 % 8), Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				b.Error(err)
			}
		})
	}
	if err := cl.Flush(context.Background()); err != nil {
		b.Fatal(err)
	}
}

// Reading what is stored: from the beginning, once.
func BenchmarkConsume(b *testing.B) {
	for _, size := range []int{100, 1024} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			eachBenched(b, func(b *testing.B, t benched) {
				name := t.topic(b, 8)
				t.fill(b, name, size, b.N)
				if t.tidy != nil {
					t.tidy(b)
				}
				b.SetBytes(int64(size))
				before := cpuTime(b)
				b.ResetTimer()
				t.readAll(b, name, b.N)
				b.StopTimer()
				b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
			})
		})
	}
}

// Reading along: what was just written, by one consumer after the other.
func BenchmarkConsumeRecent(b *testing.B) {
	for _, size := range []int{100, 1024} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			eachBenched(b, func(b *testing.B, t benched) {
				n := (16 << 20) / (size + 30)
				name := t.topic(b, 8)
				t.fill(b, name, size, n)
				if t.tidy != nil {
					t.tidy(b)
				}
				b.SetBytes(int64(size))
				before := cpuTime(b)
				b.ResetTimer()
				for left := b.N; left > 0; left -= n {
					t.readAll(b, name, min(left, n))
				}
				b.StopTimer()
				b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
			})
		})
	}
}

// readAll reads n messages of a topic.
func (t benched) readAll(b *testing.B, name string, n int) {
	cl := t.client(b, kgo.ConsumeTopics(name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	defer cl.Close()
	for got := 0; got < n; {
		fs := cl.PollFetches(context.Background())
		if err := fs.Err(); err != nil {
			b.Fatal(err)
		}
		got += fs.NumRecords()
	}
}

// cpuTime is what this process has used so far: client and broker together,
// unless the broker is a process of its own.
func cpuTime(b testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A transaction of one message to each of 8 partitions; end-ms is how long its
// commit takes.
func BenchmarkTransaction(b *testing.B) {
	eachBenched(b, func(b *testing.B, t benched) {
		cl, name := t.transactor(b)
		defer cl.Close()
		var ends time.Duration
		for range b.N {
			ends += t.commit(b, cl, name)
		}
		b.ReportMetric(ends.Seconds()*1000/float64(b.N), "end-ms")
	})
}

// The longest that a producer waits for an ack, by itself and while a topic of
// 128 MB is compacted beside it: the latter fails if it is a tenth of a second more
// than the former, which is what a sync takes.
func BenchmarkCompactionStall(b *testing.B) {
	br, err := Open(b.TempDir(), Config{Logger: slog.New(slog.DiscardHandler), janitor: func(_ *Broker, stop chan struct{}) { <-stop }})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := br.Close(); err != nil {
			b.Error(err)
		}
	}()
	in := br.Cluster()
	t := benched{opts: []kgo.Opt{kgo.SeedBrokers(in.Brokers...), kgo.Dialer(in.Dial)}}
	beside := t.topic(b, 1)
	cl := t.client(b, kgo.ProducerLinger(0))
	defer cl.Close()
	value := random(1024)
	longest := func(until <-chan struct{}) (max time.Duration, n int) {
		for {
			select {
			case <-until:
				return max, n
			default:
			}
			begun := time.Now()
			if err := cl.ProduceSync(context.Background(), &kgo.Record{Topic: beside, Value: value}).FirstErr(); err != nil {
				b.Fatal(err)
			}
			if d := time.Since(begun); d > max {
				max = d
			}
			n++
		}
	}
	var alone, compacting time.Duration
	for range b.N {
		name := fmt.Sprintf("compacted-%d", rand.Uint64())
		if _, err := kadm.NewClient(cl).CreateTopic(context.Background(), 1, 1, map[string]*string{
			"cleanup.policy": kadm.StringPtr("compact"), "segment.bytes": kadm.StringPtr("16777216"), "min.cleanable.dirty.ratio": kadm.StringPtr("0.01"),
		}, name); err != nil {
			b.Fatal(err)
		}
		fill := t.client(b, kgo.MaxBufferedRecords(50_000), kgo.ProducerLinger(5*time.Millisecond))
		for i := range 128 << 10 {
			fill.Produce(context.Background(), &kgo.Record{Topic: name, Key: strconv.AppendInt(nil, int64(i%10_000), 10), Value: value}, nil)
		}
		if err := fill.Flush(context.Background()); err != nil {
			b.Fatal(err)
		}
		fill.Close()
		br.tidy(b)
		done := make(chan struct{})
		time.AfterFunc(2*time.Second, func() { close(done) })
		sync, _ := longest(done)
		alone += sync
		done = make(chan struct{})
		go func() {
			defer close(done)
			br.compactAll(context.Background(), now())
			br.reclaimNow(context.Background())
		}()
		max, n := longest(done)
		compacting += max
		if max > sync+100*time.Millisecond {
			b.Errorf("a producer waits for %v while a topic is compacted, and %v by itself", max, sync)
		}
		b.ReportMetric(float64(n), "acks-meanwhile")
	}
	b.ReportMetric(float64(alone.Milliseconds())/float64(b.N), "alone-max-ms")
	b.ReportMetric(float64(compacting.Milliseconds())/float64(b.N), "compacting-max-ms")
}

// Opening after kill -9, with PAWL_BENCH_MB of messages of 1 KiB stored: how
// long it takes, and what the process takes then; and how much the broker had
// written for each byte of messages.
func BenchmarkReopen(b *testing.B) {
	mb := 256
	if text := os.Getenv("PAWL_BENCH_MB"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		mb = n
	}
	settings := childSettings{Dir: b.TempDir(), Memory: memoryDefault}
	c := startChild(b, settings, "")
	t := benched{opts: []kgo.Opt{kgo.SeedBrokers(c.addr)}}
	name := t.topic(b, 8)
	t.fill(b, name, 1024, mb<<10)
	written := procNumber(b, c.cmd.Process.Pid, "io", "write_bytes:")
	c.kill()
	stored := int64(0)
	if err := filepath.Walk(settings.Dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			stored += info.Size()
		}
		return err
	}); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	for range b.N {
		c := startChild(b, settings, "")
		b.StopTimer()
		b.ReportMetric(float64(procNumber(b, c.cmd.Process.Pid, "status", "VmHWM:"))/1024, "peak-MB")
		c.kill()
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "open-ms")
	b.ReportMetric(float64(written)/float64(mb<<20), "written/byte")
	b.ReportMetric(float64(stored)/(1<<20), "stored-MB")
}

// procText reads what the operating system says of a process.
func procText(b testing.TB, pid int, file string) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		b.Skipf("needs /proc: %v", err) // the figures of a process are read there
	}
	return string(text)
}

// resident returns how many bytes of a process of this program are resident, but
// for those in which the race detector keeps what it knows of the others: its
// shadow is mapped at fixed addresses, and the heap, with it, at others.
func resident(b testing.TB, pid int) (bytes int64) {
	if !raced {
		return procNumber(b, pid, "status", "VmRSS:") << 10
	}
	const shadow, end = 0x2000_0000_0000, 0x4000_0000_0000
	var start uint64
	for line := range strings.Lines(procText(b, pid, "smaps")) {
		if rss, ok := strings.CutPrefix(line, "Rss:"); ok {
			kB, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rss), "kB")), 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			if start < shadow || start >= end {
				bytes += kB << 10
			}
		} else if from, _, ok := strings.Cut(line, "-"); ok {
			if at, err := strconv.ParseUint(from, 16, 64); err == nil { // a mapping begins
				start = at
			}
		}
	}
	if bytes == 0 {
		b.Fatalf("smaps of process %d says of no memory that it is resident", pid)
	}
	return bytes
}

// procNumber reads a number of a process from the operating system.
func procNumber(b testing.TB, pid int, file, field string) int64 {
	_, rest, ok := strings.Cut(procText(b, pid, file), field)
	if !ok {
		b.Fatalf("%s has no %s", file, field)
	}
	n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}
