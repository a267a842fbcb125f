package kafka

import (
	"encoding/binary"
	"hash/crc32"
	"math"
)

// batches is what a transaction writes to one partition, encoded as it is sent:
// record batches of version 2, one after the other. The memory is used again by
// the next transaction.
type batches struct {
	buf   []byte
	spans []span
}

// span is one batch.
type span struct {
	start, end  int   // in the buffer
	records     int32 // how many
	first, last int64 // the first record's timestamp, and the latest one
}

// batchTarget is how large a batch becomes that the topic would let become
// larger: brokers and readers handle a batch as a whole.
const batchTarget = 1 << 20

// batchMin is how much memory a partition's batches begin with.
const batchMin = 1 << 10

// batchOverhead is what a record batch holds beside its records.
const batchOverhead = 61

// Where things are in the header of a record batch.
const (
	batchLength        = 8
	batchEpoch         = 12 // of the leader; the length counts from here
	batchMagic         = 16
	batchChecksum      = 17
	batchAttributes    = 21 // the checksum counts from here
	batchLastDelta     = 23
	batchFirstTime     = 27
	batchLastTime      = 35
	batchProducer      = 43
	batchProducerEpoch = 51
	batchSequence      = 53
	batchCount         = 57
)

// Attributes of a batch.
const (
	batchTransactional = 1 << 4
	batchControl       = 1 << 5
)

// reset begins the batches of another transaction. Memory that the last one
// used little of is given back.
func (b *batches) reset() {
	if cap(b.buf) > batchTarget && len(b.buf) < cap(b.buf)/8 {
		b.buf = nil
	}
	b.buf, b.spans = b.buf[:0], b.spans[:0]
}

// add appends a record with a timestamp in milliseconds since 1970. A batch
// becomes no larger than most, unless by a record that is so by itself.
func (b *batches) add(r *Record, ts int64, most int) {
	if len(b.spans) == 0 {
		b.begin(ts)
	}
	s := &b.spans[len(b.spans)-1]
	n := bodySize(r, ts-s.first, s.records)
	if size := s.end - s.start + varintSize(int64(n)) + n; size > most && s.records > 0 || s.records == math.MaxInt32 {
		b.begin(ts)
		s = &b.spans[len(b.spans)-1]
		n = bodySize(r, 0, 0)
	}
	// Nothing below grows the buffer again.
	b.grow(n + binary.MaxVarintLen32)
	p := b.buf
	p = appendVarint(p, int64(n))
	p = append(p, 0) // attributes
	p = appendVarint(p, ts-s.first)
	p = appendVarint(p, int64(s.records))
	p = appendBlob(p, r.Key)
	p = appendBlob(p, r.Value)
	p = appendVarint(p, int64(len(r.Headers)))
	for i := range r.Headers {
		h := &r.Headers[i]
		p = appendVarint(p, int64(len(h.Key)))
		p = append(p, h.Key...)
		p = appendBlob(p, h.Value)
	}
	b.buf = p
	s.records++
	s.last = max(s.last, ts)
	s.end = len(p)
}

func (b *batches) begin(ts int64) {
	b.grow(batchOverhead)
	start := len(b.buf)
	b.buf = b.buf[:start+batchOverhead] // seal fills it in
	b.spans = append(b.spans, span{start: start, end: len(b.buf), first: ts, last: ts})
}

// grow makes room for n bytes more.
func (b *batches) grow(n int) {
	if cap(b.buf)-len(b.buf) >= n {
		return
	}
	grown := make([]byte, len(b.buf), max(2*cap(b.buf), len(b.buf)+n, batchMin))
	copy(grown, b.buf)
	b.buf = grown
}

// seal completes the ith batch, which is sent with the given identity and
// sequence of its first record, and returns it.
func (b *batches) seal(i int, id ProducerIdentity, sequence int32) []byte {
	s := &b.spans[i]
	p := b.buf[s.start:s.end:s.end]
	be := binary.BigEndian
	be.PutUint64(p, 0) // the broker sets the offset,
	be.PutUint32(p[batchLength:], uint32(len(p)-batchEpoch))
	be.PutUint32(p[batchEpoch:], math.MaxUint32) // and the leader's epoch
	p[batchMagic] = 2
	be.PutUint16(p[batchAttributes:], batchTransactional)
	be.PutUint32(p[batchLastDelta:], uint32(s.records-1))
	be.PutUint64(p[batchFirstTime:], uint64(s.first))
	be.PutUint64(p[batchLastTime:], uint64(s.last))
	be.PutUint64(p[batchProducer:], uint64(id.ID))
	be.PutUint16(p[batchProducerEpoch:], uint16(id.Epoch))
	be.PutUint32(p[batchSequence:], uint32(sequence))
	be.PutUint32(p[batchCount:], uint32(s.records))
	be.PutUint32(p[batchChecksum:], crc32.Checksum(p[batchAttributes:], castagnoli))
	return p
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sequenceAfter is the sequence of the record that comes n after another:
// sequences are not negative, and begin anew after the largest.
func sequenceAfter(sequence, n int32) int32 {
	return int32((uint32(sequence) + uint32(n)) & math.MaxInt32)
}

// bodySize is how many bytes a record takes in a batch, without its length.
func bodySize(r *Record, timeDelta int64, offsetDelta int32) int {
	n := 1 + varintSize(timeDelta) + varintSize(int64(offsetDelta)) + blobSize(r.Key) + blobSize(r.Value) + varintSize(int64(len(r.Headers)))
	for i := range r.Headers {
		h := &r.Headers[i]
		n += varintSize(int64(len(h.Key))) + len(h.Key) + blobSize(h.Value)
	}
	return n
}

// wireSize is how many bytes a batch has that holds the record alone. Brokers
// compare that of a batch with the topic's max.message.bytes.
func wireSize(r *Record) int {
	n := bodySize(r, 0, 0)
	return batchOverhead + varintSize(int64(n)) + n
}

func varintSize(v int64) int {
	u := uint64(v)<<1 ^ uint64(v>>63)
	n := 1
	for u >= 0x80 {
		u >>= 7
		n++
	}
	return n
}

func appendVarint(p []byte, v int64) []byte {
	u := uint64(v)<<1 ^ uint64(v>>63)
	for u >= 0x80 {
		p = append(p, byte(u)|0x80)
		u >>= 7
	}
	return append(p, byte(u))
}

func blobSize(v []byte) int {
	if v == nil {
		return 1 // of a length of -1
	}
	return varintSize(int64(len(v))) + len(v)
}

func appendBlob(p, v []byte) []byte {
	if v == nil {
		return append(p, 1)
	}
	return append(appendVarint(p, int64(len(v))), v...)
}
