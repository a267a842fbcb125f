package messaging

import (
	"fmt"
	"hash/maphash"
	"time"

	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/internal/kafka"
)

var keySeed = maphash.MakeSeed()

// pushMax is how many messages are taken at once: handlers that settle others
// wait for that long.
const pushMax = 2048

// push takes messages of one of the streams, as they were read.
// It returns true when the stream is to be read no further. What it was given it
// recycles: those of the input once they were read out of the inbox.
func (p *partition) push(s *stream, f *kafka.FetchedPart) (enough bool) {
	p.mu.Lock()
	if !p.isCurrentLocked(s) {
		p.mu.Unlock()
		f.Recycle()
		return true
	}
	s.brought, s.last = time.Now(), sizeOf(f)
	if s.scanEnd >= 0 {
		enough = p.scanLocked(s, f)
		p.mu.Unlock()
		f.Recycle()
		return enough
	}
	if f.Count > 0 {
		s.ages.came(f.Offset(0), s.position(), s.brought)
	}
	if s.tier != streamInput {
		defer f.Recycle()
	}
	for from := 0; ; from += pushMax {
		if p.mu.phase != phaseRunning {
			p.mu.Unlock()
			return true
		}
		to := f.Count
		if s.tier == streamInput {
			p.fetchedLocked(s, f)
		} else {
			to = min(from+pushMax, f.Count)
			p.dissolveLocked()
			p.arriveAllLocked(s, f.Messages, from, to, nil)
		}
		if last := to == f.Count; last {
			s.highWater, s.heard = max(s.highWater, f.StableEnd), s.brought
			if s.tier != streamInput {
				s.next = max(s.next, f.Next)
				p.w.metrics.missed.Add(p.goneLocked(s))
			}
			p.boundLocked(s)
		}
		offer := p.offerLocked()
		p.mu.Unlock()
		if offer {
			p.w.pool.offer(p)
		}
		if to == f.Count {
			return false
		}
		p.mu.Lock()
	}
}

// arriveAllLocked takes some of the messages, and puts them in a solo chunk, if
// one is given. It returns the size of those that were not read before.
func (p *partition) arriveAllLocked(s *stream, ms kafka.Messages, from, to int, into *chunk) (size int64) {
	slab := make([]delivery, to-from) // which live about equally long
	for i := from; i < to; i++ {
		e := ms.At(i)
		if e.Offset < s.next {
			continue // read before
		}
		d := &slab[i-from]
		d.s, d.key, d.value, d.headers, d.stamp, d.at, d.order, d.attempt = s, e.Key, e.Value, e.Headers, e.Timestamp.UnixMilli(), e.Offset, e.Offset, 1
		seq, err := s.window.add(e.Offset, d)
		if err != nil {
			invariants.Check(false, "%s: read offset %d: %v", s.id, e.Offset, err)
			continue
		}
		d.seq = seq
		s.next = e.Offset + 1
		n := d.size()
		size += n
		s.bytes += n
		if s.isRestored(e.Offset) {
			p.settleLocked(d)
			continue
		}
		if e.Offset < s.seen {
			p.w.metrics.redelivered.Add(1)
		}
		if into != nil {
			into.hs = append(into.hs, handout{d: d})
			p.handLocked(d, into.now)
			continue
		}
		p.arriveLocked(d)
	}
	return size
}

// arriveLocked puts a message that was read where it belongs.
func (p *partition) arriveLocked(d *delivery) {
	var due time.Time
	hash, ordered := p.laneOf(d)
	if d.s.tier != streamInput {
		var own bool
		due, own = p.pastLocked(d)
		switch p.w.cfg.Order {
		case ByPartition: // it has its place where it comes
			d.order = returnPlace(d.s.tier, d.at)
		case ByKey:
			ordered = ordered && own
		default:
			ordered = false
		}
	}
	if !ordered {
		if due.IsZero() {
			p.readyLocked(d)
		} else {
			p.delayLocked(d, due)
		}
		return
	}
	l := p.laneLocked(hash)
	ok, void := l.insert(d)
	if !ok {
		p.settleLocked(d) // a copy that does not count
		return
	}
	if void != nil {
		void.lane = nil
		void.state.Store(settled)
		p.settleLocked(void)
	}
	d.lane = l
	if !due.IsZero() {
		p.delayLocked(d, due)
	}
	p.advanceLocked(l)
}

