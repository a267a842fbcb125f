package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// running is the state of a shard's loop.
type running struct {
	backlog *backlog
	pace    pace

	requests    chan context.Context // to the fetcher: fetch once
	cancelFetch context.CancelFunc   // of the request that it has
	fetched     chan fetched         // from it: what came
	fetching    bool
	fetchers    chan struct{} // closed when the fetcher has ended

	workerDone chan struct{} // closed when the worker has ended
	abandoned  bool          // user code did not return in time
	inputLimit int           // bytes of messages queued, from which on no more are taken
	counted    bool          // counted among the process's busy shards

	lastCommit time.Time
	tail       tail
	timers     timers // timer.go
	failures          // what fails: failure.go
}

type fetched struct {
	batch *kafka.Fetched
	err   error
}

const (
	fetchPoll  = 2_000 // messages that are taken from the fetch buffer at once
	fetchAhead = 6_000 // messages queued, from which on no more are taken
)

// openLoop makes what the loop needs: the worker, the fetcher, the handle.
func (r *incarnation) openLoop(life context.Context) {
	s := r.s
	positions := make(map[topic.Partition]int64)
	for _, in := range r.position.Offsets.Inputs {
		positions[topic.Partition{Topic: in.Topic, Number: in.Partition}] = in.Next
	}
	r.backlog = newBacklog(positions)
	r.pace = pace{interval: s.app.cfg.CommitInterval, maxMessages: s.app.cfg.TransactionMessages}
	r.lastCommit = time.Now()

	user, cancel := context.WithCancel(life)
	r.cancel = cancel
	r.handle = newHandle(user, s.id, topic.Partition{Topic: s.set.topics[0].Name(), Number: s.partition}, r.db)
	mine := s.app.shares()
	r.inputLimit = int(mine.input)
	r.worker = newWorker(r.handle, s.set.consumer, r.db, mine.transaction)
	r.worker.clock = s.app.clock
	r.workerDone = make(chan struct{})
	r.worker.start(r.workerDone)

	for _, d := range s.set.topics {
		r.session.Consume(d, s.partition, positions[topic.Partition{Topic: d.Name(), Number: s.partition}])
	}
	r.requests, r.fetched, r.fetchers = make(chan context.Context, 1), make(chan fetched, 1), make(chan struct{})
	go func() {
		defer close(r.fetchers)
		for request := range r.requests {
			batch, err := r.session.Fetch(request, fetchPoll)
			r.fetched <- fetched{batch, err}
		}
	}()
	r.tail.answers = make(chan tailAnswer, 1)
	r.timers.swept = time.Now().Add(sweepPause)
	s.attach(r)
}

