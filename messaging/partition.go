package messaging

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/internal/kafka"
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
		free    []*lane   // for use again
		ready   queue     // to be handled
		offered bool      // the pool knows that ready has something
		delayed delays    // to be handled when they are due
		out     int       // given to a handler and not settled
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

var keySeed = maphash.MakeSeed()

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

// startBackoff is the pause between two tries to start.
const startBackoff = 500 * time.Millisecond

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
	d.due = time.Time{}
	if d.lane == nil || d.lane.active == d {
		p.readyLocked(d) // again, in place; its lane waits for it
		return
	}
	p.advanceLocked(d.lane)
}

// choresLocked looks for what nobody does anything about.
func (p *partition) choresLocked(now time.Time) {
	if p.mu.phase != phaseRunning {
		return
	}
	if p.mu.rounds > 0 && now.Sub(p.mu.since) >= crashWindow {
		p.mu.rounds, p.mu.careful = 0, false // it has not crashed
	}
	for _, s := range p.mu.streams {
		if w := s.window; w.n > 0 {
			d := w.at(0).d
			if d != nil && !d.handed.IsZero() && !d.logged && now.Sub(d.handed) >= p.w.cfg.StuckAfter {
				d.logged = true
				p.log.Warn("a message was given to a handler and is not settled", "topic", s.id.Topic, "offset", d.origin, "key", quote(d.key), "for", now.Sub(d.handed).Round(time.Second))
			}
		}
		if s.tier != streamInput && s.paused && now.Sub(s.full) >= choreInterval {
			s.full = now
			p.forwardLocked(s)
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
			p.jobLocked(&job{d: d, tier: tier, hop: d.hop + 1})
		}
	}
}

// push takes messages of one of the streams, as they were read.
// It returns true when the stream is to be read no further.
func (p *partition) push(s *stream, b kafka.PartBatch, envs []topic.Envelope) (enough bool) {
	p.mu.Lock()
	if s.scanEnd >= 0 {
		enough = p.scanLocked(s, b, envs)
		p.mu.Unlock()
		return enough
	}
	if p.mu.phase != phaseRunning {
		p.mu.Unlock()
		return true
	}
	slab := make([]delivery, len(envs))
	s.highWater = max(s.highWater, b.StableEnd)
	for i := range envs {
		e := &envs[i]
		if e.Offset < s.next {
			continue // read before
		}
		d := &slab[i]
		*d = delivery{p: p, s: s, key: e.Key, value: e.Value, headers: e.Headers, stamp: e.Timestamp, at: e.Offset, origin: e.Offset, order: e.Offset, attempt: 1}
		seq, err := s.window.add(e.Offset, d)
		if err != nil {
			invariants.Check(false, "%s: read offset %d: %v", s.id, e.Offset, err)
			continue
		}
		d.seq = seq
		s.next = e.Offset + 1
		s.bytes += d.size()
		if s.isRestored(e.Offset) {
			p.settleLocked(d)
			continue
		}
		if e.Offset < s.seen {
			p.w.metrics.redelivered.Add(1)
		}
		p.arriveLocked(d)
	}
	s.next = max(s.next, b.Next)
	if !s.want && s.overLimit(&p.w.cfg) {
		s.want = true
		s.full = time.Now()
		p.w.fetch.changed(s)
	}
	offer := p.offerLocked()
	p.mu.Unlock()
	if offer {
		p.w.pool.offer(p)
	}
	return false
}

// arriveLocked puts a message that was read where it belongs.
func (p *partition) arriveLocked(d *delivery) {
	order := p.w.cfg.Order
	ordered := true
	if d.s.tier != streamInput {
		h, ok := parseHistory(d.headers)
		if ok {
			d.past = &h
			d.attempt, d.hop, d.origin, d.order = h.attempts+1, h.hop, h.offset, h.offset
			if h.due > 0 {
				d.due = time.UnixMilli(h.due)
			}
			ordered = p.isOwn(h)
		} else {
			ordered = false
			d.past = &history{topic: p.id.Topic, partition: p.id.Number, offset: d.at, timestamp: d.stamp.UnixMilli()}
		}
		if most := time.Now().Add(tierMax); d.due.After(most) {
			d.due = most // nothing of ours is due later
		}
		ordered = ordered && order == ByKey
	}
	switch {
	case order == ByPartition:
		d.hash = 0
		if d.s.tier != streamInput { // one that was redriven has its place where it comes
			d.order = d.at - offsetMax // before all of the input
		}
	case !ordered, order == Unordered, d.key == nil:
		if d.due.IsZero() {
			p.readyLocked(d)
		} else {
			p.delayLocked(d, d.due)
		}
		return
	default:
		d.hash = maphash.Bytes(keySeed, d.key)
	}
	l := p.laneLocked(d.hash)
	ok, void := l.insert(d)
	if !ok {
		p.settleLocked(d) // a copy that does not count
		return
	}
	if void != nil {
		void.lane = nil
		void.state.Store(settled)
		p.settleLocked(void)
	}
	d.lane = l
	if !d.due.IsZero() {
		p.delayLocked(d, d.due)
	}
	p.advanceLocked(l)
}

