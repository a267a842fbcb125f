package messaging

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// fetcher reads all streams of a process with one reader. Whatever concerns the
// reader is done by its one goroutine, between two polls: so what a poll brings
// is always of the streams that are read now, and never of an epoch before.
type fetcher struct {
	w      *Worker
	reader *kafka.Reader

	streams map[topic.Partition]*stream // the goroutine's own
	looks   sync.WaitGroup              // those that it has begun and that ask brokers something

	mu struct {
		sync.Mutex
		orders    []order
		interrupt context.CancelFunc // of the poll that runs
	}
	room chan struct{} // has room for one: a stream that was full has room again
}

// order is something that is to be done to a stream.
type order struct {
	deed fetchDeed
	s    *stream
}

type fetchDeed int8

const (
	fetchBegin fetchDeed = iota // read it, from its position on
	fetchStop                   // read it no more
	fetchCheck                  // pause or resume it, as it wants
	fetchLook                   // ask what there is where it stands
	fetchSize                   // the size of a fetch of any stream has changed
)

const (
	fetchWait   = 100 * time.Millisecond // which a partition waits for that is begun or resumed
	pollMax     = 10_000
	reReadAfter = time.Second // after a partition could not be read
)

// begin has streams read from their positions on.
func (f *fetcher) begin(streams ...*stream) {
	for _, s := range streams {
		f.order(order{fetchBegin, s})
	}
}

// changed says that a stream's wish to be paused has changed.
func (f *fetcher) changed(s *stream) {
	f.order(order{fetchCheck, s})
	select {
	case f.room <- struct{}{}:
	default:
	}
}

// look asks what there is where a stream stands that brings nothing.
func (f *fetcher) look(s *stream) { f.order(order{fetchLook, s}) }

// resize says that the size of a fetch of a stream has changed.
func (f *fetcher) resize() { f.order(order{deed: fetchSize}) }

func (f *fetcher) stop(s *stream) { f.order(order{fetchStop, s}) }

// drop has no stream of a partition read any more.
func (f *fetcher) drop(p *partition) {
	p.mu.Lock()
	streams := p.mu.streams
	p.mu.Unlock()
	for _, s := range streams {
		f.stop(s)
	}
}

func (f *fetcher) order(o order) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.orders = append(f.mu.orders, o)
	if f.mu.interrupt != nil {
		f.mu.interrupt()
	}
}

// run reads until ctx ends.
func (f *fetcher) run(ctx context.Context) {
	defer f.looks.Wait()
	for ctx.Err() == nil {
		poll, cancel := context.WithCancel(ctx)
		f.mu.Lock()
		orders := f.mu.orders
		f.mu.orders = nil
		f.mu.interrupt = cancel
		f.mu.Unlock()
		if len(orders) > 0 {
			cancel()
			f.awaitRoom(ctx, orders)
			for _, o := range orders {
				switch o.deed {
				case fetchLook:
					f.looks.Go(func() { f.lookAt(ctx, o.s) })
				case fetchSize:
					f.reader.LimitPartition(int(f.w.allotment.fetch()))
				default:
					f.obey(ctx, o)
				}
			}
			continue
		}
		fetched, err := f.reader.Fetch(poll, pollMax)
		cancel()
		for i := range fetched.Parts {
			part := &fetched.Parts[i]
			s := f.streams[part.Partition]
			switch {
			case s == nil:
				part.Recycle()
			case s.p.push(s, part):
				f.obey(ctx, order{fetchStop, s})
			}
		}
		if err != nil && ctx.Err() == nil {
			f.failed(ctx, err)
		}
	}
}

// pauseAfter is how long a stream that is full may take to have room again
// before it is paused, while nothing is read. To pause one costs more: what was
// fetched of it is dropped, and when it is resumed it waits for the fetch that is
// under way. So one that makes room fast is given as much time again, up to
// pauseRounds times.
const (
	pauseAfter  = 50 * time.Millisecond
	pauseRounds = 4
)

// awaitRoom waits a moment until no stream that is to be paused is full.
func (f *fetcher) awaitRoom(ctx context.Context, orders []order) {
	before := fullness(orders)
	if before == 0 {
		return
	}
	timer := time.NewTimer(pauseAfter)
	defer timer.Stop()
	for round := 1; ; {
		select {
		case <-f.room:
			if fullness(orders) == 0 {
				return
			}
		case <-timer.C:
			now := fullness(orders)
			if now == 0 || now > before/2 || round == pauseRounds {
				return
			}
			before = now
			round++
			timer.Reset(pauseAfter)
		case <-ctx.Done():
			return
		}
	}
}

// fullness returns how many messages are unsettled, or fetched and not read, in
// the streams that are to be paused.
func fullness(orders []order) (n int64) {
	for _, o := range orders {
		if o.deed != fetchCheck {
			continue
		}
		o.s.p.mu.Lock()
		if o.s.want && !o.s.paused && o.s.p.mu.phase == phaseRunning {
			n += o.s.window.unsettled + int64(o.s.inbox.count)
		}
		o.s.p.mu.Unlock()
	}
	return n
}

