package kafka

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// abortedFrom is a transaction that was aborted: of which producer, and where
// it begins.
type abortedFrom struct {
	producer int64
	first    int64
}

func abortedIn(list []kmsg.FetchResponseTopicPartitionAbortedTransaction) []abortedFrom {
	aborted := make([]abortedFrom, len(list))
	for i, t := range list {
		aborted[i] = abortedFrom{producer: t.ProducerID, first: t.FirstOffset}
	}
	return aborted
}

// unpacking takes the answer to a fetch of one partition apart: record batches,
// one after the other, of which the last may be cut off.
//
//	batch: where it begins | length | leader's epoch | magic | checksum | attributes | … | records
//
// What it brings is good up to next, also with an error.
type unpacking struct {
	topic     string
	partition int32
	next      int64 // the position: what is below is passed over
	epoch     int32 // of the leader that wrote what is right before it; -1 if nothing was passed
	out       *contents

	aborted   []abortedFrom // which are to come, in the order of where they begin
	aborting  []int64       // producers of those that are under way
	raw       []byte        // all of the answer
	rawChunk  uint32        // which of the chunks it is
	rawIsHeld bool          // and whether it is one yet
}

// unpack takes an answer apart. aborted are the transactions to leave out.
func unpack(d *topic.Description, partition int32, at int64, raw []byte, aborted []abortedFrom) (m Messages, u unpacking, err error) {
	u = unpacking{topic: d.Name(), partition: partition, next: at, epoch: -1, out: newContents(), raw: raw, aborted: aborted}
	slices.SortFunc(u.aborted, func(x, y abortedFrom) int { return cmp.Compare(x.first, y.first) })
	err = u.batches()
	return Messages{topic: d, partition: partition, home: u.out, spots: u.out.spots}, u, err
}

var errCorrupt = errors.New("corrupt")

// batches takes all batches apart that are there as a whole.
func (u *unpacking) batches() error {
	for at := 0; len(u.raw)-at > batchMagic; {
		b := u.raw[at:]
		first := int64(binary.BigEndian.Uint64(b))
		length := int64(int32(binary.BigEndian.Uint32(b[batchLength:])))
		if length < batchMagic+1-batchEpoch {
			return fmt.Errorf("batch at offset %d: %w: it has length %d", first, errCorrupt, length)
		}
		end := batchEpoch + length
		if int64(len(b)) < end {
			break // cut off by the limit in bytes
		}
		b = b[:end:end]
		var err error
		switch magic := b[batchMagic]; magic {
		case 2:
			err = u.batch(b, at)
		case 0, 1:
			err = u.old(b)
		default:
			err = fmt.Errorf("its format is %d, which is newer than what is known", magic)
		}
		if err != nil {
			return fmt.Errorf("batch at offset %d: %w", first, err)
		}
		at += int(end)
	}
	return nil
}

// batch takes one batch apart, which begins at a place of the answer.
func (u *unpacking) batch(b []byte, at int) error {
	if len(b) < batchOverhead {
		return fmt.Errorf("%w: it has %d bytes", errCorrupt, len(b))
	}
	first := int64(binary.BigEndian.Uint64(b))
	last := first + int64(int32(binary.BigEndian.Uint32(b[batchLastDelta:])))
	if have, want := crc32.Checksum(b[batchAttributes:], castagnoli), binary.BigEndian.Uint32(b[batchChecksum:]); have != want {
		return fmt.Errorf("%w: its checksum is %08x and it says %08x", errCorrupt, have, want)
	}
	if last < first || last == math.MaxInt64 {
		return fmt.Errorf("%w: it ends at offset %d", errCorrupt, last)
	}
	attributes := binary.BigEndian.Uint16(b[batchAttributes:])
	count := int32(binary.BigEndian.Uint32(b[batchCount:]))
	if count < 0 {
		return fmt.Errorf("%w: it holds %d records", errCorrupt, count)
	}
	abort, err := u.isAborted(b, first, last, attributes)
	if err != nil {
		return err
	}
	if last >= u.next && count > 0 && !abort && attributes&batchControl == 0 {
		held := len(u.out.spots)
		if err := u.records(b, at, first, last, attributes, count); err != nil {
			u.out.spots = u.out.spots[:held] // all of a batch, or nothing
			return err
		}
	}
	if last >= u.next {
		u.next = last + 1
		u.epoch = int32(binary.BigEndian.Uint32(b[batchEpoch:]))
	}
	return nil
}

// isAborted says whether a batch is of a transaction that was aborted. A
// producer's batches are, from where the first of its aborted transactions
// begins up to the marker that ends it.
func (u *unpacking) isAborted(b []byte, first, last int64, attributes uint16) (bool, error) {
	for len(u.aborted) > 0 && u.aborted[0].first <= last {
		u.aborting = append(u.aborting, u.aborted[0].producer)
		u.aborted = u.aborted[1:]
	}
	if len(u.aborting) == 0 || attributes&batchTransactional == 0 {
		return false, nil
	}
	producer := int64(binary.BigEndian.Uint64(b[batchProducer:]))
	if attributes&batchControl == 0 {
		return slices.Contains(u.aborting, producer), nil
	}
	kind, err := markerKind(b)
	if err != nil {
		return false, err
	}
	if kind == markerAbort {
		u.aborting = slices.DeleteFunc(u.aborting, func(id int64) bool { return id == producer })
	}
	return false, nil
}

// markerAbort is the kind of marker that ends an aborted transaction.
const markerAbort = 0

