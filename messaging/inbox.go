package messaging

import (
	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/internal/kafka"
)

// inbox is messages of the input that were fetched and not read yet. Whoever is
// about to handle some reads them out of it, a few at a time: so what handlers
// are quick with goes from one hand to the next while it is at hand, and there
// are no more messages in between than handlers need.
type inbox struct {
	parts []kafka.FetchedPart
	at    int   // how many messages of the first part were read
	left  int64 // size of the others of the first part
	count int   // messages that were not read
	bytes int64 // their size, as that of deliveries
}

// The inbox's limits. It also counts for what the stream holds.
const (
	inboxMax = 32 << 10 // messages, above which no more is fetched
	readMax  = 256      // messages that are read at once
	fillMax  = 2048     // messages that are read for one handler: others wait for that long
)

func (b *inbox) add(f kafka.FetchedPart) {
	b.parts = append(b.parts, f)
	b.count += f.Len()
	b.bytes += sizeOf(&f)
	if len(b.parts) == 1 {
		b.left = sizeOf(&f)
	}
}

// sizeOf is what messages count for in limits of bytes.
func sizeOf(f *kafka.FetchedPart) int64 { return int64(f.Bytes) + int64(f.Len())*deliveryOverhead }

// pass goes past the next messages of the first part, which were read and have
// that size.
func (b *inbox) pass(n int, size int64) {
	invariants.Check(size <= b.left, "messages of %d bytes were read, and there were %d", size, b.left)
	b.at, b.count, b.left, b.bytes = b.at+n, b.count-n, b.left-size, b.bytes-size
}

// next returns the offset after all that was fetched; 0 when it is empty.
func (b *inbox) next() int64 {
	if len(b.parts) == 0 {
		return 0
	}
	return b.parts[len(b.parts)-1].Next
}

// shift lets go of the first part.
func (b *inbox) shift() {
	b.count -= b.parts[0].Len() - b.at
	b.bytes -= b.left
	b.parts[0].Recycle()
	b.parts[0] = kafka.FetchedPart{}
	b.parts, b.at, b.left = b.parts[1:], 0, 0
	if len(b.parts) == 0 {
		b.parts = nil
	} else {
		b.left = sizeOf(&b.parts[0])
	}
}

// clear lets go of everything.
func (b *inbox) clear() {
	for len(b.parts) > 0 {
		b.shift()
	}
}

// readableLocked is how many messages of the inbox may be read now.
func (p *partition) readableLocked() int {
	if len(p.mu.streams) == 0 {
		return 0
	}
	s := p.mu.streams[streamInput]
	if s.inbox.count == 0 || p.mu.solo != nil || s.overLimit(&p.w.cfg) {
		return 0
	}
	return min(s.inbox.count, p.w.cfg.MaxUnsettled-int(s.window.unsettled), p.w.cfg.MaxSpan-s.window.span())
}

// fillLocked reads messages until enough are ready to be handled, as far as the
// limits let it.
func (p *partition) fillLocked(enough int) {
	read := 0
	for p.mu.ready.len() < enough && read < fillMax {
		n := min(p.readableLocked(), readMax)
		if n == 0 {
			break
		}
		p.readLocked(p.mu.streams[streamInput], n, nil)
		read += n
	}
	if read > 0 {
		s := p.mu.streams[streamInput]
		p.boundLocked(s)
	}
}

// readLocked reads so many messages of the inbox, which has them: into a chunk,
// if one is given.
func (p *partition) readLocked(s *stream, n int, into *chunk) {
	for b := &s.inbox; n > 0; {
		f := &b.parts[0]
		k := min(n, f.Len()-b.at)
		size := p.arriveAllLocked(s, f.Messages, b.at, b.at+k, into)
		b.pass(k, size)
		n -= k
		p.passPartsLocked(s)
	}
}

// passPartsLocked lets go of parts of the inbox of which all was read, and goes
// past what comes after their messages.
func (p *partition) passPartsLocked(s *stream) {
	b := &s.inbox
	for len(b.parts) > 0 && b.at == b.parts[0].Len() {
		s.next = max(s.next, b.parts[0].Next)
		b.shift()
	}
}

// fetchedLocked takes what was fetched of the input.
func (p *partition) fetchedLocked(s *stream, f *kafka.FetchedPart) {
	s.inbox.add(*f)
	p.passPartsLocked(s) // it may hold no message
}

// jumpLocked has the stream go on at an offset when all that was fetched is
// read.
func (p *partition) jumpLocked(s *stream, to int64) {
	p.fetchedLocked(s, &kafka.FetchedPart{PartBatch: kafka.PartBatch{Next: to}})
}
