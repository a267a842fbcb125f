package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pawlstream/pawl/examples/filestats"
	"github.com/pawlstream/pawl/internal/kafka"
)

// demo is one run.
//
//	read the input, and count it
//	start the broker, or reach it ──► create the topics ──► start the processes
//	feed ┐
//	kill ├ until everything that was fed has passed both consumers
//	read ┘
//	drain the processes ──► read to the end ──► open the stores ──► compare
type demo struct {
	cfg         demoConfig
	view        *view
	application string // which names the run: its topics and its group begin with it
	program     *filestats.Program
	names       topicNames
	began       time.Time

	dir       string
	temporary *tempDir // dir, where it is ours to remove
	log       *slog.Logger
	logFile   *os.File

	broker    *demoBroker
	kafka     kafka.Config
	admin     *kafka.Admin
	watcher   *watcher
	tail      *tail // the watcher's
	endRead   context.CancelFunc
	reading   sync.WaitGroup // the tail's run
	feeder    *feeder
	processes []*process
	failed    chan error // of processes that end by themselves

	mu struct {
		sync.Mutex
		phase       string
		total       int64
		kills       int
		middle      int
		takeovers   int
		brokerKills int
	}
}

// newDemo returns a run that has done nothing yet.
func newDemo(cfg demoConfig, v *view) (*demo, error) {
	d := &demo{cfg: cfg, view: v, application: fmt.Sprintf("demo-%06x", rand.Uint32()&0xffffff), began: time.Now(), failed: make(chan error, 16)}
	d.program = filestats.New(d.application + "-")
	d.names = namesOf(d.application, d.program)
	d.mu.phase = "starting"
	return d, nil
}

// run runs the demo. When ctx ends it drains, and returns what there is. With
// the result there may be an error, of what came after it.
func (d *demo) run(ctx context.Context, stdin io.Reader) (r *result, err error) {
	in, err := d.readInput(ctx, stdin)
	if err != nil {
		if ctx.Err() != nil {
			return &result{Interrupted: true}, nil
		}
		return nil, err
	}
	if err := d.makeDir(); err != nil {
		return nil, err
	}
	begun := false
	defer func() {
		err = errors.Join(err, d.removeDir(!begun || err == nil && (r.Verified || r.Interrupted)))
	}()
	if err := d.connect(ctx); err != nil {
		if ctx.Err() != nil {
			return &result{Interrupted: true, want: in.want}, nil
		}
		return nil, err
	}
	defer func() { err = errors.Join(err, d.disconnect()) }()

	begun = true
	work := d.work(ctx, in)
	d.view.end()
	if work != nil && ctx.Err() == nil && !errors.As(work, new(*stalled)) {
		return nil, work
	}
	interrupted := ctx.Err() != nil
	if interrupted {
		d.view.say("interrupted: draining")
	} else {
		d.view.say("all that was fed has been consumed: draining")
	}
	drained := d.drain()
	d.view.say("drained: comparing the last outputs and the stores with the input")
	if r, err = d.judge(in, interrupted); err != nil {
		return nil, errors.Join(drained, err)
	}
	if work != nil && !interrupted {
		r.fail(work)
	}
	if drained != nil {
		r.fail(drained)
	}
	return r, nil
}

