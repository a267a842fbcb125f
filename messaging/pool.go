package messaging

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// pool runs handlers: Config.Concurrency of them at once, for whatever
// partitions have something to be handled.
//
// A handler that does little would spend its time on being given work. So its
// goroutine takes a chunk of messages that is worth chunkTime, by what handlers
// took lately, and a single message if they take longer. What is left of a
// chunk whose handler takes unexpectedly long is given to others.
type pool struct {
	w    *Worker
	born time.Time    // what is measured from it is time that passes, whatever becomes of the time of day
	mean atomic.Int64 // nanoseconds that a handler took lately

	paused atomic.Bool // it changes under mu

	mu struct {
		sync.Mutex
		ready   []*partition // that have something to be handled, each once
		closed  bool
		chunks  map[*chunk]bool // that are being handled
		looking bool            // look is about to be called
	}
	work    *sync.Cond // on pool.mu: there may be something to do
	running sync.WaitGroup
	limit   limiter
}

// chunk is messages that one goroutine handles, one after the other.
type chunk struct {
	p         *partition
	hs        []handout
	next      atomic.Int64 // the first that nobody has begun with
	posted    atomic.Int64 // the first whose result the partition has not been given. It changes under the partition's lock
	began     atomic.Int64 // when the present ones were begun with: nanoseconds of the pool's life
	abandoned atomic.Bool  // its handler did not return in time
	solo      bool         // see takeSoloLocked
	now       *time.Time   // when it was handed out
	late      bool         // what was left of it is given to others. pool.mu guards it
}

const (
	chunkTime = 100 * time.Microsecond
	chunkMax  = 1024
	lookAfter = 5 * time.Millisecond
	postAfter = time.Millisecond

	// Handlers that take less are timed several at once: to read the clock
	// takes as long as they do.
	clockTime = 10 * time.Microsecond
	clockMax  = 32
)

func newPool(w *Worker) *pool {
	l := &pool{w: w, born: time.Now()}
	l.mean.Store(int64(time.Millisecond))
	l.mu.chunks = make(map[*chunk]bool)
	l.work = sync.NewCond(&l.mu.Mutex)
	l.limit.every = w.cfg.RateLimit
	return l
}

func (l *pool) start() {
	for range l.w.cfg.Concurrency {
		l.running.Add(1)
		go l.handle()
	}
}

// offer says that a partition has something to be handled.
func (l *pool) offer(p *partition) {
	l.mu.Lock()
	l.mu.ready = append(l.mu.ready, p)
	l.mu.Unlock()
	l.work.Signal()
}

// again has all handlers look again whether they may be given something. The
// lock has it wait for one that has just looked and is about to wait: else that
// one would not hear of it.
func (l *pool) again() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.work.Broadcast()
}

// pause keeps handlers from being given anything more, or ends that.
func (l *pool) pause(paused bool) {
	l.mu.Lock()
	l.paused.Store(paused)
	l.mu.Unlock()
	l.work.Broadcast()
}

// close ends the pool. It waits for all handlers that were not abandoned.
func (l *pool) close() {
	l.mu.Lock()
	l.mu.closed = true
	l.mu.Unlock()
	l.work.Broadcast()
	l.running.Wait()
}

// abandon leaves the handlers of a partition that have not returned to
// themselves, and puts others in their place.
func (l *pool) abandon(p *partition) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.mu.chunks {
		if c.p != p || c.abandoned.Swap(true) {
			continue
		}
		n++
		delete(l.mu.chunks, c)
		if l.mu.closed {
			l.running.Done()
		} else {
			go l.handle() // in its place, also in running
		}
	}
	return n
}

