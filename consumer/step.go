package consumer

import "time"

// pace decides what a running shard does next with its open transaction. It
// only decides: step never blocks, and the shard's owner does as it says.
//
//	first message ──► consume … consume … ──► commit
//	                  │                       ├ the input ran dry,
//	                  │                       ├ a limit was reached, or
//	                  │                       └ the commit interval has passed
//	                  └ a commit begins no sooner than the pause after the last
//
// So a transaction closes at once when there is nothing more to do, and grows
// while there is.
type pace struct {
	// What does not change.
	interval    time.Duration // the longest that a transaction stays open for more messages
	maxMessages int

	// What the owner tells.
	queued   int       // messages fetched and not consumed
	behind   bool      // there are many more on the broker
	consumed int       // messages in the open transaction
	opened   time.Time // when its first message was given to Consume
	full     bool      // a limit in bytes was reached
	working  bool      // user code runs
	draining bool      // finish the open transaction and stop
	paused   bool      // finish the open transaction and wait
	alone    int       // messages that are each consumed in a transaction of their own
	hold     time.Time // nothing is consumed before: the back-off of a message that failed
	resume   time.Time // no commit begins before: the pause after the last
}

// An action is what the owner is to do.
type action int

const (
	actWait    action = iota // for an event, or until the time that comes with it
	actConsume               // give the next messages to Consume
	actCommit                // flush and commit the open transaction
	actYield                 // make Consume return between two messages, and wait
	actStop                  // there is nothing open: stop
)

// step returns what to do at the time now and, with actWait, when to ask
// again at the latest; the zero time means at the next event.
func (p *pace) step(now time.Time) (action, time.Time) {
	if p.working {
		switch {
		case p.draining, p.paused:
			return actYield, time.Time{}
		case p.consumed == 0 && p.opened.IsZero():
			return actWait, time.Time{}
		case !now.Before(p.opened.Add(p.interval)):
			return actYield, time.Time{}
		}
		return actWait, p.opened.Add(p.interval)
	}
	if p.consumed == 0 {
		switch {
		case p.draining:
			return actStop, time.Time{}
		case p.queued == 0, p.paused:
			return actWait, time.Time{}
		case now.Before(p.hold):
			return actWait, p.hold
		}
		return actConsume, time.Time{}
	}
	switch {
	case p.draining:
		return actCommit, time.Time{}
	case p.full, p.paused, p.alone > 0, p.queued == 0 && !p.behind, p.consumed >= p.maxMessages, !now.Before(p.opened.Add(p.interval)):
		if now.Before(p.resume) {
			return actWait, p.resume
		}
		return actCommit, time.Time{}
	case p.queued == 0: // more is on its way
		return actWait, p.opened.Add(p.interval)
	}
	return actConsume, time.Time{}
}

// quota returns how many messages Consume may be given now.
func (p *pace) quota() int {
	if p.alone > 0 {
		return 1
	}
	return min(p.queued, p.maxMessages-p.consumed)
}

// committed tells that the open transaction has ended, by a commit that took
// so long, and that the next is to begin no sooner than pause from now; more
// if commits would otherwise take over a quarter of the time.
func (p *pace) committed(now time.Time, took, pause time.Duration) {
	if p.alone > 0 {
		p.alone--
	}
	p.reset()
	p.resume = now.Add(min(max(pause, 3*took), p.interval))
}

// reset tells that there is no open transaction any more.
func (p *pace) reset() {
	p.consumed, p.full, p.opened, p.hold = 0, false, time.Time{}, time.Time{}
}
