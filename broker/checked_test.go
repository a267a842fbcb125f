package broker

import (
	"bytes"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// spoil overwrites the middle of a value in the file of values that it lies in.
func (k *kit) spoil(value []byte) {
	k.Helper()
	names, err := k.config.fs.List(filepath.Join(k.dir, dataDir))
	if err != nil {
		k.Fatal(err)
	}
	for _, name := range names {
		name = filepath.Join(k.dir, dataDir, name)
		if filepath.Ext(name) != blobSuffix {
			continue
		}
		data := readWhole(k, k.config.fs, name)
		if at := bytes.Index(data, value); at >= 0 {
			copy(data[at+len(value)/2:], make([]byte, 500))
			writeWhole(k, k.config.fs, name, data)
			return
		}
	}
	k.Fatalf("a value of %d bytes is in none of %q", len(value), names)
}

// A big batch that is damaged costs itself, and no time: what is before and
// behind it is answered, it is answered by an error, and the log, the snapshot,
// the metrics and the warnings say which it is, once. The storage library would
// look for half a minute which bit of it has flipped, at each read.
func TestBigBatchDamaged(t *testing.T) {
	var log bytes.Buffer
	c := quiet()
	c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	k := start(t, c)
	k.create("big", 1, "max.message.bytes", "4000000")
	cl := k.client(kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerBatchMaxBytes(4_000_000))
	const values = 5
	for i := range values {
		if err := cl.ProduceSync(k.ctx, &kgo.Record{Topic: "big", Value: marked(uint64(i), 1<<20)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.db.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := k.Broker.Close(); err != nil {
		t.Fatal(err)
	}
	k.spoil(marked(2, 1<<20))
	k.open()

	before := cpuTime(t)
	for _, how := range []string{"directly", "by the library"} {
		if how == "by the library" {
			for range directMax {
				k.direct <- struct{}{}
			}
		}
		for at := range int64(values) {
			r := k.look("big", 0, at, newBudget(1<<30))
			if err := k.readPartition(k.ctx, r, r.max, true); err != nil {
				t.Fatal(err)
			}
			// It is read up to the damaged one.
			want, code := int(values-at), int16(0)
			switch {
			case at < 2:
				want = int(2 - at)
			case at == 2:
				want, code = 0, kerr.KafkaStorageError.Code
			}
			if got := len(r.records.pieces); got != want || r.resp.ErrorCode != code {
				t.Errorf("%s, at %d: %d batches and error %d, want %d and %d", how, at, got, r.resp.ErrorCode, want, code)
			}
			r.records.release()
		}
	}
	for range directMax {
		<-k.direct
	}
	// Consumers read all the rest.
	cl = k.client(kgo.RequestRetries(0))
	id, err := k.topicID(cl, "big")
	if err != nil {
		t.Fatal(err)
	}
	got, unreadable, err := k.readSalvaged(cl, id, 0, values)
	if err != nil || len(got) != values-1 || unreadable != 1 {
		t.Errorf("%d messages and %d errors are read, %v, want %d and 1", len(got), unreadable, err, values-1)
	}
	if got := cpuTime(t) - before; got > 10*time.Second {
		t.Errorf("it took %v of processor time", got)
	}

	if got, want := fmt.Sprint(k.Warnings()), "[partition big-0 can't be read at offset 2]"; got != want {
		t.Errorf("the warnings are %s, want %s", got, want)
	}
	if got := k.Snapshot().Topics[0].Partitions[0].Unreadable; fmt.Sprint(got) != "[2]" {
		t.Errorf("the snapshot has %d that can't be read, want [2]", got)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(k.Metrics())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool {
		return f.GetName() == "pawl_broker_partition_unreadable_batches"
	})
	if i < 0 || families[i].GetMetric()[0].GetGauge().GetValue() != 1 {
		t.Errorf("the metrics don't count 1 batch that can't be read: %v", families)
	}
	if err := k.Broker.Close(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n")
	if n := strings.Count(log.String(), "a batch can't be read"); n != 1 || len(lines) > 2 || len(log.String()) > 1000 {
		t.Errorf("the log says it %d times, in %d lines of %d bytes in all:\n%.3000s", n, len(lines), log.Len(), log.String())
	}
	k.open()
}

// What could be read in the end is not called unreadable any more, nor what was
// deleted.
func TestUnreadableNoMore(t *testing.T) {
	k := start(t, quiet())
	k.create("t", 1)
	k.produceTo(k.client(manual()), "t", 0, numbered("v", 10)...)
	p := k.look("t", 0, 0, newBudget(1)).p
	for at := range int64(4) {
		k.noteUnreadable(p, at, kerr.KafkaStorageError)
	}
	want := func(what, want string) {
		t.Helper()
		if got := fmt.Sprint(k.Warnings()); got != want {
			t.Errorf("%s: the warnings are %s, want %s", what, got, want)
		}
	}
	want("four were noted", "[partition t-0 can't be read in 4 places, the first at offset 0]")
	k.noteRead(p, 2, 3)
	want("two could be read", "[partition t-0 can't be read in 2 places, the first at offset 0]")
	k.mu.Lock()
	p.visible.start = 1
	k.mu.Unlock()
	want("one was deleted", "[partition t-0 can't be read at offset 1]")
	k.noteRead(p, 0, 1)
	want("all could be read", "[]")
}