// readInput reads the input as a whole. A standard input that doesn't end is
// given up when ctx ends.
func (d *demo) readInput(ctx context.Context, stdin io.Reader) (*input, error) {
	name, r := "the history that is built in", filestats.Input()
	switch d.cfg.input {
	case "":
	case "-":
		name, r = "standard input", stdin
		d.view.say("reading standard input")
	default:
		f, err := os.Open(d.cfg.input)
		if err != nil {
			return nil, fmt.Errorf("read the input: %w", err)
		}
		defer f.Close()
		name, r = d.cfg.input, f
	}
	type read struct {
		in  *input
		err error
	}
	done := make(chan read, 1)
	go func() { // which may stay behind in a read of standard input, until the process ends
		in, err := readInput(r)
		done <- read{in, err}
	}()
	select {
	case got := <-done:
		if got.err != nil {
			return nil, fmt.Errorf("read the input, %s: %w", name, got.err)
		}
		d.view.say("%s: %s events", name, thousands(int64(len(got.in.events))))
		d.mu.Lock()
		d.mu.total = int64(len(got.in.events))
		d.mu.Unlock()
		return got.in, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// makeDir makes the directory of stores and logs.
func (d *demo) makeDir() (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dir = d.cfg.dir; d.dir == "" {
		if d.temporary, err = makeTempDir("demo"); err != nil {
			return fmt.Errorf("make a directory for the stores: %w", err)
		}
		d.dir = d.temporary.path
	} else if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of the stores: %w", err)
	}
	if d.logFile, err = os.OpenFile(filepath.Join(d.dir, "demo.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
		return fmt.Errorf("make the directory of the stores: %w", err)
	}
	d.log = slog.New(slog.NewTextHandler(d.logFile, nil))
	d.view.say("stores and logs are in %s", d.dir)
	return nil
}

// removeDir removes the directory if it is ours, unless what went wrong can be
// found there.
func (d *demo) removeDir(well bool) error {
	if err := d.logFile.Close(); err != nil {
		return fmt.Errorf("close the log: %w", err)
	}
	switch {
	case d.temporary == nil:
		return nil
	case !well:
		d.view.say("stores and logs are kept in %s", d.dir)
		return d.temporary.keep()
	}
	if err := d.temporary.remove(); err != nil {
		return fmt.Errorf("remove the directory of the stores: %w", err)
	}
	return nil
}

// connectTime bounds how long a broker is tried.
const connectTime = 10 * time.Second

// connect reaches the broker, creates the topics, starts to watch them, and
// makes the processes.
func (d *demo) connect(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, d.disconnect())
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	watched := []string{d.names.changes, d.names.byAuthor, d.names.totals}
	if err := d.reach(ctx, filestats.Partitions, watched...); err != nil {
		return err
	}
	if d.watcher, err = newWatcher(d.kafka, d.names); err != nil {
		return err
	}
	d.watcher.watch(filestats.Partitions, watched...)
	d.read(d.watcher.tail)
	if d.feeder, err = newFeeder(d.kafka, d.names.changes, d.cfg.rate); err != nil {
		return err
	}
	for _, name := range []string{"a", "b"} {
		c := child{
			application: d.application, prefix: d.application + "-", instance: name,
			stateDir: filepath.Join(d.dir, name), brokers: d.broker.addresses,
		}
		if err := d.addProcess(c, c.args()); err != nil {
			return err
		}
	}
	return nil
}

// reach starts the broker, or reaches it, and creates topics.
func (d *demo) reach(ctx context.Context, partitions int, topics ...string) error {
	if err := d.openBroker(ctx); err != nil {
		return err
	}
	d.kafka = kafka.Config{Cluster: d.broker.cluster(), ClientID: "pawl-demo", Logger: d.log}
	admin, err := kafka.NewAdmin(d.kafka)
	if err != nil {
		return err
	}
	if err := admin.Check(ctx, false); err != nil {
		admin.Close()
		return fmt.Errorf("reach the brokers %s: %w", strings.Join(d.broker.addresses, ","), err)
	}
	d.admin = admin // from here on there is something to delete
	d.view.say("run %s on %v, seed %d", d.application, d.broker, d.cfg.seed)
	for _, name := range topics {
		if _, err := d.admin.CreateTopic(ctx, kafka.TopicSpec{Name: name, Partitions: partitions}); err != nil {
			return err
		}
	}
	return nil
}

// read reads what the run commits, until disconnect.
func (d *demo) read(t *tail) {
	ctx, end := context.WithCancel(context.Background())
	d.tail, d.endRead = t, end
	d.reading.Go(func() { t.run(ctx) })
}

func (d *demo) addProcess(c child, args []string) error {
	p, err := newProcess(c, d.dir, d.failed)
	if err != nil {
		return err
	}
	p.args, p.env, p.dir = args, d.cfg.childEnv, d.temporary
	d.mu.Lock()
	defer d.mu.Unlock()
	d.processes = append(d.processes, p)
	return nil
}

// disconnectTime bounds what is deleted on a Kafka.
const disconnectTime = 30 * time.Second

// disconnect ends the processes, wherever they are, deletes what the run has
// made on a Kafka, and lets go of the broker.
func (d *demo) disconnect() error {
	return d.letGo(d.application, d.names.changes, d.names.byAuthor, d.names.totals, d.names.changesLog, d.names.byAuthorLog)
}

// letGo is disconnect for a run that has made this group and these topics.
func (d *demo) letGo(group string, topics ...string) error {
	errs := []error{d.killAll()}
	if d.feeder != nil {
		d.feeder.producer.Close()
	}
	if d.tail != nil {
		d.endRead()
		d.reading.Wait()
		d.tail.reader.Close()
	}
	if d.admin != nil {
		if !d.broker.own() && !d.cfg.keep {
			errs = append(errs, d.deleteAll(group, topics))
		}
		d.admin.Close()
	}
	return errors.Join(append(errs, d.broker.close())...)
}

// deleteAll deletes what the run has made on a Kafka: its topics, and its group
// as soon as the group counts a process that was killed as gone.
func (d *demo) deleteAll(group string, topics []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), disconnectTime)
	defer cancel()
	err := d.admin.DeleteTopics(ctx, topics...)
	for {
		groupErr := d.admin.DeleteGroup(ctx, group)
		if groupErr == nil || pause(ctx, time.Second/2, nil) != nil {
			return errors.Join(err, groupErr)
		}
	}
}

