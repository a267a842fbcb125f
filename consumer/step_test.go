package consumer

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestStep(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	ms := func(n int) time.Time { return now.Add(time.Duration(n) * time.Millisecond) }
	base := func(change func(*pace)) pace {
		p := pace{interval: 100 * time.Millisecond, maxMessages: 1000}
		change(&p)
		return p
	}
	for _, c := range []struct {
		name  string
		p     pace
		want  action
		until time.Time
	}{
		{"nothing to do", base(func(p *pace) {}), actWait, time.Time{}},
		{"first message", base(func(p *pace) { p.queued = 1 }), actConsume, time.Time{}},
		{"the input ran dry", base(func(p *pace) { p.consumed, p.opened = 5, now }), actCommit, time.Time{}},
		{"dry, but in the pause", base(func(p *pace) { p.consumed, p.opened, p.resume = 5, now, ms(3) }), actWait, ms(3)},
		{"more came in the pause", base(func(p *pace) { p.consumed, p.queued, p.opened, p.resume = 5, 2, now, ms(3) }), actConsume, time.Time{}},
		{"more is on its way", base(func(p *pace) { p.consumed, p.opened, p.behind = 5, ms(-10), true }), actWait, ms(90)},
		{"more is on its way, but the interval has passed", base(func(p *pace) { p.consumed, p.opened, p.behind = 5, ms(-100), true }), actCommit, time.Time{}},
		{"under load", base(func(p *pace) { p.consumed, p.queued, p.opened = 5, 50, ms(-99) }), actConsume, time.Time{}},
		{"the interval has passed", base(func(p *pace) { p.consumed, p.queued, p.opened = 5, 50, ms(-100) }), actCommit, time.Time{}},
		{"full", base(func(p *pace) { p.consumed, p.queued, p.opened, p.full = 5, 50, now, true }), actCommit, time.Time{}},
		{"full, in the pause: nothing more is consumed", base(func(p *pace) { p.consumed, p.queued, p.opened, p.full, p.resume = 5, 50, now, true, ms(2) }), actWait, ms(2)},
		{"as many messages as there may be", base(func(p *pace) { p.consumed, p.queued, p.opened = 1000, 50, now }), actCommit, time.Time{}},
		{"alone", base(func(p *pace) { p.consumed, p.queued, p.opened, p.alone = 1, 50, now, 3 }), actCommit, time.Time{}},
		{"user code runs", base(func(p *pace) { p.working, p.opened, p.queued = true, ms(-1), 9 }), actWait, ms(99)},
		{"user code runs past the interval", base(func(p *pace) { p.working, p.opened, p.queued = true, ms(-100), 9 }), actYield, time.Time{}},
		{"user code runs, and the shard drains", base(func(p *pace) { p.working, p.opened, p.draining = true, now, true }), actYield, time.Time{}},
		{"user code runs, and the shard is paused", base(func(p *pace) { p.working, p.opened, p.paused = true, now, true }), actYield, time.Time{}},
		{"paused with something open", base(func(p *pace) { p.consumed, p.queued, p.opened, p.paused = 5, 50, now, true }), actCommit, time.Time{}},
		{"paused with nothing open", base(func(p *pace) { p.queued, p.paused = 50, true }), actWait, time.Time{}},
		{"a timer is due", base(func(p *pace) { p.timer = now }), actFire, time.Time{}},
		{"a timer is due, and messages have their turn", base(func(p *pace) { p.timer, p.queued, p.turn = now, 5, true }), actConsume, time.Time{}},
		{"a timer is due, and there are no messages", base(func(p *pace) { p.timer, p.turn = now, true }), actFire, time.Time{}},
		{"a timer will be due", base(func(p *pace) { p.timer = ms(30) }), actWait, ms(30)},
		{"a timer is due in a message's back-off", base(func(p *pace) { p.timer, p.queued, p.hold, p.turn = now, 5, ms(50), true }), actFire, time.Time{}},
		{"timers have fired", base(func(p *pace) { p.fired, p.queued = 3, 5 }), actCommit, time.Time{}},
		{"timers have fired, in the pause", base(func(p *pace) { p.fired, p.resume = 3, ms(2) }), actWait, ms(2)},
		{"a timer is due while messages are open", base(func(p *pace) { p.consumed, p.queued, p.opened, p.timer = 5, 50, now, now }), actConsume, time.Time{}},
		{"a timer is due in a pause", base(func(p *pace) { p.timer, p.paused = now, true }), actWait, time.Time{}},
		{"keys are to be looked at", base(func(p *pace) { p.sweep, p.queued = now, 5 }), actSweep, time.Time{}},
		{"direct writes wait", base(func(p *pace) { p.direct, p.queued = true, 5 }), actSettle, time.Time{}},
		{"direct writes wait in the pause, and there are messages", base(func(p *pace) { p.direct, p.queued, p.resume = true, 5, ms(5) }), actConsume, time.Time{}},
		{"direct writes wait in the pause, and a timer is due", base(func(p *pace) { p.direct, p.timer, p.resume = true, now, ms(5) }), actFire, time.Time{}},
		{"direct writes wait in the pause, and a timer will be due", base(func(p *pace) { p.direct, p.timer, p.resume = true, ms(3), ms(5) }), actWait, ms(3)},
		{"direct writes wait in the pause, alone", base(func(p *pace) { p.direct, p.resume = true, ms(5) }), actWait, ms(5)},
		{"direct writes wait again", base(func(p *pace) { p.direct, p.settled = true, true }), actSettle, time.Time{}},
		{"direct writes wait again, and there are messages", base(func(p *pace) { p.direct, p.settled, p.queued = true, true, 5 }), actConsume, time.Time{}},
		{"direct writes wait again, and keys are to be looked at", base(func(p *pace) { p.direct, p.settled, p.sweep = true, true, now }), actSweep, time.Time{}},
		{"direct writes wait while paused", base(func(p *pace) { p.direct, p.settled, p.queued, p.paused = true, true, 5, true }), actSettle, time.Time{}},
		{"drains with direct writes again", base(func(p *pace) { p.direct, p.settled, p.draining = true, true, true }), actStop, time.Time{}},
		{"drains after direct writes", base(func(p *pace) { p.direct, p.settled = true, true; p.drain() }), actSettle, time.Time{}},
		{"direct writes wait with messages open", base(func(p *pace) { p.direct, p.consumed, p.queued, p.opened = true, 5, 50, now }), actConsume, time.Time{}},
		{"drains with direct writes", base(func(p *pace) { p.direct, p.draining, p.resume = true, true, ms(5) }), actSettle, time.Time{}},
		{"drains with timers due", base(func(p *pace) { p.timer, p.draining = now, true }), actStop, time.Time{}},
		{"drains while paused", base(func(p *pace) { p.queued, p.paused, p.draining = 50, true, true }), actStop, time.Time{}},
		{"drains with something open", base(func(p *pace) { p.consumed, p.queued, p.opened, p.draining, p.resume = 5, 50, now, true, ms(9) }), actCommit, time.Time{}},
		{"drains with nothing open", base(func(p *pace) { p.queued, p.draining = 50, true }), actStop, time.Time{}},
		{"back-off", base(func(p *pace) { p.queued, p.alone, p.hold = 50, 1, ms(200) }), actWait, ms(200)},
		{"back-off is over", base(func(p *pace) { p.queued, p.alone, p.hold = 50, 1, now }), actConsume, time.Time{}},
	} {
		got, until := c.p.step(now)
		if got != c.want || !until.Equal(c.until) {
			t.Errorf("%s: action %d until %v, want %d until %v", c.name, got, until, c.want, c.until)
		}
	}
}

