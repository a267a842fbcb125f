package messaging

import "time"

// A delay topic keeps a message for as long as its retention says, handled or not.
// One that waits for longer than a part of that is due earlier, with what is left
// of its wait in a header, and is then written to the topic once more:
//
//	attempt fails ──► retry.n, due after a hold ──► retry.n, due after another ──► handled
//	                       left: the rest              left: nothing
//
// Those of its key that follow it in the topic go behind it again, since they are
// as old.

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
	tier, hold := d.s.tier, min(left, p.w.hold(d.s.tier))
	p.jobLocked(&job{d: d, tier: tier, hop: int(d.hop) + 1, due: p.w.clock.now().Add(hold), delay: hold, left: left - hold, retry: true, anew: true})
	if d.lane == nil || p.w.cfg.Order != ByKey {
		return
	}
	for _, follower := range d.lane.behind(d) {
		p.jobLocked(&job{d: follower, tier: tier, hop: int(follower.hop) + 1, anew: true})
	}
}

// hold is how long a message waits in a delay topic before it is written there
// once more.
func (w *Worker) hold(tier int) time.Duration {
	if i := tier - streamTiers; i >= 0 && i < len(w.holds) {
		return w.holds[i]
	}
	return retryRetentionMin / tierRetention // one of an earlier configuration
}
