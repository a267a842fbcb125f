package consumer

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawlstream/pawl/internal/clock"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// worker runs user code for one shard, on a goroutine of its own, so that a
// Consume that does not return stops neither a fence nor a drain. It is given
// one call at a time and answers each with a result.
type worker struct {
	h        *handle
	calls    chan call
	results  chan result  // room for one, so that an abandoned call never blocks
	yield    atomic.Bool  // makes a call return between two messages
	index    atomic.Int64 // which message of the call runs
	limit    int64        // bytes of a transaction that close it
	consumer Consumer
	batch    []topic.Envelope // for a BatchConsumer
	ahead    *ahead           // nil: it does not read ahead
	owner    *store.Owner
	clock    *clock.Clock
	sweep    *store.Sweep // nil: there is nothing to sweep for

	mu struct {
		sync.Mutex
		id      string // the goroutine's number, as stack dumps name it
		current *call
		since   time.Time // when the call, or its current message as last looked at, began
		seen    int64     // the message that was looked at
	}
}

// call is what the worker is asked to do.
type call struct {
	name string         // Consume, Flush, InitShard or HaltShard
	msgs kafka.Messages // for Consume
	max  int            // timers to fire, or keys to look at
	skip *store.Timer   // take this timer, if it is still due, and do not fire it
}

// result is how a call went.
type result struct {
	name    string
	n       int         // messages consumed without an error
	tried   int         // those after them that err is of, where it is of messages
	err     error       // of the messages after those, or of the call
	full    bool        // the transaction has reached its limit in bytes
	timer   store.Timer // the last one that was taken
	round   bool        // the sweep has come round
	skipped bool        // the timer that was to be skipped was taken
	ahead   error       // of Prefetch, whose failure fails no message
}

func newWorker(h *handle, c Consumer, owner *store.Owner, limit int64) *worker {
	return &worker{h: h, consumer: c, owner: owner, ahead: newAhead(h, c, owner), sweep: NewSweep(owner, c), limit: limit, calls: make(chan call), results: make(chan result, 1)}
}

// start makes the calls, on a goroutine of its own, until calls is closed. Then it
// closes ended.
func (w *worker) start(ended chan<- struct{}) {
	go func() {
		returned := false
		defer func() {
			if !returned {
				// User code has ended the goroutine, and made it say so: see do.
				w.start(ended)
				return
			}
			close(ended)
		}()
		w.run()
		returned = true
	}()
}

// run makes the calls until calls is closed.
func (w *worker) run() {
	w.mu.Lock()
	w.mu.id = goroutineID()
	w.mu.Unlock()
	for c := range w.calls {
		w.index.Store(0)
		w.mu.Lock()
		w.mu.current, w.mu.since, w.mu.seen = &c, time.Now(), 0
		w.mu.Unlock()
		w.answer(c)
	}
}

// answer makes one call and hands on its result, also if user code ends the
// goroutine, as runtime.Goexit and t.FailNow do.
func (w *worker) answer(c call) {
	r := result{err: &PanicError{Value: "the call ended its goroutine (runtime.Goexit)"}}
	defer func() {
		r.name = c.name
		w.mu.Lock()
		w.mu.current = nil
		w.mu.Unlock()
		w.results <- r
	}()
	w.do(c, &r)
}

func (w *worker) do(c call, r *result) {
	defer func() {
		if v := recover(); v != nil {
			r.err = &PanicError{Value: v, Stack: debug.Stack()}
		}
		w.h.publishing.Store(false)
	}()
	var err error
	switch c.name {
	case callInit:
		w.h.publishing.Store(false)
		if i, ok := w.consumer.(ShardIniter); ok {
			err = i.InitShard(w.h)
		}
	case callHalt:
		if i, ok := w.consumer.(ShardHalter); ok {
			i.HaltShard(w.h)
		}
	case callFlush:
		w.h.publishing.Store(true)
		if err = w.consumer.Flush(w.h, w.h.publisher); err == nil {
			err = w.h.tx.Err()
		}
	case callFire:
		w.h.publishing.Store(true)
		err = w.fire(c, r)
	case callSweep:
		r.round, err = w.sweep.Step(c.max)
	case callConsume:
		err = w.consume(c.msgs, r)
	}
	r.err = err
}

