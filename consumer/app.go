package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawlstream/pawl/internal/clock"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// App is an application's consumers in one process.
type App struct {
	cfg     Config
	log     *slog.Logger
	sets    []*set
	metrics *metrics

	admin  *kafka.Admin
	budget *store.Budget
	group  *group
	clock  *clock.Clock  // the machine's; nil but in tests
	busy   atomic.Int64  // shards with an open transaction
	held   chan struct{} // closed once the state directory is this process's

	prepared atomic.Bool // at start every topic was there, or was created

	mu struct {
		sync.Mutex
		ran    bool
		shards map[ShardID]*shard
		copies map[ShardID]warmth // local copies of shards that do not run here
		logs   map[string]changelogInfo

		missing []string // consumed topics that are not there, as last looked
		unsafe  []string // changelogs whose settings lose state, and which those are, as last looked

		paused       bool // all shards are
		pausedShards map[ShardID]bool
		admin        string // where the admin API of this process is
	}
}

// set is a co-partitioned set of topics and the consumer of them.
type set struct {
	name     string
	topics   []*topic.Description // in order of their names
	consumer Consumer
}

// New returns the application's consumers, ready to run. Its error says
// everything that is wrong with the configuration and the consumers.
func New(cfg Config, consumers ...Consumer) (*App, error) {
	cfg = cfg.withDefaults()
	sets, setsErr := makeSets(cfg.Application, consumers)
	if err := errors.Join(cfg.validate(), setsErr, store.CheckTables()); err != nil {
		return nil, fmt.Errorf("configure application %s: %w", cfg.Application, err)
	}
	a := &App{cfg: cfg, log: cfg.Logger.With("application", cfg.Application), sets: sets}
	a.metrics, a.held = newMetrics(a), make(chan struct{})
	a.mu.shards, a.mu.copies = make(map[ShardID]*shard), make(map[ShardID]warmth)
	a.mu.logs = make(map[string]changelogInfo)
	a.mu.pausedShards = make(map[ShardID]bool)
	return a, nil
}

