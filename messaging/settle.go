package messaging

import (
	"errors"
	"time"
)

// errNotReached is the result of a message that a handler was given together
// with one before it that it has not acked.
var errNotReached = errors.New("the message before it was not acked")

// finish takes the results of those messages of a chunk, below to, whose results
// it has not: each once, and in their order, whoever comes with them. Most are
// acks, which are counted together.
func (p *partition) finish(c *chunk, to int64) {
	p.mu.Lock()
	p.finishLocked(c, to)
	p.afterLocked()
}

func (p *partition) finishLocked(c *chunk, to int64) {
	if c.posted.Load() >= to {
		return
	}
	if last := &c.hs[to-1]; c == p.mu.solo && (last.err != nil || last.d.state.Load() != pending) {
		p.dissolveLocked()
	}
	from := c.posted.Swap(to)
	hs := c.hs[from:to]
	if c == p.mu.solo && to == int64(len(c.hs)) {
		p.mu.solo = nil
	}
	acks := 0
	counted := func() {
		if acks > 0 {
			p.w.metrics.acked.Add(int64(acks))
			p.w.breaker.succeeded()
			acks = 0
		}
	}
	for i := range hs {
		d, err := hs[i].d, hs[i].err
		if err == nil && p.mu.phase != phaseFenced && d.state.CompareAndSwap(pending, settled) {
			d.chained = false
			p.settleLocked(d)
			acks++
			continue
		}
		counted() // before a failure, which ends a row of them
		p.resultLocked(d, err)
	}
	counted()
}

// afterLocked releases the lock after something was settled, and does what
// follows.
func (p *partition) afterLocked() {
	offer := p.offerLocked()
	idle := p.mu.phase == phaseDraining && p.idleLocked()
	p.mu.Unlock()
	if idle {
		p.w.idle()
	}
	if offer {
		p.w.pool.offer(p)
	}
}

// resultLocked does what a handler's result says.
func (p *partition) resultLocked(d *delivery, err error) {
	if err == errNotReached {
		p.unchainLocked(d)
		return
	}
	d.chained = false
	if p.mu.phase == phaseFenced || d.state.Load() != pending {
		return // it was settled by Ack or Nack; or is no longer ours
	}
	v := p.w.cfg.Retry.judge(int(d.attempt), err, p.w.cfg.Order, p.mu.random)
	if v.deed == toLater {
		return
	}
	if err != nil && (p.ctx.Err() != nil || errors.Is(err, errLeft)) {
		// Stopping is not failing: it comes again, as if nothing had been.
		d.handed = nil
		p.mu.out--
		p.w.breaker.unused(1)
		return
	}
	if !d.state.CompareAndSwap(pending, settled) {
		return
	}
	p.verdictLocked(d, v, err)
}

// verdictLocked does to a message what was decided about it.
func (p *partition) verdictLocked(d *delivery, v verdict, err error) {
	if v.deed == toAck {
		p.w.metrics.acked.Add(1)
		p.w.breaker.succeeded()
		p.settleLocked(d)
		return
	}
	p.w.metrics.failed.Add(1)
	if v.deed != toDeadLetters || v.reason == ReasonFailed {
		p.w.breaker.failed(err)
	} else {
		p.w.breaker.unused(1) // it says nothing of what handlers call
	}
	h := p.historyLocked(d)
	h.fail(int(d.attempt), time.Now(), err)
	switch v.deed {
	case toAgain:
		p.w.metrics.retriedInPlace.Add(1)
		p.mu.out--
		p.doneWithLocked(d)
		next := d.again(h)
		d.s.window.replace(d.seq, next)
		if d.lane != nil {
			d.lane.replace(d, next)
		}
		p.delayLocked(next, time.Now().Add(v.delay))
	case toTier:
		d.past = h
		p.waitThereLocked(d, streamTiers+v.tier-1, v.delay)
	case toDeadLetters:
		d.past = h
		p.deadLetterLocked(d, v.reason, nil)
	}
}

// deadLetterLocked has a message written to the dead letters.
func (p *partition) deadLetterLocked(d *delivery, reason string, err error) {
	h := p.historyLocked(d)
	if err != nil {
		h.fail(int(d.attempt), time.Now(), err)
	}
	h.reason = reason
	d.past = h
	p.jobLocked(&job{d: d, tier: tierLetters, retry: true})
}