// isOwn says whether a message comes from this partition of this very topic.
func (p *partition) isOwn(h history) bool {
	return h.topic == p.id.Topic && h.partition == p.id.Number && h.topicID == p.mu.streams[streamInput].tid
}

func (p *partition) laneLocked(hash uint64) *lane {
	l := p.mu.lanes[hash]
	if l == nil {
		if n := len(p.mu.free); n > 0 {
			l = p.mu.free[n-1]
			p.mu.free = p.mu.free[:n-1]
			l.hash = hash
		} else {
			l = &lane{hash: hash}
		}
		p.mu.lanes[hash] = l
	}
	return l
}

// advanceLocked does what a lane says is next.
func (p *partition) advanceLocked(l *lane) {
	if len(l.items) == 0 {
		invariants.Check(l.active == nil, "a lane without messages handles one")
		if p.mu.lanes[l.hash] == l {
			delete(p.mu.lanes, l.hash)
			if cap(l.items) <= 16 && len(p.mu.free) < 1024 {
				p.mu.free = append(p.mu.free, l)
			}
		}
		return
	}
	d, join, tier := l.step()
	if d != nil {
		p.readyLocked(d)
	}
	for _, d := range join {
		p.jobLocked(&job{d: d, tier: tier, hop: d.hop + 1})
	}
}

// readyLocked has a message handled, as soon as there is a handler for it.
func (p *partition) readyLocked(d *delivery) {
	if d.s.suspect == d.at && d.s.crashes >= uint64(p.w.cfg.DeadLetters.MaxCrashes) {
		d.state.Store(settled)
		p.w.metrics.crashed.Add(1)
		p.deadLetterLocked(d, ReasonCrash, fmt.Errorf("the process ended %d times while it handled this message alone", d.s.crashes))
		return
	}
	p.mu.ready.push(d)
}

func (p *partition) delayLocked(d *delivery, at time.Time) {
	d.due = at
	if p.mu.delayed.push(d, at) {
		p.wakeUp()
	}
}

func (p *partition) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// offerLocked says whether the pool is to be told that there is work.
func (p *partition) offerLocked() bool {
	if p.mu.offered || p.mu.phase != phaseRunning || p.mu.ready.len() == 0 {
		return false
	}
	if p.mu.careful {
		if p.mu.cleared == nil {
			if p.mu.out == 0 {
				p.wakeUp()
			}
			return false
		}
	}
	p.mu.offered = true
	return true
}

// take gives up to most messages to a handler. follows says of each whether it
// is to be handled only if the one before was acked. more says that there are
// others.
func (p *partition) take(most int) (ds []*delivery, follows []bool, more bool) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.offered = false
	if p.mu.phase != phaseRunning {
		return nil, nil, false
	}
	if d := p.mu.cleared; d != nil {
		p.mu.cleared = nil
		return []*delivery{p.handLocked(d, now)}, []bool{false}, p.offerLocked()
	}
	if p.mu.careful {
		return nil, nil, false
	}
	most = min(most, p.mu.ready.len()+chunkMax)
	ds = make([]*delivery, 0, min(most, 32))
	for len(ds) < most {
		d := p.mu.ready.pop()
		if d == nil {
			break
		}
		ds = append(ds, p.handLocked(d, now))
		follows = append(follows, false)
		if d.lane == nil || p.w.batch != nil {
			continue
		}
		n := len(ds)
		ds = d.lane.chain(most-n, ds)
		for _, d := range ds[n:] {
			p.handLocked(d, now)
			follows = append(follows, true)
		}
	}
	return ds, follows, p.offerLocked()
}

func (p *partition) handLocked(d *delivery, now time.Time) *delivery {
	d.handed, d.logged = now, false
	p.mu.out++
	return d
}

// giveBack takes messages back that a handler was given and has not begun with.
func (p *partition) giveBack(ds []*delivery) {
	p.mu.Lock()
	for i := len(ds) - 1; i >= 0; i-- {
		if d := ds[i]; !p.unchainLocked(d) {
			d.handed = time.Time{}
			p.mu.out--
			p.mu.ready.unpop(d)
		}
	}
	offer := p.offerLocked()
	p.mu.Unlock()
	p.wakeUp()
	if offer {
		p.w.pool.offer(p)
	}
}

// unchainLocked takes a message back that a handler was given together with the
// one before it, and that it has not come to. It is handled in its turn.
func (p *partition) unchainLocked(d *delivery) bool {
	if !d.chained {
		return false
	}
	d.chained, d.handed = false, time.Time{}
	p.mu.out--
	if d.lane != nil && d.lane.active == d {
		p.readyLocked(d) // its turn has come already
	}
	return true
}

