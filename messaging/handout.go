package messaging

import (
	"time"
)

// offerLocked says whether the pool is to be told that there is work.
func (p *partition) offerLocked() bool {
	if p.mu.offered || p.mu.phase != phaseRunning || p.mu.ready.len() == 0 && p.readableLocked() == 0 {
		return false
	}
	if p.mu.careful {
		if p.mu.cleared == nil {
			if p.mu.out == 0 {
				p.wakeUp()
			}
			return false
		}
	}
	p.mu.offered = true
	return true
}

// handout is a message that a handler was given, and what it returned.
type handout struct {
	d       *delivery
	follows bool // it is of the lane of the one before, and waits for its ack
	err     error
}

// take gives up to most messages to a handler; nil if there are none. more says
// that there are others.
func (p *partition) take(most int) (c *chunk, more bool) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.offered = false
	if p.mu.phase != phaseRunning {
		return nil, false
	}
	if d := p.mu.cleared; d != nil {
		p.mu.cleared = nil
		p.handLocked(d, &now)
		return &chunk{p: p, hs: []handout{{d: d}}}, p.offerLocked()
	}
	if p.mu.careful {
		return nil, false
	}
	most = min(most, chunkMax)
	if c := p.takeSoloLocked(most, &now); c != nil {
		return c, p.offerLocked()
	}
	enough := most
	if p.w.batch == nil && p.w.cfg.Order != Unordered {
		enough = max(1, most/4) // others of their lanes follow them
	}
	p.fillLocked(enough)
	if p.mu.ready.len() == 0 {
		return nil, p.offerLocked()
	}
	hs := make([]handout, 0, min(most, max(2*p.mu.ready.len(), 4)))
	for len(hs) < most {
		d := p.mu.ready.pop()
		if d == nil {
			break
		}
		hs = append(hs, handout{d: d})
		p.handLocked(d, &now)
		if d.lane == nil || p.w.batch != nil {
			continue
		}
		n := len(hs)
		hs = d.lane.chain(most-n, hs)
		for i := range hs[n:] {
			p.handLocked(hs[n+i].d, &now)
		}
	}
	return &chunk{p: p, hs: hs, now: &now}, p.offerLocked()
}

// handLocked takes note that a message is given to a handler. now is shared by
// all that are given with it.
func (p *partition) handLocked(d *delivery, now *time.Time) {
	d.handed, d.logged = now, false
	p.mu.out++
}

// giveBack takes messages back that a handler was given and has not begun with.
func (p *partition) giveBack(hs []handout) {
	p.mu.Lock()
	for i := len(hs) - 1; i >= 0; i-- {
		if d := hs[i].d; !p.unchainLocked(d) {
			d.handed = nil
			p.mu.out--
			p.mu.ready.unpop(d)
		}
	}
	offer := p.offerLocked()
	p.mu.Unlock()
	p.w.breaker.unused(1)
	p.wakeUp()
	if offer {
		p.w.pool.offer(p)
	}
}

// unchainLocked takes a message back that a handler was given together with the
// one before it, and that it has not come to. It is handled in its turn.
func (p *partition) unchainLocked(d *delivery) bool {
	if !d.chained {
		return false
	}
	d.chained, d.handed = false, nil
	p.mu.out--
	if d.lane != nil && d.lane.active == d {
		p.readyLocked(d) // its turn has come already
	}
	return true
}
