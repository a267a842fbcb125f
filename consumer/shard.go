package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// shard is one partition of a set, for as long as the group assigns it to
// this process. Its life is told by live.
type shard struct {
	app       *App
	set       *set
	partition int32
	id        ShardID
	log       *slog.Logger

	drain chan struct{} // closed when the shard is to stop
	ended chan struct{} // closed when it has

	suspected chan error    // why what it holds may be old; has room for one
	woken     chan struct{} // has room for one
	paused    atomic.Bool
	lost      atomic.Bool // another process has had it for as long as a session takes to lapse: see lose

	hard <-chan struct{} // closed when the time to stop is over; live's, and what it calls

	mu struct {
		sync.Mutex
		status   ShardStatus
		lagSince time.Time    // the timestamp that its lag in time counts from; zero without lag
		current  *incarnation // for its worker and its database
		diskFull string       // what waits for space on the disk, or for a file descriptor
		short    shortage     // what the machine is short of, or was last
		writing  time.Time    // since when the database is written to disk; zero while it isn\'t
		advice   string       // what goes with its offsets to the group, once it has run
		drained  bool
	}
	wait sync.WaitGroup // abandoned user code
}

func newShard(app *App, set *set, partition int32) *shard {
	s := &shard{app: app, set: set, partition: partition, id: shardID(set.name, partition), drain: make(chan struct{}), ended: make(chan struct{}), suspected: make(chan error, 1), woken: make(chan struct{}, 1)}
	s.log = app.log.With("shard", string(s.id))
	s.mu.status = ShardStatus{ID: s.id, Partition: topic.Partition{Topic: set.topics[0].Name(), Number: partition}, Phase: Fencing, Since: time.Now(), Lag: -1}
	return s
}

// dir is the directory of the shard's database.
func (s *shard) dir() string {
	return filepath.Join(s.app.cfg.StateDir, s.app.cfg.Application, string(s.id))
}

func (s *shard) changelogPartition() topic.Partition {
	return topic.Partition{Topic: ChangelogTopic(s.app.cfg.Application, s.set.name), Number: s.partition}
}

// description returns the description of one of the set's topics.
func (s *shard) description(name string) *topic.Description {
	for _, d := range s.set.topics {
		if d.Name() == name {
			return d
		}
	}
	return nil
}

// changelogDescription describes a changelog topic, whose messages are never
// decoded by a codec.
func changelogDescription(name string) *topic.Description { return topic.Bytes(name).Description }

// stop asks the shard to drain. It does not wait.
func (s *shard) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.drained {
		s.mu.drained = true
		close(s.drain)
	}
}

// suspect tells that the shard's state may be old, and why: another process may
// have had it meanwhile, or its changelog is another one. If it runs, its incarnation ends and a new one begins with the fence, so that
// nothing answers from a state that may be old.
func (s *shard) suspect(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.status.Phase == Running {
		s.mu.status.Phase, s.mu.status.Reason = Failed, why.Error()
	}
	select {
	case s.suspected <- why:
	default:
	}
}

// lose tells, before the shard is stopped, that it has moved while this process's
// membership had lapsed: its new owner has fenced it, and nothing that is open here
// can be finished. So user code that still runs learns of it at once.
func (s *shard) lose() { s.lost.Store(true) }

func (s *shard) stopping() bool {
	select {
	case <-s.drain:
		return true
	default:
		return false
	}
}

var (
	// errNotOurs says that the group does not count the shard as this
	// process's.
	errNotOurs = errors.New("the group has given the shard to another process")

	// errSuspect says that another process may have had the shard meanwhile.
	errSuspect = errors.New("the membership has lapsed meanwhile")

	// errRenewed says that the changelog of the shard is not the one that its
	// state is of: somebody has reset the application.
	errRenewed = errors.New("the changelog topic was created anew")

	// errStopping ends a phase of a shard that is to stop.
	errStopping = errors.New("the shard is stopping")
)

// next is the life of a shard: the phase that follows on one that ended with
// err.
//
//	fencing ──► restoring ──► running ──► draining ──► stopped
//	   ▲            │            │           │
//	   │            ▼            ▼           │ any of them, when the shard is
//	   └───────── failed ◄───────┘           │ another's or is to stop: stopped
func next(phase Phase, stopping bool, err error) Phase {
	switch {
	case phase == Draining, errors.Is(err, errNotOurs):
		return Stopped
	case phase == Running && err == nil:
		return Draining
	case stopping:
		return Stopped
	case err != nil && phase != Failed:
		return Failed
	}
	switch phase {
	case Fencing:
		return Restoring
	case Restoring:
		return Running
	default:
		return Fencing
	}
}

