package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// timers is what a shard knows of the timers that fail, and of its sweeps. A
// timer that fails is treated as a message is:
//
//	several fail together ──► aborted; fired again, one per transaction
//	one fails alone       ──► the policy is applied to it
type timers struct {
	alone     int          // timers that are each fired in a transaction of their own
	attempts  int          // of the timer that has failed alone so many times
	hold      time.Time    // none is fired before: the back-off
	skip      *failedTimer // it is not to be fired, but to go
	lastTimer store.Timer  // that was fired
	aside     bool         // the open transaction is what a sweep or InitShard has written: see openAside
	swept     time.Time    // when keys are looked at again
}

type failedTimer struct {
	timer store.Timer
	err   error
}

const (
	fireMax       = 1_000                 // timers in a transaction
	sweepStep     = 500                   // keys that are looked at in one go
	sweepPause    = 10 * time.Millisecond // and the time before the next
	sweepInterval = time.Minute           // between two rounds over all keys
)

// NewSweep returns what goes over a shard's keys for a consumer: those that have
// outlived their table's TTL, and those that its Filter or FilterTable is asked
// about. It is nil if there is nothing to sweep for. The test kit shares it.
func NewSweep(owner *store.Owner, c Consumer) *store.Sweep {
	raw, ofRaw := c.(Filterer)
	tables, ofTables := c.(TableFilterer)
	if !ofRaw && !ofTables {
		return owner.NewSweep(nil)
	}
	return owner.NewSweep(func(k store.SweptKey, val []byte) (bool, []byte) {
		switch {
		case k.Table == "" && ofRaw:
			return raw.Filter(0, k.Key, val)
		case k.Table != "" && ofTables:
			return tables.FilterTable(0, k.Table, k.Key, val)
		}
		return false, nil
	})
}

// look tells the pace of timers, keys to look at and direct writes. It is asked
// while no user code runs, which has the transaction then.
func (r *incarnation) look() error {
	p := &r.pace
	if p.working {
		return nil
	}
	p.timer, p.sweep, p.direct = time.Time{}, time.Time{}, r.db.DirectBytes() > 0
	if r.worker.sweep != nil {
		p.sweep = r.timers.swept
	}
	if _, ok := r.s.set.consumer.(TimerConsumer); !ok || p.consumed > 0 {
		return nil
	}
	at, ok, err := r.db.NextTimer()
	if err != nil {
		return fmt.Errorf("look for the next timer of shard %s: %w", r.s.id, err)
	}
	if ok {
		p.timer = r.s.app.until(at)
		if p.timer.Before(r.timers.hold) {
			p.timer = r.timers.hold
		}
	}
	return nil
}

// fire fires the timers that are due, in order of their times, until one fails.
func (w *worker) fire(c call, r *result) error {
	if c.skip != nil {
		return w.skip(*c.skip, r)
	}
	due, err := w.owner.DueTimers(w.clock.Now(), c.max)
	if err != nil {
		return err
	}
	t := w.consumer.(TimerConsumer)
	for i, timer := range due {
		w.index.Store(int64(i))
		r.timer = timer
		ok, err := w.owner.TakeTimer(timer)
		if err != nil {
			return err
		}
		if !ok {
			continue // another one's Fire has moved or cancelled it
		}
		r.tried = 1
		if err := t.Fire(timer.Key, timer.At, w.h, w.h.publisher); err != nil {
			return err
		}
		if err := w.h.tx.Err(); err != nil {
			return err
		}
		r.n, r.tried = r.n+1, 0
		if w.h.tx.Size()+w.h.outBytes >= w.limit || w.yield.Load() {
			return nil
		}
	}
	return nil
}

// skip takes a timer that is not to be fired, if it is still there: a message may
// have moved or cancelled it since.
func (w *worker) skip(unwanted store.Timer, r *result) error {
	ok, err := w.owner.TakeTimer(unwanted)
	if err != nil || !ok {
		return err
	}
	r.timer, r.n, r.skipped = unwanted, 1, true
	return nil
}

// fireTimers begins to fire what is due.
func (r *incarnation) fireTimers() {
	c := call{name: callFire, max: fireMax}
	switch {
	case r.timers.skip != nil:
		c.skip = &r.timers.skip.timer
	case r.timers.alone > 0:
		c.max = 1
	}
	r.pace.opened = time.Now()
	r.busy(true)
	r.call(c)
}

// fired takes the result of a Fire.
func (r *incarnation) fired(ctx context.Context, res result) error {
	r.pace.fired += res.n
	r.timers.lastTimer = res.timer
	if !res.skipped {
		r.timers.skip = nil // it is there no more, or there was none
	}
	if res.err == nil {
		if res.n == 0 {
			r.pace.opened = time.Time{}
			r.busy(false)
		}
		return nil
	}
	return r.failTimer(ctx, res.timer, r.pace.fired+1, res.err)
}