// Run runs the consumers until ctx ends and everything has stopped: see
// [App.Run].
func Run(ctx context.Context, cfg Config, consumers ...Consumer) error {
	a, err := New(cfg, consumers...)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// makeSets groups the topics of the consumers by their sets.
func makeSets(application string, consumers []Consumer) ([]*set, error) {
	var errs []error
	byName := make(map[string]*set)
	owner := make(map[string]int) // of a set: which of the consumers has it; they need not be comparable
	seen := make(map[string]bool)
	var sets []*set
	if len(consumers) == 0 {
		errs = append(errs, errors.New("there are no consumers"))
	}
	for i, c := range consumers {
		topics := c.Topics()
		if len(topics) == 0 {
			errs = append(errs, fmt.Errorf("consumer %T names no topics", c))
		}
		for _, d := range topics {
			if seen[d.Name()] {
				errs = append(errs, fmt.Errorf("topic %s is named twice by the consumers of application %s: one consumes it", d.Name(), application))
				continue
			}
			seen[d.Name()] = true
			s := byName[d.Set()]
			if s == nil {
				if err := topic.CheckName(d.Set()); err != nil {
					errs = append(errs, fmt.Errorf("set of topic %s: %w", d.Name(), err))
				}
				s = &set{name: d.Set(), consumer: c}
				byName[d.Set()], owner[d.Set()] = s, i
				sets = append(sets, s)
			} else if owner[d.Set()] != i {
				errs = append(errs, fmt.Errorf("set %s has topics of two consumers, %T and %T: one consumes all of a set", s.name, s.consumer, c))
			}
			s.topics = append(s.topics, d)
		}
	}
	for _, s := range sets {
		slices.SortFunc(s.topics, func(a, b *topic.Description) int { return strings.Compare(a.Name(), b.Name()) })
		if err := checkNames(application, s.name, topicNames(s.topics)); err != nil {
			errs = append(errs, err)
		}
	}
	return sets, errors.Join(errs...)
}

func topicNames(topics []*topic.Description) []string {
	names := make([]string, len(topics))
	for i, d := range topics {
		names[i] = d.Name()
	}
	return names
}

// setOf returns the set that a topic belongs to.
func (a *App) setOf(name string) *set {
	for _, s := range a.sets {
		for _, d := range s.topics {
			if d.Name() == name {
				return s
			}
		}
	}
	return nil
}

func (a *App) kafkaConfig() kafka.Config {
	return kafka.Config{Cluster: a.cfg.Cluster, ClientID: "pawl-" + a.cfg.Application, Logger: a.log}
}

// Run joins the group and runs the shards that it assigns to this process,
// until ctx ends. Then it drains: open transactions are finished or given up,
// the shards and the membership are handed over, and when Run returns,
// everything that it started has stopped. It is called once.
//
// A shard that fails backs off and starts again. Run itself returns an error
// only for what concerns the whole process: brokers that can't be reached at
// start, a state directory in use, a topic that is missing at start, another
// process of the same instance.
func (a *App) Run(ctx context.Context) error {
	a.mu.Lock()
	ran := a.mu.ran
	a.mu.ran = true
	a.mu.Unlock()
	if ran {
		return errors.New("consumer: Run was called before")
	}
	unregister, err := a.metrics.register(a.cfg.Registerer)
	if err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	defer unregister()
	lock, err := lockDir(ctx, a.log, a.cfg.StateDir, a.cfg.Instance, a.cfg.DrainTimeout)
	if err != nil {
		return unlessStopped(ctx, err)
	}
	defer lock.release()
	close(a.held)
	if err := a.connect(ctx); err != nil {
		return unlessStopped(ctx, err)
	}
	defer a.admin.Close()
	a.budget = store.NewBudget(a.cfg.databases())
	defer a.budget.Close()
	a.findCopies()
	a.clock = clock.From(ctx)
	group, err := newGroup(a)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.group = group // Status may be asked at any time
	a.mu.Unlock()
	return a.work(ctx)
}

// Held returns a channel that is closed once Run holds the state directory:
// from then on, until Run returns, its files are this process's to write.
func (a *App) Held() <-chan struct{} { return a.held }

// unlessStopped returns nil where err says no more than that ctx has ended: a
// stop that comes before everything has started is a stop like any other.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))) {
		return nil
	}
	return err
}

// connect reaches the cluster, and checks it and the topics.
func (a *App) connect(ctx context.Context) (err error) {
	if a.admin, err = kafka.NewAdmin(a.kafkaConfig()); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			a.admin.Close()
		}
	}()
	return kafka.Await(ctx, a.cfg.StartTimeout, a.log, func() error {
		if err := a.admin.Check(ctx, a.cfg.AllowOldBroker); err != nil {
			return err
		}
		return a.prepareTopics(ctx)
	})
}

