package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"
)

// written is a record batch as a broker may answer with it.
type written struct {
	first, last   int64
	epoch         int32
	codec         kgo.CompressionCodecType
	appendTime    bool
	transactional bool
	control       bool
	producer      int64
	times         [2]int64
	records       []writtenRecord
	count         int32  // if it says otherwise than it has records
	body          []byte // if it holds something else
}

type writtenRecord struct {
	Offset, Millis int64
	Key, Value     []byte
	Headers        []topic.Header
}

func (w written) bytes() []byte {
	var body []byte
	for _, r := range w.records {
		var b []byte
		b = append(b, 0)
		b = appendVarint(b, r.Millis-w.times[0])
		b = appendVarint(b, r.Offset-w.first)
		b = appendBlob(b, r.Key)
		b = appendBlob(b, r.Value)
		b = appendHeaders(b, r.Headers)
		body = append(appendVarint(body, int64(len(b))), b...)
	}
	if w.body != nil {
		body = w.body
	}
	if w.codec != kgo.CodecNone {
		body = compress(w.codec, body)
	}
	attributes := uint16(w.codec)
	for bit, set := range map[uint16]bool{batchAppendTime: w.appendTime, batchTransactional: w.transactional, batchControl: w.control} {
		if set {
			attributes |= bit
		}
	}
	count := int32(len(w.records))
	if w.count != 0 {
		count = w.count
	}
	b := append(make([]byte, batchOverhead), body...)
	be := binary.BigEndian
	be.PutUint64(b, uint64(w.first))
	be.PutUint32(b[batchLength:], uint32(len(b)-batchEpoch))
	be.PutUint32(b[batchEpoch:], uint32(w.epoch))
	b[batchMagic] = 2
	be.PutUint16(b[batchAttributes:], attributes)
	be.PutUint32(b[batchLastDelta:], uint32(w.last-w.first))
	be.PutUint64(b[batchFirstTime:], uint64(w.times[0]))
	be.PutUint64(b[batchLastTime:], uint64(w.times[1]))
	be.PutUint64(b[batchProducer:], uint64(w.producer))
	be.PutUint32(b[batchCount:], uint32(count))
	return sealed(b)
}

// sealed gives a batch the checksum that it should have.
func sealed(b []byte) []byte {
	binary.BigEndian.PutUint32(b[batchChecksum:], crc32.Checksum(b[batchAttributes:], castagnoli))
	return b
}

var codecs = map[kgo.CompressionCodecType]kgo.CompressionCodec{
	kgo.CodecGzip: kgo.GzipCompression(), kgo.CodecSnappy: kgo.SnappyCompression(), kgo.CodecLz4: kgo.Lz4Compression(), kgo.CodecZstd: kgo.ZstdCompression(),
}

func compress(codec kgo.CompressionCodecType, b []byte) []byte {
	c, err := kgo.DefaultCompressor(codecs[codec])
	if err != nil {
		panic(err)
	}
	out, used := c.Compress(new(bytes.Buffer), b)
	if used != codec {
		panic(fmt.Sprintf("compressed with %v in place of %v", used, codec))
	}
	return bytes.Clone(out)
}

// marker is what ends a transaction.
func marker(at, producer int64, kind byte) written {
	return written{first: at, last: at, transactional: true, control: true, producer: producer, records: []writtenRecord{
		{Offset: at, Key: []byte{0, 0, 0, kind}, Value: []byte{0, 0, 0, 0, 0, 1}},
	}}
}

// abortedUpTo is a transaction that was aborted, and where its marker is.
type abortedUpTo struct {
	kmsg.FetchResponseTopicPartitionAbortedTransaction
	marker int64
}