// failTimer handles the failure of a transaction of n timers, which was met at
// one of them.
func (r *incarnation) failTimer(ctx context.Context, t store.Timer, n int, err error) error {
	r.log.Warn("a timer failed", "key", fmt.Sprintf("%.60q", t.Key), "due", t.At, "alone", n == 1, "attempt", r.timers.attempts+1, "error", err, stack(err))
	r.s.app.metrics.failed.WithLabelValues(reason(err)).Inc()
	if err := r.abort(ctx); err != nil {
		return err
	}
	if r.pace.draining {
		return nil // it is due for whoever has the shard next
	}
	if n > 1 {
		r.timers.alone = n
		return nil
	}
	failed := &TimerError{Shard: r.s.id, Key: append([]byte(nil), t.Key...), At: t.At, Err: err}
	switch r.policy(err) {
	case Retry:
		r.timers.attempts++
		r.timers.alone = max(r.timers.alone, 1)
		wait := r.s.app.backoff(r.timers.attempts)
		r.timers.hold = time.Now().Add(wait)
		r.s.note(fmt.Sprintf("attempt %d in %v: %v", r.timers.attempts+1, wait.Round(time.Millisecond), failed))
		return nil
	case DeadLetter, Skip:
		r.timers.skip = &failedTimer{store.Timer{Key: append([]byte(nil), t.Key...), At: t.At}, err}
		return nil
	}
	return failed
}

// skipped returns the dead letters of the timer that the open transaction passes,
// if it does and the policy wants one.
func (r *incarnation) skipped() []kafka.Record {
	f := r.timers.skip
	if f == nil || r.pace.fired == 0 || r.timers.aside || r.policy(f.err) != DeadLetter {
		return nil
	}
	header := func(name, value string) topic.Header { return topic.Header{Key: name, Value: []byte(value)} }
	return []kafka.Record{{
		Topic: DeadLetterTopic(r.s.app.cfg.Application, r.s.set.name), Partition: r.s.partition, Key: f.timer.Key, Value: []byte{},
		Headers: []topic.Header{
			header(HeaderTimer, f.timer.At.UTC().Format(time.RFC3339Nano)),
			header(HeaderReason, reason(f.err)),
			header(HeaderError, shortened(f.err.Error(), errorMax)),
			header(HeaderFailedAt, time.Now().UTC().Format(time.RFC3339Nano)),
		},
	}}
}

// timersCommitted notes that the open transaction, of timers, has committed.
func (r *incarnation) timersCommitted(n int) {
	t := &r.timers
	if t.aside {
		t.aside = false
		return
	}
	if f := t.skip; f != nil {
		failed := &TimerError{Shard: r.s.id, Key: f.timer.Key, At: f.timer.At, Err: f.err}
		if r.policy(f.err) == DeadLetter {
			r.s.app.metrics.deadLetters.WithLabelValues(reason(f.err)).Inc()
			r.log.Error("a timer was dead-lettered", "error", failed)
		} else {
			r.s.app.metrics.dropped.WithLabelValues(reason(f.err)).Inc()
			r.log.Error("a timer was skipped", "error", failed)
		}
	}
	r.s.app.metrics.timers.Add(float64(n))
	t.skip, t.attempts, t.hold = nil, 0, time.Time{}
	t.alone = max(0, t.alone-n)
}

// swept takes the result of a look at some keys. What it changed is a transaction
// of its own.
func (r *incarnation) swept(res result) error {
	if res.err != nil {
		return fmt.Errorf("sweep shard %s: %w", r.s.id, res.err)
	}
	r.timers.swept = time.Now().Add(sweepPause)
	if res.round {
		r.timers.swept = time.Now().Add(sweepInterval)
	}
	r.openAside()
	return nil
}

// openAside makes a transaction of what was written while none was open, by a
// sweep or by InitShard: it is flushed and committed next, before anything else
// is. It returns false if nothing was written. What is committed without a call of
// Flush asks here first.
func (r *incarnation) openAside() bool {
	if !r.db.Changed() {
		return false
	}
	r.pace.fired++
	r.timers.aside = true
	return true
}

// settle commits direct writes, with nothing else, unless InitShard has written
// something, with which they go then. Where the broker refuses them nothing can be
// blamed but them: the shard starts again without them, and whoever waits for them
// is told.
func (r *incarnation) settle(ctx context.Context) error {
	if r.openAside() {
		return nil
	}
	err := r.commit(ctx)
	if err == nil {
		return nil
	}
	var refused *kafka.RecordError
	if errors.As(err, &refused) {
		return fmt.Errorf("direct writes of shard %s are refused, and given up: %w", r.s.id, err)
	}
	return err
}

// TimerError says which timer failed, and with what.
type TimerError struct {
	Shard ShardID
	Key   []byte
	At    time.Time
	Err   error
}

func (e *TimerError) Error() string {
	return fmt.Sprintf("fire the timer of key %.60q, due %s, of shard %s: %v", e.Key, e.At.UTC().Format(time.RFC3339Nano), e.Shard, e.Err)
}

func (e *TimerError) Unwrap() error { return e.Err }
