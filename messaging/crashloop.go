package messaging

import (
	"time"
)

// crashWindow is how long a partition must be here before a crash is no longer
// held to be its messages' doing.
const crashWindow = time.Minute

// carefulRounds is how many owners in a row must have got the partition, and
// lost it by a crash within crashWindow, for messages to be handled alone.
const carefulRounds = 3

// suspectLocked returns the message that is to be handled next, and alone.
func (p *partition) suspectLocked() *delivery {
	if !p.mu.careful || p.mu.phase != phaseRunning || p.mu.out > 0 || p.mu.cleared != nil {
		return nil
	}
	p.fillLocked(1)
	d := p.mu.ready.pop()
	if d == nil {
		return nil
	}
	if d.s.suspect != d.at {
		d.s.suspect, d.s.crashes = d.at, 0
	}
	return d
}

// clear commits that a message is handled alone, and hands it out.
func (p *partition) clear(d *delivery) {
	for {
		err := p.w.commit(p.ctx, false, p)
		if err == nil {
			break
		}
		p.log.Warn("commit before a message is handled alone", "offset", d.origin(), "error", err)
		select {
		case <-p.gone:
			return
		case <-time.After(startBackoff):
		}
	}
	p.mu.Lock()
	p.mu.cleared = d
	offer := !p.mu.offered && p.mu.phase == phaseRunning
	if offer {
		p.mu.offered = true
	}
	p.mu.Unlock()
	if offer {
		p.w.pool.offer(p)
	}
}