// genLog draws what a partition holds, with the transactions that were aborted.
func genLog(t *rapid.T) (raw []byte, end int64, aborted []abortedUpTo) {
	next := rapid.Int64Range(0, 1<<40).Draw(t, "start")
	open := make(map[int64]int64) // by producer: where its transaction begins
	epoch := int32(1)
	for range rapid.IntRange(1, 12).Draw(t, "batches") {
		next += int64(rapid.SampledFrom([]int{0, 0, 0, 1, 5}).Draw(t, "gap"))
		epoch += int32(rapid.SampledFrom([]int{0, 0, 1}).Draw(t, "another leader"))
		producer := int64(rapid.IntRange(1, 2).Draw(t, "producer"))
		w := written{first: next, producer: -1, epoch: epoch}
		switch kind := rapid.SampledFrom([]int{0, 1, 2, 3, 4, 5}).Draw(t, "kind"); kind {
		case 0, 1: // abort, commit
			first, ok := open[producer]
			if ok && kind == 0 {
				a := abortedUpTo{kmsg.NewFetchResponseTopicPartitionAbortedTransaction(), next}
				a.ProducerID, a.FirstOffset = producer, first
				aborted = append(aborted, a)
			}
			delete(open, producer)
			w = marker(next, producer, byte(kind))
			w.epoch = epoch
			raw, next = append(raw, w.bytes()...), w.last+1
			continue
		case 2: // compaction has left no record
			w.last = next + int64(rapid.IntRange(0, 9).Draw(t, "offsets"))
			raw, next = append(raw, w.bytes()...), w.last+1
			continue
		case 3, 4:
			w.transactional, w.producer = true, producer
			if _, ok := open[producer]; !ok {
				open[producer] = next
			}
		}
		w.codec = rapid.SampledFrom([]kgo.CompressionCodecType{kgo.CodecNone, kgo.CodecNone, kgo.CodecGzip, kgo.CodecSnappy, kgo.CodecLz4, kgo.CodecZstd}).Draw(t, "codec")
		w.appendTime = rapid.Bool().Draw(t, "append time")
		w.times = [2]int64{rapid.Int64Range(0, 1<<42).Draw(t, "first time"), rapid.Int64Range(0, 1<<42).Draw(t, "last time")}
		for _, r := range genRecords(t) {
			w.records = append(w.records, writtenRecord{Offset: next, Millis: rapid.Int64Range(0, 1<<42).Draw(t, "time"), Key: r.Key, Value: r.Value, Headers: r.Headers})
			next += int64(1 + rapid.SampledFrom([]int{0, 0, 0, 2}).Draw(t, "left out"))
		}
		w.last = next - 1 + int64(rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "left out at the end"))
		next = w.last + 1
		raw = append(raw, w.bytes()...)
	}
	return raw, next, aborted
}