const (
	callInit    = "InitShard"
	callHalt    = "HaltShard"
	callFlush   = "Flush"
	callConsume = "Consume"
	callFire    = "Fire"
	callSweep   = "Filter"
)

// consume gives the messages to user code, and reads ahead for them if it can.
func (w *worker) consume(msgs kafka.Messages, r *result) error {
	if w.ahead == nil {
		return w.consumeUntil(msgs, msgs.Len(), r)
	}
	for r.n < msgs.Len() {
		w.index.Store(int64(r.n))
		r.tried = min(prefetchMost, msgs.Len()-r.n) // of which none is to blame, should Prefetch end the goroutine
		from := r.n
		until, err := w.ahead.begin(msgs, from)
		r.ahead = errors.Join(r.ahead, err)
		err = w.consumeUntil(msgs, until, r)
		w.ahead.end(r.n - from)
		if err != nil || r.full || w.yield.Load() {
			return err
		}
	}
	return nil
}

// consumeUntil gives messages to Consume, or to ConsumeBatch, from the first that
// is not consumed until one fails, the transaction is full, or the owner asks for
// a return.
func (w *worker) consumeUntil(msgs kafka.Messages, until int, r *result) error {
	h, tx := w.h, w.h.tx
	batches, _ := w.consumer.(BatchConsumer)
	h.publishing.Store(true)
	for i := r.n; i < until; i = r.n {
		w.index.Store(int64(i))
		r.tried = 1
		var err error
		if batches == nil {
			err = w.consumer.Consume(msgs.At(i), h, h.publisher)
		} else {
			w.fill(msgs, i, until)
			r.tried = len(w.batch)
			err = batches.ConsumeBatch(w.batch, h, h.publisher)
		}
		if err != nil {
			return err
		}
		if err := tx.Err(); err != nil {
			return err
		}
		r.n += r.tried
		if tx.Size()+h.outBytes >= w.limit {
			r.full = true
			return nil
		}
		if w.yield.Load() {
			return nil
		}
	}
	return nil
}

// batchMax is how many messages are given to ConsumeBatch at once, so that there
// is now and then a moment to commit.
const batchMax = 1_000

// fill makes the batch that begins at one of the messages.
func (w *worker) fill(msgs kafka.Messages, from, until int) {
	clear(w.batch)
	w.batch = w.batch[:0]
	for i := from; i < min(from+batchMax, until); i++ {
		w.batch = append(w.batch, msgs.At(i))
	}
}

// busy says what runs, or returns nil.
func (w *worker) busy(stuckAfter time.Duration) *BusyStatus {
	w.mu.Lock()
	c, index := w.mu.current, w.index.Load()
	if c == nil {
		w.mu.Unlock()
		return nil
	}
	if index != w.mu.seen {
		w.mu.seen, w.mu.since = index, time.Now()
	}
	b := &BusyStatus{Call: c.name, Since: w.mu.since}
	stuck, id := time.Since(w.mu.since) >= stuckAfter, w.mu.id
	if stuck && int(index) < c.msgs.Len() {
		// The call holds its messages until it has returned, which it tells
		// under this lock.
		e := c.msgs.At(int(index))
		b.Message = fmt.Sprintf("%s-%d at offset %d with key %.60q", e.TopicName(), e.Partition, e.Offset, e.Key)
	}
	w.mu.Unlock()
	if stuck { // only now is it worth the cost
		b.Stack = stackOf(id)
	}
	return b
}

// goroutineID returns the number of the calling goroutine, which is only good
// for finding its stack.
func goroutineID() string {
	buf := make([]byte, 64)
	buf = buf[:runtime.Stack(buf, false)]
	fields := bytes.Fields(buf) // goroutine N [running]:
	if len(fields) < 2 {
		return ""
	}
	if _, err := strconv.Atoi(string(fields[1])); err != nil {
		return ""
	}
	return string(fields[1])
}

// stackOf returns the stack of one goroutine.
func stackOf(id string) string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	for _, g := range bytes.Split(buf, []byte("\n\n")) {
		if bytes.HasPrefix(g, []byte("goroutine "+id+" ")) {
			return string(g)
		}
	}
	return ""
}

// reason classes a failure for metrics and dead letters.
func reason(err error) string {
	var decode *topic.DecodeError
	var panicked *PanicError
	switch {
	case errors.As(err, &decode):
		return "decode"
	case errors.As(err, &panicked):
		return "panic"
	}
	return "error"
}
