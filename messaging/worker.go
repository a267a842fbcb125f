package messaging

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// Worker is one consumer in one process. [Run] is New and Worker.Run in one.
type Worker struct {
	cfg     Config
	group   string
	log     *slog.Logger
	handler Handler
	batch   BatchHandler

	admin        *kafka.Admin
	lettersAdmin *kafka.Admin // the same, unless dead letters are on another cluster
	producer     *kafka.Producer
	letters      *kafka.Producer
	member       *kafka.Member
	fetch        *fetcher
	allotment    *allotment
	pool         *pool
	breaker      *breaker
	tracer       trace.Tracer // nil: there are no spans
	clock        wallClock
	metrics      metrics

	letterPartitions atomic.Int64
	holds            []time.Duration // by tier: how long a message stays there before it is written there once more
	holdRedriven     time.Duration   // and in the topic of those that were redriven

	assignments chan struct{} // has room for one: there is a new assignment
	released    chan *partition
	settledAll  chan struct{} // has room for one: a drain may have nothing to wait for
	fatal       chan error    // has room for one

	running sync.WaitGroup // the partitions' goroutines, which end when they are fenced

	committing chan struct{} // holds one while a commit runs: one at a time, so that offsets never go backwards

	mu struct {
		sync.Mutex
		started    bool
		stopping   bool
		joined     bool
		paused     bool
		memberID   string
		generation int32
		assignment kafka.Assignment
		partitions map[int32]*partition // that are claimed: also those that drain
		begun      []*partition         // of these, those that do not run yet
		renewed    []*partition         // of these, those whose epoch is to end, for a topic that was made anew
		topics     map[string]kafka.TopicInfo
		reader     *kafka.Reader // that of fetch; nil before there is one
		admin      string        // where this process's admin API is
		commitErr  error         // of the last commit; nil if it succeeded
		commitAt   time.Time
		since      time.Time
	}
}

// New returns a worker that has not started. Its error lists everything that is
// wrong with the configuration.
func New(cfg Config, h Handler) (*Worker, error) {
	return newWorker(cfg, h, nil)
}

// NewBatch is New with a handler of several messages at once.
func NewBatch(cfg Config, h BatchHandler) (*Worker, error) {
	return newWorker(cfg, nil, h)
}