// work runs the membership and the shards. It has three parts that end in
// order: the shards, which need the membership to drain; then the membership;
// then whatever waits for either.
func (a *App) work(ctx context.Context) error {
	// Neither ends with ctx: a drain needs both.
	memberCtx, endMember := context.WithCancel(context.WithoutCancel(ctx))
	defer endMember()
	hard, endHard := context.WithCancel(context.WithoutCancel(ctx))
	defer endHard()

	var wg sync.WaitGroup
	failed := make(chan error, 1)
	wg.Go(func() {
		if err := a.group.run(memberCtx); err != nil {
			failed <- err
		}
	})
	wg.Go(func() { a.group.beat(memberCtx) })
	wg.Go(func() { a.watchTopics(memberCtx) })
	wg.Go(func() { a.watchClock(memberCtx) })

	adviseCtx, endAdvice := context.WithCancel(memberCtx)
	defer endAdvice()
	advised := make(chan struct{})
	go func() { // beside the loop, which must not wait for the coordinator
		defer close(advised)
		a.group.adviseUntil(adviseCtx)
	}()
	ended := make(chan *shard)
	var err error
	for done := false; !done; {
		select {
		case <-a.group.changes:
			a.reconcile(hard, ended)
		case s := <-ended:
			a.removed(s)
			a.reconcile(hard, ended)
		case err = <-failed:
			done = true
		case <-ctx.Done():
			done = true
		}
	}
	a.log.Info("draining")
	over := time.Now().Add(a.cfg.DrainTimeout)
	timer := time.AfterFunc(a.cfg.DrainTimeout, endHard)
	defer timer.Stop()
	shards := a.all()
	for _, s := range shards {
		s.stop()
	}
	for range shards {
		a.removed(<-ended)
	}
	endAdvice()
	<-advised
	if err == nil {
		// Whatever the shards took, there is a moment left to say goodbye.
		left := max(time.Until(over), a.cfg.DrainTimeout/10)
		leave, cancel := context.WithTimeout(memberCtx, min(left, a.cfg.SessionTimeout))
		last, cancelLast := context.WithTimeout(leave, min(left, a.cfg.SessionTimeout)/3)
		a.group.advise(last, shards)
		cancelLast()
		if !a.cfg.KeepMembership {
			a.group.leave(leave)
		}
		cancel()
	}
	endMember()
	wg.Wait()
	a.group.member.Close()
	a.log.Info("stopped")
	return err
}

// reconcile starts the shards that the group has newly assigned to this
// process and stops those it has taken away. The others notice nothing.
func (a *App) reconcile(hard context.Context, ended chan<- *shard) {
	owned := a.group.owned()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.budget.Expect(len(owned))
	a.group.suspects(func(id ShardID, lapsed bool) {
		s := a.mu.shards[id]
		switch {
		case s == nil:
		case owned[id]:
			s.suspect(errSuspect)
		case lapsed:
			s.lose()
		} // else it is not ours any more: it finishes what is open, and ends
	})
	for id, s := range a.mu.shards {
		if !owned[id] {
			s.stop()
		}
	}
	for id := range owned {
		if _, ok := a.mu.shards[id]; ok {
			continue // also while an earlier life of it ends: removed comes back here
		}
		name, partition, ok := id.split()
		i := slices.IndexFunc(a.sets, func(s *set) bool { return s.name == name })
		if !ok || i < 0 {
			continue
		}
		s := newShard(a, a.sets[i], partition)
		s.paused.Store(a.pausedLocked(id))
		a.mu.shards[id] = s
		go func() {
			s.live(hard)
			ended <- s
		}()
	}
}

// removed forgets a shard that has ended, and remembers its copy of the state.
func (a *App) removed(s *shard) {
	st := s.status()
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.mu.shards, s.id)
	delete(a.mu.pausedShards, s.id)
	if st.Changelog > 0 { // it has run here
		a.mu.copies[s.id] = warmth{Next: st.Changelog}
	}
}

// all returns the shards that are here.
func (a *App) all() []*shard {
	a.mu.Lock()
	defer a.mu.Unlock()
	shards := make([]*shard, 0, len(a.mu.shards))
	for _, s := range a.mu.shards {
		shards = append(shards, s)
	}
	slices.SortFunc(shards, func(x, y *shard) int { return strings.Compare(string(x.id), string(y.id)) })
	return shards
}