// handle is the goroutine of one handler at a time.
func (l *pool) handle() {
	for {
		p, most := l.wait()
		if p == nil {
			l.running.Done()
			return
		}
		c, more := p.take(most)
		if more {
			l.offer(p)
		}
		if c == nil {
			l.w.breaker.unused(most)
			continue
		}
		c.began.Store(int64(time.Since(l.born)))
		l.mu.Lock()
		l.mu.chunks[c] = true
		look := len(c.hs) > 1 && !l.mu.looking
		l.mu.looking = l.mu.looking || look
		l.mu.Unlock()
		if look {
			time.AfterFunc(lookAfter, l.look)
		}
		if l.w.batch != nil {
			l.handleBatch(c)
		} else {
			l.handleChunk(c)
		}
		if c.abandoned.Load() {
			return // another is in its place
		}
		l.mu.Lock()
		_, mine := l.mu.chunks[c]
		delete(l.mu.chunks, c)
		l.mu.Unlock()
		if !mine {
			return
		}
	}
}

// wait returns a partition that has something to be handled, and how much may
// be taken of it; nil when the pool is closed.
func (l *pool) wait() (*partition, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if l.mu.closed {
			return nil, 0
		}
		if len(l.mu.ready) > 0 && !l.paused.Load() {
			if most := l.w.breaker.allow(); most > 0 {
				p := l.mu.ready[0]
				l.mu.ready = l.mu.ready[1:]
				return p, l.share(most)
			}
		}
		l.work.Wait()
	}
}

// share is how many messages a handler takes at once.
func (l *pool) share(most int) int {
	switch {
	case l.w.batch != nil:
		return min(most, l.w.cfg.BatchMax)
	case l.limit.every > 0:
		return 1
	}
	return min(most, chunkMax, max(1, int(int64(chunkTime)/max(1, l.mean.Load()))))
}

// look gives others what is left of chunks whose handler takes long, and the
// partition the results of what came before.
func (l *pool) look() {
	now := int64(time.Since(l.born))
	var late []*chunk
	l.mu.Lock()
	l.mu.looking = false
	for c := range l.mu.chunks {
		begun := c.next.Load()
		if l.w.batch != nil || c.late || begun >= int64(len(c.hs)) && c.posted.Load() >= begun-1 {
			continue
		}
		if now-c.began.Load() >= int64(lookAfter)/2 {
			c.late = true
			late = append(late, c)
		} else {
			l.mu.looking = true
		}
	}
	again := l.mu.looking
	l.mu.Unlock()
	for _, c := range late { // each once: its handler is left with the one it is at
		c.p.spread(c)
	}
	if again {
		time.AfterFunc(lookAfter, l.look)
	}
}

// handleChunk calls the handler for each message of a chunk.
func (l *pool) handleChunk(c *chunk) {
	start := time.Now()
	posted := start
	acked := false // the message before
	ended, timed := int64(0), 0
	stride := l.stride()
	for {
		i := c.next.Add(1) - 1
		if i >= int64(len(c.hs)) {
			break
		}
		h := &c.hs[i]
		ended = i + 1
		if h.follows && !acked {
			h.err = errNotReached
			continue
		}
		acked = false
		if l.limit.every > 0 {
			l.limit.wait(c.p.ctx)
			start = time.Now()
		}
		if c.p.ctx.Err() != nil {
			h.err = errLeft
			if c.solo {
				break // what comes after it must not pass it
			}
			continue
		}
		h.err = l.call(h.d)
		acked = h.err == nil && h.d.state.Load() == pending
		timed++
		if c.solo && !acked {
			break // what comes after it must not pass it
		}
		if timed < stride {
			continue
		}
		if c.abandoned.Load() {
			return
		}
		start = l.time(start, timed)
		c.began.Store(int64(start.Sub(l.born)))
		timed, stride = 0, l.stride()
		if start.Sub(posted) >= postAfter {
			c.p.finish(c, ended)
			posted = start
		}
	}
	if timed > 0 {
		l.time(start, timed)
	}
	if !c.abandoned.Load() {
		c.p.finish(c, ended)
	}
}

// stride is how many calls of the handler are timed at once.
func (l *pool) stride() int {
	return max(1, min(clockMax, int(int64(clockTime)/max(1, l.mean.Load()))))
}

// time takes note of how long so many calls of the handler took, and returns
// the time.
func (l *pool) time(start time.Time, calls int) time.Time {
	now := time.Now()
	took := now.Sub(start) / time.Duration(calls)
	l.w.metrics.handlers.observe(took, calls)
	l.mean.Store((7*l.mean.Load() + int64(took)) / 8)
	return now
}

