package broker

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/twmb/franz-go/pkg/kgo"
)

// latestOf folds records to the last value of each key.
func latestOf(recs []*kgo.Record) map[string]string {
	m := make(map[string]string)
	for _, r := range recs {
		if r.Value == nil {
			delete(m, string(r.Key))
		} else {
			m[string(r.Key)] = string(r.Value)
		}
	}
	return m
}

// fillCompacted writes keys again and again: with every codec, tombstones,
// transactions that commit and that abort.
func (k *kit) fillCompacted(rng *rand.Rand, topic string, n int) map[string]string {
	k.Helper()
	want := make(map[string]string)
	codecs := []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()}
	for i := range n {
		cl := k.client(manual(), kgo.TransactionalID("filler"), kgo.ProducerBatchCompression(codecs[i%len(codecs)]))
		for round := range 4 {
			if err := cl.BeginTransaction(); err != nil {
				k.Fatal(err)
			}
			commit := rng.IntN(4) > 0
			var recs []*kgo.Record
			for range 1 + rng.IntN(8) {
				r := &kgo.Record{Topic: topic, Key: fmt.Appendf(nil, "key-%d", rng.IntN(20)), Value: fmt.Appendf(nil, "value-%d-%d-%d", i, round, rng.Uint64())}
				if rng.IntN(5) == 0 {
					r.Value = nil
				}
				recs = append(recs, r)
				if commit && r.Value == nil {
					delete(want, string(r.Key))
				} else if commit {
					want[string(r.Key)] = string(r.Value)
				}
			}
			if err := cl.ProduceSync(k.ctx, recs...).FirstErr(); err != nil {
				k.Fatal(err)
			}
			if err := cl.EndTransaction(k.ctx, kgo.TransactionEndTry(commit)); err != nil {
				k.Fatal(err)
			}
		}
		cl.Close()
	}
	return want
}

func (k *kit) wantLatest(what, topic string, want map[string]string) []*kgo.Record {
	k.Helper()
	recs := k.records(topic, 0, true)
	if got := latestOf(recs); !maps.Equal(got, want) {
		k.Errorf("%s: %d keys, want %d: got %v, want %v", what, len(got), len(want), got, want)
	}
	last := int64(-1)
	for _, r := range recs {
		if r.Offset <= last {
			k.Errorf("%s: offset %d after %d", what, r.Offset, last)
		}
		last = r.Offset
	}
	return recs
}

// Compaction keeps the last committed value of each key, whatever is written
// in between and wherever the power is cut.
func TestB5CompactionSurvivesPowerCuts(t *testing.T) {
	s := seed(t)
	rng := rand.New(rand.NewPCG(s, 5))
	mem := vfs.NewCrashableMem()
	var mu sync.Mutex
	var cuts []*vfs.MemFS
	cutting := false
	c := quiet()
	c.fs = &boundaryFS{mem, func() {
		mu.Lock()
		defer mu.Unlock()
		if cutting && len(cuts) < 60 {
			cuts = append(cuts, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[rng.IntN(3)], RNG: rand.New(rand.NewPCG(rng.Uint64(), 2))}))
		}
	}}
	c.janitor = func(_ *Broker, stop chan struct{}) { <-stop } // the test is the janitor
	k := start(t, c)
	k.create("log", 1, "cleanup.policy", "compact", "segment.bytes", "1500", "min.cleanable.dirty.ratio", "0.01")
	want := k.fillCompacted(rng, "log", 10)
	before := len(k.wantLatest("before", "log", want))
	mu.Lock()
	cutting = true
	mu.Unlock()
	at := now()
	k.compactAll(context.Background(), at)
	mu.Lock()
	cutting = false
	mu.Unlock()
	after := len(k.wantLatest("after", "log", want))
	if after > before/2 {
		t.Errorf("%d records are left of %d", after, before)
	}
	k.restart()
	k.wantLatest("after a restart", "log", want)
	k.compactAll(context.Background(), at+86_400_001)
	recs := k.wantLatest("a day after", "log", want)
	tombstones := 0
	closed := k.closedUpTo("log")
	for _, r := range recs {
		if r.Value == nil && r.Offset < closed {
			tombstones++
		}
	}
	if tombstones > 0 {
		t.Errorf("%d tombstones are left after a day", tombstones)
	}
	if all := k.records("log", 0, false); len(all) != len(recs) && latestDiffers(all, recs, closed) {
		t.Errorf("aborted records are left: %d, and %d committed", len(all), len(recs))
	}
	if len(cuts) < 5 {
		t.Fatalf("only %d power cuts", len(cuts))
	}
	for i, fs := range cuts {
		c := quiet()
		c.fs = fs
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			k := start(t, c)
			k.wantLatest("after the cut", "log", want)
			k.compactAll(context.Background(), now())
			k.wantLatest("after it went on", "log", want)
		})
	}
	if t.Failed() {
		t.Logf("PAWL_SEED=%d", s)
	}
}

// closedUpTo is where the chunk begins that is still appended to.
func (k *kit) closedUpTo(topic string) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mu.topics[topic].partitions[0].active().base
}

// latestDiffers says whether there are records in all, below an offset, that
// are not in some.
func latestDiffers(all, some []*kgo.Record, below int64) bool {
	in := make(map[int64]bool)
	for _, r := range some {
		in[r.Offset] = true
	}
	return slices.ContainsFunc(all, func(r *kgo.Record) bool { return r.Offset < below && !in[r.Offset] })
}

