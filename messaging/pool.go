package messaging

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
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
	mean atomic.Int64 // nanoseconds that a handler took lately

	mu struct {
		sync.Mutex
		ready   []*partition // that have something to be handled, each once
		paused  bool
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
	ds        []*delivery
	follows   []bool       // of each: it is of the lane of the one before, and waits for its ack
	next      atomic.Int64 // the first that nobody has begun with
	began     atomic.Int64 // when the present one was begun with: nanoseconds since 1970
	abandoned atomic.Bool  // its handler did not return in time
}

const (
	chunkTime = 100 * time.Microsecond
	chunkMax  = 256
	lookAfter = 5 * time.Millisecond
)

func newPool(w *Worker) *pool {
	l := &pool{w: w}
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

// pause keeps handlers from being given anything more, or ends that.
func (l *pool) pause(paused bool) {
	l.mu.Lock()
	l.mu.paused = paused
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
	var rs []result
	for {
		p, most := l.wait()
		if p == nil {
			l.running.Done()
			return
		}
		ds, follows, more := p.take(most)
		if more {
			l.offer(p)
		}
		if len(ds) == 0 {
			l.w.breaker.unused(most)
			continue
		}
		c := &chunk{p: p, ds: ds, follows: follows}
		c.began.Store(time.Now().UnixNano())
		l.mu.Lock()
		l.mu.chunks[c] = true
		look := len(ds) > 1 && !l.mu.looking
		l.mu.looking = l.mu.looking || look
		l.mu.Unlock()
		if look {
			time.AfterFunc(lookAfter, l.look)
		}
		if l.w.batch != nil {
			rs = l.handleBatch(c, rs[:0])
		} else {
			rs = l.handleChunk(c, rs[:0])
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
		if len(l.mu.ready) > 0 && !l.mu.paused {
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

// look gives others what is left of chunks whose handler takes long.
func (l *pool) look() {
	now := time.Now().UnixNano()
	var late []*chunk
	l.mu.Lock()
	l.mu.looking = false
	for c := range l.mu.chunks {
		if left := int64(len(c.ds)) - c.next.Load(); left <= 0 || l.w.batch != nil {
			continue
		}
		if now-c.began.Load() >= int64(lookAfter)/2 {
			late = append(late, c)
		} else {
			l.mu.looking = true
		}
	}
	again := l.mu.looking
	l.mu.Unlock()
	for _, c := range late {
		if i := c.next.Swap(int64(len(c.ds))); i < int64(len(c.ds)) {
			c.p.giveBack(c.ds[i:])
		}
	}
	if again {
		time.AfterFunc(lookAfter, l.look)
	}
}

// handleChunk calls the handler for each message of a chunk.
func (l *pool) handleChunk(c *chunk, rs []result) []result {
	start := time.Now()
	posted := start
	acked := false // the message before
	for {
		i := c.next.Add(1) - 1
		if i >= int64(len(c.ds)) {
			break
		}
		d := c.ds[i]
		if c.follows[i] && !acked {
			rs = append(rs, result{d, errNotReached})
			continue
		}
		acked = false
		if !l.limit.wait(c.p.ctx) || c.p.ctx.Err() != nil {
			c.p.giveBack(c.ds[i : i+1])
			continue
		}
		if l.limit.every > 0 {
			start = time.Now()
		}
		c.began.Store(start.UnixNano())
		err := l.call(d)
		end := time.Now()
		took := end.Sub(start)
		l.w.metrics.handled(took)
		l.mean.Store((7*l.mean.Load() + int64(took)) / 8)
		if c.abandoned.Load() {
			return nil
		}
		acked = err == nil && d.state.Load() == pending
		rs = append(rs, result{d, err})
		if end.Sub(posted) >= time.Millisecond {
			c.p.finish(rs)
			clear(rs)
			rs, posted = rs[:0], end
		}
		start = end
	}
	if len(rs) > 0 {
		c.p.finish(rs)
		clear(rs)
	}
	return rs[:0]
}

// call calls the handler.
func (l *pool) call(d *delivery) (err error) {
	ctx := l.context(d)
	defer func() {
		if v := recover(); v != nil {
			stack := debug.Stack()
			l.w.log.Error("handler panicked", "partition", d.p.id.String(), "offset", d.origin, "panic", v, "stack", string(stack))
			err = &PanicError{Value: v, Stack: stack}
		}
		if d.endCall != nil && !errors.Is(err, Later) {
			d.endCall()
		}
	}()
	return l.w.handler(ctx, d)
}

// context returns the context of a call of the handler.
func (l *pool) context(d *delivery) context.Context {
	ctx := withTrace(d.p.ctx, d.headers)
	if t := l.w.cfg.HandlerTimeout; t > 0 {
		ctx, d.endCall = context.WithTimeout(ctx, t)
	}
	d.ctx = ctx
	return ctx
}

// handleBatch calls the handler once for all messages of a chunk.
func (l *pool) handleBatch(c *chunk, rs []result) []result {
	c.next.Store(int64(len(c.ds)))
	for range c.ds {
		if !l.limit.wait(c.p.ctx) {
			break
		}
	}
	if c.p.ctx.Err() != nil {
		c.p.giveBack(c.ds)
		return rs
	}
	start := time.Now()
	c.began.Store(start.UnixNano())
	all := make([]Delivery, len(c.ds))
	for i, d := range c.ds {
		d.ctx = withTrace(d.p.ctx, d.headers)
		all[i] = d
	}
	errs, err := l.callBatch(c.p.ctx, all)
	l.w.metrics.handled(time.Since(start))
	if c.abandoned.Load() {
		return nil
	}
	if err == nil && errs != nil && len(errs) != len(all) {
		err = fmt.Errorf("the batch handler returned %d results for %d messages", len(errs), len(all))
	}
	for i, d := range c.ds {
		switch {
		case err != nil:
			rs = append(rs, result{d, err})
		case errs == nil:
			rs = append(rs, result{d, nil})
		default:
			rs = append(rs, result{d, errs[i]})
		}
	}
	c.p.finish(rs)
	clear(rs)
	return rs[:0]
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