// result is what a handler returned.
type result struct {
	d   *delivery
	err error
}

// finish takes the results of handlers.
func (p *partition) finish(rs []result) {
	p.mu.Lock()
	for _, r := range rs {
		p.resultLocked(r.d, r.err)
	}
	p.afterLocked()
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
	v := p.w.cfg.Retry.judge(d.attempt, err, p.w.cfg.Order, p.mu.random)
	if v.deed == toLater {
		return
	}
	if err != nil && (p.ctx.Err() != nil || errors.Is(err, errLeft)) {
		// Stopping is not failing: it comes again, as if nothing had been.
		d.handed = time.Time{}
		p.mu.out--
		return
	}
	if !d.state.CompareAndSwap(pending, settled) {
		return
	}
	p.verdictLocked(d, v, err)
}

// errNotReached is the result of a message that a handler was given together
// with one before it that it has not acked.
var errNotReached = errors.New("the message before it was not acked")

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
		p.w.breaker.failed()
	}
	h := p.historyLocked(d)
	h.fail(d.attempt, time.Now(), err)
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
		p.jobLocked(&job{d: d, tier: streamTiers + v.tier - 1, hop: d.hop + 1, due: time.Now().Add(v.delay), delay: v.delay, retry: true})
	case toDeadLetters:
		d.past = h
		p.deadLetterLocked(d, v.reason, nil)
	}
}

