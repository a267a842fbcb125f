package messaging

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/pawlstream/pawl/topic"
)

// partition is one partition of the input while it is assigned to this
// process: one epoch. When it is revoked and comes back, that is another one.
//
//	read ──► lane ──► ready ──► handler ──► ack ─────────────► window ──► commit
//	           ▲                   │                              ▲
//	           │ due               ├─► again, after a back-off    │
//	           └───────────────────┤                              │
//	                               └─► delay topic or dead letters, confirmed
//
// Its state is under one lock, which is held for a few microseconds at most:
// who settles a message does what follows from it at once. Its goroutine keeps
// the time and, beside it, another writes retries and dead letters.
type partition struct {
	w        *Worker
	id       topic.Partition
	memberID string // as whom it was assigned
	log      *slog.Logger
	outlived map[string]bool // topics that were deleted and made anew while the partition was here, which ended the epoch before; nil: none

	ctx    context.Context // of the handlers
	cancel context.CancelCauseFunc
	wake   chan struct{}    // the goroutine has something to do
	writes [2]chan struct{} // the writers have something to do
	gone   chan struct{}    // closed when it is fenced
	done   chan struct{}    // closed when its goroutines have ended

	mu struct {
		sync.Mutex
		phase   phase
		reason  string // why it does not run yet
		since   time.Time
		streams []*stream

		lanes   map[uint64]*lane
		idle    int       // of these, those without messages
		free    []*lane   // for use again
		ready   queue     // to be handled
		offered bool      // the pool knows that ready has something
		delayed delays    // to be handled when they are due
		out     int       // given to a handler and not settled
		solo    *chunk    // see takeSoloLocked; nil: none
		jobs    [2][]*job // to be written, by where to: toTopics, toLetters
		writing int       // jobs that the writer has in hand

		rounds  uint64 // see snapshot
		careful bool   // messages are handled one at a time, after a commit that says so
		cleared *delivery

		failing    [2]time.Time // since when writes fail, by where to; zero: they do not
		failingErr [2]error
		scanned    chan struct{} // closed when no stream is scanned any more
		random     *rand.Rand
	}
}

// phase is where a partition is in its life.
type phase string

// The phases.
const (
	phaseStarting phase = "starting" // looking up what was committed, and what waits in delay topics
	phaseRunning  phase = "running"
	phaseDraining phase = "draining" // no message is handed out any more
	phaseFenced   phase = "fenced"   // nothing that is still done with it counts
)

func newPartition(w *Worker, id topic.Partition, memberID string) *partition {
	p := &partition{
		w: w, id: id, memberID: memberID, log: w.log.With("partition", id.String()),
		wake: make(chan struct{}, 1), writes: [2]chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)}, gone: make(chan struct{}), done: make(chan struct{}),
	}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	p.mu.phase, p.mu.since, p.mu.reason = phaseStarting, time.Now(), "it was just assigned"
	p.mu.lanes = make(map[uint64]*lane)
	p.mu.random = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	return p
}

// run owns the partition's time until it is fenced.
func (p *partition) run() {
	defer close(p.done)
	var writers sync.WaitGroup
	writers.Go(func() { p.write(toTopics) })
	writers.Go(func() { p.write(toLetters) })
	defer writers.Wait()
	for !p.start() {
		select {
		case <-time.After(startBackoff):
		case <-p.gone:
			return
		}
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next := p.tick()
		timer.Reset(max(0, time.Until(next)))
		select {
		case <-timer.C:
		case <-p.wake:
		case <-p.gone:
			return
		}
	}
}

// choreInterval is how often the goroutine looks around when nothing is due.
const choreInterval = time.Second

// tick does what is due, and returns when something will be.
func (p *partition) tick() time.Time {
	now := time.Now()
	p.mu.Lock()
	for {
		d, at := p.mu.delayed.first()
		if d == nil || at.After(now) {
			break
		}
		p.mu.delayed.pop()
		p.dueLocked(d)
	}
	next := now.Add(choreInterval)
	if d, at := p.mu.delayed.first(); d != nil && at.Before(next) {
		next = at
	}
	p.choresLocked(now)
	suspect := p.suspectLocked()
	offer := p.offerLocked()
	p.mu.Unlock()
	if offer {
		p.w.pool.offer(p)
	}
	if suspect != nil {
		p.clear(suspect)
	}
	return next
}

// dueLocked takes up a message whose time has come.
func (p *partition) dueLocked(d *delivery) {
	if d.state.Load() != pending {
		return // it no longer counts
	}
	d.waits = false
	if d.lane == nil || d.lane.active == d {
		p.readyLocked(d) // again, in place; its lane waits for it
		return
	}
	p.advanceLocked(d.lane)
}

