package kafka

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Messages are messages of one partition, in order, as they were fetched. An
// envelope is made when it is asked for: a shard keeps messages until their
// transaction commits, and envelopes are large.
type Messages struct {
	topic     *topic.Description
	partition int32
	home      *contents
	spots     []spot // part of home's
}

// contents is what was fetched of a partition at once. The bytes are the
// collector's, who waits for all envelopes that point into them; the rest is
// used again for another fetch.
type contents struct {
	chunks [][]byte // record batches as they came, or what they were unpacked to
	spots  []spot
	own    bool         // the last chunk is made by add, which may go on with it
	held   atomic.Int32 // Messages that were not recycled
}

// spot is where one message is. It holds no pointer, so that the collector has
// nothing to do with a million of them.
type spot struct {
	offset, millis int64
	chunk          uint32 // its index, and headed
	at             uint32 // where the key begins, after which come the value's length, and the value
	key, value     int32  // lengths; -1 for null
}

// headed is the bit of a spot's chunk that says that it has headers. Their
// count and they come right after the value.
const headed = 1 << 31

// body returns the chunk and where the value begins in it.
func (c *contents) body(p *spot) (chunk []byte, value int) {
	return c.chunks[p.chunk&^headed], int(p.at) + max(int(p.key), 0) + varintSize(int64(p.value))
}

// contentsPool keeps the memory of all sessions of the process.
var contentsPool = sync.Pool{New: func() any { return new(contents) }}

func newContents() *contents {
	c := contentsPool.Get().(*contents)
	c.held.Store(1)
	return c
}

// release tells that one of those who hold it does so no longer.
func (c *contents) release() {
	held := c.held.Add(-1)
	invariants.Check(held >= 0, "messages were recycled twice")
	if held != 0 {
		return
	}
	clear(c.chunks)
	c.chunks, c.spots, c.own = c.chunks[:0], c.spots[:0], false
	contentsPool.Put(c)
}

// take adds a chunk that holds records as they came, and returns its index.
func (c *contents) take(chunk []byte) uint32 {
	c.own = false
	c.chunks = append(c.chunks, chunk)
	return uint32(len(c.chunks) - 1)
}

// add adds a message that is copied.
func (c *contents) add(offset, millis int64, key, value []byte, headers []topic.Header) {
	if !c.own || len(c.chunks[len(c.chunks)-1]) > batchTarget {
		c.chunks, c.own = append(c.chunks, []byte{}), true
	}
	last := len(c.chunks) - 1
	b := c.chunks[last]
	p := spot{offset: offset, millis: millis, chunk: uint32(last), at: uint32(len(b)), key: -1, value: -1}
	if key != nil {
		p.key = int32(len(key))
		b = append(b, key...)
	}
	if value != nil {
		p.value = int32(len(value))
	}
	b = appendBlob(b, value)
	if len(headers) > 0 {
		p.chunk |= headed
		b = appendHeaders(b, headers)
	}
	c.chunks[last] = b
	c.spots = append(c.spots, p)
}

// MessagesOf returns messages made of the envelopes, which are all of one
// partition.
func MessagesOf(d *topic.Description, es ...topic.Envelope) Messages {
	m := Messages{topic: d, home: newContents()}
	for _, e := range es {
		m.partition = e.Partition
		m.home.add(e.Offset, e.Timestamp.UnixMilli(), e.Key, e.Value, e.Headers)
	}
	m.spots = m.home.spots
	return m
}

// Len is how many there are.
func (m Messages) Len() int { return len(m.spots) }

// Slice returns those from one index on, below the other. They are not to be
// recycled: that is for whoever has them all.
func (m Messages) Slice(from, to int) Messages {
	m.spots = m.spots[from:to]
	return m
}

// split returns the first n, and the others. Each is recycled by itself.
func (m Messages) split(n int) (first, rest Messages) {
	m.home.held.Add(1)
	return m.Slice(0, n), m.Slice(n, len(m.spots))
}

// At returns one of them.
func (m Messages) At(i int) topic.Envelope {
	p := &m.spots[i]
	chunk, value := m.home.body(p)
	e := topic.Envelope{Topic: m.topic, Partition: m.partition, Offset: p.offset, Timestamp: time.UnixMilli(p.millis)}
	if p.key >= 0 {
		end := int(p.at) + int(p.key)
		e.Key = chunk[p.at:end:end]
	}
	end := value
	if p.value >= 0 {
		end += int(p.value)
		e.Value = chunk[value:end:end]
	}
	if p.chunk&headed != 0 {
		e.Headers = headersAt(chunk[end:])
	}
	return e
}

// Offset returns the offset of one of them.
func (m Messages) Offset(i int) int64 { return m.spots[i].offset }

// size is how many bytes of keys, values and headers there are.
func (m Messages) size() (n int) {
	for i := range m.spots {
		p := &m.spots[i]
		n += max(int(p.key), 0) + max(int(p.value), 0)
		if p.chunk&headed != 0 {
			chunk, value := m.home.body(p)
			count, at := varint(chunk, value+max(int(p.value), 0))
			for range 2 * count {
				var b []byte
				b, at = blob(chunk, at)
				n += len(b)
			}
		}
	}
	return n
}

// Recycle gives the messages' memory back, to be fetched into again. Nobody may
// look at them after it; what envelopes made of them point to stays.
func (m Messages) Recycle() {
	if m.home != nil {
		m.home.release()
	}
}

// appendHeaders appends headers as a record has them.
func appendHeaders(b []byte, headers []topic.Header) []byte {
	b = appendVarint(b, int64(len(headers)))
	for i := range headers {
		h := &headers[i]
		b = appendVarint(b, int64(len(h.Key)))
		b = append(b, h.Key...)
		b = appendBlob(b, h.Value)
	}
	return b
}

// headersAt returns the headers that bytes begin with, which are known to be
// whole.
func headersAt(b []byte) []topic.Header {
	count, at := varint(b, 0)
	hs := make([]topic.Header, count)
	for i := range hs {
		var name []byte
		name, at = blob(b, at)
		hs[i].Key = string(name)
		hs[i].Value, at = blob(b, at)
	}
	return hs
}

func headersOf(rec *kgo.Record) []topic.Header {
	hs := make([]topic.Header, len(rec.Headers))
	for i, h := range rec.Headers {
		hs[i] = topic.Header{Key: h.Key, Value: h.Value}
	}
	return hs
}

// Fetched is what Fetch brings: messages that are not envelopes yet.
type Fetched struct {
	Parts []FetchedPart
	Count int // of messages
	Bytes int // of their keys, values and headers
}

// FetchedPart is what Fetch brings of one partition. Its Count is the number of
// its messages.
type FetchedPart struct {
	PartBatch
	Messages
	Bytes int // of keys, values and headers
}
