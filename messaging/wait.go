package messaging

import "time"

// A delay topic keeps a message for as long as its retention says, handled or not.
// One that waits for longer than a part of that is due earlier, with what is left
// of its wait in a header, and is then written to the topic once more:
//
//	attempt fails ──► retry.n, due after a hold ──► retry.n, due after another ──► handled
//	                       left: the rest              left: nothing
//
// Those that wait in a delay topic for another one of their key, wherever that is,
// are written there once more when they are as old.

// waitThereLocked has a message wait in a delay topic.
func (p *partition) waitThereLocked(d *delivery, tier int, delay time.Duration) {
	hold := min(delay, p.w.hold(tier))
	p.jobLocked(&job{d: d, tier: tier, hop: int(d.hop) + 1, due: p.w.clock.now().Add(hold), delay: hold, left: delay - hold, retry: true})
}

// waitOnLocked has a message that is due, and not to be handled yet, wait on in the
// topic that it is in.
func (p *partition) waitOnLocked(d *delivery, left time.Duration) {
	if !d.state.CompareAndSwap(pending, settled) {
		return
	}
	hold := min(left, p.w.hold(d.s.tier))
	p.jobLocked(&job{d: d, tier: d.s.tier, hop: int(d.hop) + 1, due: p.w.clock.now().Add(hold), delay: hold, left: left - hold, retry: true, anew: true})
}

// renewLocked has the messages of a stream written to its topic once more that
// others of their key hold back, and that it is about to let go of.
func (p *partition) renewLocked(s *stream) {
	if p.w.cfg.Order != ByKey {
		return
	}
	old := p.w.clock.now().Add(-p.w.hold(s.tier)).UnixMilli()
	for i := range s.window.n {
		d := s.window.at(i).d
		if d == nil || d.state.Load() != pending {
			continue
		}
		if d.stamp > old {
			return // as are those that were written after it
		}
		if d.lane != nil && d.lane.renew(d) {
			p.jobLocked(&job{d: d, tier: s.tier, hop: int(d.hop) + 1, anew: true})
		}
	}
}

// hold is how long a message stays in a topic by which it comes back before it is
// written there once more.
func (w *Worker) hold(tier int) time.Duration {
	switch i := tier - streamTiers; {
	case tier == streamRedrive:
		return w.holdRedriven
	case i >= 0 && i < len(w.holds):
		return w.holds[i]
	}
	return retryRetentionMin / tierRetention // one of an earlier configuration
}
