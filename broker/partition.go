package broker

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/twmb/franz-go/pkg/kbin"
)

// partition is one partition's state, guarded by the broker's lock. What is
// staged runs ahead of what is on disk, and of the latter alone readers hear:
//
//	start          visible.stable   visible.high      next
//	  │ records that can be read │ open  │ being synced │
//	  └──────────────────────────┴───────┴──────────────┘
type partition struct {
	topic  *topic
	number int32
	id     uint32

	start     int64   // the first offset that is kept
	next      int64   // the next record's offset
	chunks    []chunk // in order; the last one is appended to
	producers map[int64]*producerState
	abortLast int64 // the offset of the last marker that aborted; -1 if none

	visible struct {
		start  int64
		high   int64
		stable int64
		open   map[int64]int64 // producer ID of an open transaction -> its first offset
	}

	waiting map[*waiter]struct{}
	recent  recent

	unreadable map[int64]struct{} // where it could not be read
	damaged    atomic.Bool        // there are such places

	compactFailed string // why it could not be compacted last; the janitor's own
}

// chunk is a run of a partition's batches. Retention deletes whole chunks,
// compaction rewrites one at a time.
type chunk struct {
	base     int64 // where it begins
	next     int64 // where the next one begins
	bytes    int64
	batches  int64
	maxTime  int64 // the highest timestamp, -1 if none has one
	begun    int64 // when its first batch was appended, by our clock
	appended int64 // when its last batch was appended, by our clock
	cleaned  int64 // when compaction first went over it; 0 if it has not
	expires  bool  // compaction has left tombstones or markers in it
}

// time is how old retention holds a chunk to be: as old as its youngest record,
// but for records that claim to be of the time after they were appended.
func (c chunk) time() int64 {
	if c.maxTime >= 0 {
		return min(c.maxTime, c.appended)
	}
	return c.appended
}

func newPartition(t *topic, number int32, id uint32) *partition {
	p := &partition{topic: t, number: number, id: id, abortLast: -1}
	p.producers = make(map[int64]*producerState)
	p.visible.open = make(map[int64]int64)
	p.waiting = make(map[*waiter]struct{})
	p.chunks = []chunk{{maxTime: -1}}
	return p
}

func (p *partition) String() string { return fmt.Sprintf("%s-%d", p.topic.name, p.number) }

func (c chunk) appendTo(b []byte) []byte {
	for _, n := range []int64{c.base, c.next, c.bytes, c.batches, c.maxTime, c.begun, c.appended, c.cleaned} {
		b = kbin.AppendVarlong(b, n)
	}
	return kbin.AppendBool(b, c.expires)
}

func readChunk(d *decoder) (c chunk) {
	for _, n := range []*int64{&c.base, &c.next, &c.bytes, &c.batches, &c.maxTime, &c.begun, &c.appended, &c.cleaned} {
		*n = d.Varlong()
	}
	c.expires = d.Bool()
	return c
}

// encode is the partition as it is stored: its bounds and its last chunk.
func (p *partition) encode() []byte {
	b := make([]byte, 0, 64)
	b = append(b, formatVersion)
	b = kbin.AppendVarlong(b, p.start)
	b = kbin.AppendVarlong(b, p.next)
	b = kbin.AppendVarlong(b, p.abortLast)
	return p.active().appendTo(b)
}

// decode reads what encode wrote.
func (p *partition) decode(val []byte) error {
	return decode("a partition", val, func(_ byte, d *decoder) {
		p.start, p.next, p.abortLast = d.Varlong(), d.Varlong(), d.Varlong()
		p.chunks = []chunk{readChunk(d)}
	})
}

func encodeChunk(c chunk) []byte { return c.appendTo([]byte{formatVersion}) }

func decodeChunk(val []byte) (c chunk, err error) {
	err = decode("a chunk", val, func(_ byte, d *decoder) { c = readChunk(d) })
	return c, err
}

func (p *partition) active() *chunk { return &p.chunks[len(p.chunks)-1] }