// call calls the handler.
func (l *pool) call(d *delivery) (err error) {
	ctx := l.context(d)
	defer func() {
		if v := recover(); v != nil {
			stack := debug.Stack()
			l.w.log.Error("handler panicked", "partition", d.s.p.id.String(), "offset", d.origin(), "panic", v, "stack", string(stack))
			err = &PanicError{Value: v, Stack: stack}
		}
		if d.call != nil {
			d.call.end(err)
		}
	}()
	return l.w.handler(ctx, d)
}

// context returns the context of a call of the handler.
func (l *pool) context(d *delivery) context.Context {
	d.call = nil
	if len(d.headers) == 0 && l.w.cfg.HandlerTimeout == 0 && l.w.tracer == nil {
		return d.s.p.ctx
	}
	c := &call{ctx: withTrace(d.s.p.ctx, d.headers)}
	var span trace.Span
	if l.w.tracer != nil {
		c.ctx, span = l.w.startSpan(c.ctx, d)
	}
	var cancel context.CancelFunc
	if t := l.w.cfg.HandlerTimeout; t > 0 {
		c.ctx, cancel = context.WithTimeout(c.ctx, t)
	}
	c.end = func(err error) {
		if cancel != nil && !errors.Is(err, Later) {
			cancel()
		}
		if span != nil {
			endSpan(span, err)
		}
	}
	d.call = c
	return c.ctx
}

// handleBatch calls the handler once for all messages of a chunk.
func (l *pool) handleBatch(c *chunk) {
	n := int64(len(c.hs))
	c.next.Store(n)
	for range c.hs {
		if !l.limit.wait(c.p.ctx) {
			break
		}
	}
	if c.p.ctx.Err() != nil {
		c.p.giveBack(c.hs)
		return
	}
	start := time.Now()
	c.began.Store(int64(start.Sub(l.born)))
	all := make([]Delivery, n)
	for i := range c.hs {
		d := c.hs[i].d
		if len(d.headers) > 0 {
			d.call = &call{ctx: withTrace(c.p.ctx, d.headers)} // whose end is that of the batch
		}
		all[i] = d
	}
	ctx := c.p.ctx
	var span trace.Span
	if l.w.tracer != nil {
		ctx, span = l.w.startBatchSpan(ctx, c.hs)
	}
	errs, err := l.callBatch(ctx, all)
	if span != nil {
		endSpan(span, cmp.Or(err, errors.Join(errs...)))
	}
	l.w.metrics.handlers.observe(time.Since(start), 1)
	if c.abandoned.Load() {
		return
	}
	if err == nil && errs != nil && len(errs) != len(all) {
		err = fmt.Errorf("the batch handler returned %d results for %d messages", len(errs), len(all))
	}
	for i := range c.hs {
		switch {
		case err != nil:
			c.hs[i].err = err
		case errs != nil:
			c.hs[i].err = errs[i]
		}
	}
	c.p.finish(c, n)
}

func (l *pool) callBatch(ctx context.Context, ds []Delivery) (errs []error, err error) {
	defer func() {
		if v := recover(); v != nil {
			stack := debug.Stack()
			l.w.log.Error("batch handler panicked", "messages", len(ds), "panic", v, "stack", string(stack))
			err = &PanicError{Value: v, Stack: stack}
		}
	}()
	if t := l.w.cfg.HandlerTimeout; t > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, t)
		defer cancel()
	}
	return l.w.batch(ctx, ds), nil
}

// limiter lets so many pass a second, evenly.
type limiter struct {
	every float64 // a second; 0: any number
	mu    sync.Mutex
	next  time.Time
}

// wait waits for the next turn. It returns false if ctx ends before.
func (l *limiter) wait(ctx context.Context) bool {
	if l.every == 0 {
		return true
	}
	l.mu.Lock()
	now := time.Now()
	at := l.next
	if at.Before(now) {
		at = now
	}
	l.next = at.Add(time.Duration(float64(time.Second) / l.every))
	l.mu.Unlock()
	if at.Equal(now) {
		return true
	}
	timer := time.NewTimer(at.Sub(now))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