// live runs the shard until it is stopped, or not this process's any more. It
// returns when everything it started has stopped. The time to stop is over when
// ends ends, and DrainTimeout after the shard was told to.
func (s *shard) live(ends context.Context) {
	defer close(s.ended)
	hard, end := context.WithCancel(ends)
	defer end()
	s.hard = hard.Done()
	// What is not running yet has nothing to finish: it ends with the drain.
	early, cancel := context.WithCancelCause(hard)
	defer cancel(nil)
	stopEarly := context.AfterFunc(drainContext{s.drain}, func() {
		cancel(errStopping)
		deadline := time.AfterFunc(s.app.cfg.DrainTimeout, end)
		context.AfterFunc(hard, func() { deadline.Stop() })
	})
	defer stopEarly()

	var r *incarnation
	attempt := 0
	for phase := Fencing; phase != Stopped; {
		var err error
		begun := time.Now()
		switch phase {
		case Fencing:
			s.trust()
			r, err = s.begin(early)
		case Restoring:
			err = r.prepare(early, hard)
		case Running:
			err = r.loop(hard, s.drain)
		case Draining:
			invariants.Crash("drain-before")
			err = s.finish(hard, r)
			invariants.Crash("drain-after")
		case Failed:
			attempt++
			err = s.pause(early, s.app.backoff(attempt))
		}
		if r != nil && (r.committed || phase == Running && time.Since(begun) >= s.app.cfg.BackoffMax) {
			attempt, r.committed = 0, false // what failed before is over
		}
		after := next(phase, s.stopping(), err)
		if r != nil && (after == Failed || after == Stopped) {
			if releaseErr := r.releaseWithin(hard); releaseErr != nil {
				s.log.Error("release", "error", releaseErr)
				err = errors.Join(err, releaseErr)
			}
			r = nil
			s.awaitAbandoned(ends)
		}
		s.enter(phase, after, err)
		phase = after
	}
}

// trust forgets what was suspected before the incarnation that begins.
func (s *shard) trust() {
	select {
	case <-s.suspected:
	default:
	}
}

// finish commits what is open, or gives it up, when the shard is to stop. If
// user code takes half of the time there is, its context is ended.
func (s *shard) finish(hard context.Context, r *incarnation) error {
	if s.lost.Load() {
		return errNotOurs
	}
	r.pace.drain()
	t := time.AfterFunc(s.app.cfg.DrainTimeout/2, r.cancel)
	defer t.Stop()
	if err := r.loop(hard, nil); err != nil {
		return err
	}
	if at, ok := s.app.group.ownedAt(s); ok && !at.Equal(r.position.AtEnd) {
		r.position.AtEnd = at
		if err := r.db.SetMeta(changelog.AppendPosition(nil, r.position)); err != nil {
			return fmt.Errorf("write position of shard %s: %w", s.id, err)
		}
	}
	return nil
}

// pause waits before a failed shard starts again.
func (s *shard) pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return errStopping
	}
}

// enter notes the phase that the shard goes to, with its reason.
func (s *shard) enter(from, to Phase, err error) {
	why := ""
	if err != nil && to != Draining && !(to == Stopped && s.stopping()) {
		why = err.Error()
	}
	level := slog.LevelInfo
	if to == Failed {
		level = slog.LevelError
		s.app.metrics.failures.Inc()
		if errors.Is(err, kafka.ErrFenced) {
			level = slog.LevelWarn
			s.app.metrics.fenced.Inc()
		}
	}
	attrs := []any{"from", string(from)}
	if why != "" {
		attrs = append(attrs, "reason", why)
	}
	s.log.Log(context.Background(), level, string(to), attrs...)
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &s.mu.status
	if from == Failed && to == Fencing && why == "" {
		why = st.Reason // until it runs, what failed is still the news
	}
	st.Phase, st.Reason, st.Since = to, why, time.Now()
}

// note says why the shard does not go on, without a change of its phase.
func (s *shard) note(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.status.Reason = why
}

// restoring notes how far a restore has come.
func (s *shard) restoring(next, end int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &s.mu.status
	if st.RestoreEnd != end || st.RestoreBegan.Before(st.Since) {
		st.RestoreFrom, st.RestoreBegan = next, time.Now()
	}
	st.RestoreNext, st.RestoreEnd = next, end
}

// committed notes a commit of so many messages.
func (s *shard) committed(r *incarnation, messages int, took time.Duration) {
	r.committed = true
	m := s.app.metrics
	m.messages.Add(float64(messages))
	m.commits.Inc()
	m.commitSeconds.Observe(took.Seconds())
	s.mu.Lock()
	s.mu.status.Commits++
	s.mu.status.LastCommit = time.Now()
	s.mu.status.Reason = ""
	s.mu.Unlock()
	s.observe(r)
}

// observe notes where the incarnation stands.
func (s *shard) observe(r *incarnation) {
	lag, offsets := r.lag()
	since := r.lagSince(lag)
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &s.mu.status
	st.Lag, st.Offsets, st.Changelog, s.mu.lagSince = lag, offsets, r.position.Next, since
}

// measured notes how large the state is.
func (s *shard) measured(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.status.Bytes = bytes
}

// attach makes the incarnation the one that status and queries look at.
func (s *shard) attach(r *incarnation) {
	s.measured(r.db.Size())
	lag, offsets := r.lag()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.current, s.mu.advice = r, appendAdvice(r.changelogID, r.partitions)
	s.mu.status.Lag, s.mu.status.Offsets, s.mu.status.Changelog = lag, offsets, r.position.Next
}

