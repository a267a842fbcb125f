package broker

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kerr"
)

// The codecs of batches.
const (
	codecNone   = 0
	codecGzip   = 1
	codecSnappy = 2
	codecLZ4    = 3
	codecZstd   = 4
	codecMax    = codecZstd
)

// snappyMax is the most that a block of snappy may come to. The other codecs
// are read as streams.
const snappyMax = 128 << 20

// zstdWindow bounds what a stream of zstd makes its reader keep.
const zstdWindow = 8 << 20

// open returns the batch's records, unpacked as they are read.
func (b *batch) open() (*recordReader, error) {
	src := b.raw[batchHeader:]
	r := readers.Get().(*recordReader)
	r.left, r.n = b.records, 0
	r.base, r.firstTime = b.base(), b.firstTime
	r.close = nil
	var in io.Reader = bytes.NewReader(src)
	var err error
	switch b.codec() {
	case codecGzip:
		in, err = gzip.NewReader(in)
	case codecSnappy:
		in, err = openSnappy(src)
	case codecLZ4:
		in = lz4.NewReader(in)
	case codecZstd:
		var z *zstd.Decoder
		z, err = zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdWindow), zstd.WithDecoderLowmem(true))
		if err == nil {
			in, r.close = z, z.Close
		}
	}
	if err != nil {
		readers.Put(r)
		return nil, fmt.Errorf("unpack a batch: %w", err)
	}
	r.in.Reset(in)
	return r, nil
}

var readers = sync.Pool{New: func() any { return &recordReader{in: bufio.NewReaderSize(nil, 16<<10)} }}

// release ends the reading. What was read stays.
func (r *recordReader) release() {
	if r.close != nil {
		r.close()
	}
	r.in.Reset(nil)
	r.key, r.val = nil, nil
	readers.Put(r)
}

// xerial is what begins a stream of snappy blocks, as some clients frame them.
var xerial = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

func openSnappy(src []byte) (io.Reader, error) {
	unpack := func(block []byte) ([]byte, error) {
		n, err := s2.DecodedLen(block)
		if err != nil {
			return nil, err
		}
		if n > snappyMax {
			return nil, fmt.Errorf("a block comes to %d bytes, more than %d", n, snappyMax)
		}
		return s2.Decode(nil, block)
	}
	if !bytes.HasPrefix(src, xerial) {
		all, err := unpack(src)
		return bytes.NewReader(all), err
	}
	if len(src) < 16 {
		return nil, io.ErrUnexpectedEOF
	}
	return &xerialReader{src: src[16:], unpack: unpack}, nil
}

type xerialReader struct {
	src    []byte
	block  []byte
	unpack func([]byte) ([]byte, error)
}

func (x *xerialReader) Read(p []byte) (int, error) {
	for len(x.block) == 0 {
		if len(x.src) == 0 {
			return 0, io.EOF
		}
		if len(x.src) < 4 {
			return 0, io.ErrUnexpectedEOF
		}
		n := int64(binary.BigEndian.Uint32(x.src))
		if n > int64(len(x.src)-4) {
			return 0, io.ErrUnexpectedEOF
		}
		var err error
		if x.block, err = x.unpack(x.src[4 : 4+n]); err != nil {
			return 0, err
		}
		x.src = x.src[4+n:]
	}
	n := copy(p, x.block)
	x.block = x.block[n:]
	return n, nil
}

// recordReader reads the records of a batch one after another.
type recordReader struct {
	in        *bufio.Reader
	close     func()
	left      int32
	n         int32 // how many were read
	base      int64
	firstTime int64

	// Of the record that next has read. hasKey and hasValue tell null from
	// empty; the bytes are there if they were asked for.
	offset           int64
	delta            int64
	time             int64
	hasKey, hasValue bool
	key, val         []byte
	keep             keep
	size             int64 // what is left of the record

	raw []byte // the record's encoding, if it was asked for
}

// keep says what a reader of records keeps of them.
type keep byte

const (
	keepNothing keep = 0
	keepKey     keep = 1
	keepRaw     keep = 2 // the key too
)

var errRecord = errors.New("a record is not what its batch says")

func (r *recordReader) varint() (int64, error) {
	var u uint64
	for shift := 0; shift < 64; shift += 7 {
		c, err := r.byte()
		if err != nil {
			return 0, err
		}
		u |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return int64(u>>1) ^ -int64(u&1), nil
		}
	}
	return 0, errRecord
}

func (r *recordReader) byte() (byte, error) {
	c, err := r.in.ReadByte()
	if err != nil {
		return 0, eof(err)
	}
	r.size--
	if r.keep == keepRaw {
		r.raw = append(r.raw, c)
	}
	return c, nil
}

