package messaging

import "time"

// While handlers do so little that to hand a message over costs more than to
// handle it, one handler at a time takes messages of a partition as they come,
// one after the other: that is every order, and needs no lanes. Such a chunk is
// solo: nothing else of the partition is unsettled, and nothing is read beside
// it.
//
// As soon as one of its messages is not acked, takes long, or is settled by
// hand, or something comes that is not of the input, it is dissolved: the message
// that is being handled and those after it go where they would have been.

// Handlers that take no longer are worked for solo, and chunks of fewer messages
// are not worth it.
const (
	soloTime = 2 * time.Microsecond
	soloMin  = 16
)

// takeSoloLocked returns a solo chunk of up to so many messages; nil if there is
// to be none now.
func (p *partition) takeSoloLocked(most int, now *time.Time) *chunk {
	if p.w.batch != nil || p.w.pool.mean.Load() > int64(soloTime) || len(p.mu.lanes) != p.mu.idle {
		return nil
	}
	n := min(most, p.readableLocked())
	if n < soloMin {
		return nil
	}
	for _, s := range p.mu.streams {
		if s.window.n > 0 || s.suspect >= 0 || len(s.restored) > 0 {
			return nil
		}
	}
	c := &chunk{p: p, solo: true, hs: make([]handout, 0, n), now: now}
	s := p.mu.streams[streamInput]
	for read := 0; read < n; read += readMax {
		p.readLocked(s, min(n-read, readMax), c)
	}
	if len(c.hs) == 0 { // all were read before
		return nil
	}
	p.mu.solo = c
	p.boundLocked(s)
	return c
}

// dissolveLocked ends that a chunk is solo, if there is one.
func (p *partition) dissolveLocked() {
	c := p.mu.solo
	if c == nil {
		return
	}
	p.mu.solo = nil
	n := int64(len(c.hs))
	begun := min(c.next.Swap(n), n)
	p.finishLocked(c, begun-1) // whoever has begun with one has acked those before it
	for i := c.posted.Load(); i < n; i++ {
		d := c.hs[i].d
		if i < begun { // it is being handled
			if hash, ordered := p.laneOf(d); ordered {
				d.lane = p.laneLocked(hash)
				d.lane.insert(d)
				d.lane.active = d
			}
			continue
		}
		d.handed = nil
		p.mu.out--
		p.arriveLocked(d)
	}
}

// spread gives others what is left of a chunk whose handler takes long, and the
// partition the results of what came before.
func (p *partition) spread(c *chunk) {
	p.mu.Lock()
	if c.solo {
		// If it was dissolved before, what it still lists is elsewhere.
		if p.mu.solo == c {
			p.dissolveLocked()
		}
		p.afterLocked()
		return
	}
	p.mu.Unlock()
	n := int64(len(c.hs))
	begun := min(c.next.Swap(n), n)
	p.finish(c, begun-1) // whoever has begun with one has ended those before it
	if begun < n {
		p.giveBack(c.hs[begun:])
	}
}
