package broker

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fetched is the answer to a fetch, with the records beside it, partition by
// partition: they go from where they were read to the connection without being
// copied once more.
type fetched struct {
	*kmsg.FetchResponse
	records []blocks // of all partitions, in their order
}

// blocks are bytes in pieces, which come from a pool.
type blocks struct {
	pieces [][]byte
	size   int64
}

// blockSize is the size of a piece, unless one batch needs more.
const blockSize = 256 << 10

var blockPool = sync.Pool{New: func() any { return new([blockSize]byte) }}

// append copies a batch.
func (b *blocks) append(batch []byte) {
	last := len(b.pieces) - 1
	if last < 0 || cap(b.pieces[last])-len(b.pieces[last]) < len(batch) {
		if len(batch) > blockSize {
			b.pieces = append(b.pieces, make([]byte, 0, len(batch)))
		} else {
			b.pieces = append(b.pieces, blockPool.Get().(*[blockSize]byte)[:0])
		}
		last++
	}
	b.pieces[last] = append(b.pieces[last], batch...)
	b.size += int64(len(batch))
}

// release gives the pieces back.
func (b *blocks) release() {
	for _, p := range b.pieces {
		if cap(p) == blockSize {
			blockPool.Put((*[blockSize]byte)(p[:blockSize]))
		}
	}
	*b = blocks{}
}

// size is how many bytes of records the answer holds.
func (f *fetched) size() (n int64) {
	for i := range f.records {
		n += f.records[i].size
	}
	return n
}

func (f *fetched) release() {
	for i := range f.records {
		f.records[i].release()
	}
}

// encode appends the answer to dst, and calls records where those of a
// partition belong, which may send what is in dst, and returns what is left.
func (f *fetched) encode(dst []byte, records func(dst []byte, b *blocks) []byte) []byte {
	v := f.Version
	flexible := v >= 12
	array := func(n int) {
		if flexible {
			dst = kbin.AppendCompactArrayLen(dst, n)
		} else {
			dst = kbin.AppendArrayLen(dst, n)
		}
	}
	noTags := func() {
		if flexible {
			dst = append(dst, 0)
		}
	}
	dst = kbin.AppendInt32(dst, f.ThrottleMillis)
	if v >= 7 {
		dst = kbin.AppendInt16(dst, f.ErrorCode)
		dst = kbin.AppendInt32(dst, f.SessionID)
	}
	array(len(f.Topics))
	at := 0
	for i := range f.Topics {
		t := &f.Topics[i]
		switch {
		case v >= 13:
			dst = kbin.AppendUuid(dst, t.TopicID)
		case flexible:
			dst = kbin.AppendCompactString(dst, t.Topic)
		default:
			dst = kbin.AppendString(dst, t.Topic)
		}
		array(len(t.Partitions))
		for j := range t.Partitions {
			p, b := &t.Partitions[j], &f.records[at]
			at++
			dst = kbin.AppendInt32(dst, p.Partition)
			dst = kbin.AppendInt16(dst, p.ErrorCode)
			dst = kbin.AppendInt64(dst, p.HighWatermark)
			dst = kbin.AppendInt64(dst, p.LastStableOffset)
			if v >= 5 {
				dst = kbin.AppendInt64(dst, p.LogStartOffset)
			}
			if flexible {
				dst = kbin.AppendCompactNullableArrayLen(dst, len(p.AbortedTransactions), p.AbortedTransactions == nil)
			} else {
				dst = kbin.AppendNullableArrayLen(dst, len(p.AbortedTransactions), p.AbortedTransactions == nil)
			}
			for _, a := range p.AbortedTransactions {
				dst = kbin.AppendInt64(dst, a.ProducerID)
				dst = kbin.AppendInt64(dst, a.FirstOffset)
				noTags()
			}
			if v >= 11 {
				dst = kbin.AppendInt32(dst, p.PreferredReadReplica)
			}
			if flexible {
				dst = kbin.AppendUvarint(dst, uint32(b.size)+1)
			} else {
				dst = kbin.AppendInt32(dst, int32(b.size))
			}
			dst = records(dst, b)
			noTags()
		}
		noTags()
	}
	noTags()
	return dst
}