func (d *demo) killAll() error {
	var errs []error
	for _, p := range d.processes {
		errs = append(errs, p.kill())
	}
	return errors.Join(errs...)
}

// abandon kills the processes and removes the temporary directory, for a parent
// that is about to exit. It may be called at any time, from another goroutine:
// the run writes what it reads, processes and dir, with the lock held.
func (d *demo) abandon() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.processes {
		// There is nobody left to tell of an error.
		_ = p.signal(9)
	}
	if d.broker != nil && d.broker.apart != nil {
		_ = d.broker.apart.signal(9)
	}
	if d.temporary != nil {
		_ = os.RemoveAll(d.dir)
	}
}

// stalled says that a run has come to a standstill.
type stalled struct{ done, total int64 }

func (e *stalled) Error() string {
	return fmt.Sprintf("nothing went on for %v, with %s of %s events through both consumers", stallTime, thousands(e.done), thousands(e.total))
}

// stallTime is how long a run may stand still: longer than a takeover takes.
const stallTime = 60 * time.Second

// work feeds, kills and reads until everything has passed both consumers and
// every kill was made, and shows how it goes. A process that ends by itself
// and a standstill end it early.
func (d *demo) work(ctx context.Context, in *input) error {
	for _, p := range d.processes {
		if err := p.start(); err != nil {
			return err
		}
	}
	d.enter("running")
	standing := func() standing {
		s := d.snapshot()
		return standing{s, s.progress, s.done, s.total}
	}
	return d.supervised(ctx, standing, func(ctx context.Context) error {
		g, workCtx := errgroup.WithContext(ctx)
		g.Go(func() error { return d.feeder.feed(workCtx, in.events) })
		g.Go(func() error { return d.kill(workCtx, int64(len(in.events))) })
		g.Go(func() error { return d.watcher.awaitAll(workCtx, int64(len(in.events))) })
		if err := g.Wait(); err != nil {
			return err
		}
		return d.awaitShards(ctx)
	})
}

// standing is how a run stands.
type standing struct {
	picture
	progress    int64 // a number that changes as long as anything goes on
	done, total int64
}

// supervised runs work, shows how it goes, and ends it when a process ends by
// itself or nothing goes on though not all is done.
func (d *demo) supervised(ctx context.Context, look func() standing, work func(context.Context) error) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	over := make(chan struct{})
	var supervisor sync.WaitGroup
	supervisor.Go(func() {
		if err := d.supervise(over, look); err != nil {
			fail(err)
		}
	})
	err := work(ctx)
	close(over)
	supervisor.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// shardsTime is how long after the last kill the shards may take to run again.
const shardsTime = 30 * time.Second

