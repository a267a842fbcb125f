package messaging

import (
	"math"
	"sync"
	"time"
)

// breaker pauses all handlers when everything fails, so that an outage of
// what they call does not turn a whole topic into dead letters.
//
//	closed ── so many failures in a row ──► open ── cool-down ──► probing: one message
//	   ▲                                     ▲                       │
//	   │                                     └──── it fails: twice as long
//	   └──────────────────── it succeeds ────────────────────────────┘
type breaker struct {
	cfg     Breaker
	changed func() // called without the lock

	mu struct {
		sync.Mutex
		failures int // in a row
		state    breakerState
		probing  bool // the one message is out
		cooldown time.Duration
		since    time.Time
		opened   int64     // how often
		open     time.Time // since when it is not closed; zero: it is
		last     error     // of the failure that was the last
	}
}

type breakerState string

const (
	breakerClosed  breakerState = "closed"
	breakerOpen    breakerState = "open"
	breakerProbing breakerState = "probing"
)

func newBreaker(cfg Breaker, changed func()) *breaker {
	b := &breaker{cfg: cfg, changed: changed}
	b.mu.state, b.mu.cooldown = breakerClosed, cfg.Cooldown
	return b
}

// allow returns how many messages may be handed out now.
func (b *breaker) allow() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.mu.state {
	case breakerOpen:
		return 0
	case breakerProbing:
		if b.mu.probing {
			return 0
		}
		b.mu.probing = true
		return 1
	}
	return math.MaxInt
}

// unused says that what allow allowed was not made use of, or that nothing was
// learned of it: another message is tried. Whoever says so may not have had the
// one message; then one more is tried, which does no harm.
func (b *breaker) unused(most int) {
	if most != 1 {
		return
	}
	b.mu.Lock()
	probing := b.mu.state == breakerProbing
	b.mu.probing = false
	b.mu.Unlock()
	if probing {
		b.changed()
	}
}

func (b *breaker) succeeded() {
	b.mu.Lock()
	b.mu.failures = 0
	was := b.mu.state
	if was == breakerProbing {
		b.mu.state, b.mu.since, b.mu.cooldown, b.mu.probing = breakerClosed, time.Now(), b.cfg.Cooldown, false
		b.mu.open, b.mu.last = time.Time{}, nil
	}
	b.mu.Unlock()
	if was == breakerProbing {
		b.changed()
	}
}

// failed takes note of an attempt that failed with that error.
func (b *breaker) failed(err error) {
	if b.cfg.Failures < 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.failures++
	b.mu.last = err
	switch b.mu.state {
	case breakerClosed:
		if b.mu.failures >= b.cfg.Failures {
			b.openLocked()
		}
	case breakerProbing:
		b.mu.cooldown = min(2*b.mu.cooldown, b.cfg.CooldownMax)
		b.openLocked()
	}
}

func (b *breaker) openLocked() {
	b.mu.state, b.mu.since, b.mu.probing = breakerOpen, time.Now(), false
	b.mu.opened++
	if b.mu.open.IsZero() {
		b.mu.open = b.mu.since
	}
	time.AfterFunc(b.mu.cooldown, func() {
		b.mu.Lock()
		if b.mu.state == breakerOpen {
			b.mu.state, b.mu.since = breakerProbing, time.Now()
		}
		b.mu.Unlock()
		b.changed()
	})
}

func (b *breaker) status() (state breakerState, opened int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.state, b.mu.opened
}

// ailing returns since when the breaker is not closed, and the last error of
// what then failed; zero if it is closed.
func (b *breaker) ailing() (since time.Time, last error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.open.IsZero() {
		return time.Time{}, nil
	}
	return b.mu.open, b.mu.last
}
