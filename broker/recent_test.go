package broker

import (
	"fmt"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

// What is recent is read as what is stored is: whatever is written, forgotten
// and read, the answer is the partition's batches from the offset on, or none.
func TestRecents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &recents{max: rapid.Int64Range(0, 3000).Draw(t, "max")}
		topic := &topic{name: "t"}
		parts := []*partition{newPartition(topic, 0, 0), newPartition(topic, 1, 1)}
		log := make([][]recentBatch, len(parts))
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				n := rapid.IntRange(0, 1).Draw(t, "partition")
				p, records := parts[n], rapid.Int32Range(1, 5).Draw(t, "records")
				bt := appendBatch(nil, p.next, batch{lastDelta: records - 1, records: records, producer: noProducer}, make([]byte, rapid.IntRange(0, 400).Draw(t, "size")))
				p.next = bt.last() + 1
				r.addLocked(p, bt)
				log[n] = append(log[n], recentBatch{bt.base(), bt.last(), bt.raw})
			},
			"forget": func(t *rapid.T) { r.dropLocked(parts[rapid.IntRange(0, 1).Draw(t, "partition")]) },
			"": func(t *rapid.T) {
				held := int64(0)
				for n, p := range parts {
					for _, e := range p.recent.batches {
						held += int64(len(e.raw)) + recentOverhead
					}
					for offset := range p.next + 1 {
						found := p.recent.fromLocked(offset, p.next)
						if len(found) == 0 {
							continue
						}
						want := log[n][slices.IndexFunc(log[n], func(e recentBatch) bool { return e.last >= offset }):]
						for i, e := range found {
							if e.base != want[i].base || string(e.raw) != string(want[i].raw) {
								t.Fatalf("partition %d from %d on: batch %d is at %d, want %d", n, offset, i, e.base, want[i].base)
							}
						}
					}
				}
				if held != r.bytes || r.bytes > r.max {
					t.Fatalf("%d bytes are held, %d counted, of %d at most", held, r.bytes, r.max)
				}
			},
		})
	})
}

// A client that is far behind, with small fetches, gets everything once and in
// order, whether it was read ahead, is recent, or comes from the storage; what
// was read ahead and not asked for is given back.
func TestReadingAhead(t *testing.T) {
	k := start(t, quiet())
	k.create("t", 2)
	const n = 3000
	value := string(make([]byte, 2000))
	cl := k.client(manual(), kgo.ProducerBatchCompression(kgo.NoCompression()))
	for i := range n {
		cl.Produce(k.ctx, &kgo.Record{Topic: "t", Partition: int32(i % 2), Key: fmt.Append(nil, i), Value: []byte(value)}, nil)
	}
	if err := cl.Flush(k.ctx); err != nil {
		t.Fatal(err)
	}
	for _, max := range []int32{100 << 10, 1 << 20} {
		in := k.client(kgo.ConsumeTopics("t"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxPartitionBytes(max), kgo.FetchMaxBytes(3*max/2))
		next := [2]int{0, 1}
		for got := 0; got < n; {
			fs := in.PollRecords(k.ctx, 100)
			if err := fs.Err(); err != nil {
				t.Fatal(err)
			}
			fs.EachRecord(func(r *kgo.Record) {
				if want := fmt.Sprint(next[r.Partition]); string(r.Key) != want {
					t.Fatalf("partition %d: record %q, want %q", r.Partition, r.Key, want)
				}
				next[r.Partition] += 2
				got++
			})
		}
		in.Close()
	}
	k.restart() // which ends the connections
	if got := k.ahead.used() + k.answers.used(); got != 0 {
		t.Errorf("%d bytes of answers are taken with nobody connected", got)
	}
}

// What was kept of a request with many batches held on to all of it.
func TestRecentBatchesByThemselves(t *testing.T) {
	k := start(t, quiet())
	k.create("t", 1)
	body := make([]byte, 0, 1<<20)
	raw := append(body, rawBatch(0, 0, -1, false, "v")...)
	if n := len(raw); n > 1000 {
		t.Fatalf("the batch has %d bytes", n)
	}
	bt, err := readBatch(raw)
	if err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	p := k.mu.topics["t"].partitions[0]
	var o op
	p.appendLocked(bt, now(), &o)
	p.stageLocked(&o)
	round := k.stageLocked(&o)
	k.mu.Unlock()
	if err := k.durable(round); err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	got := p.recentFromLocked(0, 1)
	if len(got) != 1 || string(got[0].raw) != string(raw) {
		t.Fatalf("%d batches are recent, want the one that was written", len(got))
	}
	if &got[0].raw[0] == &raw[0] {
		t.Error("the batch lies in the request that it came in")
	}
}