// Commits take at most a quarter of a shard's time, but never hold a
// transaction open for longer than the interval.
func TestCommitPauseGrowsWithCommits(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for _, c := range []struct{ took, pause, want time.Duration }{
		{time.Millisecond, 5 * time.Millisecond, 5 * time.Millisecond},
		{10 * time.Millisecond, 5 * time.Millisecond, 30 * time.Millisecond},
		{time.Second, 5 * time.Millisecond, 100 * time.Millisecond},
	} {
		p := pace{interval: 100 * time.Millisecond, maxMessages: 10}
		for range 100 {
			p.consumed = 3
			p.committed(now, c.took, c.pause)
		}
		if got := p.resume.Sub(now); got > c.want || got < c.want*99/100 {
			t.Errorf("after commits of %v the pause is %v, want %v", c.took, got, c.want)
		}
		if p.consumed != 0 {
			t.Errorf("%d messages are open after a commit", p.consumed)
		}
	}
}

// A commit that the broker keeps waiting, now and then, costs what it takes, and
// no long pause after it; nor does the first, which looks everything up.
func TestCommitPauseAfterASlowCommit(t *testing.T) {
	const pause, usual = 5 * time.Millisecond, 4 * time.Millisecond
	now := time.Unix(1_700_000_000, 0)
	p := pace{interval: 100 * time.Millisecond, maxMessages: 10}
	for i := range 200 {
		took := usual
		if i%20 == 0 {
			took = 80 * time.Millisecond
		}
		p.consumed = 3
		p.committed(now, took, pause)
		if got, most := p.resume.Sub(now), 18*time.Millisecond; got > most {
			t.Errorf("commit %d, of %v: the pause is %v, want at most %v", i, took, got, most)
		}
	}
}