// advice returns the committed offsets of the shard and what goes with them to the
// group: nothing before it runs.
func (s *shard) advice() (map[topic.Partition]int64, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &s.mu.status
	if s.mu.advice == "" || st.Phase != Running && st.Phase != Stopped {
		return nil, ""
	}
	return st.Offsets, s.mu.advice
}

func (s *shard) detach(r *incarnation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.current == r {
		s.mu.current = nil
	}
}

// status returns how the shard is.
func (s *shard) status() ShardStatus {
	s.mu.Lock()
	st, r, diskFull, since, writing := s.mu.status, s.mu.current, s.mu.diskFull, s.mu.lagSince, s.mu.writing
	s.mu.Unlock()
	if r != nil {
		st.Busy = r.worker.busy(s.app.cfg.StuckAfter)
	}
	st.Paused = s.paused.Load()
	if !since.IsZero() {
		st.LagTime = max(0, s.app.clock.Now().Sub(since))
	}
	if took := time.Since(writing); !writing.IsZero() && took >= slowDisk && st.Reason == "" {
		st.Reason = fmt.Sprintf("the disk is slow: writing the database has taken %v so far", took.Round(time.Second))
	}
	if diskFull != "" {
		st.Phase, st.Reason = Failed, diskFull
	}
	return st
}

// view calls fn with the committed state. It does not once the shard was told
// to stop, or that another process may have had it: the incarnation that stands
// here knows nothing of what that one did.
func (s *shard) view(fn func(*store.Transaction) error) error {
	s.mu.Lock()
	r, phase := s.mu.current, s.mu.status.Phase
	doubtful := s.mu.drained || len(s.suspected) > 0
	s.mu.Unlock()
	if r == nil || phase != Running || doubtful {
		return fmt.Errorf("shard %s is %s: %w", s.id, phase, ErrNotHere)
	}
	return r.handle.db.View(fn)
}

// slowDisk is how long the writing of a database takes at least that the status
// and the log speak of.
const slowDisk = 2 * time.Second

// writing notes that the database is written to disk, until done is called.
func (s *shard) writing() (done func()) {
	begun := time.Now()
	set := func(t time.Time) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.mu.writing = t
	}
	set(begun)
	return func() {
		set(time.Time{})
		if took := time.Since(begun); took >= slowDisk {
			s.log.Warn("the disk is slow", "dir", s.dir(), "writing the database took", took)
		}
	}
}

// shortage is what the machine can be short of, as the log and the status say it.
type shortage struct{ begins, ends, reason string }

func shortageOf(err error) shortage {
	switch {
	case store.OutOfFiles(err):
		return shortage{"out of file descriptors", "there are file descriptors again",
			"out of file descriptors: opening %s: %v; goes on when some are closed: raise the limit of open files (ulimit -n)"}
	case errors.Is(err, syscall.EROFS):
		return shortage{"the file system is read-only", "the file system can be written to again",
			"read-only file system: writing %s: %v; goes on when it can be written to"}
	}
	return shortage{"the disk is full", "there is space on the disk again", "disk full: writing %s: %v; goes on when there is space"}
}

// diskFull is told by the store when a write waits for space, or anything for
// what else the machine is short of, and when it goes on. It is told of one at a
// time.
func (s *shard) diskFull(full bool, path string, err error) {
	s.mu.Lock()
	short := s.mu.short
	s.mu.Unlock()
	why := ""
	if full {
		short = shortageOf(err)
		why = fmt.Sprintf(short.reason, path, err)
		s.log.Error(short.begins, "path", path, "error", err)
	} else {
		s.log.Info(short.ends, "path", path)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.diskFull, s.mu.short = why, short
}

// discard removes the local copy of the state, which is then restored from the
// changelog.
func (s *shard) discard(kind, why string) error {
	s.log.Warn("the local state is discarded and restored", "dir", s.dir(), "reason", why)
	s.app.metrics.discarded.WithLabelValues(kind).Inc()
	if err := store.Discard(s.dir()); err != nil {
		return fmt.Errorf("discard the local state of shard %s (%s): %w", s.id, why, err)
	}
	return nil
}

// awaitAbandoned waits until user code that was abandoned has returned, since
// the database is open until then. When the time for the process to stop is over
// it is waited for no longer: the process ends, and with it what holds the
// database.
func (s *shard) awaitAbandoned(ends context.Context) {
	returned := make(chan struct{})
	go func() {
		s.wait.Wait()
		close(returned)
	}()
	select {
	case <-returned:
	case <-ends.Done():
	}
}

// abandoned keeps the shard from starting again until the function that it
// returns is called.
func (s *shard) abandoned() (released func()) {
	s.wait.Add(1)
	return s.wait.Done
}

// drainContext is a context that ends when the channel is closed.
type drainContext struct{ done <-chan struct{} }

func (d drainContext) Done() <-chan struct{}       { return d.done }
func (d drainContext) Deadline() (time.Time, bool) { return time.Time{}, false }
func (d drainContext) Value(any) any               { return nil }
func (d drainContext) Err() error {
	select {
	case <-d.done:
		return context.Canceled
	default:
		return nil
	}
}