func eof(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// bytes reads or skips n bytes.
func (r *recordReader) bytes(n int64, want bool) ([]byte, error) {
	if n > r.size {
		return nil, errRecord
	}
	r.size -= n
	if !want && r.keep != keepRaw {
		for n > 0 {
			m, err := r.in.Discard(int(min(n, 1<<20)))
			n -= int64(m)
			if err != nil {
				return nil, eof(err)
			}
		}
		return nil, nil
	}
	if r.keep == keepRaw {
		at := len(r.raw)
		var err error
		if r.raw, err = appendFrom(r.raw, r.in, n); err != nil {
			return nil, err
		}
		return r.raw[at:], nil
	}
	var err error
	r.key, err = appendFrom(r.key[:0], r.in, n)
	return r.key, err
}

// appendFrom appends n bytes as they come: a length that lies costs no more
// than what is there.
func appendFrom(dst []byte, in *bufio.Reader, n int64) ([]byte, error) {
	for n > 0 {
		at := len(dst)
		m := int(min(n, 64<<10))
		dst = append(dst, make([]byte, m)...)
		if _, err := io.ReadFull(in, dst[at:]); err != nil {
			return dst, eof(err)
		}
		n -= int64(m)
	}
	return dst, nil
}

// recordMax is the most that a record may come to when unpacked.
const recordMax = 256 << 20

// next reads a record. It answers io.EOF after the last one, when there is
// nothing behind it.
func (r *recordReader) next(k keep) error {
	r.keep = keepNothing
	if r.left == 0 {
		if _, err := r.in.ReadByte(); !errors.Is(err, io.EOF) {
			return fmt.Errorf("%w: there is more behind the last one", errRecord)
		}
		return io.EOF
	}
	r.left--
	size, err := r.varint()
	if err != nil {
		return err
	}
	if size < 0 || size > recordMax {
		return errRecord
	}
	r.keep, r.size, r.raw = k, size, r.raw[:0]
	if _, err := r.byte(); err != nil { // attributes, which mean nothing
		return err
	}
	timeDelta, err := r.varint()
	if err != nil {
		return err
	}
	if r.delta, err = r.varint(); err != nil {
		return err
	}
	r.time, r.offset = r.firstTime+timeDelta, r.base+r.delta
	keyLen, err := r.varint()
	if err != nil {
		return err
	}
	r.hasKey, r.hasValue = keyLen >= 0, false
	var keyAt, keyEnd int
	if r.hasKey {
		keyAt = len(r.raw)
		if r.key, err = r.bytes(keyLen, k != keepNothing); err != nil {
			return err
		}
		keyEnd = len(r.raw)
	} else {
		r.key = r.key[:0]
	}
	valLen, err := r.varint()
	if err != nil {
		return err
	}
	if r.hasValue = valLen >= 0; r.hasValue {
		if _, err = r.bytes(valLen, false); err != nil {
			return err
		}
	}
	headers, err := r.varint()
	if err != nil || headers < 0 || headers > r.size {
		return errors.Join(errRecord, err)
	}
	for range headers {
		for part := range 2 {
			n, err := r.varint()
			if err != nil {
				return err
			}
			if n < 0 && part == 0 {
				return errRecord // a header's name may not be null
			}
			if n > 0 {
				if _, err := r.bytes(n, false); err != nil {
					return err
				}
			}
		}
	}
	if r.size != 0 {
		return errRecord
	}
	if k == keepRaw && r.hasKey {
		r.key = r.raw[keyAt:keyEnd] // where it is now that the record has grown
	}
	r.n++
	return nil
}

// validator says what a topic takes.
type validator struct {
	keys     bool  // every record must have a key
	min, max int64 // of timestamps; -1, none, is always taken
	append   bool  // timestamps don't matter
}

// noTime is the timestamp of records that have none.
const noTime = -1

// check reads the records of a client's batch. It names the first record that
// can't be taken, or -1 for the batch.
func (v validator) check(b *batch) (record int32, code *kerr.Error, why string) {
	bad := func(err error) (int32, *kerr.Error, string) {
		return -1, kerr.InvalidRecord, "the batch's records can't be read: " + err.Error()
	}
	r, err := b.open()
	if err != nil {
		return bad(err)
	}
	defer r.release()
	last := int64(noTime)
	for n := int32(0); ; n++ {
		err := r.next(keepNothing)
		if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		switch {
		case err != nil:
			return bad(err)
		case r.delta != int64(n):
			return bad(fmt.Errorf("record %d has offset delta %d", n, r.delta))
		case v.keys && !r.hasKey:
			return n, kerr.InvalidRecord, "a compacted topic takes no record without a key"
		case !v.append && r.time != noTime && (r.time < v.min || r.time > v.max):
			return n, kerr.InvalidTimestamp, fmt.Sprintf("record %d has timestamp %d, which is not between %d and %d", n, r.time, v.min, v.max)
		}
		last = max(last, r.time)
	}
	if !v.append && last != b.maxTime {
		// The header is what retention and searches by time go by.
		b.maxTime = last
		binary.BigEndian.PutUint64(b.raw[35:], uint64(last))
		b.seal()
	}
	return -1, nil, ""
}
