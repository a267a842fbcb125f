package kafka

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"
)

// The size that is compared with a topic's limit is that of the batch as it is
// written.
func TestWireSize(t *testing.T) {
	genBytes := rapid.Custom(func(t *rapid.T) []byte {
		if rapid.Bool().Draw(t, "null") {
			return nil
		}
		return make([]byte, rapid.IntRange(0, 1<<17).Draw(t, "size"))
	})
	rapid.Check(t, func(t *rapid.T) {
		r := Record{Key: genBytes.Draw(t, "key"), Value: genBytes.Draw(t, "value")}
		rec := kmsg.NewRecord()
		rec.Key, rec.Value = r.Key, r.Value
		for range rapid.IntRange(0, 70).Draw(t, "headers") {
			h := topic.Header{Key: rapid.String().Draw(t, "name"), Value: genBytes.Draw(t, "header")}
			r.Headers = append(r.Headers, h)
			rec.Headers = append(rec.Headers, kmsg.Header{Key: h.Key, Value: h.Value})
		}
		body := len(rec.AppendTo(nil)) - 1 // without its length, which is 0 and takes a byte
		rec.Length = int32(body)
		batch := kmsg.NewRecordBatch()
		batch.Records = rec.AppendTo(nil)
		if got, want := wireSize(&r), len(batch.AppendTo(nil)); got != want {
			t.Errorf("size %d, want %d", got, want)
		}
	})
}

// genRecords draws records of one partition.
func genRecords(t *rapid.T) (recs []Record) {
	genBytes := rapid.Custom(func(t *rapid.T) []byte {
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0:
			return nil
		case 1:
			return []byte{}
		case 2:
			return make([]byte, rapid.IntRange(60, 70).Draw(t, "around one byte of length"))
		case 3:
			return make([]byte, rapid.IntRange(8180, 8200).Draw(t, "around two"))
		}
		return []byte(rapid.SampledFrom([]string{"a", "key", "\x00\xff", "a longer one"}).Draw(t, "bytes"))
	})
	for range rapid.IntRange(1, 40).Draw(t, "records") {
		r := Record{Topic: "t", Key: genBytes.Draw(t, "key"), Value: genBytes.Draw(t, "value")}
		for range rapid.IntRange(0, 3).Draw(t, "headers") {
			r.Headers = append(r.Headers, topic.Header{Key: rapid.SampledFrom([]string{"", "a", "a", "pawl-é"}).Draw(t, "name"), Value: genBytes.Draw(t, "header")})
		}
		if rapid.Bool().Draw(t, "stamped") {
			r.Timestamp = time.UnixMilli(rapid.Int64Range(0, 1<<42).Draw(t, "timestamp"))
		}
		recs = append(recs, r)
	}
	return recs
}

// decoded is a record as a reader has it.
type decoded struct {
	Key, Value []byte
	Headers    []topic.Header
	Timestamp  int64
}

// decode reads batches as the library does.
func decode(t *rapid.T, raw []byte) (all []decoded) {
	resp := kmsg.NewFetchResponseTopicPartition()
	resp.RecordBatches = raw
	fp, _ := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{KeepControlRecords: true, IsolationLevel: kgo.ReadUncommitted(), Topic: "t"}, &resp, kgo.DefaultDecompressor(), nil)
	if fp.Err != nil {
		t.Fatalf("the library can't read the batches: %v", fp.Err)
	}
	for i, r := range fp.Records {
		if a := r.Attrs; !a.IsTransactional() || a.IsControl() || a.TimestampType() != 0 || a.CompressionType() != 0 {
			t.Errorf("record %d has attributes %+v", i, a)
		}
		d := decoded{Key: r.Key, Value: r.Value, Timestamp: r.Timestamp.UnixMilli()}
		for _, h := range r.Headers {
			d.Headers = append(d.Headers, topic.Header{Key: h.Key, Value: h.Value})
		}
		all = append(all, d)
	}
	return all
}

