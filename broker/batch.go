package broker

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/twmb/franz-go/pkg/kbin"
)

// A batch of records on the wire and on disk, of Kafka's second format:
//
//	 0  base offset           8
//	 8  length                4   of what follows it
//	12  partition leader epoch 4
//	16  magic                 1   2
//	17  checksum              4   of what follows it
//	21  attributes            2   codec 0-2, append time 3, transactional 4, control 5, delete horizon 6
//	23  last offset delta     4
//	27  first timestamp       8
//	35  max timestamp         8
//	43  producer ID           8
//	51  producer epoch        2
//	53  first sequence        4
//	57  number of records     4
//	61  records
const (
	batchHeader   = 61
	batchOverhead = 12 // what the length leaves out
)

const (
	attrCodec         = 0x07
	attrAppendTime    = 0x08
	attrTransactional = 0x10
	attrControl       = 0x20
	attrHorizon       = 0x40
)

// noProducer is the producer ID of batches without one, and noSequence their
// sequence.
const (
	noProducer = -1
	noSequence = -1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// batch is a batch of records whose header is sound. raw is all of it.
type batch struct {
	raw        []byte
	attributes int16
	lastDelta  int32
	firstTime  int64
	maxTime    int64
	producer   int64
	epoch      int16
	firstSeq   int32
	records    int32
}

func (b *batch) base() int64         { return int64(binary.BigEndian.Uint64(b.raw)) }
func (b *batch) last() int64         { return b.base() + int64(b.lastDelta) }
func (b *batch) codec() int8         { return int8(b.attributes & attrCodec) }
func (b *batch) transactional() bool { return b.attributes&attrTransactional != 0 }
func (b *batch) control() bool       { return b.attributes&attrControl != 0 }
func (b *batch) appendTime() bool    { return b.attributes&attrAppendTime != 0 }
func (b *batch) idempotent() bool    { return b.producer >= 0 }
func (b *batch) lastSeq() int32      { return sequenceAfter(b.firstSeq, b.lastDelta) }

// sequenceAfter returns a sequence n later. Sequences wrap around to 0.
func sequenceAfter(seq, n int32) int32 {
	if sum := int64(seq) + int64(n); sum > 1<<31-1 {
		return int32(sum - 1<<31)
	}
	return seq + n
}

// readBatch reads the header of the batch that src begins with, and checks that
// all of it is there. It does not look at the checksum.
func readBatch(src []byte) (b batch, err error) {
	if len(src) < batchHeader {
		return b, fmt.Errorf("a batch of %d bytes has no header", len(src))
	}
	if src[16] != 2 {
		return b, fmt.Errorf("a batch has magic %d, want 2", src[16])
	}
	n := int64(int32(binary.BigEndian.Uint32(src[8:]))) + batchOverhead
	if n < batchHeader || n > int64(len(src)) {
		return b, fmt.Errorf("a batch of %d bytes says it has %d", len(src), n)
	}
	return batch{
		raw:        src[:n:n],
		attributes: int16(binary.BigEndian.Uint16(src[21:])),
		lastDelta:  int32(binary.BigEndian.Uint32(src[23:])),
		firstTime:  int64(binary.BigEndian.Uint64(src[27:])),
		maxTime:    int64(binary.BigEndian.Uint64(src[35:])),
		producer:   int64(binary.BigEndian.Uint64(src[43:])),
		epoch:      int16(binary.BigEndian.Uint16(src[51:])),
		firstSeq:   int32(binary.BigEndian.Uint32(src[53:])),
		records:    int32(binary.BigEndian.Uint32(src[57:])),
	}, nil
}

// intact says whether the checksum is that of the batch.
func (b *batch) intact() bool {
	return binary.BigEndian.Uint32(b.raw[17:]) == crc32.Checksum(b.raw[21:], castagnoli)
}

// place gives the batch its offset. The checksum leaves it out.
func (b *batch) place(base int64) {
	binary.BigEndian.PutUint64(b.raw, uint64(base))
	binary.BigEndian.PutUint32(b.raw[12:], leaderEpoch)
}

// stamp gives the batch the time at which it was appended.
func (b *batch) stamp(at int64) {
	b.attributes |= attrAppendTime
	b.maxTime = at
	binary.BigEndian.PutUint16(b.raw[21:], uint16(b.attributes))
	binary.BigEndian.PutUint64(b.raw[35:], uint64(at))
	b.seal()
}

// seal computes the checksum.
func (b *batch) seal() {
	binary.BigEndian.PutUint32(b.raw[17:], crc32.Checksum(b.raw[21:], castagnoli))
}

// appendBatch appends a batch of encoded records that h describes.
func appendBatch(dst []byte, base int64, h batch, records []byte) batch {
	at := len(dst)
	dst = binary.BigEndian.AppendUint64(dst, uint64(base))
	dst = binary.BigEndian.AppendUint32(dst, uint32(batchHeader-batchOverhead+len(records)))
	dst = binary.BigEndian.AppendUint32(dst, leaderEpoch)
	dst = append(dst, 2, 0, 0, 0, 0)
	dst = binary.BigEndian.AppendUint16(dst, uint16(h.attributes))
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.lastDelta))
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.firstTime))
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.maxTime))
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.producer))
	dst = binary.BigEndian.AppendUint16(dst, uint16(h.epoch))
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.firstSeq))
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.records))
	dst = append(dst, records...)
	h.raw = dst[at:]
	h.seal()
	return h
}

// coordinatorEpoch is the epoch of the one coordinator that there is.
const coordinatorEpoch = 0

// marker returns the batch that ends a transaction in a partition.
func marker(offset, producer int64, epoch int16, commit bool, at int64) batch {
	var kind byte
	if commit {
		kind = 1
	}
	record := []byte{0} // attributes
	record = kbin.AppendVarlong(record, 0)
	record = kbin.AppendVarint(record, 0)
	record = kbin.AppendVarintBytes(record, []byte{0, 0, 0, kind})
	record = kbin.AppendVarintBytes(record, []byte{0, 0, 0, 0, 0, coordinatorEpoch})
	record = kbin.AppendVarint(record, 0)
	records := append(kbin.AppendVarint(nil, int32(len(record))), record...)
	return appendBatch(make([]byte, 0, batchHeader+len(records)), offset, batch{
		attributes: attrTransactional | attrControl,
		firstTime:  at, maxTime: at, producer: producer, epoch: epoch, firstSeq: noSequence, records: 1,
	}, records)
}

// leaderEpoch is the epoch of every partition's one leader.
const leaderEpoch = 0
