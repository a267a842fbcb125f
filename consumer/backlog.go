package consumer

import (
	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// backlog holds the messages from the first one of the open transaction on,
// and how far they are consumed. They are kept until the transaction commits,
// so that an aborted one can be consumed again.
//
//	parts   [ . . x x x ] [ x x o o ] [ o o o ]
//	              ▲ first       ▲ next
type backlog struct {
	parts  []kafka.FetchedPart // each of one partition, as they were fetched
	first  cursor
	next   cursor
	queued int // messages from next on
	bytes  int // of all messages held

	positions map[topic.Partition]int64 // of each partition, at next
	committed map[topic.Partition]int64 // and at first
}

// cursor is a place in the parts.
type cursor struct{ part, message int }

func newBacklog(positions map[topic.Partition]int64) *backlog {
	b := &backlog{positions: make(map[topic.Partition]int64), committed: make(map[topic.Partition]int64)}
	for p, next := range positions {
		b.positions[p], b.committed[p] = next, next
	}
	return b
}

// push adds what was fetched at the end.
func (b *backlog) push(f *kafka.Fetched) {
	b.parts = append(b.parts, f.Parts...)
	b.queued += f.Count
	b.bytes += f.Bytes
	if b.queued == 0 {
		b.advance(0) // it only moves positions
	}
}

// peek returns up to n messages that come next, as far as they lie in one
// part. There are some.
func (b *backlog) peek(n int) kafka.Messages {
	at := b.next
	for at.message == b.parts[at.part].Len() {
		at = cursor{part: at.part + 1}
	}
	part := &b.parts[at.part]
	return part.Slice(at.message, min(at.message+n, part.Len()))
}

// last returns the last message consumed in the open transaction.
func (b *backlog) last() topic.Envelope {
	at := b.next
	for at.message == 0 {
		at.part--
		at.message = b.parts[at.part].Len()
	}
	return b.parts[at.part].At(at.message - 1)
}

// advance tells that the next n messages have been consumed. Positions move
// past them, and past what follows them that is not a message.
func (b *backlog) advance(n int) {
	invariants.Check(n <= b.queued, "consumed %d of %d messages", n, b.queued)
	b.queued -= n
	for b.next.part < len(b.parts) {
		part := &b.parts[b.next.part]
		take := min(n, part.Len()-b.next.message)
		n -= take
		b.next.message += take
		if b.next.message < part.Len() {
			if take > 0 {
				b.positions[part.Partition] = part.Offset(b.next.message-1) + 1
			}
			return
		}
		b.positions[part.Partition] = part.Next
		b.next = cursor{part: b.next.part + 1}
	}
}

// commit tells that the open transaction has committed: what is consumed is
// done with.
func (b *backlog) commit() {
	for i := range b.parts[:b.next.part] {
		b.bytes -= b.parts[i].Bytes
	}
	n := copy(b.parts, b.parts[b.next.part:])
	clear(b.parts[n:])
	b.parts = b.parts[:n]
	b.next.part = 0
	b.first = b.next
	for p, next := range b.positions {
		b.committed[p] = next
	}
}

// rewind tells that the open transaction was aborted: its messages come
// again.
func (b *backlog) rewind() {
	for i := b.first.part; i <= b.next.part && i < len(b.parts); i++ {
		from, to := 0, b.parts[i].Len()
		if i == b.first.part {
			from = b.first.message
		}
		if i == b.next.part {
			to = b.next.message
		}
		b.queued += to - from
	}
	b.next = b.first
	for p, next := range b.committed {
		b.positions[p] = next
	}
}

// moved says whether there is a position to commit.
func (b *backlog) moved() bool {
	for p, next := range b.positions {
		if b.committed[p] != next {
			return true
		}
	}
	return false
}