// awaitShards waits until every shard runs somewhere. What the last victim had
// not written to disk is in its store only when it has been restored: a drain
// before that would leave it to the next start.
func (d *demo) awaitShards(ctx context.Context) error {
	end := time.Now().Add(shardsTime)
	for {
		running := make(map[string]bool)
		for _, p := range d.processes {
			for _, id := range p.shards() {
				running[id] = true
			}
		}
		if len(running) == 2*filestats.Partitions {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d of %d shards run %v after the last kill", len(running), 2*filestats.Partitions, shardsTime)
		}
		if err := pause(ctx, reportInterval, nil); err != nil {
			return err
		}
	}
}

// supervise draws, until over is closed, and returns what ends the work early.
func (d *demo) supervise(over <-chan struct{}, look func() standing) error {
	ticks := time.NewTicker(liveInterval)
	defer ticks.Stop()
	progress, since := int64(-1), time.Now()
	for {
		select {
		case <-ticks.C:
			s := look()
			d.view.draw(s.picture)
			if s.progress != progress || s.done == s.total {
				progress, since = s.progress, time.Now()
			} else if time.Since(since) > stallTime {
				return &stalled{s.done, s.total}
			}
		case err := <-d.failed:
			return err
		case <-over:
			return nil
		}
	}
}

// kill makes the planned kills. The feed waits on the way from each to the next
// until it is made, so that there is work to be killed in; and goes a little
// further when that is done and the kill is not.
func (d *demo) kill(ctx context.Context, events int64) error {
	plan := planStrikes(d.cfg.seed, d.cfg.kills, d.cfg.brokerKills, events, len(d.processes))
	k := &killer{admin: func() *kafka.Admin { return d.admin }, watcher: d.watcher, application: d.application, random: rand.New(rand.NewPCG(d.cfg.seed, 1)), more: d.more}
	open := func(i int) { // the way from strike i on
		if i >= len(plan) {
			d.feeder.allow(events, 0, events)
			return
		}
		next := events
		if i+1 < len(plan) {
			next = plan[i+1].at
		}
		gap := next - plan[i].at
		d.feeder.allow(plan[i].at+gap/4, gap/16, plan[i].at+3*gap/4)
	}
	open(0)
	if err := d.watchChangelogs(ctx); err != nil {
		return err
	}
	for i, s := range plan {
		err := d.watcher.awaitProgress(ctx, s.at)
		if err != nil {
			return err
		}
		if s.broker {
			err = d.strikeBroker(ctx)
		} else {
			err = d.strike(ctx, k, d.processes[s.victim], s.stays)
		}
		if err != nil {
			return err
		}
		open(i + 1)
	}
	return nil
}

// more says whether there is work to be killed in, and sees to it if it can.
func (d *demo) more() bool {
	allowed, done := d.feeder.allowed(), int64(0)
	d.watcher.look(func(a *audit, _ map[shardName]string) { done, _ = a.through() })
	return done < allowed || d.feeder.allowMore()
}

// strike makes one kill, and starts the victim again.
func (d *demo) strike(ctx context.Context, k *killer, victim *process, stays bool) error {
	moves := d.watcher.movesSoFar()
	_, pid := victim.now()
	middle, err := k.kill(ctx, victim)
	if err != nil {
		return err
	}
	name, where, what := victim.child.instance, "between two transactions", "it restarts at once"
	if middle {
		where = "in the middle of a transaction"
	}
	if stays {
		what = "it stays down, and the other takes over"
	}
	d.mu.Lock()
	d.mu.kills++
	if middle {
		d.mu.middle++
	}
	d.mu.Unlock()
	d.view.say("kill -9 of process %s (pid %d) %s; %s", name, pid, where, what)
	if stays {
		if err := k.stayDown(ctx, victim); err != nil {
			return err
		}
	}
	if n := d.watcher.takenFrom(name, moves); n > 0 {
		d.mu.Lock()
		d.mu.takeovers++
		d.mu.Unlock()
		d.view.say("the other process has taken %d shards over; process %s comes back", n, name)
	}
	return victim.start()
}

// changelogPoll is how often the changelogs are looked for, which the
// application creates.
const changelogPoll = 50 * time.Millisecond

