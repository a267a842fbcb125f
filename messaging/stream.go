package messaging

import (
	"math"
	"time"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// The streams of a partition, by their place in partition.streams: the input,
// then the topics by which its messages come back.
const (
	streamInput   = 0
	streamRedrive = 1
	streamTiers   = 2 // the first delay topic
)

// stream is one topic's share of a partition: where it was read to, and what
// of it is settled. partition.mu guards all but what never changes.
type stream struct {
	p    *partition
	tier int // its place in partition.streams
	id   topic.Partition
	desc *topic.Description
	tid  topic.ID

	window   *window
	next     int64 // all below was read
	inbox    inbox // of the input: what was fetched from there on
	restored []span
	seen     int64 // what is below it may have been handled by an owner before
	bytes    int64 // of messages that were read and are not settled

	account account // of the worker's allotment
	noted   int64   // how much it holds, as far as the allotment knows
	last    int64   // how much its last fetch has brought

	scanEnd int64     // while it is scanned: to where; else -1
	scanned int64     // and how far it is
	brought time.Time // when something was read last, or looked for

	gone bool // its topic was deleted, and made anew: it is another one's stream now

	over         bool // a limit in messages is reached
	want, paused bool // it is to be fetched no further; it is not
	full         time.Time

	expected []expected // of a topic by which messages come back: what lanes wait for, in order

	highWater int64     // the stable end, as last heard of; -1: never
	heard     time.Time // when that was

	ages  ages
	vigil vigil

	suspect int64 // what is handled alone: an offset; -1: nothing
	crashes uint64

	committed    kafka.Committed
	hasCommitted bool
	overflow     int // settled messages that the last commit could not say
}

func newStream(p *partition, tier int, name string, tid topic.ID) *stream {
	return &stream{
		p: p, tier: tier, id: topic.Partition{Topic: name, Number: p.id.Number}, desc: topic.Bytes(name).Description, tid: tid,
		window: newWindow(math.MaxInt), scanEnd: -1, suspect: -1, highWater: -1,
	}
}

// begin sets the position, and what a snapshot says is settled above it.
func (s *stream) begin(offset int64, snap snapshot) {
	s.next, s.restored, s.seen = offset, snap.settled, snap.read
}

// isRestored says whether a snapshot has the offset settled. Offsets are asked
// for in rising order.
func (s *stream) isRestored(offset int64) bool {
	for len(s.restored) > 0 && s.restored[0].to <= offset {
		s.restored = s.restored[1:]
	}
	return len(s.restored) > 0 && s.restored[0].from <= offset
}

// position returns the offset to commit: that of the oldest unsettled message,
// or after all that was read.
func (s *stream) position() int64 {
	if oldest, ok := s.window.oldest(); ok {
		return oldest
	}
	return s.next
}

// commit returns what is to be committed. Restored offsets that were not read
// again yet are settled as before.
func (s *stream) commit(rounds uint64) kafka.Committed {
	at := place{id: s.tid, partition: s.id.Number, offset: s.position()}
	snap := snapshot{settled: s.window.settledSpans(), suspect: s.suspect, crashes: s.crashes, rounds: rounds, read: max(s.next, s.seen)}
	for _, sp := range s.restored {
		if sp.to <= s.next {
			continue
		}
		sp.from = max(sp.from, s.next)
		if n := len(snap.settled); n > 0 && snap.settled[n-1].to >= sp.from {
			snap.settled[n-1].to = max(snap.settled[n-1].to, sp.to)
		} else if sp.from > at.offset {
			snap.settled = append(snap.settled, sp)
		}
	}
	text, covered := snap.encode(at)
	s.overflow = 0
	if n := len(snap.settled); n > 0 && covered < snap.settled[n-1].to {
		s.overflow = s.window.settledFrom(covered)
	}
	return kafka.Committed{Offset: at.offset, Metadata: text}
}

// held is what the stream counts for in the worker's limit of bytes: to be read
// changes nothing about that.
func (s *stream) held() int64 { return s.inbox.bytes + s.bytes }

// isOver says whether the stream is to be fetched no further for its limits in
// messages. Once it is, it has to be under them by some.
func (s *stream) isOver(c *Config) bool {
	switch {
	case s.over:
		return !s.underLimit(c)
	case s.inbox.count >= inboxMax:
		return true
	case s.tier == streamInput && s.inbox.count == 0:
		return false
	}
	return s.overLimit(c)
}

// overLimit says whether no more messages may be read.
func (s *stream) overLimit(c *Config) bool {
	return s.window.unsettled >= int64(c.MaxUnsettled) || s.window.span() >= c.MaxSpan
}

// underLimit says whether there is room again.
func (s *stream) underLimit(c *Config) bool {
	return s.inbox.count <= inboxMax/2 && s.window.unsettled <= int64(c.MaxUnsettled)/2 && s.window.span() <= c.MaxSpan-c.MaxSpan/8-1
}