// Run consumes a topic until ctx ends, and then drains: handlers' contexts end,
// those that return in time settle their messages, what is settled is
// committed, and the process leaves the group. It returns nil then, and
// otherwise the error that keeps it from going on.
func Run(ctx context.Context, cfg Config, h Handler) error {
	w, err := New(cfg, h)
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// RunBatch is Run with a handler of several messages at once.
func RunBatch(ctx context.Context, cfg Config, h BatchHandler) error {
	w, err := NewBatch(cfg, h)
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

func newWorker(cfg Config, h Handler, b BatchHandler) (*Worker, error) {
	cfg = cfg.withDefaults()
	err := cfg.validate()
	if h == nil && b == nil {
		err = errors.Join(errors.New("no handler is given"), err)
	}
	if err != nil {
		return nil, fmt.Errorf("messaging: %w", err)
	}
	w := &Worker{
		cfg: cfg, group: Group(cfg.Application, cfg.Consumer), handler: h, batch: b,
		assignments: make(chan struct{}, 1), released: make(chan *partition), settledAll: make(chan struct{}, 1), fatal: make(chan error, 1),
		committing: make(chan struct{}, 1),
	}
	w.log = cfg.Logger.With("group", w.group)
	w.mu.partitions = make(map[int32]*partition)
	w.tracer = newTracer(cfg.TracerProvider)
	w.pool = newPool(w)
	w.breaker = newBreaker(cfg.Breaker, w.pool.again)
	w.allotment = newAllotment(cfg.MaxBytes)
	w.fetch = &fetcher{w: w, streams: make(map[topic.Partition]*stream), room: make(chan struct{}, 1)}
	w.metrics.init(w)
	return w, nil
}

// farewell bounds what a stop does after the drain: the last commit, and
// leaving the group.
const farewell = 2 * time.Second

// Run is the function Run, for a worker that was made by New. It is called
// once.
func (w *Worker) Run(ctx context.Context) error {
	closed, err := w.open(ctx)
	if err != nil || closed == nil {
		return err
	}
	defer closed()
	return w.serve(ctx)
}

// open connects and makes what is missing. It returns what closes everything
// again, or nil if ctx has ended meanwhile.
func (w *Worker) open(ctx context.Context) (closed func(), err error) {
	w.mu.Lock()
	if w.mu.started {
		w.mu.Unlock()
		return nil, fmt.Errorf("messaging %s: %w", w.group, ErrStarted)
	}
	w.mu.started, w.mu.since = true, time.Now()
	w.mu.Unlock()
	unregister, err := w.metrics.register(w.cfg.Registerer)
	if err != nil {
		return nil, err
	}
	closed = func() {
		w.disconnect()
		unregister()
	}
	if err = w.connect(); err == nil {
		err = w.prepare(ctx)
	}
	switch {
	case err == nil:
		return closed, nil
	case ctx.Err() != nil:
		err = nil
	default:
		err = fmt.Errorf("messaging %s: %w", w.group, err)
	}
	closed()
	return nil, err
}

// clusterOf returns how to reach the cluster of the delay topics, which is that
// of the input, or that of the dead letters.
func (w *Worker) clusterOf(to int) kafka.Config {
	kc := kafka.Config{Cluster: w.cfg.Cluster, ClientID: w.group, Logger: w.log}
	if c := w.cfg.DeadLetters.Cluster; c != nil && to == toLetters {
		kc.Cluster = *c
	}
	return kc
}

// answerMax is the most that a broker sends at once.
const answerMax = 16 << 20

// connect makes the clients. None connects before it is used.
func (w *Worker) connect() (err error) {
	kc := w.clusterOf(toTopics)
	if w.admin, err = kafka.NewAdmin(kc); err != nil {
		return err
	}
	if w.producer, err = kafka.NewProducer(kc); err != nil {
		return err
	}
	w.lettersAdmin, w.letters = w.admin, w.producer
	if w.cfg.DeadLetters.Cluster != nil {
		if w.lettersAdmin, err = kafka.NewAdmin(w.clusterOf(toLetters)); err != nil {
			return err
		}
		if w.letters, err = kafka.NewProducer(w.clusterOf(toLetters)); err != nil {
			return err
		}
	}
	if w.fetch.reader, err = kafka.NewReader(kc, kafka.ReaderConfig{Committed: true, MaxWait: fetchWait, MaxBytes: int(min(w.cfg.MaxBytes/4, answerMax))}); err != nil {
		return err
	}
	w.mu.Lock()
	w.mu.reader = w.fetch.reader
	w.mu.Unlock()
	w.member, err = kafka.NewMember(kc, kafka.MemberConfig{
		Group: w.group, Instance: w.cfg.Instance, Topics: []string{w.cfg.Topic},
		SessionTimeout: w.cfg.SessionTimeout, HeartbeatInterval: w.cfg.HeartbeatInterval,
		RebalanceTimeout: w.cfg.SessionTimeout, TopicsInterval: w.cfg.TopicsInterval,
		Metadata: w.claims,
		Assign: func(members []kafka.MemberInfo, partitions map[string]int32) (map[string][]topic.Partition, error) {
			return assign(w.cfg.Topic, members, partitions[w.cfg.Topic])
		},
	})
	return err
}

func (w *Worker) disconnect() {
	if w.member != nil {
		w.member.Close()
	}
	if w.fetch.reader != nil {
		w.fetch.reader.Close()
	}
	if w.letters != nil && w.letters != w.producer {
		w.letters.Close()
	}
	if w.producer != nil {
		w.producer.Close()
	}
	if w.lettersAdmin != nil && w.lettersAdmin != w.admin {
		w.lettersAdmin.Close()
	}
	if w.admin != nil {
		w.admin.Close()
	}
}

// serve runs everything until ctx ends or something can't go on.
func (w *Worker) serve(ctx context.Context) error {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	w.pool.start()
	running.Go(func() { w.fetch.run(inner) })
	running.Go(func() { w.commitLoop(inner) })
	running.Go(func() { w.lagLoop(inner) })
	running.Go(func() {
		if err := w.member.Run(inner, w.assigned); err != nil {
			w.fail(err)
		}
	})
	var failed error
	var drains sync.WaitGroup
	var rejoin <-chan time.Time
loop:
	for {
		select {
		case <-w.assignments:
			w.follow(&drains)
		case p := <-w.released:
			w.release(p)
			rejoin = time.After(releaseTogether)
		case <-rejoin:
			rejoin = nil
			w.member.Rejoin()
		case failed = <-w.fatal:
			break loop
		case <-ctx.Done():
			break loop
		}
	}
	w.stop(&drains)
	if failed != nil {
		return fmt.Errorf("messaging %s: %w", w.group, failed)
	}
	return nil
}

// fail ends the worker with an error.
func (w *Worker) fail(err error) {
	select {
	case w.fatal <- err:
	default: // it ends already
	}
}

// abandon leaves handlers of a partition that is fenced to themselves.
func (w *Worker) abandon(p *partition) {
	if n := w.pool.abandon(p); n > 0 {
		p.log.Error("handlers did not return in time and are left to themselves", "handlers", n)
		w.metrics.abandoned.Add(int64(n))
	}
}

// awaitIdle waits until partitions that drain have nothing in hand.
func (w *Worker) awaitIdle(within time.Duration, ps ...*partition) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	poll := time.NewTicker(idlePoll)
	defer poll.Stop()
	for {
		if !slices.ContainsFunc(ps, func(p *partition) bool { return !p.idle() }) {
			return
		}
		select {
		case <-w.settledAll:
		case <-poll.C: // the word may have gone to another drain
		case <-timer.C:
			return
		}
	}
}

const idlePoll = 50 * time.Millisecond

// idle says that a partition that drains has nothing in hand any more.
func (w *Worker) idle() {
	select {
	case w.settledAll <- struct{}{}:
	default:
	}
}

// stop drains everything, commits and leaves.
func (w *Worker) stop(drains *sync.WaitGroup) {
	w.mu.Lock()
	w.mu.stopping = true
	all := slices.Collect(maps.Values(w.mu.partitions))
	begun := w.mu.begun
	w.mu.begun = nil
	w.mu.Unlock()
	for _, p := range begun {
		w.running.Go(p.run) // so that its end can be waited for
	}
	for _, p := range all {
		p.drain(ErrStopping)
	}
	drained := make(chan struct{})
	go func() {
		drains.Wait()
		close(drained)
	}()
	w.awaitIdle(w.cfg.DrainTimeout, all...)
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	if err := w.commitFinally(ctx, all...); err != nil {
		w.log.Warn("commit at the end: what was settled since the last commit will come again", "error", err)
	}
	for _, p := range all {
		p.fence(ErrStopping)
	}
	for waiting := true; waiting; {
		select {
		case <-w.released: // nobody joins again
		case <-drained:
			waiting = false
		}
	}
	if err := w.member.Leave(ctx); err != nil {
		w.log.Warn("leave the group", "error", err)
	}
	for _, p := range all {
		w.abandon(p)
	}
	w.pool.close()
	ended := make(chan struct{})
	go func() {
		w.running.Wait() // also for partitions that were lost
		close(ended)
	}()
	w.awaitEnd(ended)
}

// awaitEnd waits for goroutines of partitions that are fenced. They have nothing
// to wait for any more; should one not end all the same, that is said, and
// whoever waits goes on.
func (w *Worker) awaitEnd(ended <-chan struct{}) {
	timer := time.NewTimer(farewell)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		w.log.Error("a partition did not end in time, and is left to itself")
	}
}

// Pause keeps handlers from being given anything more until Resume. Those that
// run go on. Partitions stay with this process.
func (w *Worker) Pause() { w.setPaused(true) }

// Resume ends a Pause.
func (w *Worker) Resume() { w.setPaused(false) }

func (w *Worker) setPaused(paused bool) {
	w.mu.Lock()
	w.mu.paused = paused
	w.mu.Unlock()
	w.pool.pause(paused)
}