// quietLimit is how long nothing may come of a stream that has not reached its
// end before it is asked what there is.
const quietLimit = 2 * time.Second

// choresLocked looks for what nobody does anything about.
func (p *partition) choresLocked(now time.Time) {
	if p.mu.phase != phaseRunning {
		return
	}
	if p.mu.rounds > 0 && now.Sub(p.mu.since) >= crashWindow {
		p.mu.rounds, p.mu.careful = 0, false // it has not crashed
	}
	for _, s := range p.mu.streams {
		if s.want || s.noted != s.held() {
			p.noteLocked(s) // others may have given back what it could have
		}
		p.watchLocked(s, now)
		if s.next < s.highWater && s.inbox.count == 0 && !s.want && now.Sub(s.brought) >= quietLimit {
			s.brought = now
			p.w.fetch.look(s)
		}
		if s.tier != streamInput && s.paused && now.Sub(s.full) >= choreInterval {
			s.full = now
			p.forwardLocked(s)
		}
		if s.tier != streamInput {
			p.renewLocked(s)
		}
	}
}

// forwardLocked moves messages out of a full stream that are held back by one
// that can't be read here, behind that one.
func (p *partition) forwardLocked(s *stream) {
	for i := range s.window.n {
		d := s.window.at(i).d
		if d == nil || d.lane == nil || d.state.Load() != pending {
			continue
		}
		if tier, ok := d.lane.blocked(d); ok {
			d.lane.move(d)
			p.jobLocked(&job{d: d, tier: tier, hop: int(d.hop) + 1})
		}
	}
}

// idleLocked says whether no handler has a message of the partition, and none
// waits to be written.
func (p *partition) idleLocked() bool {
	return p.mu.out == 0 && len(p.mu.jobs[toTopics]) == 0 && len(p.mu.jobs[toLetters]) == 0 && p.mu.writing == 0
}

// isCurrentLocked says whether a stream is one of the partition's. It is not once
// a start that failed was begun again, with streams of its own: what still comes
// of the one before is no longer known to fit.
func (p *partition) isCurrentLocked(s *stream) bool {
	return s.tier < len(p.mu.streams) && p.mu.streams[s.tier] == s
}

// passed takes note that a stream holds no message from one offset up to
// another: such as batches of which compaction has left nothing, which are not
// seen when it is read. It returns true when the stream is to be read no further.
func (p *partition) passed(s *stream, from, to int64) (enough bool) {
	offer := false
	p.mu.Lock()
	defer func() {
		p.mu.Unlock()
		if offer {
			p.w.pool.offer(p)
		}
	}()
	if !p.isCurrentLocked(s) {
		return true
	}
	switch {
	case to <= from:
	case s.scanEnd >= 0 && s.scanned == from:
		return p.scannedToLocked(s, to)
	case s.scanEnd < 0 && s.next == from && s.inbox.count == 0:
		s.next = to
		p.w.metrics.missed.Add(p.goneLocked(s))
		offer = p.offerLocked()
	}
	return false
}

// drain hands out no more messages and ends the handlers' contexts.
func (p *partition) drain(cause error) {
	p.mu.Lock()
	if p.mu.phase == phaseDraining || p.mu.phase == phaseFenced {
		p.mu.Unlock()
		return
	}
	p.mu.phase, p.mu.since = phaseDraining, time.Now()
	p.letGoLocked()
	// What is only to join its key in a delay topic can as well stay.
	p.mu.jobs[toTopics] = slices.DeleteFunc(p.mu.jobs[toTopics], func(j *job) bool { return !j.retry })
	p.mu.Unlock()
	p.cancel(cause)
	p.w.fetch.drop(p)
}

// idle says whether a drain has nothing to wait for any more.
func (p *partition) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.phase == phaseFenced || p.idleLocked()
}

// fence ends the epoch: from here on nothing that is done with it counts.
func (p *partition) fence(cause error) {
	p.mu.Lock()
	was := p.mu.phase
	p.mu.phase = phaseFenced
	p.letGoLocked()
	if was != phaseFenced {
		close(p.gone)
	}
	p.w.allotment.remove(p.mu.streams...)
	p.mu.Unlock()
	p.w.fetch.resize()
	p.cancel(cause)
	p.w.fetch.drop(p)
	if was != phaseFenced {
		p.w.breaker.unused(1) // what is still out will never be settled
	}
}

// letGoLocked lets go of what was fetched and not read.
func (p *partition) letGoLocked() {
	for _, s := range p.mu.streams {
		s.inbox.clear()
		p.noteLocked(s)
	}
}

// quote returns a key for a log.
func quote(key []byte) string {
	if key == nil {
		return "null"
	}
	return fmt.Sprintf("%.60q", key)
}