// laneOf returns which lane a message of the input is in, if it is in one.
func (p *partition) laneOf(d *delivery) (hash uint64, ok bool) {
	switch order := p.w.cfg.Order; {
	case order == ByPartition:
		return 0, true // the same for all
	case order == Unordered, d.key == nil:
		return 0, false
	}
	return maphash.Bytes(keySeed, d.key), true
}

// pastLocked reads what the headers of a message that comes back say of it. It
// returns when it is due, if that is to come, and whether it comes from this
// very partition.
func (p *partition) pastLocked(d *delivery) (due time.Time, own bool) {
	h, ok := parseHistory(d.headers)
	if !ok { // who knows whose it is
		d.past = &history{topic: p.id.Topic, partition: p.id.Number, offset: d.at, timestamp: d.stamp}
		return due, false
	}
	d.past = &h
	d.attempt, d.hop, d.order = int32(h.attempts+1), int32(h.hop), h.offset
	if wait := h.waits(p.w.clock.now()); wait > 0 {
		due = time.Now().Add(wait) // from here on, whatever becomes of the wall clock
	}
	return due, p.isOwn(&h)
}

// isOwn says whether a message comes from this partition of this very topic.
func (p *partition) isOwn(h *history) bool {
	return h.topic == p.id.Topic && h.partition == p.id.Number && h.topicID == p.mu.streams[streamInput].tid
}

// laneLocked returns the lane of a key.
func (p *partition) laneLocked(hash uint64) *lane {
	l := p.mu.lanes[hash]
	switch {
	case l == nil:
		if n := len(p.mu.free); n > 0 {
			l = p.mu.free[n-1]
			p.mu.free = p.mu.free[:n-1]
		} else {
			l = new(lane)
		}
		l.hash = hash
		p.mu.lanes[hash] = l
	case l.idle:
		p.mu.idle--
	}
	l.idle = false
	return l
}

// lanesIdle is how many lanes without messages are kept. Keys come again, and
// to make a lane and forget it costs more than all else that is done with one.
const lanesIdle = 1024

// keepLocked keeps a lane that has no messages any more. When there are too
// many, all of them are forgotten: so it costs little however many keys there
// are.
func (p *partition) keepLocked(l *lane) {
	if l.idle {
		return
	}
	l.idle = true
	p.mu.idle++
	if p.mu.idle <= max(lanesIdle, len(p.mu.lanes)/2) {
		return
	}
	for hash, l := range p.mu.lanes {
		if !l.idle {
			continue
		}
		delete(p.mu.lanes, hash)
		if cap(l.base) <= 16 && len(p.mu.free) < lanesIdle {
			p.mu.free = append(p.mu.free, l)
		}
	}
	p.mu.idle = 0
}

// advanceLocked does what a lane says is next.
func (p *partition) advanceLocked(l *lane) {
	if len(l.items) == 0 {
		invariants.Check(l.active == nil, "a lane without messages handles one")
		p.keepLocked(l)
		return
	}
	d, join, tier := l.step()
	if d != nil {
		p.readyLocked(d)
	}
	for _, d := range join {
		p.jobLocked(&job{d: d, tier: tier, hop: int(d.hop) + 1})
	}
}

// readyLocked has a message handled, as soon as there is a handler for it.
func (p *partition) readyLocked(d *delivery) {
	if d.s.suspect == d.at && d.s.crashes >= uint64(p.w.cfg.DeadLetters.MaxCrashes) {
		d.state.Store(settled)
		p.w.metrics.crashed.Add(1)
		p.deadLetterLocked(d, ReasonCrash, fmt.Errorf("the process ended %d times while it handled this message alone", d.s.crashes))
		return
	}
	if left := d.past.leftAt(p.w.clock.now()); left > 0 && d.s.tier >= streamTiers {
		p.waitOnLocked(d, left)
		return
	}
	p.mu.ready.push(d)
}

func (p *partition) delayLocked(d *delivery, at time.Time) {
	d.waits = true
	if p.mu.delayed.push(d, at) {
		p.wakeUp()
	}
}

func (p *partition) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
