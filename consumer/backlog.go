package consumer

import (
	"slices"

	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// backlog holds the messages that were fetched and are not consumed, and up to
// where the others are. What is consumed is not kept: the messages of a
// transaction that is aborted are fetched again.
//
//	   consumed in the open
//	       transaction
//	──────┬───────────────┬───────────────────────────┬──────
//	      ▲ committed     ▲ positions   queued        ▲ where the fetch is
type backlog struct {
	parts   []kafka.FetchedPart // each of one partition, as they were fetched
	message int                 // of the first part: the next message
	queued  int                 // messages from there on
	bytes   int                 // of all parts that are held
	last    topic.Envelope      // the last one consumed

	positions map[topic.Partition]int64
	committed map[topic.Partition]int64
}

func newBacklog(positions map[topic.Partition]int64) *backlog {
	b := &backlog{positions: make(map[topic.Partition]int64), committed: make(map[topic.Partition]int64)}
	for p, next := range positions {
		b.positions[p], b.committed[p] = next, next
	}
	return b
}

// push adds what was fetched at the end.
func (b *backlog) push(f *kafka.Fetched) {
	if invariants.Enabled {
		for _, p := range f.Parts {
			invariants.Check(p.Len() == 0 || p.Offset(0) >= b.positions[p.Partition], "fetched %s at %d, which is consumed up to %d", p.Partition, p.Next, b.positions[p.Partition])
		}
	}
	b.parts = append(b.parts, f.Parts...)
	b.queued += f.Count
	b.bytes += f.Bytes
	b.pass() // what comes first may hold no message, and only move positions
}

// peek returns up to n messages that come next, as far as they lie in one
// part. There are some.
func (b *backlog) peek(n int) kafka.Messages {
	part := &b.parts[0]
	return part.Slice(b.message, min(b.message+n, part.Len()))
}

// advance tells that the next n messages, of those that peek returned, have
// been consumed. Positions move past them, and past what follows them that is
// not a message.
func (b *backlog) advance(n int) {
	if n == 0 {
		return
	}
	part := &b.parts[0]
	invariants.Check(b.message+n <= part.Len(), "consumed %d of %d messages", n, part.Len()-b.message)
	b.queued -= n
	b.message += n
	b.last = part.At(b.message - 1)
	b.positions[part.Partition] = b.last.Offset + 1
	b.pass()
}

// pass lets go of parts that hold no more message.
func (b *backlog) pass() {
	for len(b.parts) > 0 && b.message == b.parts[0].Len() {
		part := &b.parts[0]
		b.positions[part.Partition] = max(b.positions[part.Partition], part.Next)
		b.bytes -= part.Bytes
		part.Recycle()
		*part = kafka.FetchedPart{}
		b.parts, b.message = b.parts[1:], 0
	}
}

// commit tells that the open transaction has committed.
func (b *backlog) commit() {
	for p, next := range b.positions {
		b.committed[p] = next
	}
}

// rewind tells that the open transaction was aborted. It forgets everything
// that was fetched, and returns from where each partition is to be fetched
// again.
func (b *backlog) rewind() map[topic.Partition]int64 {
	b.parts, b.message, b.queued, b.bytes = nil, 0, 0, 0
	for p, next := range b.committed {
		b.positions[p] = next
	}
	return b.committed
}

// holds says whether anything of a partition, that its position is not past, is
// held or has come.
func (b *backlog) holds(p topic.Partition, came *kafka.Fetched) bool {
	ahead := func(part kafka.FetchedPart) bool { return part.Partition == p && part.Next > b.positions[p] }
	return slices.ContainsFunc(b.parts, ahead) || slices.ContainsFunc(came.Parts, ahead)
}

// moveTo sets the position of a partition of which nothing is held and nothing
// consumed in the open transaction.
func (b *backlog) moveTo(p topic.Partition, next int64) { b.positions[p], b.committed[p] = next, next }

// moved says whether there is a position to commit.
func (b *backlog) moved() bool {
	for p, next := range b.positions {
		if b.committed[p] != next {
			return true
		}
	}
	return false
}