// deadLetterLocked has a message written to the dead letters.
func (p *partition) deadLetterLocked(d *delivery, reason string, err error) {
	h := p.historyLocked(d)
	if err != nil {
		h.fail(d.attempt, time.Now(), err)
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
		topic: p.id.Topic, topicID: p.mu.streams[streamInput].tid, partition: p.id.Number, offset: d.origin,
		timestamp: d.stamp.UnixMilli(), group: p.w.group, redrives: redrivesOf(d.headers),
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
	if !d.handed.IsZero() {
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
func (p *partition) movedLocked(d *delivery, hop, tier int) {
	if l := d.lane; l != nil && p.w.cfg.Order == ByKey {
		l.moved(d, hop, tier)
		d.lane = nil
		p.settleLocked(d)
		p.advanceLocked(l)
		return
	}
	p.settleLocked(d)
}

// roomLocked has a stream fetched again that has room again.
func (p *partition) roomLocked(s *stream) {
	if s.want && s.underLimit(&p.w.cfg) {
		s.want = false
		p.w.fetch.changed(s)
	}
}

// ack is Delivery.Ack.
func (p *partition) ack(d *delivery) error {
	p.mu.Lock()
	if p.mu.phase == phaseFenced {
		p.mu.Unlock()
		return ErrFenced
	}
	if !d.state.CompareAndSwap(pending, settled) {
		p.mu.Unlock()
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
	n := &nack{outcome: make(chan error, 1)}
	switch {
	case d.state.CompareAndSwap(pending, settled):
		v := p.w.cfg.Retry.judge(d.attempt, err, p.w.cfg.Order, p.mu.random)
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
		p.mu.Unlock()
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

// idleLocked says whether no handler has a message of the partition, and none
// waits to be written.
func (p *partition) idleLocked() bool {
	return p.mu.out == 0 && len(p.mu.jobs[toTopics]) == 0 && len(p.mu.jobs[toLetters]) == 0 && p.mu.writing == 0
}

// drain hands out no more messages and ends the handlers' contexts.
func (p *partition) drain(cause error) {
	p.mu.Lock()
	if p.mu.phase == phaseDraining || p.mu.phase == phaseFenced {
		p.mu.Unlock()
		return
	}
	p.mu.phase, p.mu.since = phaseDraining, time.Now()
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
	if was != phaseFenced {
		close(p.gone)
	}
	p.mu.Unlock()
	p.cancel(cause)
	p.w.fetch.drop(p)
}

// offsets adds what is to be committed of the partition, where it is not what
// was committed before. clean says that nothing of it will be handled after.
func (p *partition) offsets(into map[topic.Partition]kafka.Committed, clean bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.phase == phaseFenced || p.mu.phase == phaseStarting {
		return
	}
	for _, s := range p.mu.streams {
		rounds := uint64(0)
		if s.tier == streamInput && !clean {
			rounds = p.mu.rounds
		}
		if clean {
			s.suspect, s.crashes = -1, 0
		}
		c := s.commit(rounds)
		if s.hasCommitted {
			invariants.Check(c.Offset >= s.committed.Offset, "the committed offset of %s would go from %d to %d", s.id, s.committed.Offset, c.Offset)
		}
		if !s.hasCommitted || c != s.committed {
			into[s.id] = c
		}
	}
}

// committed takes note of what was committed.
func (p *partition) committed(all map[topic.Partition]kafka.Committed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.mu.streams {
		if c, ok := all[s.id]; ok {
			s.committed, s.hasCommitted = c, true
		}
	}
}

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
		p.log.Warn("commit before a message is handled alone", "offset", d.origin, "error", err)
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

// start looks up where the partition is, and begins to read it. It returns
// false if it is to be tried again.
func (p *partition) start() bool {
	ctx, cancel := context.WithTimeout(p.ctx, startTimeout)
	defer cancel()
	err := p.tryStart(ctx)
	if err == nil {
		return true
	}
	p.mu.Lock()
	p.mu.reason = err.Error()
	p.mu.Unlock()
	if p.ctx.Err() == nil {
		var missing *missingError
		if errors.As(err, &missing) {
			p.w.fail(fmt.Errorf("partition %s: %w", p.id, err))
		} else {
			p.log.Warn("start", "error", err)
		}
	}
	return false
}

// startTimeout bounds one try to start.
const startTimeout = time.Minute

// missingError says which messages are gone that were not handled, where
// Config.OnOffsetOutOfRange is Fail.
type missingError struct{ *kafka.OffsetRangeError }

func (p *partition) tryStart(ctx context.Context) error {
	streams, err := p.w.locate(ctx, p)
	if err != nil {
		return err
	}
	p.mu.Lock()
	if p.mu.phase != phaseStarting {
		p.mu.Unlock()
		return errors.New("revoked")
	}
	p.mu.streams = streams
	clear(p.mu.lanes)
	p.mu.scanned = make(chan struct{})
	scanned := p.mu.scanned
	p.mu.Unlock()

	if p.w.cfg.Order == ByKey {
		if err := p.scan(ctx, streams, scanned); err != nil {
			return fmt.Errorf("read what waits in delay topics: %w", err)
		}
	}
	p.mu.Lock()
	if p.mu.phase != phaseStarting {
		p.mu.Unlock()
		return errors.New("revoked")
	}
	p.mu.phase, p.mu.since, p.mu.reason = phaseRunning, time.Now(), ""
	p.mu.careful = p.mu.rounds >= carefulRounds
	if p.mu.careful {
		p.log.Warn("the process has crashed again and again soon after it got the partition: its messages are handled one at a time", "rounds", p.mu.rounds)
	}
	p.mu.Unlock()
	// Whoever has it next is to know that it was here, also if nothing comes.
	if err := p.w.commit(ctx, false, p); err != nil {
		p.mu.Lock()
		if p.mu.phase == phaseRunning {
			p.mu.phase = phaseStarting
		}
		p.mu.Unlock()
		return fmt.Errorf("commit the start: %w", err)
	}
	p.w.fetch.begin(streams...)
	return nil
}

// scan reads what waits in the delay topics, for the keys that are held back.
func (p *partition) scan(ctx context.Context, streams []*stream, scanned <-chan struct{}) error {
	ends, err := p.w.ends(ctx, streams[streamRedrive:])
	if err != nil {
		return err
	}
	var scans []*stream
	p.mu.Lock()
	for _, s := range streams[streamRedrive:] {
		if end := ends[s.id]; s.next < end {
			s.scanEnd = end
			scans = append(scans, s)
		}
	}
	p.mu.Unlock()
	if len(scans) == 0 {
		return nil
	}
	p.w.fetch.begin(scans...)
	select {
	case <-scanned:
		return nil
	case <-ctx.Done():
		p.w.fetch.drop(p)
		return context.Cause(ctx)
	}
}

// scanLocked takes note of what waits in a delay topic. It returns true when
// there is no more.
func (p *partition) scanLocked(s *stream, b kafka.PartBatch, envs []topic.Envelope) bool {
	for i := range envs {
		e := &envs[i]
		if e.Key == nil || slices.ContainsFunc(s.restored, func(sp span) bool { return sp.from <= e.Offset && e.Offset < sp.to }) {
			continue
		}
		if h, ok := parseHistory(e.Headers); ok && p.isOwn(h) {
			p.laneLocked(maphash.Bytes(keySeed, e.Key)).expect(h.offset, h.hop, s.tier)
		}
	}
	return p.scannedToLocked(s, b.Next)
}

// scannedToLocked ends the scan of a stream that has reached its end.
func (p *partition) scannedToLocked(s *stream, next int64) bool {
	if next < s.scanEnd {
		return false
	}
	s.scanEnd = -1
	if !slices.ContainsFunc(p.mu.streams, func(s *stream) bool { return s.scanEnd >= 0 }) {
		close(p.mu.scanned)
	}
	return true
}

// quote returns a key for a log.
func quote(key []byte) string {
	if key == nil {
		return "null"
	}
	return fmt.Sprintf("%.60q", key)
}