// size is how many bytes of keys, values and headers it has.
func (r writtenRecord) size() int {
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

func read(m Messages) (all []writtenRecord) {
	for i := range m.Len() {
		e := m.At(i)
		all = append(all, writtenRecord{e.Offset, e.Timestamp.UnixMilli(), e.Key, e.Value, e.Headers})
	}
	return all
}

// Whatever a partition holds, and wherever an answer begins and is cut off,
// what is unpacked is what the library unpacks.
func TestUnpackAsTheLibrary(t *testing.T) {
	d := topic.Bytes("t").Description
	rapid.Check(t, func(t *rapid.T) {
		raw, end, aborted := genLog(t)
		first := int64(binary.BigEndian.Uint64(raw))
		at := first
		if rapid.Bool().Draw(t, "within") {
			at = max(0, rapid.Int64Range(first-2, end+2).Draw(t, "position"))
		}
		if rapid.Bool().Draw(t, "cut off") {
			raw = raw[:len(raw)-rapid.IntRange(0, len(raw)).Draw(t, "cut")]
		}
		committed := rapid.Bool().Draw(t, "committed")

		answer := kmsg.NewFetchResponseTopicPartition()
		answer.Partition, answer.RecordBatches = 7, raw
		opts := kgo.ProcessFetchPartitionOpts{Offset: at, Topic: "t", Partition: 7, IsolationLevel: kgo.ReadUncommitted()}
		var gone []abortedFrom
		if committed {
			// A broker names those that have not ended before the position, and the
			// library does not look at the markers there.
			opts.IsolationLevel = kgo.ReadCommitted()
			for _, a := range aborted {
				if a.marker >= at {
					answer.AbortedTransactions = append(answer.AbortedTransactions, a.FetchResponseTopicPartitionAbortedTransaction)
				}
			}
			gone = abortedIn(answer.AbortedTransactions)
		}
		fp, next := kgo.ProcessFetchPartition(opts, &answer, kgo.DefaultDecompressor(), nil)
		if fp.Err != nil {
			t.Fatalf("the library can't read it: %v", fp.Err)
		}
		var want []writtenRecord
		for _, r := range fp.Records {
			w := writtenRecord{Offset: r.Offset, Millis: r.Timestamp.UnixMilli(), Key: r.Key, Value: r.Value}
			if len(r.Headers) > 0 {
				w.Headers = headersOf(r)
			}
			want = append(want, w)
		}
		m, u, err := unpack(d, 7, at, raw, gone)
		if err != nil {
			t.Fatalf("unpack: %v", err)
		}
		if diff := cmp.Diff(want, read(m)); diff != "" {
			t.Fatalf("from %d (-library +ours):\n%s", at, diff)
		}
		if u.next != next {
			t.Fatalf("from %d the next offset is %d, the library's %d", at, u.next, next)
		}
		bytes := 0
		for _, r := range want {
			bytes += r.size()
		}
		if got := m.size(); got != bytes {
			t.Fatalf("keys, values and headers have %d bytes, want %d", got, bytes)
		}
		m.Recycle()
	})
}

// What is broken is said by name, and what stands before it is read.
func TestUnpackBroken(t *testing.T) {
	good := written{first: 10, last: 10, records: []writtenRecord{{Offset: 10, Value: []byte("good")}}}.bytes()
	record := func(offset int64) []writtenRecord { return []writtenRecord{{Offset: offset, Value: []byte("bad")}} }
	flip := func(b []byte, at int) []byte { b[at] ^= 1; return b }
	put32 := func(b []byte, at int, v int32) []byte {
		binary.BigEndian.PutUint32(b[at:], uint32(v))
		return sealed(b)
	}
	one := written{first: 11, last: 12, records: record(11)}
	for _, tc := range []struct {
		name string
		bad  []byte
		want string
	}{
		{"a flipped bit", flip(one.bytes(), batchOverhead+8), "checksum"},
		{"a length that is none", put32(one.bytes(), batchLength, 3), "length 3"},
		{"a negative length", put32(one.bytes(), batchLength, -5), "length -5"},
		{"a length that ends in the header", put32(one.bytes(), batchLength, 40), "it has 52 bytes"},
		{"an end before the beginning", put32(one.bytes(), batchLastDelta, -1), "ends at offset 10"},
		{"a negative count", put32(one.bytes(), batchCount, -1), "-1 records"},
		{"a count of more than can be", put32(one.bytes(), batchCount, math.MaxInt32), "2147483647 records"},
		{"a record too many", written{first: 11, last: 12, records: record(11), count: 2, body: append(written{first: 11, last: 12}.body, 24, 0, 0, 0, 1, 6, 'b', 'a', 'd', 0, 1, 2, 3, 4, 5, 6)}.bytes(), "can't be read"},
		{"bytes after the last record", written{first: 11, last: 12, count: 1, body: []byte{12, 0, 0, 0, 1, 1, 0, 99}}.bytes(), "1 bytes come after"},
		{"a record that is cut off", written{first: 11, last: 12, count: 1, body: []byte{40, 0, 0, 0, 1, 1, 0}}.bytes(), "length 20"},
		{"a key beyond its record", written{first: 11, last: 12, count: 1, body: []byte{12, 0, 0, 0, 40, 1, 0}}.bytes(), "can't be read"},
		{"a key of length -2", written{first: 11, last: 12, count: 1, body: []byte{12, 0, 0, 0, 3, 1, 0}}.bytes(), "can't be read"},
		{"a header's name that is null", written{first: 11, last: 12, count: 1, body: []byte{16, 0, 0, 0, 1, 1, 2, 1, 1}}.bytes(), "can't be read"},
		{"headers of a negative count", written{first: 11, last: 12, count: 1, body: []byte{12, 0, 0, 0, 1, 1, 1}}.bytes(), "can't be read"},
		{"headers that are not there", written{first: 11, last: 12, count: 1, body: []byte{16, 0, 0, 0, 1, 1, 0xfe, 0xff, 3}}.bytes(), "can't be read"},
		{"a number without an end", written{first: 11, last: 12, count: 1, body: bytes.Repeat([]byte{0xff}, 20)}.bytes(), "length 0"},
		{"an offset before the batch", written{first: 11, last: 12, records: record(10)}.bytes(), "comes 10"},
		{"an offset after the batch", written{first: 11, last: 12, records: record(13)}.bytes(), "comes 13"},
		{"an offset that comes again", written{first: 11, last: 12, records: append(record(11), record(11)...)}.bytes(), "comes 11"},
		{"no bytes for its records", written{first: 11, last: 12, count: 3, body: []byte{}}.bytes(), "3 records, in 0 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, u, err := unpack(topic.Bytes("t").Description, 0, 5, append(bytes.Clone(good), tc.bad...), nil)
			if !errors.Is(err, errCorrupt) || !strings.Contains(fmt.Sprint(err), "batch at offset 11") || !strings.Contains(fmt.Sprint(err), tc.want) {
				t.Errorf("the error is %v, want one about the batch at offset 11: %s", err, tc.want)
			}
			if u.next != 11 || m.Len() != 1 || string(m.At(0).Value) != "good" {
				t.Errorf("%d messages up to %d, want the good one up to 11", m.Len(), u.next)
			}
		})
	}
	for name, tc := range map[string]struct {
		bad  []byte
		want string
	}{
		"an unknown codec":     {sealed(func() []byte { b := one.bytes(); b[batchAttributes+1] = 7; return b }()), "decompress"},
		"what is not gzip":     {sealed(func() []byte { b := one.bytes(); b[batchAttributes+1] = 1; return b }()), "decompress"},
		"what is not zstd":     {sealed(func() []byte { b := one.bytes(); b[batchAttributes+1] = 4; return b }()), "decompress"},
		"the format after":     {func() []byte { b := one.bytes(); b[batchMagic] = 3; return b }(), "its format is 3"},
		"a broken old message": {func() []byte { b := oldMessage(11, 1, nil, []byte("v")); b[len(b)-1] ^= 1; return b }(), "before record batches"},
	} {
		_, u, err := unpack(topic.Bytes("t").Description, 0, 5, append(bytes.Clone(good), tc.bad...), nil)
		if !strings.Contains(fmt.Sprint(err), "batch at offset 11") || !strings.Contains(fmt.Sprint(err), tc.want) || u.next != 11 {
			t.Errorf("%s: %v up to %d, want an error about the batch at offset 11: %s", name, err, u.next, tc.want)
		}
	}
}