// bytes is how much the partition holds.
func (p *partition) bytes() (n int64) {
	for _, c := range p.chunks {
		n += c.bytes
	}
	return n
}

// appendLocked stages a batch at the partition's end. The caller stages the
// partition itself, once, after the last one.
func (p *partition) appendLocked(b batch, at int64, o *op) {
	b.place(p.next)
	c := p.active()
	if c.batches > 0 && (c.bytes+int64(len(b.raw)) > p.topic.policy.chunkBytes || at-c.begun >= p.topic.policy.chunkTime) {
		p.closeChunkLocked(o)
		c = p.active()
	}
	if c.batches == 0 {
		c.begun = at
	}
	p.next = b.last() + 1
	c.next = p.next
	c.bytes += int64(len(b.raw))
	c.batches++
	c.maxTime = max(c.maxTime, b.maxTime)
	c.appended = at
	o.set(offsetKey(prefixBatch, p.id, b.last()), b.raw)
	o.added = append(o.added, addition{p, b})
}

// closeChunkLocked stages the end of the last chunk and the begin of a new one.
func (p *partition) closeChunkLocked(o *op) {
	c := *p.active()
	o.set(offsetKey(prefixChunk, p.id, c.base), encodeChunk(c))
	p.chunks = append(p.chunks, chunk{base: p.next, next: p.next, maxTime: -1})
}

// stageLocked stages the partition's own record, and that its end is visible
// once it is on disk.
func (p *partition) stageLocked(o *op) {
	o.set(partitionKey(prefixPartition, p.id), p.encode())
	start, next := p.start, p.next
	o.whenApplied(func() {
		invariants.Check(next >= p.visible.high, "%s: the high watermark goes from %d back to %d", p, p.visible.high, next)
		invariants.Check(start >= p.visible.start, "%s: the start goes from %d back to %d", p, p.visible.start, start)
		p.visible.start, p.visible.high = start, next
		p.settleLocked()
	})
}

// settleLocked computes the last stable offset anew and wakes who waits.
func (p *partition) settleLocked() {
	stable := p.visible.high
	for _, first := range p.visible.open {
		stable = min(stable, max(first, p.visible.start))
	}
	invariants.Check(stable >= p.visible.stable, "%s: the last stable offset goes from %d back to %d", p, p.visible.stable, stable)
	p.visible.stable = stable
	p.wakeLocked()
}

// end is up to where a reader reads.
func (p *partition) endLocked(committed bool) int64 {
	if committed {
		return p.visible.stable
	}
	return p.visible.high
}

// raiseStartLocked stages that what is below start is deleted: its batches, the
// chunks that end there, and what is known of aborted transactions. A batch
// that goes on beyond start stays, and its readers skip.
func (p *partition) raiseStartLocked(start int64, o *op) {
	invariants.Check(start <= p.next, "%s: start %d beyond the end %d", p, start, p.next)
	p.start = start
	o.removeRange(offsetKey(prefixBatch, p.id, 0), offsetKey(prefixBatch, p.id, start))
	o.removeRange(offsetKey(prefixAborted, p.id, 0), offsetKey(prefixAborted, p.id, start))
	n := 0
	for n < len(p.chunks)-1 && p.chunks[n].next <= start {
		n++
	}
	if n > 0 {
		o.removeRange(offsetKey(prefixChunk, p.id, 0), offsetKey(prefixChunk, p.id, p.chunks[n-1].base+1))
		p.chunks = slices.Clone(p.chunks[n:])
	}
	if c := p.active(); len(p.chunks) == 1 && start >= c.next {
		*c = chunk{base: p.next, next: p.next, maxTime: -1}
	}
	p.stageLocked(o)
}

// A waiter waits for partitions to change.
type waiter struct{ wake chan struct{} }

func newWaiter() *waiter { return &waiter{make(chan struct{}, 1)} }

func (p *partition) wakeLocked() {
	for w := range p.waiting {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}