// The next fetch is begun in time to be back when the pause ends, also where a
// commit, and so a fetch, takes long.
func TestFetchJustBeforeThePauseEnds(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for _, c := range []struct{ took, pause, want time.Duration }{
		{200 * time.Microsecond, 5 * time.Millisecond, 4 * time.Millisecond},
		{5 * time.Millisecond, 5 * time.Millisecond, 12500 * time.Microsecond},
		{time.Millisecond, 0, 2 * time.Millisecond},
	} {
		p := pace{interval: 100 * time.Millisecond, maxMessages: 10}
		for range 100 {
			p.consumed = 3
			p.committed(now, c.took, c.pause)
		}
		if got := p.fetchAt().Sub(now); got > c.want || got < c.want*99/100 {
			t.Errorf("after commits of %v with a pause of %v, the next fetch is begun after %v, want %v", c.took, c.pause, got, c.want)
		}
	}
}

// Where commits are as uneven as those of a broker at work, four times as long as
// each other, they take about a quarter of the time all the same.
func TestCommitShare(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	rapid.Check(t, func(t *rapid.T) {
		p := pace{interval: time.Second, maxMessages: 10}
		unit := time.Duration(rapid.IntRange(1, 20).Draw(t, "shortest")) * time.Millisecond
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		var working, all time.Duration
		for i := range 2_000 {
			took := unit + time.Duration(rng.Int64N(3*int64(unit)))
			p.consumed = 3
			p.committed(now, took, time.Millisecond)
			if i >= 1_000 { // it has had the time to learn
				working += took
				all += took + p.resume.Sub(now)
			}
		}
		if share := float64(working) / float64(all); share < 0.2 || share > 0.33 {
			t.Errorf("commits of %v to %v take %.0f %% of the time, want 20 to 33", unit, 4*unit, 100*share)
		}
	})
}

