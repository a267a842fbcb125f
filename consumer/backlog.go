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
//	batches   [ . . x x x ] [ x x o o ] [ o o o ]
//	                ▲ first       ▲ next
type backlog struct {
	batches []*kafka.Batch
	first   cursor
	next    cursor
	queued  int // messages from next on
	bytes   int // of all messages held

	positions map[topic.Partition]int64 // of each partition, at next
	committed map[topic.Partition]int64 // and at first

	free []*kafka.Batch
}

// cursor is a place in the batches.
type cursor struct {
	batch, message int
	part, inPart   int // the same place, by partition
}

func newBacklog(positions map[topic.Partition]int64) *backlog {
	b := &backlog{positions: make(map[topic.Partition]int64), committed: make(map[topic.Partition]int64)}
	for p, next := range positions {
		b.positions[p], b.committed[p] = next, next
	}
	return b
}

// freeBatches is how many empty batches are kept for use: as many as the
// longest transactions of small messages hold.
const freeBatches = 64

// rest gives up the memory that is kept for use, when little happens.
func (b *backlog) rest() {
	if len(b.batches) == 0 {
		b.free = nil
	}
}

// batch returns an empty batch to fetch into.
func (b *backlog) batch() *kafka.Batch {
	if n := len(b.free); n > 0 {
		batch := b.free[n-1]
		b.free = b.free[:n-1]
		return batch
	}
	return new(kafka.Batch)
}

// push adds a fetched batch at the end.
func (b *backlog) push(batch *kafka.Batch) {
	b.batches = append(b.batches, batch)
	b.queued += len(batch.Envelopes)
	b.bytes += batch.Bytes
	if b.queued == 0 {
		b.advance(0) // it only moves positions
	}
}

// peek returns up to n messages that come next, as far as they lie in one
// batch.
func (b *backlog) peek(n int) []topic.Envelope {
	for i := b.next.batch; i < len(b.batches); i++ {
		msgs := b.batches[i].Envelopes
		if i == b.next.batch {
			msgs = msgs[b.next.message:]
		}
		if len(msgs) > 0 {
			return msgs[:min(n, len(msgs))]
		}
	}
	return nil
}

// last returns the last message consumed in the open transaction.
func (b *backlog) last() topic.Envelope {
	at := b.next
	for at.message == 0 {
		at.batch--
		at.message = len(b.batches[at.batch].Envelopes)
	}
	return b.batches[at.batch].Envelopes[at.message-1]
}

// advance tells that the next n messages have been consumed. Positions move
// past them, and past what follows them that is not a message.
func (b *backlog) advance(n int) {
	invariants.Check(n <= b.queued, "consumed %d of %d messages", n, b.queued)
	b.queued -= n
	for b.next.batch < len(b.batches) {
		batch := b.batches[b.next.batch]
		for b.next.part < len(batch.Parts) {
			part := batch.Parts[b.next.part]
			take := min(n, part.Count-b.next.inPart)
			n -= take
			b.next.message += take
			b.next.inPart += take
			if b.next.inPart < part.Count {
				if take > 0 {
					b.positions[part.Partition] = batch.Envelopes[b.next.message-1].Offset + 1
				}
				return
			}
			b.positions[part.Partition] = part.Next
			b.next.part++
			b.next.inPart = 0
		}
		b.next = cursor{batch: b.next.batch + 1}
	}
}

// commit tells that the open transaction has committed: what is consumed is
// done with.
func (b *backlog) commit() {
	for _, batch := range b.batches[:b.next.batch] {
		b.bytes -= batch.Bytes
		batch.Reset()
		if len(b.free) < freeBatches {
			b.free = append(b.free, batch)
		}
	}
	n := copy(b.batches, b.batches[b.next.batch:])
	clear(b.batches[n:])
	b.batches = b.batches[:n]
	b.next.batch = 0
	b.first = b.next
	for p, next := range b.positions {
		b.committed[p] = next
	}
}

// rewind tells that the open transaction was aborted: its messages come
// again.
func (b *backlog) rewind() {
	for i := b.first.batch; i <= b.next.batch && i < len(b.batches); i++ {
		from, to := 0, len(b.batches[i].Envelopes)
		if i == b.first.batch {
			from = b.first.message
		}
		if i == b.next.batch {
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