// What is encoded is what the library decodes, record for record, whatever the
// records are and however many batches they take, each within its limit.
func TestBatchesDecode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		recs := genRecords(t)
		const now = 1_700_000_000_000
		limit := rapid.SampledFrom([]int{200, 1000, 20_000, batchTarget}).Draw(t, "limit")
		id := ProducerIdentity{ID: rapid.Int64Range(0, math.MaxInt64).Draw(t, "producer"), Epoch: int16(rapid.IntRange(0, math.MaxInt16).Draw(t, "epoch"))}
		sequence := int32(rapid.SampledFrom([]int64{0, 5, math.MaxInt32 - 3, math.MaxInt32}).Draw(t, "sequence"))
		var b batches
		for range 2 { // the second time, in memory that is used again
			b.reset()
			var want []decoded
			for i := range recs {
				ts := recs[i].Timestamp.UnixMilli()
				if recs[i].Timestamp.IsZero() {
					ts = now
				}
				b.add(&recs[i], ts, limit)
				want = append(want, decoded{recs[i].Key, recs[i].Value, recs[i].Headers, ts})
			}
			var raw []byte
			next, total := sequence, int32(0)
			for i := range b.spans {
				batch := b.seal(i, id, next)
				n := b.spans[i].records
				var h kmsg.RecordBatch
				if err := h.ReadFrom(batch); err != nil {
					t.Fatalf("batch %d: %v", i, err)
				}
				if len(batch) > limit && n > 1 {
					t.Errorf("batch %d has %d records and %d bytes, more than %d", i, n, len(batch), limit)
				}
				if crc := int32(crc32.Checksum(batch[21:], crc32.MakeTable(crc32.Castagnoli))); h.CRC != crc {
					t.Errorf("batch %d has checksum %x, want %x", i, h.CRC, crc)
				}
				if got := fmt.Sprint(h.FirstOffset, h.Length, h.PartitionLeaderEpoch, h.Magic, h.Attributes, h.LastOffsetDelta, h.ProducerID, h.ProducerEpoch, h.FirstSequence, h.NumRecords); got !=
					fmt.Sprint(0, len(batch)-12, -1, 2, 16, n-1, id.ID, id.Epoch, next, n) {
					t.Errorf("batch %d has header %s", i, got)
				}
				latest := h.FirstTimestamp
				for _, d := range want[total : total+n] {
					latest = max(latest, d.Timestamp)
				}
				if h.FirstTimestamp != want[total].Timestamp || h.MaxTimestamp != latest {
					t.Errorf("batch %d has timestamps %d to %d, want %d to %d", i, h.FirstTimestamp, h.MaxTimestamp, want[total].Timestamp, latest)
				}
				total += n
				next = int32((int64(next) + int64(n)) % (1 << 31))
				if got := sequenceAfter(h.FirstSequence, n); got != next {
					t.Errorf("%d records after sequence %d comes %d, want %d", n, h.FirstSequence, got, next)
				}
				binary.BigEndian.PutUint64(batch, uint64(total-n)) // as a broker sets it
				raw = append(raw, batch...)
			}
			if got := decode(t, raw); !reflect.DeepEqual(got, want) {
				t.Errorf("decoded (-want +got):\n%s", cmp.Diff(want, got))
			}
		}
	})
}

// The library's own producer and this one write the same records.
func TestBatchesAreTheLibrarys(t *testing.T) {
	var sent [][]byte // batches, of the present check
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		sent = append(sent, bytes.Clone(r.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records))
		return nil, nil, false
	})
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ManualFlushing())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	compared := 0
	rapid.Check(t, func(rt *rapid.T) {
		recs := genRecords(rt)
		sent = nil
		var b batches
		for i := range recs {
			if recs[i].Timestamp.IsZero() {
				recs[i].Timestamp = time.UnixMilli(1_700_000_000_000)
			}
			b.add(&recs[i], recs[i].Timestamp.UnixMilli(), batchTarget)
			r := &kgo.Record{Topic: "t", Key: recs[i].Key, Value: recs[i].Value, Timestamp: recs[i].Timestamp}
			for _, h := range recs[i].Headers {
				r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
			}
			cl.Produce(context.Background(), r, nil)
		}
		if err := cl.Flush(context.Background()); err != nil {
			rt.Fatal(err)
		}
		if len(b.spans) != 1 || len(sent) != 1 {
			return // the library divides them in its own way, and may go on with the last flush when the next begins
		}
		compared++
		written := sent[0]
		// The library's producer is not transactional here, and has its own
		// identity and sequence.
		ours := b.seal(0, ProducerIdentity{}, 0)
		if !bytes.Equal(written[batchOverhead:], ours[batchOverhead:]) {
			rt.Errorf("records (-library +ours):\n%s", cmp.Diff(written[batchOverhead:], ours[batchOverhead:]))
		}
		for _, part := range [][2]int{{0, batchChecksum}, {batchLastDelta, batchProducer}, {batchCount, batchOverhead}} {
			if !bytes.Equal(written[part[0]:part[1]], ours[part[0]:part[1]]) {
				rt.Errorf("bytes %d to %d of the header are %x, and the library's %x", part[0], part[1], ours[part[0]:part[1]], written[part[0]:part[1]])
			}
		}
	})
	if compared == 0 {
		t.Error("the library has written no check's records in one batch")
	}
}

func TestSequencesWrap(t *testing.T) {
	for _, tc := range []struct{ from, n, want int32 }{
		{0, 1, 1}, {math.MaxInt32, 1, 0}, {math.MaxInt32 - 1, 1, math.MaxInt32}, {math.MaxInt32 - 1, 5, 3}, {math.MaxInt32, math.MaxInt32, math.MaxInt32 - 1},
	} {
		if got := sequenceAfter(tc.from, tc.n); got != tc.want {
			t.Errorf("%d records after sequence %d comes %d, want %d", tc.n, tc.from, got, tc.want)
		}
	}
}

func BenchmarkBatches(b *testing.B) {
	rec := Record{Topic: "t", Key: []byte("k000012345"), Value: make([]byte, 8)}
	var bs batches
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%10_000 == 0 {
			for j := range bs.spans {
				bs.seal(j, ProducerIdentity{}, 0)
			}
			bs.reset()
		}
		bs.add(&rec, 1_700_000_000_000, batchTarget)
	}
}
