package broker

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// party is a broker that takes part in the table. What a process of its own takes
// is told apart from what the client takes.
type party struct {
	benched
	pid int // 0 if it is in this process
}

// row prepares what is measured, and returns how many it is of, and what does it.
type row struct {
	name string
	run  func(p party) (n int, do func())
}

// cell is what one party did in one row: how many a second, and what client and
// broker took of a processor for each.
type cell struct{ rate, client, broker float64 }

// BenchmarkTable compares the embedded broker with Apache Kafka, where
// PAWL_TEST_KAFKA says that there is one, and prints a table: producing and
// consuming, transactions, processors and memory. They take turns.
func BenchmarkTable(b *testing.B) {
	if b.N > 1 {
		return // it has been printed
	}
	own := startChild(b, childSettings{Dir: b.TempDir(), Memory: memoryDefault}, "")
	parties := []party{
		{benchBroker(b, "in process", Config{}), 0},
		{benched{name: "process of its own", opts: []kgo.Opt{kgo.SeedBrokers(own.addr)}, stop: own.kill}, own.cmd.Process.Pid},
	}
	if k, ok := benchKafka(); ok {
		pid, err := strconv.Atoi(os.Getenv("PAWL_TEST_KAFKA_PID"))
		if err != nil {
			b.Fatalf("PAWL_TEST_KAFKA_PID: %v", err)
		}
		k.name = "Kafka"
		parties = append(parties, party{k, pid})
	}
	var rows []row
	for _, size := range []int{100, 1024} {
		n := (100 << 20) / size
		if size < 1024 {
			n /= 2
		}
		topics := make(map[string]string)
		rows = append(rows, row{fmt.Sprintf("produce %d B", size), func(p party) (int, func()) {
			name := p.topic(b, 8)
			topics[p.name] = name
			return n, func() { p.fill(b, name, size, n) }
		}}, row{fmt.Sprintf("consume %d B", size), func(p party) (int, func()) {
			return n, func() { p.readAll(b, topics[p.name], n) }
		}})
	}
	rows = append(rows, row{"transactions over 8 partitions", func(p party) (int, func()) {
		const n = 100
		cl, name := p.transactor(b)
		return n, func() {
			defer cl.Close()
			for range n {
				p.commit(b, cl, name)
			}
		}
	}})
	text := &strings.Builder{}
	fmt.Fprint(text, "| a second; µs of client + broker for each |")
	for _, p := range parties {
		fmt.Fprintf(text, " %s |", p.name)
	}
	fmt.Fprint(text, "\n|---|"+strings.Repeat("--:|", len(parties))+"\n")
	for _, r := range rows {
		cells := make([][]cell, len(parties))
		for round := range ratioRounds {
			for i := range parties {
				at := (i + round) % len(parties)
				p := parties[at]
				n, run := r.run(p)
				client, broker, begun := cpuTime(b), p.cpuTime(b), time.Now()
				run()
				each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(n) }
				cells[at] = append(cells[at], cell{float64(n) / time.Since(begun).Seconds(), each(cpuTime(b) - client), each(p.cpuTime(b) - broker)})
			}
		}
		fmt.Fprintf(text, "| %s |", r.name)
		for i, p := range parties {
			c := cells[i]
			mid := func(of func(cell) float64) float64 {
				slices.SortFunc(c, func(x, y cell) int { return cmp.Compare(of(x), of(y)) })
				return of(c[len(c)/2])
			}
			fmt.Fprintf(text, " %.0f; %.2f", mid(func(c cell) float64 { return c.rate }), mid(func(c cell) float64 { return c.client })/1000)
			if p.pid != 0 {
				fmt.Fprintf(text, " + %.2f", mid(func(c cell) float64 { return c.broker })/1000)
			}
			fmt.Fprint(text, " |")
		}
		fmt.Fprintln(text)
	}
	fmt.Fprint(text, "| memory of the process at most, MiB |")
	for _, p := range parties {
		pid := p.pid
		if pid == 0 {
			pid = os.Getpid()
		}
		fmt.Fprintf(text, " %d |", procNumber(b, pid, "status", "VmHWM:")/1024)
		p.stop()
	}
	fmt.Printf("\n%s\n\nThe memory in process is the client's too.\n", text)
}

// cpuTime is what the process of a party has taken, if it has one of its own.
func (p party) cpuTime(b *testing.B) time.Duration {
	if p.pid == 0 {
		return 0
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	ticks := 0
	for _, f := range fields[11:13] { // user and system, in hundredths of a second
		n, err := strconv.Atoi(f)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// transactor returns a client that begins transactions, and a topic of 8
// partitions.
func (t benched) transactor(b *testing.B) (*kgo.Client, string) {
	name := t.topic(b, 8)
	return t.client(b, kgo.TransactionalID(name), kgo.ProducerLinger(0)), name
}

// commit runs a transaction of one message to each of 8 partitions, and says how
// long its commit took.
func (t benched) commit(b *testing.B, cl *kgo.Client, name string) time.Duration {
	if err := cl.BeginTransaction(); err != nil {
		b.Fatal(err)
	}
	var recs []*kgo.Record
	for p := range int32(8) {
		recs = append(recs, &kgo.Record{Topic: name, Partition: p, Value: []byte("v")})
	}
	if err := cl.ProduceSync(context.Background(), recs...).FirstErr(); err != nil {
		b.Fatal(err)
	}
	begun := time.Now()
	if err := cl.EndTransaction(context.Background(), kgo.TryCommit); err != nil {
		b.Fatal(err)
	}
	return time.Since(begun)
}

// commitMax is how much longer than a sync a commit may take.
const commitMax = 2 * time.Millisecond

// commitsBesideSync lets brokers take turns committing, beside syncs of a file of
// the same file system, and fails if a median takes longer than it may. The file
// is written over in place, as the log is, which a sync has the least to do for.
func commitsBesideSync(b *testing.B, all ...benched) {
	f, err := os.Create(filepath.Join(b.TempDir(), "synced"))
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			b.Error(err)
		}
	}()
	var run []func() time.Duration
	for _, t := range all {
		cl, name := t.transactor(b)
		defer cl.Close()
		run = append(run, func() time.Duration { return t.commit(b, cl, name) })
	}
	page := make([]byte, 4096)
	var syncs []time.Duration
	commits := make([][]time.Duration, len(all))
	for range 300 {
		begun := time.Now()
		if _, err := f.WriteAt(page, 0); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
		syncs = append(syncs, time.Since(begun))
		for i := range run {
			commits[i] = append(commits[i], run[i]())
		}
	}
	at := func(of []time.Duration, percent int) time.Duration {
		slices.Sort(of)
		return of[len(of)*percent/100]
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(ms(at(syncs, 50)), "sync-p50-ms")
	b.ReportMetric(ms(at(syncs, 99)), "sync-p99-ms")
	for i, t := range all {
		for _, percent := range []int{50, 99} {
			c, s := at(commits[i], percent), at(syncs, percent)
			b.ReportMetric(ms(c), fmt.Sprintf("%s-p%d-ms", t.name, percent))
			if c > s+commitMax {
				say := b.Logf
				if percent == 50 {
					say = b.Errorf // what else runs on the machine moves the 99th
				}
				say("%s: a commit over 8 partitions takes %v (p%d), more than a sync's %v and %v", t.name, c, percent, s, commitMax)
			}
		}
	}
}