// historyLocked returns a copy of what is known of the message.
func (p *partition) historyLocked(d *delivery) *history {
	if d.past != nil {
		h := *d.past
		h.group = p.w.group
		return &h
	}
	return &history{
		topic: p.id.Topic, topicID: p.mu.streams[streamInput].tid, partition: p.id.Number, offset: d.origin(),
		timestamp: d.stamp, group: p.w.group, redrives: redrivesOf(d.headers),
	}
}

// doneWithLocked ends the call that a message was handled in.
func (p *partition) doneWithLocked(d *delivery) {
	if d.s.suspect == d.at {
		d.s.suspect, d.s.crashes = -1, 0
	}
}

// settleLocked settles a message in its window, and lets the next of its lane
// go.
func (p *partition) settleLocked(d *delivery) {
	if !d.s.window.settle(d.seq) {
		return
	}
	d.s.bytes -= d.size()
	if d.handed != nil {
		p.mu.out--
	}
	p.doneWithLocked(d)
	p.roomLocked(d.s)
	if d.lane != nil {
		d.lane.done(d)
		p.advanceLocked(d.lane)
	}
}

// movedLocked settles a message that is now in a delay topic.
func (p *partition) movedLocked(j *job) {
	d := j.d
	d.state.Store(settled) // also one that still waits until it is due: it is elsewhere now
	if l := d.lane; l != nil && p.w.cfg.Order == ByKey {
		if l.moved(d, j.hop, j.tier) {
			p.expectLocked(p.mu.streams[j.tier], expected{lane: l, at: j.at, order: d.order, hop: int32(j.hop)})
		}
		d.lane = nil
		p.settleLocked(d)
		p.advanceLocked(l)
		return
	}
	p.settleLocked(d)
}

// roomLocked is boundLocked for a stream that can only have more room. What is
// settled message by message is noted when it is worth it.
func (p *partition) roomLocked(s *stream) {
	if s.want || s.noted-s.held() >= p.w.allotment.step.Load() {
		p.boundLocked(s)
	}
}

// boundLocked has a stream fetched no further when a limit is reached, or again
// when there is room, as far as there is news of that.
func (p *partition) boundLocked(s *stream) {
	held := s.held()
	more := held > s.noted || s.noted-held >= p.w.allotment.step.Load()
	if !more && s.over == s.isOver(&p.w.cfg) && (held > 0 || !s.want) {
		return
	}
	p.noteLocked(s)
}

// noteLocked tells the allotment what a stream holds, and does as it says.
func (p *partition) noteLocked(s *stream) {
	s.over, s.noted = s.isOver(&p.w.cfg), s.held()
	open := p.w.allotment.note(&s.account, s.noted, s.last, !s.over)
	if open == !s.want {
		return
	}
	s.want = !open
	if s.want {
		s.full = time.Now()
	}
	p.w.fetch.changed(s)
}

// ack is Delivery.Ack.
func (p *partition) ack(d *delivery) error {
	p.mu.Lock()
	if p.mu.phase == phaseFenced {
		p.mu.Unlock()
		return ErrFenced
	}
	p.dissolveLocked()
	if !d.state.CompareAndSwap(pending, settled) {
		p.afterLocked()
		return ErrSettled
	}
	p.verdictLocked(d, verdict{deed: toAck}, nil)
	p.afterLocked()
	return nil
}

// nack is Delivery.Nack.
func (p *partition) nack(d *delivery, err error) error {
	p.mu.Lock()
	if p.mu.phase == phaseFenced {
		p.mu.Unlock()
		return ErrFenced
	}
	p.dissolveLocked()
	n := &nack{outcome: make(chan error, 1)}
	switch {
	case d.state.CompareAndSwap(pending, settled):
		v := p.w.cfg.Retry.judge(int(d.attempt), err, p.w.cfg.Order, p.mu.random)
		if v.deed == toAgain {
			p.verdictLocked(d, v, err)
			p.afterLocked()
			return nil
		}
		d.nacked = n
		p.verdictLocked(d, v, err)
	case d.nacked != nil && d.nacked.outcome == nil:
		d.nacked = n // the write goes on; wait for it
	default:
		p.afterLocked()
		return ErrSettled
	}
	p.afterLocked()
	select {
	case err := <-n.outcome:
		return err
	case <-p.gone:
		select { // it may have been written just before
		case err := <-n.outcome:
			return err
		default:
			return ErrFenced
		}
	}
}

// answerLocked tells the call of Nack that waits what became of the write.
func (d *delivery) answerLocked(err error) {
	if d.nacked == nil || d.nacked.outcome == nil {
		return
	}
	d.nacked.outcome <- err
	d.nacked = nil
	if err != nil {
		d.nacked = &nack{} // nacked, and nobody waits
	}
}