// loop consumes and commits, until drain is closed or, once the shard drains,
// until there is nothing open. It returns when it is to stop, or with what
// ended the incarnation.
func (r *incarnation) loop(ctx context.Context, drain <-chan struct{}) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	chores := time.NewTicker(r.s.app.cfg.FlushInterval / 4)
	defer chores.Stop()
	for {
		due := r.fetch()
		r.pace.queued, r.pace.behind, r.pace.paused = r.backlog.queued, r.behind(), r.s.paused.Load()
		if err := r.look(); err != nil {
			return err
		}
		// After each commit, and not within it: what it has done is done.
		if bytes, _ := r.db.Unflushed(); bytes >= r.s.app.cfg.FlushBytes && !r.pace.working {
			if err := r.flushDatabase(); err != nil {
				return err
			}
		}
		act, until := r.pace.step(time.Now())
		switch act {
		case actStop:
			return nil
		case actConsume:
			if err := r.consume(ctx); err != nil {
				return err
			}
			continue
		case actCommit:
			r.flush()
			continue
		case actYield:
			r.worker.yield.Store(true)
		case actFire:
			r.fireTimers()
			continue
		case actSweep:
			r.call(call{name: callSweep, max: sweepStep})
			continue
		case actSettle:
			if err := r.settle(ctx); err != nil {
				return err
			}
			continue
		}
		until = earlier(earlier(until, r.lookPast(time.Now())), due)
		var wake <-chan time.Time
		if !until.IsZero() {
			timer.Reset(time.Until(until))
			wake = timer.C
		}
		select {
		case f := <-r.fetched:
			if err := r.take(f); err != nil {
				return err
			}
		case res := <-r.worker.results:
			if err := r.done(ctx, res); err != nil {
				return err
			}
		case a := <-r.tail.answers:
			r.passed(a)
		case <-wake:
		case <-chores.C:
			if err := r.chores(ctx); err != nil {
				return err
			}
		case <-r.s.woken:
		case <-r.db.DirectWrites():
		case <-drain:
			return nil
		case why := <-r.s.suspected:
			return why
		case <-r.db.Failing():
			return r.db.Failure()
		case err := <-r.dbFatal:
			return fmt.Errorf("database of shard %s: %w", r.s.id, err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fetch asks for the next messages, when there is room for them and it is time. It
// returns when that is, if only the time is to be waited for.
func (r *incarnation) fetch() (due time.Time) {
	if r.fetching || r.pace.draining || r.backlog.queued >= fetchAhead || r.backlog.queued > 0 && r.backlog.bytes >= r.inputLimit {
		return time.Time{}
	}
	if due := r.pace.fetchAt(); time.Now().Before(due) && !r.behind() {
		return due
	}
	r.fetching = true
	var request context.Context
	request, r.cancelFetch = context.WithCancel(r.handle.ctx)
	r.requests <- request
	return time.Time{}
}

// refetch makes the messages of an aborted transaction come again, and forgets
// those that were fetched after them. The fetch that is under way is waited
// for first: what it brings may be from before the move, and nothing that it
// brings is used.
func (r *incarnation) refetch() {
	if r.fetching {
		r.cancelFetch()
		<-r.fetched
		r.fetching = false
	}
	for p, next := range r.backlog.rewind() {
		r.session.Consume(r.s.description(p.Topic), p.Number, next)
	}
}

// take adds what was fetched to the backlog.
func (r *incarnation) take(f fetched) error {
	r.fetching = false
	r.cancelFetch()
	if r.pace.draining {
		return nil // what is open is finished, and nothing more is begun
	}
	for _, err := range each(f.err) {
		var missing *kafka.OffsetRangeError
		if !errors.As(err, &missing) {
			return fmt.Errorf("read the input of shard %s: %w", r.s.id, f.err)
		}
		next, err := r.outOfRange(missing, "the offset is out of range", false)
		if err != nil {
			return err
		}
		if err := r.moveBack(missing, next, f.batch); err != nil {
			return err
		}
		r.session.Consume(r.s.description(missing.Partition.Topic), missing.Partition.Number, next)
		// What was read before it may come with it.
		f.batch.Parts = append(f.batch.Parts, kafka.FetchedPart{PartBatch: kafka.PartBatch{Partition: missing.Partition, Next: next, StableEnd: missing.End, HighWatermark: missing.End, LogStart: missing.Earliest}})
	}
	for _, p := range f.batch.Parts {
		r.ends[p.Partition] = p.StableEnd
	}
	r.backlog.push(f.batch)
	r.s.observe(r)
	return nil
}

// moveBack lets the shard stand at an earlier offset than it has committed, where
// it was decided to: the partition has lost its end. came is what was fetched
// with the error.
func (r *incarnation) moveBack(missing *kafka.OffsetRangeError, next int64, came *kafka.Fetched) error {
	p := missing.Partition
	if next >= missing.Offset {
		return nil
	}
	if r.pace.consumed > 0 || r.pace.working || r.backlog.holds(p, came) {
		// The next incarnation decides, with no transaction open, and with no
		// message of before at hand: those after the lost end would be consumed
		// first, and the ones that take their offsets be passed.
		return fmt.Errorf("read the input of shard %s: %s ends at offset %d, before what was read of it: %w", r.s.id, p, next, missing)
	}
	r.backlog.moveTo(p, next)
	for i, in := range r.position.Offsets.Inputs {
		if in.Topic == p.Topic && in.Partition == p.Number {
			r.position.Offsets.Inputs[i].Next = next
		}
	}
	return nil
}

// each returns the errors that were joined: of a fetch, one for each partition
// that has one.
func each(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// consume gives the worker the next messages.
func (r *incarnation) consume(ctx context.Context) error {
	quota := r.pace.quota()
	if c := r.condemned; c != nil && r.backlog.positions[topic.Partition{Topic: c.topic, Number: c.partition}] > c.offset {
		r.condemned = nil // it is gone from the topic
	}
	if r.condemned != nil {
		quota = 1 // of several topics, another's messages may come before it
	}
	msgs := r.backlog.peek(quota)
	if r.condemned != nil {
		switch e := msgs.At(0); {
		case !r.isCondemned(e):
		case r.pace.consumed > 0: // it is passed in a transaction of its own
			r.flush()
			return nil
		default:
			return r.execute(ctx, e)
		}
	}
	if r.pace.consumed == 0 && r.pace.opened.IsZero() {
		r.pace.opened = time.Now()
		r.busy(true)
	}
	r.call(call{name: callConsume, msgs: msgs})
	return nil
}

// flush makes the last call of the open transaction, after which it is
// committed.
func (r *incarnation) flush() {
	invariants.Crash("flush-before")
	r.call(call{name: callFlush})
}

// busy counts the shard among those with an open transaction, or not.
func (r *incarnation) busy(open bool) {
	if open == r.counted {
		return
	}
	r.counted = open
	if open {
		r.s.app.busy.Add(1)
	} else {
		r.s.app.busy.Add(-1)
	}
}

// call starts a call of user code. Its result comes by the worker's channel.
func (r *incarnation) call(c call) {
	invariants.Check(!r.pace.working, "%s called while user code runs", c.name)
	r.pace.working = true
	r.worker.yield.Store(false)
	r.worker.calls <- c
}

// callAndWait makes a call and waits for its result.
func (r *incarnation) callAndWait(ctx context.Context, c call) (result, error) {
	r.call(c)
	select {
	case res := <-r.worker.results:
		r.pace.working = false
		return res, nil
	case <-ctx.Done():
		return result{}, ctx.Err()
	}
}

// done takes the result of Consume or Flush.
func (r *incarnation) done(ctx context.Context, res result) error {
	r.pace.working = false
	if err := r.db.Failure(); err != nil {
		// Whatever came of the call, it is no message's fault.
		return err
	}
	switch res.name {
	case callConsume:
		if res.ahead != nil {
			r.log.Warn("messages are consumed without having been read ahead for", "error", res.ahead, stack(res.ahead))
			r.s.app.metrics.aheadFailed.Inc()
		}
		r.backlog.advance(res.n)
		r.pace.consumed += res.n
		r.pace.full = r.pace.full || res.full
		if res.err != nil {
			failed := r.backlog.peek(res.tried).At(res.tried - 1) // of a batch, any of them may have
			return r.fail(ctx, failed, r.pace.consumed+res.tried, res.err)
		}
	case callFire:
		return r.fired(ctx, res)
	case callSweep:
		return r.swept(res)
	case callFlush:
		invariants.Crash("flush-after")
		err, fired := res.err, r.pace.fired
		if err == nil {
			err = r.commit(ctx, r.skipped()...)
			r.busy(false)
			if err == nil && fired > 0 {
				r.timersCommitted(fired)
			}
			if err == nil || !refused(err) {
				return err
			}
		}
		if r.timers.aside {
			return fmt.Errorf("commit what InitShard or a sweep of shard %s has written: %w", r.s.id, err)
		}
		if f := r.timers.skip; fired > 0 && f != nil {
			return errors.Join(err, &TimerError{Shard: r.s.id, Key: f.timer.Key, At: f.timer.At, Err: f.err})
		}
		if fired > 0 {
			return r.failTimer(ctx, r.timers.lastTimer, fired, err)
		}
		return r.fail(ctx, r.backlog.last, r.pace.consumed, err)
	}
	return nil
}

// chores bounds what a crash would make the next incarnation read again, and
// keeps positions young while nothing happens.
func (r *incarnation) chores(ctx context.Context) error {
	cfg := r.s.app.cfg
	r.s.observe(r)
	r.s.measured(r.db.Size())
	if idle := r.pace.consumed == 0 && r.pace.fired == 0 && !r.pace.working && r.backlog.queued == 0; idle && time.Since(r.lastCommit) >= cfg.FlushInterval {
		if r.backlog.moved() && !r.openAside() {
			// The input ends with markers or aborted messages, which no
			// message will carry the offsets past.
			if err := r.commit(ctx); err != nil {
				return err
			}
		}
		if at, ok := r.s.app.group.ownedAt(r.s); ok && !at.Equal(r.position.AtEnd) {
			r.position.AtEnd = at
			if err := r.db.SetMeta(changelog.AppendPosition(nil, r.position)); err != nil {
				return fmt.Errorf("write position of shard %s: %w", r.s.id, err)
			}
		}
	}
	if _, since := r.db.Unflushed(); !since.IsZero() && time.Since(since) >= cfg.FlushInterval {
		return r.flushDatabase()
	}
	return nil
}

// flushDatabase makes what was applied to the database outlast a crash. It is due
// with the bytes that a commit brings, and with the age of the first of them.
func (r *incarnation) flushDatabase() error {
	invariants.Crash("database-flush-before")
	written := r.s.writing()
	err := r.db.Flush()
	written()
	if err != nil {
		return fmt.Errorf("flush database of shard %s: %w", r.s.id, err)
	}
	invariants.Crash("database-flush-after")
	return nil
}

// release ends the incarnation: its handles answer ErrFenced from here on,
// HaltShard is called if InitShard was, and everything it opened is closed.
// User code that does not return while ctx lasts is abandoned: then HaltShard
// is skipped and counted, and the database stays open until it returns.
func (r *incarnation) release() error { return r.releaseWithin(context.Background()) }

func (r *incarnation) releaseWithin(ctx context.Context) error {
	if r.worker != nil {
		r.stopUserCode(ctx)
	}
	r.busy(false)
	if r.session != nil {
		invariants.Crash("close-before")
		r.session.Close()
	}
	if r.requests != nil {
		close(r.requests)
		<-r.fetchers
		r.requests = nil
	}
	if r.tail.asking {
		<-r.tail.answers
		r.tail.asking = false
	}
	r.s.detach(r)
	if r.db == nil || r.abandoned {
		return nil
	}
	err := r.db.Close()
	r.db = nil
	invariants.Crash("close-after")
	if err != nil {
		return fmt.Errorf("close database of shard %s: %w", r.s.id, err)
	}
	return nil
}

// haltGrace is how long HaltShard has, beyond any deadline.
const haltGrace = 5 * time.Second

// stopUserCode waits for the call that runs, makes the last one, and ends the
// worker.
func (r *incarnation) stopUserCode(ctx context.Context) {
	s := r.s
	r.cancel()
	r.handle.fenced.Store(true)
	r.db.Fence()
	r.worker.yield.Store(true)
	if r.pace.working {
		select {
		case <-r.worker.results:
		case <-ctx.Done():
			select {
			case <-r.worker.results: // in time, as it turns out
			default:
				r.abandon("the call did not return in time")
				return
			}
		}
		r.pace.working = false
	}
	if r.inited {
		r.inited = false
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), haltGrace)
		defer cancel()
		res, err := r.callAndWait(grace, call{name: callHalt})
		if err != nil {
			r.abandon("HaltShard did not return in time")
			return
		}
		if res.err != nil {
			r.log.Error("HaltShard failed", "error", res.err, stack(res.err))
			s.app.metrics.haltFailed.Inc()
		}
	}
	r.handle.cache = nil
	close(r.worker.calls)
	<-r.workerDone
}

// abandon leaves user code to itself. It can't be ended; but nothing that it
// still does becomes visible. The database is closed when it returns, and the
// shard does not start again in this process before.
func (r *incarnation) abandon(why string) {
	r.abandoned = true
	s, db, worker := r.s, r.db, r.worker
	b := worker.busy(0)
	r.log.Error("user code is abandoned: "+why, "call", b)
	s.note("user code is abandoned, and still runs: " + why)
	s.app.metrics.abandoned.Inc()
	close(worker.calls)
	done := r.workerDone
	released := s.abandoned()
	go func() {
		defer released()
		<-done
		if err := db.Close(); err != nil {
			s.log.Error("close database after abandoned call", "error", err)
		}
	}()
}

// stack returns the stack of a panic, for the log.
func stack(err error) slog.Attr {
	var p *PanicError
	if errors.As(err, &p) {
		return slog.String("stack", string(p.Stack))
	}
	return slog.Attr{} // which no log shows
}

// behind says whether the input is so far ahead, as far as was heard, that it
// pays to wait for more of it. What has come since the last fetch is not worth
// a wait: under a steady load there is always some.
func (r *incarnation) behind() bool {
	for p, end := range r.ends {
		if end-r.backlog.positions[p] >= fetchPoll {
			return true
		}
	}
	return false
}

// lagSince returns when the next message to consume was published, or the last
// one consumed, as far as timestamps say; the zero time without lag.
func (r *incarnation) lagSince(lag int64) time.Time {
	if lag == 0 {
		return time.Time{}
	}
	e := r.backlog.last
	if r.backlog.queued > 0 && !r.pace.working {
		e = r.backlog.peek(1).At(0)
	}
	if !e.Timestamp.IsZero() && e.Timestamp.UnixMilli() < 0 {
		return time.Time{} // nobody knows
	}
	return e.Timestamp
}

// lag returns how many messages are not consumed, up to the last stable
// offsets as last heard of.
func (r *incarnation) lag() (lag int64, offsets map[topic.Partition]int64) {
	for p, end := range r.ends {
		lag += max(0, end-r.backlog.positions[p])
	}
	return lag, maps.Clone(r.backlog.committed)
}