// oldMessage is a message as it was before there were batches.
func oldMessage(offset int64, magic byte, key, value []byte) []byte {
	b := []byte{magic, 0}
	if magic == 1 {
		b = binary.BigEndian.AppendUint64(b, 1700000000123)
	}
	for _, v := range [][]byte{key, value} {
		if v == nil {
			b = binary.BigEndian.AppendUint32(b, math.MaxUint32)
			continue
		}
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v...)
	}
	out := binary.BigEndian.AppendUint64(nil, uint64(offset))
	out = binary.BigEndian.AppendUint32(out, uint32(4+len(b)))
	out = binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(b))
	return append(out, b...)
}

// Logs that are older than record batches are read, also where batches follow.
func TestUnpackOldMessages(t *testing.T) {
	raw := oldMessage(3, 0, []byte("k"), []byte("zero"))
	raw = append(raw, oldMessage(4, 1, nil, []byte("one"))...)
	raw = append(raw, oldMessage(5, 1, []byte{}, nil)...)
	raw = append(raw, written{first: 6, last: 6, times: [2]int64{9, 9}, records: []writtenRecord{{Offset: 6, Millis: 9, Value: []byte("two")}}}.bytes()...)
	raw = append(raw, oldMessage(7, 1, nil, []byte("cut"))[:20]...)
	want := []writtenRecord{
		{3, -1, []byte("k"), []byte("zero"), nil}, {4, 1700000000123, nil, []byte("one"), nil}, {5, 1700000000123, []byte{}, nil, nil}, {6, 9, nil, []byte("two"), nil},
	}
	for at := range int64(8) {
		m, u, err := unpack(topic.Bytes("t").Description, 0, at, raw, nil)
		if err != nil || u.next != max(at, 7) {
			t.Errorf("from %d up to %d, %v, want up to 7", at, u.next, err)
		}
		got := read(m)
		for i := range got {
			if got[i].Offset == 3 {
				got[i].Millis = -1 // which it has none of
			}
		}
		if diff := cmp.Diff(want[min(max(at-3, 0), 4):], got); diff != "" && (len(got) > 0 || at < 7) {
			t.Errorf("from %d (-want +got):\n%s", at, diff)
		}
	}
}

