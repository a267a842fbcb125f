package messaging

import (
	"fmt"
	"hash/maphash"
	"time"

	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// push takes messages of one of the streams, as they were read.
// It returns true when the stream is to be read no further.
func (p *partition) push(s *stream, b kafka.PartBatch, envs []topic.Envelope) (enough bool) {
	p.mu.Lock()
	if s.scanEnd >= 0 {
		enough = p.scanLocked(s, b, envs)
		p.mu.Unlock()
		return enough
	}
	if p.mu.phase != phaseRunning {
		p.mu.Unlock()
		return true
	}
	slab := make([]delivery, len(envs))
	s.highWater = max(s.highWater, b.StableEnd)
	for i := range envs {
		e := &envs[i]
		if e.Offset < s.next {
			continue // read before
		}
		d := &slab[i]
		*d = delivery{p: p, s: s, key: e.Key, value: e.Value, headers: e.Headers, stamp: e.Timestamp, at: e.Offset, origin: e.Offset, order: e.Offset, attempt: 1}
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
	s.next = max(s.next, b.Next)
	if !s.want && s.overLimit(&p.w.cfg) {
		s.want = true
		s.full = time.Now()
		p.w.fetch.changed(s)
	}
	offer := p.offerLocked()
	p.mu.Unlock()
	if offer {
		p.w.pool.offer(p)
	}
	return false
}

// arriveLocked puts a message that was read where it belongs.
func (p *partition) arriveLocked(d *delivery) {
	order := p.w.cfg.Order
	ordered := true
	if d.s.tier != streamInput {
		h, ok := parseHistory(d.headers)
		if ok {
			d.past = &h
			d.attempt, d.hop, d.origin, d.order = h.attempts+1, h.hop, h.offset, h.offset
			if h.due > 0 {
				d.due = time.UnixMilli(h.due)
			}
			ordered = p.isOwn(h)
		} else {
			ordered = false
			d.past = &history{topic: p.id.Topic, partition: p.id.Number, offset: d.at, timestamp: d.stamp.UnixMilli()}
		}
		if most := time.Now().Add(tierMax); d.due.After(most) {
			d.due = most // nothing of ours is due later
		}
		ordered = ordered && order == ByKey
	}
	switch {
	case order == ByPartition:
		d.hash = 0
		if d.s.tier != streamInput { // one that was redriven has its place where it comes
			d.order = d.at - offsetMax // before all of the input
		}
	case !ordered, order == Unordered, d.key == nil:
		if d.due.IsZero() {
			p.readyLocked(d)
		} else {
			p.delayLocked(d, d.due)
		}
		return
	default:
		d.hash = maphash.Bytes(keySeed, d.key)
	}
	l := p.laneLocked(d.hash)
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
	if !d.due.IsZero() {
		p.delayLocked(d, d.due)
	}
	p.advanceLocked(l)
}

// isOwn says whether a message comes from this partition of this very topic.
func (p *partition) isOwn(h history) bool {
	return h.topic == p.id.Topic && h.partition == p.id.Number && h.topicID == p.mu.streams[streamInput].tid
}

func (p *partition) laneLocked(hash uint64) *lane {
	l := p.mu.lanes[hash]
	if l == nil {
		if n := len(p.mu.free); n > 0 {
			l = p.mu.free[n-1]
			p.mu.free = p.mu.free[:n-1]
			l.hash = hash
		} else {
			l = &lane{hash: hash}
		}
		p.mu.lanes[hash] = l
	}
	return l
}

var keySeed = maphash.MakeSeed()

// advanceLocked does what a lane says is next.
func (p *partition) advanceLocked(l *lane) {
	if len(l.items) == 0 {
		invariants.Check(l.active == nil, "a lane without messages handles one")
		if p.mu.lanes[l.hash] == l {
			delete(p.mu.lanes, l.hash)
			if cap(l.items) <= 16 && len(p.mu.free) < 1024 {
				p.mu.free = append(p.mu.free, l)
			}
		}
		return
	}
	d, join, tier := l.step()
	if d != nil {
		p.readyLocked(d)
	}
	for _, d := range join {
		p.jobLocked(&job{d: d, tier: tier, hop: d.hop + 1})
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
	d.due = at
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
