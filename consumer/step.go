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
	fired    int       // timers fired in the open transaction, or swept keys in it: it holds no messages then
	timer    time.Time // when the next timer is due; zero for none
	sweep    time.Time // when keys are to be looked at again; zero for never
	direct   bool      // direct writes wait for a commit
	settled  bool      // the last transaction was of direct writes alone: what else there is has its turn
	turn     bool      // the last transaction was of timers: messages have their turn
	alone    int       // messages that are each consumed in a transaction of their own
	hold     time.Time // nothing is consumed before: the back-off of a message that failed
	resume   time.Time // no commit begins before: the pause after the last

	usual time.Duration // what a commit takes of late
}

// An action is what the owner is to do.
type action int

const (
	actWait    action = iota // for an event, or until the time that comes with it
	actConsume               // give the next messages to Consume
	actCommit                // flush and commit the open transaction
	actYield                 // make Consume return between two messages, and wait
	actFire                  // fire timers that are due
	actSweep                 // look at some keys
	actSettle                // commit direct writes, no transaction being open
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
	if p.fired > 0 { // what timers and sweeps do is committed by itself
		if now.Before(p.resume) && !p.draining {
			return actWait, p.resume
		}
		return actCommit, time.Time{}
	}
	if p.consumed == 0 {
		return p.begin(now)
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

// begin is step when no transaction is open. Messages, timers, keys to look at
// and direct writes take turns, so that none keeps the others waiting for long.
// Every transaction takes the direct writes with it that wait: they need one of
// their own only for want of another, or before another that may fail.
func (p *pace) begin(now time.Time) (action, time.Time) {
	act, until := p.beginOther(now)
	switch {
	case !p.direct, p.settled && act != actWait:
		return act, until
	case p.draining, !now.Before(p.resume):
		return actSettle, time.Time{}
	case act == actWait:
		return actWait, earlier(until, p.resume)
	}
	return act, until
}

// beginOther is begin, direct writes aside.
func (p *pace) beginOther(now time.Time) (action, time.Time) {
	ready := p.queued > 0 && !p.paused && !now.Before(p.hold)
	switch {
	case p.draining:
		return actStop, time.Time{}
	case p.paused:
		return actWait, time.Time{}
	case !p.timer.IsZero() && !now.Before(p.timer) && (!p.turn || !ready):
		return actFire, time.Time{}
	case !p.sweep.IsZero() && !now.Before(p.sweep):
		return actSweep, time.Time{}
	case ready:
		return actConsume, time.Time{}
	}
	until := p.timer
	if p.queued > 0 {
		until = earlier(until, p.hold)
	}
	return actWait, earlier(until, p.sweep)
}

// drain tells to finish what is open and to stop. The direct writes of before
// are finished as well; those that keep coming are not waited for.
func (p *pace) drain() { p.draining, p.settled = true, false }

// earlier returns the earlier of two times, of which the zero time is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
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
// if commits would otherwise take over a quarter of the time. That goes by what
// they take of late: one that the broker kept waiting would else keep what comes
// after it waiting three times as long.
func (p *pace) committed(now time.Time, took, pause time.Duration) {
	if p.alone > 0 && p.consumed > 0 {
		p.alone--
	}
	p.turn, p.settled = p.fired > 0, p.fired == 0 && p.consumed == 0
	p.reset()
	p.learn(took, pause)
	p.resume = now.Add(min(max(pause, 3*p.usual), p.interval))
}

// fetchAt returns before when there is no use in fetching: what comes until then
// would wait for the pause to end, and a fetch just before its end brings all of
// it at once. It is begun as much earlier as it may take, which half a commit
// tells, also of a network that is slow.
func (p *pace) fetchAt() time.Time {
	return p.resume.Add(-max(fetchLead, p.usual/2))
}

// fetchLead is what a fetch may take of which there is something to bring.
const fetchLead = time.Millisecond

// learn lets what a commit took count for what they usually take: less of it
// where it is more, since a pause comes off sooner than it is put on. The first,
// which looks up all that is written to, tells little.
func (p *pace) learn(took, pause time.Duration) {
	switch {
	case p.usual == 0:
		p.usual = min(took, pause)
	case took > p.usual:
		p.usual += (min(took, 4*p.usual) - p.usual) / 8
	default:
		p.usual -= (p.usual - took) / 4
	}
	p.usual = max(p.usual, time.Microsecond)
}

// reset tells that there is no open transaction any more.
func (p *pace) reset() {
	if p.consumed > 0 {
		p.hold = time.Time{} // what timers do is not what a message waits for
	}
	p.fired = 0
	p.consumed, p.full, p.opened = 0, false, time.Time{}
}