// A producer may write a length with more bytes than it takes.
func TestUnpackLongLengths(t *testing.T) {
	value := []byte{0x82, 0x80, 0x00, 'v'} // 1, in three bytes
	body := append([]byte{0, 0, 0, 2, 'k'}, value...)
	body = append(body, 2, 2, 'h', 4, 'a', 'b')
	body = append(appendVarint(nil, int64(len(body))), body...)
	raw := written{first: 1, last: 1, count: 1, body: body}.bytes()
	raw = append(raw, written{first: 2, last: 2, records: []writtenRecord{{Offset: 2, Value: []byte("w")}}}.bytes()...)
	m, _, err := unpack(topic.Bytes("t").Description, 0, 0, raw, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []writtenRecord{{1, 0, []byte("k"), []byte("v"), []topic.Header{{Key: "h", Value: []byte("ab")}}}, {2, 0, nil, []byte("w"), nil}}
	if diff := cmp.Diff(want, read(m)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Whatever comes, what is unpacked can be looked at, and lies between the
// position and the next.
func FuzzUnpack(f *testing.F) {
	for _, b := range javaBatches(f) {
		f.Add(b, int64(7), int64(4001))
		f.Add(append(b, b...), int64(0), int64(-1))
	}
	f.Add(oldMessage(1, 0, []byte("k"), []byte("v")), int64(0), int64(0))
	f.Add(oldMessage(1, 1, nil, []byte("v")), int64(0), int64(0))
	f.Add(written{first: 1, last: 1, codec: kgo.CodecZstd, records: []writtenRecord{{Offset: 1, Headers: []topic.Header{{Key: "h"}}}}}.bytes(), int64(0), int64(0))
	f.Fuzz(func(t *testing.T, b []byte, at, producer int64) {
		at = max(at, 0)
		b = bytes.Clone(b)
		for rest := b; len(rest) >= batchOverhead && rest[batchMagic] == 2; {
			n := int64(int32(binary.BigEndian.Uint32(rest[batchLength:]))) + batchEpoch
			if n < batchOverhead || n > int64(len(rest)) {
				break
			}
			sealed(rest[:n]) // few would get further otherwise
			rest = rest[n:]
		}
		m, u, err := unpack(topic.Bytes("t").Description, 0, at, b, []abortedFrom{{producer, at}})
		if u.next < at {
			t.Errorf("from %d the next offset is %d", at, u.next)
		}
		before, size := at-1, 0
		for _, r := range read(m) {
			if r.Offset <= before || r.Offset >= u.next {
				t.Errorf("from %d up to %d: %d comes after %d (%v)", at, u.next, r.Offset, before, err)
			}
			before = r.Offset
			size += r.size()
		}
		if got := m.size(); got != size {
			t.Errorf("%d bytes, want %d", got, size)
		}
		m.Recycle()
	})
}

func BenchmarkUnpack(b *testing.B) {
	var w batches
	for i := range 9000 {
		w.add(&Record{Key: []byte("k000000123"), Value: make([]byte, 90)}, 1700000000000+int64(i/10), 16<<10)
	}
	var raw []byte
	offset := int64(0)
	for i, s := range w.spans {
		batch := w.seal(i, ProducerIdentity{ID: -1}, 0)
		binary.BigEndian.PutUint64(batch, uint64(offset))
		offset += int64(s.records)
		raw = append(raw, batch...)
	}
	d, n := topic.Bytes("t").Description, 0
	b.ReportAllocs()
	for b.Loop() {
		m, _, err := unpack(d, 0, 0, raw, nil)
		if err != nil {
			b.Fatal(err)
		}
		for i := range m.Len() {
			n += len(m.At(i).Key)
		}
		m.Recycle()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/9000, "ns/record")
}