// Retention by bytes and by time deletes whole chunks, and gives their bytes
// back on disk.
func TestRetention(t *testing.T) {
	c := Config{Logger: quiet().Logger, Memory: memoryMin, janitor: func(_ *Broker, stop chan struct{}) { <-stop }}
	k := start(t, c)
	k.create("big", 2, "segment.bytes", "1000000", "retention.bytes", "4000000")
	cl := k.client(manual(), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerBatchMaxBytes(1_000_000))
	value := random(64 << 10)
	for i := range 800 { // 52 MB
		cl.Produce(k.ctx, &kgo.Record{Topic: "big", Partition: int32(i % 2), Value: value}, nil)
	}
	if err := cl.Flush(k.ctx); err != nil {
		t.Fatal(err)
	}
	if err := k.db.Flush(); err != nil {
		t.Fatal(err)
	}
	valuesBefore := k.valueBytes()
	k.retain(now())
	k.reclaimNow(k.ctx)
	got := k.Snapshot()
	for _, p := range got.Topics[0].Partitions {
		if p.Bytes < 4_000_000 || p.Bytes > 5_100_000 || p.Start == 0 || p.End != 400 {
			t.Errorf("partition %+v, want between 4 and 5.1 MB", p)
		}
	}
	// Files of values are given back whole, or rewritten once they are half a
	// minute old: the last ones hold some that is deleted. Beside them there are
	// logs, which are used again.
	for range 100 {
		if k.valueBytes() < valuesBefore/2 {
			break
		}
		waitFor(k.ctx, 50*time.Millisecond) // the storage deletes files a little later
	}
	if got := k.valueBytes(); got >= valuesBefore/2 {
		t.Errorf("%d bytes of values are on disk, of %d before:\n%s", got, valuesBefore, k.db.Metrics())
	}
	k.restart()
	if got := len(k.records("big", 0, true)); int64(got) != 400-k.offset("big", 0, listEarliest, true) {
		t.Errorf("%d records after a restart", got)
	}
	if err := k.Broker.each(prefixChunk, func(key, _ []byte) error { return nil }); err != nil {
		t.Error(err)
	}
}

// valueBytes is how many bytes the files have that batches are in.
func (k *kit) valueBytes() (n int64) {
	k.Helper()
	files, err := filepath.Glob(filepath.Join(k.dir, dataDir, "*.blob"))
	if err != nil {
		k.Fatal(err)
	}
	for _, f := range files {
		if info, err := os.Stat(f); err == nil { // it may be gone by now
			n += info.Size()
		}
	}
	return n
}

func waitFor(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

func TestRetentionByTime(t *testing.T) {
	c := quiet()
	c.janitor = func(_ *Broker, stop chan struct{}) { <-stop }
	k := start(t, c)
	k.create("old", 1, "segment.bytes", "200", "retention.ms", "1000", "message.timestamp.after.max.ms", fmt.Sprint(int64(noMax)))
	cl := k.client(manual())
	k.produceTo(cl, "old", 0, numbered("a", 10)...)
	// One that claims to be of another century, as those do that count in
	// microseconds, holds nothing up.
	r := &kgo.Record{Topic: "old", Key: []byte("k"), Value: []byte("future"), Timestamp: time.Now().AddDate(3000, 0, 0)}
	if err := cl.ProduceSync(k.ctx, r).FirstErr(); err != nil {
		t.Fatal(err)
	}
	x := k.rawProducer("x")
	if _, err := x.produce("old", 0, "open"); err != nil {
		t.Fatal(err)
	}
	k.produceTo(cl, "old", 0, numbered("b", 10)...)
	k.retain(now())
	if got := k.offset("old", 0, listEarliest, false); got != 0 {
		t.Errorf("start %d before the time, want 0", got)
	}
	k.retain(now() + 5000)
	if got := k.offset("old", 0, listEarliest, false); got == 0 || got > 11 {
		t.Errorf("start %d with a transaction open from 11 on, want as far as that", got)
	}
	if err := x.end(true); err != nil {
		t.Fatal(err)
	}
	k.retain(now() + 5000)
	if got := k.offset("old", 0, listEarliest, false); got != 23 {
		t.Errorf("start %d, want 23, the end", got)
	}
	if o := k.produceTo(cl, "old", 0, "again"); o[0] != 23 {
		t.Errorf("offset %d, want 23", o[0])
	}
	k.restart()
	if got := k.read("old", 0, true); !slices.Equal(got, []string{"again"}) {
		t.Errorf("read %q", got)
	}
}

// Opening reads what is known about the data, and not the data.
func TestB4OpenDoesNotReadData(t *testing.T) {
	counter := &readCounter{FS: vfs.NewMem()}
	c := quiet()
	c.fs = counter
	k := start(t, c)
	k.create("big", 4)
	cl := k.client(manual(), kgo.ProducerBatchCompression(kgo.NoCompression()))
	value := random(32 << 10)
	fill := func() int64 {
		for i := range 200 {
			cl.Produce(k.ctx, &kgo.Record{Topic: "big", Partition: int32(i % 4), Value: value}, nil)
		}
		if err := cl.Flush(k.ctx); err != nil {
			t.Fatal(err)
		}
		k.restart() // flushes
		if err := k.Broker.Close(); err != nil {
			t.Fatal(err)
		}
		counter.bytes.Store(0)
		k.open()
		cl = k.client(manual(), kgo.ProducerBatchCompression(kgo.NoCompression()))
		return counter.bytes.Load()
	}
	first := fill()
	for range 3 {
		fill()
	}
	if last := fill(); last > first+1<<20 {
		t.Errorf("opening read %d bytes of 33 MB, and %d of 7 MB", last, first)
	}
}
