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
// It returns true when the stream is to be read no further.
func (p *partition) push(s *stream, f *kafka.FetchedPart) (enough bool) {
	p.mu.Lock()
	if !p.isCurrentLocked(s) {
		p.mu.Unlock()
		return true
	}
	s.brought = time.Now()
	if s.scanEnd >= 0 {
		enough = p.scanLocked(s, f)
		p.mu.Unlock()
		return enough
	}
	for from := 0; ; from += pushMax {
		if p.mu.phase != phaseRunning {
			p.mu.Unlock()
			return true
		}
		to := min(from+pushMax, f.Count)
		p.pushLocked(s, f.Messages, from, to)
		if last := to == f.Count; last {
			s.highWater = max(s.highWater, f.StableEnd)
			s.next = max(s.next, f.Next)
			if !s.want && s.overLimit(&p.w.cfg) {
				s.want = true
				s.full = time.Now()
				p.w.fetch.changed(s)
			}
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

// pushLocked takes some of the messages.
func (p *partition) pushLocked(s *stream, ms kafka.Messages, from, to int) {
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
		s.bytes += d.size()
		if s.isRestored(e.Offset) {
			p.settleLocked(d)
			continue
		}
		if e.Offset < s.seen {
			p.w.metrics.redelivered.Add(1)
		}
		p.arriveLocked(d)
	}
}

// arriveLocked puts a message that was read where it belongs.
func (p *partition) arriveLocked(d *delivery) {
	order := p.w.cfg.Order
	ordered := order == ByKey || order == KeyRelaxed
	var due time.Time
	if d.s.tier != streamInput {
		var own bool
		due, own = p.pastLocked(d)
		ordered = order == ByKey && own
	}
	hash := uint64(0) // the same for all in the order by partition
	switch {
	case order == ByPartition:
		if d.s.tier != streamInput { // one that was redriven has its place where it comes
			d.order = d.at - offsetMax // before all of the input
		}
	case !ordered, d.key == nil:
		if due.IsZero() {
			p.readyLocked(d)
		} else {
			p.delayLocked(d, due)
		}
		return
	default:
		hash = maphash.Bytes(keySeed, d.key)
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