// lookTimeout bounds one look.
const lookTimeout = 5 * time.Second

// lookAt asks the broker what there is where a stream stands.
func (f *fetcher) lookAt(ctx context.Context, s *stream) {
	s.p.mu.Lock()
	from := s.next
	if s.scanEnd >= 0 {
		from = s.scanned
	}
	s.p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	to, err := f.reader.NextOffset(ctx, s.id, from)
	if err != nil {
		f.w.log.Debug("look what there is", "partition", s.id.String(), "offset", from, "error", err)
		return
	}
	if s.p.passed(s, from, to) {
		f.stop(s)
	}
}

func (f *fetcher) obey(ctx context.Context, o order) {
	s := o.s
	current := f.streams[s.id] == s
	s.p.mu.Lock()
	was := s.paused
	next, want := max(s.next, s.inbox.next()), s.want
	live := s.p.isCurrentLocked(s) && (s.p.mu.phase == phaseRunning || s.p.mu.phase == phaseStarting && s.scanEnd >= 0)
	switch o.deed {
	case fetchBegin:
		s.paused = false
	case fetchCheck:
		if current {
			s.paused = want
		}
	}
	s.p.mu.Unlock()
	switch o.deed {
	case fetchBegin:
		if !live {
			return
		}
		f.reader.Resume(s.id)
		if !f.reader.ConsumeID(s.desc, s.tid, s.id.Number, next) {
			// Others are read of a topic that had the name before, or has it since.
			delete(f.streams, s.id)
			f.looks.Go(func() { f.w.lookAtTopics(ctx) })
			time.AfterFunc(reReadAfter, func() { f.begin(s) })
			return
		}
		f.streams[s.id] = s
		if want {
			f.changed(s)
		}
	case fetchStop:
		if current {
			delete(f.streams, s.id)
			f.reader.StopConsuming(s.id)
			f.reader.Resume(s.id)
		}
	case fetchCheck:
		switch {
		case !current || want == was:
		case want:
			f.reader.Pause(s.id)
		default:
			f.reader.Resume(s.id)
		}
	}
}

// failed does what the errors of a poll ask for.
func (f *fetcher) failed(ctx context.Context, err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			f.failed(ctx, err)
		}
		return
	}
	var missing *kafka.OffsetRangeError
	var broken *kafka.PartitionError
	switch {
	case errors.Is(err, context.Canceled):
	case errors.As(err, &missing):
		if s := f.streams[missing.Partition]; s != nil {
			f.missing(ctx, s, missing)
		}
	case errors.As(err, &broken):
		f.w.log.Warn("read", "error", err)
		if errors.Is(err, ErrUnknownTopic) {
			f.looks.Go(func() { f.w.lookAtTopics(ctx) })
		}
		if s := f.streams[broken.Partition]; s != nil {
			time.AfterFunc(reReadAfter, func() { f.begin(s) })
			return
		}
		for p, s := range f.streams { // all of a topic
			if p.Topic == broken.Partition.Topic && broken.Partition.Number < 0 {
				time.AfterFunc(reReadAfter, func() { f.begin(s) })
			}
		}
	case errors.Is(err, kafka.ErrClosed):
	default:
		f.w.log.Warn("read", "error", err)
		select {
		case <-time.After(reReadAfter):
		case <-ctx.Done():
		}
	}
}

// missing goes on where there is something, as Config.OnOffsetOutOfRange says.
// What waits in a delay topic is the queue's own, and none of it is passed over.
func (f *fetcher) missing(ctx context.Context, s *stream, e *kafka.OffsetRangeError) {
	to := e.Earliest
	if f.w.cfg.OnOffsetOutOfRange == GoToLatest && s.tier == streamInput {
		to = e.End
	}
	s.p.mu.Lock()
	from := max(s.next, s.inbox.next())
	s.p.mu.Unlock()
	switch {
	case to < from || e.Offset > e.End:
		// The end lies before what was read: a leader that has not caught up,
		// or a topic that lost messages. The next owner sees it when it starts.
		f.w.log.Error("the partition ends before what was read of it", "partition", s.id.String(), "read", from, "end", e.End)
		time.AfterFunc(reReadAfter, func() { f.begin(s) })
		return
	case f.w.cfg.OnOffsetOutOfRange == Fail && s.tier == streamInput:
		f.w.fail(fmt.Errorf("messages are missing: %w", e))
		return
	}
	f.w.log.Warn("messages are gone that were not read", "partition", s.id.String(), "from", from, "to", to)
	f.w.metrics.missed.Add(to - from)
	s.p.mu.Lock()
	s.p.jumpLocked(s, to)
	s.p.goneLocked(s)
	if offer := s.p.offerLocked(); offer {
		defer s.p.w.pool.offer(s.p)
	}
	if s.scanEnd >= 0 && s.p.scannedToLocked(s, s.next) {
		s.p.mu.Unlock()
		f.obey(ctx, order{fetchStop, s})
		return
	}
	s.p.mu.Unlock()
	f.begin(s)
}