// findCopies notes which shards have a local copy, so that the group can give
// them to this process.
func (a *App) findCopies() {
	dirs, err := os.ReadDir(filepath.Join(a.cfg.StateDir, a.cfg.Application))
	if err != nil {
		return // there is none
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range dirs {
		if id := ShardID(d.Name()); d.IsDir() {
			if _, _, ok := id.split(); ok {
				a.mu.copies[id] = warmth{}
			}
		}
	}
}

// warm returns what the leader of the group is told of this process's copies.
func (a *App) warm() map[ShardID]warmth {
	result := make(map[ShardID]warmth)
	a.mu.Lock()
	for id, w := range a.mu.copies {
		result[id] = w
	}
	a.mu.Unlock()
	for _, s := range a.all() {
		if s.stopping() {
			continue
		}
		result[s.id] = warmth{Next: s.status().Changelog, Running: true}
	}
	return result
}

// Status returns how the application is in this process.
func (a *App) Status() Status {
	st := Status{Application: a.cfg.Application, Instance: a.cfg.Instance}
	a.mu.Lock()
	group := a.group
	st.Paused = a.mu.paused
	st.Missing, st.Unsafe = slices.Clone(a.mu.missing), slices.Clone(a.mu.unsafe)
	a.mu.Unlock()
	if group != nil {
		group.mu.Lock()
		st.Joined, st.Generation, st.LastHeartbeat = group.mu.joined, group.mu.assignment.Generation, group.mu.heartbeat.Time()
		group.mu.Unlock()
	}
	for _, s := range a.all() {
		st.Shards = append(st.Shards, s.status())
	}
	return st
}

// Ready returns nil if this process is a member of the group, all its shards
// run and none is stuck, all consumed topics are there, and no changelog is set to lose state, and else an
// error that says what is wrong.
func (a *App) Ready() error {
	st := a.Status()
	if !st.Joined {
		return errors.New("not a member of the group yet")
	}
	var errs []error
	for _, name := range st.Missing {
		errs = append(errs, fmt.Errorf("consumed topic %s does not exist any more: its shards have stopped, and start when it is there again", name))
	}
	for _, why := range st.Unsafe {
		errs = append(errs, errors.New(why))
	}
	for _, s := range st.Shards {
		switch {
		case s.Phase != Running:
			msg := fmt.Sprintf("shard %s is %s", s.ID, s.Phase)
			if s.Reason != "" {
				msg += ": " + s.Reason
			}
			if s.Phase == Restoring {
				msg += fmt.Sprintf(" (%d of %d)", s.RestoreNext, s.RestoreEnd)
			}
			errs = append(errs, errors.New(msg))
		case s.Busy != nil && s.Busy.Stack != "":
			errs = append(errs, fmt.Errorf("shard %s is stuck: %s has run for %v at %s\n%s", s.ID, s.Busy.Call, time.Since(s.Busy.Since).Round(time.Second), s.Busy.Message, s.Busy.Stack))
		}
	}
	return errors.Join(errs...)
}

// View calls fn with a read-only transaction over the committed state of a
// shard that runs in this process. The error matches [ErrNotHere] if it does
// not, or if it may run elsewhere by now: the last heartbeat is too old, or the
// group is dividing the shards anew. Only where it returns nil is what fn has
// read no older than anything that another process has committed.
func (a *App) View(id ShardID, fn func(*store.Transaction) error) error {
	a.mu.Lock()
	s, group := a.mu.shards[id], a.group
	a.mu.Unlock()
	if s == nil || group == nil {
		return fmt.Errorf("shard %s: %w", id, ErrNotHere)
	}
	stale := func() error {
		if group.fresh(id) {
			return nil
		}
		return fmt.Errorf("shard %s: the last heartbeat is older than %v, or was, or the group divides the shards anew: %w", id, a.cfg.SessionTimeout, ErrNotHere)
	}
	if err := stale(); err != nil {
		return err
	}
	if err := s.view(fn); err != nil {
		return err
	}
	return stale() // this process may have stood still in between
}

// pauseShards is the number of busy shards for which the commit pause is
// added once more: each transaction costs the broker the more the more there
// are.
const pauseShards = 8

// commitPause returns the shortest time between two commits of a shard.
func (a *App) commitPause() time.Duration {
	return a.cfg.CommitPause * time.Duration(1+a.busy.Load()/pauseShards)
}
