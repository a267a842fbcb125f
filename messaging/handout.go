package messaging

import (
	"time"
)

// offerLocked says whether the pool is to be told that there is work.
func (p *partition) offerLocked() bool {
	if p.mu.offered || p.mu.phase != phaseRunning || p.mu.ready.len() == 0 {
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

// take gives up to most messages to a handler. follows says of each whether it
// is to be handled only if the one before was acked. more says that there are
// others.
func (p *partition) take(most int) (ds []*delivery, follows []bool, more bool) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.offered = false
	if p.mu.phase != phaseRunning {
		return nil, nil, false
	}
	if d := p.mu.cleared; d != nil {
		p.mu.cleared = nil
		return []*delivery{p.handLocked(d, now)}, []bool{false}, p.offerLocked()
	}
	if p.mu.careful {
		return nil, nil, false
	}
	most = min(most, p.mu.ready.len()+chunkMax)
	ds = make([]*delivery, 0, min(most, 32))
	for len(ds) < most {
		d := p.mu.ready.pop()
		if d == nil {
			break
		}
		ds = append(ds, p.handLocked(d, now))
		follows = append(follows, false)
		if d.lane == nil || p.w.batch != nil {
			continue
		}
		n := len(ds)
		ds = d.lane.chain(most-n, ds)
		for _, d := range ds[n:] {
			p.handLocked(d, now)
			follows = append(follows, true)
		}
	}
	return ds, follows, p.offerLocked()
}

func (p *partition) handLocked(d *delivery, now time.Time) *delivery {
	d.handed, d.logged = now, false
	p.mu.out++
	return d
}

// giveBack takes messages back that a handler was given and has not begun with.
func (p *partition) giveBack(ds []*delivery) {
	p.mu.Lock()
	for i := len(ds) - 1; i >= 0; i-- {
		if d := ds[i]; !p.unchainLocked(d) {
			d.handed = time.Time{}
			p.mu.out--
			p.mu.ready.unpop(d)
		}
	}
	offer := p.offerLocked()
	p.mu.Unlock()
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
	d.chained, d.handed = false, time.Time{}
	p.mu.out--
	if d.lane != nil && d.lane.active == d {
		p.readyLocked(d) // its turn has come already
	}
	return true
}