// watchChangelogs watches the changelogs once they are there.
func (d *demo) watchChangelogs(ctx context.Context) error {
	names := []string{d.names.changesLog, d.names.byAuthorLog}
	for {
		there, err := d.admin.Topics(ctx, names...)
		if err != nil {
			return err
		}
		if len(there) == len(names) {
			d.watcher.watch(filestats.Partitions, names...)
			return nil
		}
		if err := pause(ctx, changelogPoll, nil); err != nil {
			return err
		}
	}
}

// drain asks all processes to finish what they have begun, and waits for their
// end.
func (d *demo) drain() error {
	d.enter("draining")
	errs := make([]error, len(d.processes))
	var wg sync.WaitGroup
	for i, p := range d.processes {
		wg.Go(func() { errs[i] = p.stop(childDrain + 15*time.Second) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// judgeTime bounds how long it takes to read the rest: an open transaction of
// a process that was killed ends within its timeout.
const judgeTime = 60 * time.Second

// judge reads to the end, opens the stores, and compares. Of a run that was
// interrupted only what was consumed is judged.
func (d *demo) judge(in *input, interrupted bool) (*result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), judgeTime)
	defer cancel()
	ends, err := d.admin.Offsets(ctx, kafka.End, d.watcher.partitions()...)
	if err != nil {
		return nil, err
	}
	stable, err := d.admin.Offsets(ctx, kafka.StableEnd, d.watcher.partitions()...)
	if err != nil {
		return nil, err
	}
	if !maps.Equal(ends, stable) {
		// Until it does, it hides what others have committed after it.
		d.view.say("waiting for the transaction of a killed process to time out")
	}
	if err := d.watcher.awaitOffsets(ctx, ends); err != nil {
		return nil, err
	}
	var dirs []string
	for _, p := range d.processes {
		dirs = append(dirs, p.child.stateDir)
	}
	stores, err := readStores(d.log, d.application, dirs...)
	if err != nil {
		return nil, err
	}
	r := &result{Interrupted: interrupted, want: in.want}
	d.watcher.look(func(a *audit, _ map[shardName]string) {
		sum := a.got.sum()
		r.Events, r.Added, r.Deleted = sum.Events, sum.Added, sum.Deleted
		r.Paths, r.Authors, r.Days, r.AuthorDays = len(a.got.paths), len(a.got.authors), a.got.days(), len(a.got.authorDays)
		r.Duplicated = a.byPath.surplus + a.byAuthor.surplus
		if interrupted {
			r.Lost = a.byPath.skipped() + a.byAuthor.skipped()
			r.wrong = a.interrupted()
		} else {
			r.Lost = a.byPath.lost() + a.byAuthor.lost()
			r.wrong = a.verdict(in, stores)
		}
	})
	d.mu.Lock()
	r.Kills, r.BrokerKills, r.Takeovers, r.middle = d.mu.kills, d.mu.brokerKills, d.mu.takeovers, d.mu.middle
	d.mu.Unlock()
	r.Verified = !interrupted && r.wrong.count == 0
	r.Seconds = math.Round(time.Since(d.began).Seconds()*10) / 10
	return r, nil
}

// enter says what the run is doing.
func (d *demo) enter(phase string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.phase = phase
}

// snapshot is how the run stands.
func (d *demo) snapshot() snapshot {
	d.mu.Lock()
	s := snapshot{phase: d.mu.phase, total: d.mu.total, kills: d.mu.kills, middle: d.mu.middle, takeovers: d.mu.takeovers, planned: d.cfg.kills, brokerKills: d.mu.brokerKills}
	d.mu.Unlock()
	s.fed = d.feeder.fed()
	for _, p := range d.processes {
		state, pid := p.now()
		s.processes = append(s.processes, processView{p.child.instance, state, pid})
	}
	d.watcher.look(func(a *audit, owners map[shardName]string) {
		s.done, s.progress = a.through()
		s.duplicated = a.byPath.surplus + a.byAuthor.surplus
		s.added, s.deleted = a.increase.Added, a.increase.Deleted
		for _, set := range []struct{ name, shown string }{{d.names.changesSet, "by path"}, {d.names.byAuthorSet, "by author"}} {
			row := make([]string, filestats.Partitions)
			for p := range row {
				row[p] = owners[shardName{set.name, int32(p)}]
			}
			s.shards, s.rows = append(s.shards, row), append(s.rows, set.shown)
		}
	})
	return s
}