// Whatever happens in whatever order, the pace never asks for two things at
// once, never consumes more than it may, and comes to a stop once told to.
func TestPaceProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_700_000_000, 0)
		p := pace{interval: 100 * time.Millisecond, maxMessages: rapid.IntRange(1, 20).Draw(t, "max")}
		flood := rapid.Bool().Draw(t, "flood") // of direct writes, also while it drains
		alone := false                         // the last transaction was of direct writes alone
		for i := 0; ; i++ {
			if i > 10_000 {
				t.Fatal("it does not stop")
			}
			if i == 200 {
				p.drain()
				alone = false
			}
			if !p.draining {
				p.queued += rapid.IntRange(0, 5).Draw(t, "fetched")
			}
			p.behind = rapid.Bool().Draw(t, "behind")
			if p.consumed == 0 && p.fired == 0 {
				p.timer, p.sweep, p.direct = time.Time{}, time.Time{}, flood || rapid.IntRange(0, 9).Draw(t, "direct") == 0
				if rapid.Bool().Draw(t, "timer") {
					p.timer = now.Add(time.Duration(rapid.IntRange(-5, 20).Draw(t, "due")) * time.Millisecond)
				}
				if rapid.Bool().Draw(t, "sweep") {
					p.sweep = now.Add(time.Duration(rapid.IntRange(-5, 20).Draw(t, "again")) * time.Millisecond)
				}
			}
			waits := p.draining || p.queued > 0 && !now.Before(p.hold) || !p.timer.IsZero() && !now.Before(p.timer)
			act, until := p.step(now)
			switch act {
			case actStop:
				if !p.draining || p.consumed > 0 || p.fired > 0 || p.direct && !alone || p.working {
					t.Fatalf("stops with %+v", p)
				}
				return
			case actConsume:
				if p.working || now.Before(p.hold) || p.fired > 0 {
					t.Fatalf("consumes with %+v", p)
				}
				n := p.quota()
				if n < 1 || n > p.queued || p.consumed+n > p.maxMessages || p.alone > 0 && n != 1 {
					t.Fatalf("quota %d with %+v", n, p)
				}
				if p.consumed == 0 {
					p.opened = now
				}
				n = rapid.IntRange(1, n).Draw(t, "consumed")
				p.queued -= n
				p.consumed += n
				if rapid.IntRange(0, 9).Draw(t, "fails") == 0 { // abort
					p.queued += p.consumed
					p.alone = p.consumed
					p.reset()
				}
			case actCommit:
				if p.working || p.consumed == 0 && p.fired == 0 || now.Before(p.resume) && !p.draining {
					t.Fatalf("commits with %+v", p)
				}
				now = now.Add(time.Millisecond)
				p.committed(now, time.Millisecond, 5*time.Millisecond)
				alone = false
			case actFire:
				if p.working || p.consumed > 0 || p.fired > 0 || now.Before(p.timer) {
					t.Fatalf("fires with %+v", p)
				}
				if rapid.IntRange(0, 9).Draw(t, "fire fails") == 0 {
					p.reset()
				} else {
					p.fired = rapid.IntRange(1, 5).Draw(t, "fired")
				}
			case actSweep:
				if p.working || p.consumed > 0 || p.fired > 0 || now.Before(p.sweep) {
					t.Fatalf("sweeps with %+v", p)
				}
				p.fired = rapid.IntRange(0, 1).Draw(t, "swept")
			case actSettle:
				if p.working || p.consumed > 0 || p.fired > 0 || !p.direct || alone && waits {
					t.Fatalf("settles with %+v", p)
				}
				alone = true
				p.committed(now, time.Millisecond, 5*time.Millisecond)
			case actWait:
				if until.IsZero() {
					now = now.Add(time.Duration(rapid.IntRange(1, 10).Draw(t, "wait")) * time.Millisecond)
				} else if until.Before(now) {
					t.Fatalf("waits until %v at %v", until, now)
				} else if p.direct && waits && p.consumed == 0 && p.fired == 0 {
					t.Fatalf("waits for the direct writes' pause with %+v", p)
				} else {
					now = until
				}
			}
		}
	})
}

func TestNext(t *testing.T) {
	for _, c := range []struct {
		phase    Phase
		stopping bool
		err      error
		want     Phase
	}{
		{Fencing, false, nil, Restoring},
		{Restoring, false, nil, Running},
		{Running, true, nil, Draining},
		{Draining, true, nil, Stopped},
		{Fencing, false, ErrFenced, Failed},
		{Restoring, false, ErrFenced, Failed},
		{Running, false, ErrFenced, Failed},
		{Failed, false, nil, Fencing},
		{Fencing, false, errNotOurs, Stopped},
		{Restoring, false, errNotOurs, Stopped},
		{Failed, true, errStopping, Stopped},
		{Fencing, true, errStopping, Stopped},
		{Restoring, true, nil, Stopped},
		{Running, true, ErrFenced, Stopped},
		{Draining, true, ErrFenced, Stopped},
	} {
		if got := next(c.phase, c.stopping, c.err); got != c.want {
			t.Errorf("after %s, stopping %v, error %v: %s, want %s", c.phase, c.stopping, c.err, got, c.want)
		}
	}
}