// markerKind returns what kind a control batch's marker is of; -1 if the batch
// holds none any more.
func markerKind(b []byte) (int16, error) {
	if int32(binary.BigEndian.Uint32(b[batchCount:])) == 0 {
		return -1, nil
	}
	_, at := varint(b, batchOverhead) // length
	at = skip(b, at, 1)               // attributes
	_, at = varint(b, at)             // time
	_, at = varint(b, at)             // offset
	key, at := blob(b, at)
	if at < 0 || len(key) < 4 {
		return 0, fmt.Errorf("%w: its marker can't be read", errCorrupt)
	}
	return int16(binary.BigEndian.Uint16(key[2:])), nil
}

// What the low bits of a batch's attributes say.
const (
	batchCodec      = 7      // how the records are compressed
	batchAppendTime = 1 << 3 // the records have the broker's time, which is the batch's last
)

// decompress is how batches are decompressed: as the library does it.
var decompress = kgo.DefaultDecompressor()

// records takes a batch's records apart.
func (u *unpacking) records(b []byte, at int, first, last int64, attributes uint16, count int32) error {
	var body []byte
	var chunk uint32
	if codec := attributes & batchCodec; codec != 0 {
		var err error
		if body, err = decompress.Decompress(b[batchOverhead:], kgo.CompressionCodecType(codec)); err != nil {
			return fmt.Errorf("decompress its records: %w", err)
		}
		at, chunk = 0, u.out.take(body)
	} else {
		if !u.rawIsHeld {
			u.rawChunk, u.rawIsHeld = u.out.take(u.raw), true
		}
		body, at, chunk = u.raw[:at+len(b)], at+batchOverhead, u.rawChunk
	}
	if int(count) > (len(body)-at)/recordMin {
		return fmt.Errorf("%w: it says that it holds %d records, in %d bytes", errCorrupt, count, len(body)-at)
	}
	u.out.spots = slices.Grow(u.out.spots, int(count))
	begin := int64(binary.BigEndian.Uint64(b[batchFirstTime:]))
	stamp := int64(binary.BigEndian.Uint64(b[batchLastTime:]))
	stamped := attributes&batchAppendTime != 0
	before := first - 1
	for range count {
		length, from := varint(body, at)
		end := from + int(length)
		if from < 0 || length < recordMin-1 || length > int64(len(body)-from) {
			return fmt.Errorf("%w: a record after offset %d has length %d, of %d bytes", errCorrupt, before, length, len(body)-at)
		}
		delta, next := varint(body, from+1) // after attributes, of which there are none
		nth, next := varint(body, next)
		keyLen, key := varint(body, next)
		lengthAt := skip(body, key, keyLen)
		valueLen, value := varint(body, lengthAt)
		headers, next := varint(body, skip(body, value, valueLen))
		s := spot{offset: first + nth, millis: begin + delta, chunk: chunk, at: uint32(key), key: int32(keyLen), value: int32(valueLen)}
		if stamped {
			s.millis = stamp
		}
		if headers != 0 {
			s.chunk |= headed
			next = skipHeaders(body, next, headers)
		}
		at = end
		switch {
		case next != end || headers < 0 || keyLen < -1 || valueLen < -1:
			return fmt.Errorf("%w: a record after offset %d can't be read", errCorrupt, before)
		case s.offset <= before || s.offset > last:
			return fmt.Errorf("%w: after offset %d comes %d, and it ends at %d", errCorrupt, before, s.offset, last)
		}
		before = s.offset
		switch {
		case s.offset < u.next:
		case value-lengthAt != varintSize(valueLen):
			u.copy(body, s, value)
		default:
			u.out.spots = append(u.out.spots, s)
		}
	}
	if at != len(body) {
		return fmt.Errorf("%w: %d bytes come after its %d records", errCorrupt, len(body)-at, count)
	}
	return nil
}

// skipHeaders returns the place after so many headers.
func skipHeaders(b []byte, at int, count int64) int {
	for range count {
		n, from := varint(b, at)
		if n < 0 {
			return badPlace
		}
		n, from = varint(b, skip(b, from, n))
		if at = skip(b, from, n); at < 0 {
			return badPlace
		}
	}
	return at
}

// recordMin is how many bytes a record has at least.
const recordMin = 7

// copy takes a record whose lengths are written otherwise than spots take for
// granted.
func (u *unpacking) copy(b []byte, p spot, value int) {
	var k, v []byte
	if p.key >= 0 {
		k = b[p.at : int(p.at)+int(p.key)]
	}
	end := value
	if p.value >= 0 {
		end += int(p.value)
		v = b[value:end]
	}
	var headers []topic.Header
	if p.chunk&headed != 0 {
		headers = headersAt(b[end:])
	}
	u.out.add(p.offset, p.millis, k, v, headers)
}

// old takes a message apart that is from before there were batches, or several
// that are compressed as one. Brokers make them batches when they are written,
// so that only logs from before 2017 hold any: the library knows how.
func (u *unpacking) old(b []byte) error {
	answer := kmsg.NewFetchResponseTopicPartition()
	answer.Partition, answer.RecordBatches = u.partition, b
	fp, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{Offset: u.next, Topic: u.topic, Partition: u.partition}, &answer, decompress, nil)
	if fp.Err != nil {
		return fmt.Errorf("a message from before record batches: %w", fp.Err)
	}
	for _, rec := range fp.Records {
		if rec.Offset >= u.next && rec.Offset < math.MaxInt64 {
			u.next = rec.Offset + 1
			u.out.add(rec.Offset, exactTime(rec.Timestamp).UnixMilli(), rec.Key, rec.Value, headersOf(rec))
		}
	}
	u.next = max(u.next, next)
	return nil
}
