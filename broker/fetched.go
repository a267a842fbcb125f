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
	pieces [][]byte
	taken  []*block // that pieces lie in
	used   int      // of the last one
	open   bool     // the last piece ends there, and can be appended to
	size   int64
}

// block is room for bytes.
type block struct {
	room []byte
	pool *sync.Pool // that it came from, if it did
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

func newBlock(n int) *block {
	size := blockSize
	for _, pool := range blockPools {
		if n <= size {
			return pool.Get().(*block)
		}
		size *= 2
	}
	return &block{room: make([]byte, n)}
}

// room returns n bytes of a block, aligned as the storage aligns its own. They
// are used if they are kept, before anything else is added.
func (b *blocks) room(n int) []byte {
	last, at := len(b.taken)-1, (b.used+7)&^7
	if last < 0 || len(b.taken[last].room) < at+n {
		b.taken, b.used, b.open = append(b.taken, newBlock(n)), 0, false
		last, at = last+1, 0
	}
	return b.taken[last].room[at : at+n]
}

// keep adds a batch that lies in what room returned last.
func (b *blocks) keep(room, batch []byte) {
	b.used = (b.used+7)&^7 + len(room)
	b.refer(batch)
}

// append copies a batch.
func (b *blocks) append(batch []byte) {
	n := len(batch)
	if b.open && len(b.taken[len(b.taken)-1].room) >= b.used+n {
		last := &b.pieces[len(b.pieces)-1]
		*last = append(*last, batch...)
		b.used += n
		b.size += int64(n)
		return
	}
	room := b.room(n)
	copy(room, batch)
	b.keep(room, room[:n:cap(room)])
	b.open = true
}

// refer adds a batch whose bytes stay as they are.
func (b *blocks) refer(batch []byte) {
	b.pieces, b.open = append(b.pieces, batch), false
	b.size += int64(len(batch))
}

// release gives the blocks back, and what was taken for them.
func (b *blocks) release() {
	if b.size > 0 {
		b.from.give(b.size)
	}
	for _, taken := range b.taken {
		if taken.pool != nil {
			taken.pool.Put(taken)
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
