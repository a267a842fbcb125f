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

// blocks are bytes in pieces, which come from a pool. Their size is taken from
// a budget by whoever appends, and given back by release.
type blocks struct {
	from   *budget
	pieces []piece
	size   int64
}

// piece is a run of bytes.
type piece struct {
	bytes []byte
	block *block // that they are in, if it came from a pool
	full  bool   // nothing is appended to it
}

// block is room for bytes.
type block struct {
	room []byte
	pool *sync.Pool
}

// The sizes of blocks in the pools: one for batches that are small, and some for
// one batch each. What a bigger one needs is made.
const (
	blockSize    = 256 << 10
	blockSizeMax = 2 << 20
)

var blockPools = func() (pools []*sync.Pool) {
	for size := blockSize; size <= blockSizeMax; size *= 2 {
		pool := new(sync.Pool)
		pool.New = func() any { return &block{make([]byte, size), pool} }
		pools = append(pools, pool)
	}
	return pools
}()

// newPiece returns an empty piece with room for n bytes.
func newPiece(n int) piece {
	size := blockSize
	for _, pool := range blockPools {
		if n <= size {
			b := pool.Get().(*block)
			return piece{bytes: b.room[:0], block: b}
		}
		size *= 2
	}
	return piece{bytes: make([]byte, 0, n)}
}

// append copies a batch.
func (b *blocks) append(batch []byte) {
	last := len(b.pieces) - 1
	if last < 0 || b.pieces[last].full || cap(b.pieces[last].bytes)-len(b.pieces[last].bytes) < len(batch) {
		b.pieces = append(b.pieces, newPiece(len(batch)))
		last++
	}
	b.pieces[last].bytes = append(b.pieces[last].bytes, batch...)
	b.size += int64(len(batch))
}

// refer adds a batch whose bytes stay as they are.
func (b *blocks) refer(batch []byte) {
	b.pieces = append(b.pieces, piece{bytes: batch, full: true})
	b.size += int64(len(batch))
}

// release gives the pieces back, and what was taken for them.
func (b *blocks) release() {
	if b.size > 0 {
		b.from.give(b.size)
	}
	for _, p := range b.pieces {
		if p.block != nil {
			p.block.pool.Put(p.block)
		}
	}
	*b = blocks{from: b.from}
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
