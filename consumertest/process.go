package consumertest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/store"
)

// Process is a process of a cluster: it reaches the broker by cl, keeps its
// files in stateDir, and returns once ctx has ended and everything that it
// started has stopped.
type Process func(ctx context.Context, cl cluster.Cluster, stateDir string) error

// process is one life of a process, from its start to its end or its crash.
type process struct {
	name     string
	host     string
	dir      string
	run      Process
	app      *consumer.App // nil for a Process of the test's own
	config   *application  // what it runs, if it runs an app
	instance string        // and its name in the group
	stats    *prometheus.Registry
	cancel   context.CancelFunc
	silence  func()        // ends its log
	done     chan struct{} // closed when it has returned
	err      error         // its error, once it has

	crashed  atomic.Bool
	gone     atomic.Int64 // when it ended or crashed, in nanoseconds; 0 while it runs
	buried   bool         // the group was told that it is gone
	stopping bool         // it was told to
	seen     bool         // the test knows its error
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// live says whether the process is one that the world sees.
func (p *process) live() bool { return !p.crashed.Load() && !p.ended() }

// StartProcess starts another process of the application that [Start] was
// given, or starts one again that was stopped or has ended.
func (c *Cluster) StartProcess(name string) {
	c.t.Helper()
	if len(c.app.consumers) == 0 {
		c.t.Fatalf("start process %s: the cluster has no application of its own: use StartApp or Run", name)
	}
	c.StartApp(name, c.app.cfg, c.app.consumers...)
}

// StartApp starts a process with consumers of its own, of this or another
// application, with the zero fields of cfg filled in as by [Start].
func (c *Cluster) StartApp(name string, cfg consumer.Config, consumers ...consumer.Consumer) {
	c.t.Helper()
	app := application{cfg, consumers}
	app.cfg.Application = cmp.Or(cfg.Application, "test")
	c.createTopics(app)
	c.startApp(name, &app)
}

func (c *Cluster) startApp(name string, app *application) {
	c.t.Helper()
	p := c.newProcess(name)
	p.config = app
	cfg := app.cfg
	cfg.Instance = cmp.Or(cfg.Instance, name)
	p.instance = cfg.Instance
	if cfg.StateDir == "" {
		cfg.StateDir = p.dir
	}
	if len(cfg.Cluster.Brokers) == 0 {
		cfg.Cluster = c.broker.Host(p.host)
	}
	if cfg.Logger == nil {
		cfg.Logger, p.silence = newProcessLog(logger(c.t).With("process", name).Handler())
	}
	if cfg.Registerer == nil {
		p.stats = prometheus.NewRegistry()
		cfg.Registerer = p.stats
	}
	a, err := consumer.New(cfg, app.consumers...)
	if err != nil {
		c.t.Fatalf("process %s: %v", name, err)
	}
	p.app = a
	p.run = func(ctx context.Context, _ cluster.Cluster, _ string) error { return a.Run(ctx) }
	c.start(p)
}

// Run starts a process that is any function.
func (c *Cluster) Run(name string, run Process) {
	c.t.Helper()
	p := c.newProcess(name)
	p.run = run
	c.start(p)
}

// newProcess returns the next life of a process.
func (c *Cluster) newProcess(name string) *process {
	c.t.Helper()
	if strings.ContainsAny(name, "/#") || name == "" || name == kitHost {
		c.t.Fatalf("a process can't be named %q", name)
	}
	if p := c.last(name); p != nil && p.live() {
		c.t.Fatalf("process %s runs already", name)
	}
	life := c.life(name)
	p := &process{name: name, host: c.host(name), dir: c.stateDir(name, life), silence: func() {}, done: make(chan struct{})}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		c.t.Fatal(err)
	}
	return p
}

func (c *Cluster) start(p *process) {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	c.mu.Lock()
	c.mu.processes = append(c.mu.processes, p)
	c.mu.Unlock()
	go func() {
		defer close(p.done)
		p.err = p.run(ctx, c.broker.Host(p.host), p.dir)
		p.gone.CompareAndSwap(0, time.Now().UnixNano())
	}()
}

// last returns the last life of a process, or nil if there was none.
func (c *Cluster) last(name string) *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range slices.Backward(c.mu.processes) {
		if p.name == name {
			return p
		}
	}
	return nil
}

// running returns a process that runs, and fails the test if it does not.
func (c *Cluster) running(name string) *process {
	c.t.Helper()
	p := c.last(name)
	switch {
	case p == nil:
		c.t.Fatalf("there is no process %s", name)
	case p.crashed.Load():
		c.t.Fatalf("process %s has crashed", name)
	}
	return p
}

// life returns how often the process has crashed.
func (c *Cluster) life(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.lives[name]
}

// Stop tells a process to stop, as SIGTERM does, waits until it has, and
// returns its error.
func (c *Cluster) Stop(name string) error {
	c.t.Helper()
	p := c.running(name)
	p.stopping = true
	p.cancel()
	return c.Wait(name)
}

// Wait waits until a process has ended by itself, and returns its error. A
// process that ends with an error that nobody waits for fails the test.
func (c *Cluster) Wait(name string) error {
	c.t.Helper()
	p := c.running(name)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		c.t.Fatalf("process %s has not ended after %v\n%s", name, patience, c.dump())
	}
	p.seen = true
	return p.err
}

// Crash ends a process as kill -9 does: from this instant nothing that it does
// reaches the broker or its files. What it had sent and was on its way is lost
// or arrives, as the network has it. Restart runs it again on its files as they
// are now.
//
// Its code can't be ended in this way. It runs on, against a network that is
// gone, in a directory that nobody looks into any more, until it has stopped.
func (c *Cluster) Crash(name string) {
	c.t.Helper()
	p := c.running(name)
	if p.ended() {
		c.t.Fatalf("crash process %s: it has ended: %v", name, p.err)
	}
	c.rest()
	if err := c.kill(p, c.bubble); err != nil {
		c.t.Fatal(err)
	}
}

// CrashAt crashes a process, which may be one that is not started yet, at the
// nth time from now, counted from 1, that it passes a crash point: one of those
// that are named in the code of Pawl by invariants.Crash. It returns what says
// whether that has happened.
//
// Points don't know whose they are, so it is for clusters in which nothing else
// runs. It needs the build tag invariants, and skips the test without.
func (c *Cluster) CrashAt(name, point string, nth int) (crashed func() bool) {
	c.t.Helper()
	if !invariants.Enabled {
		c.t.Skip("a crash point needs the build tag invariants: go test -tags invariants")
	}
	var passes atomic.Int64
	var happened atomic.Bool
	disarm := invariants.Arm(point, func() {
		if passes.Add(1) != int64(nth) {
			return
		}
		p := c.last(name)
		if p == nil || !p.live() {
			return
		}
		if err := c.kill(p, false); err != nil {
			c.t.Error(err)
		}
		happened.Store(true)
	})
	c.t.Cleanup(disarm)
	return happened.Load
}

// kill makes the world see nothing of the process any more. It is called by
// the test, or by a goroutine of the process. At rest says that nothing moves:
// then the files are taken before the network is cut, since that would move
// something.
func (c *Cluster) kill(p *process, atRest bool) error {
	if !atRest {
		c.broker.Cut(p.host)
	}
	if err := copyStill(c.stateDir(p.name, c.life(p.name)+1), p.dir); err != nil {
		return fmt.Errorf("crash process %s: %w", p.name, err)
	}
	c.broker.Cut(p.host)
	p.silence()
	p.gone.CompareAndSwap(0, time.Now().UnixNano())
	p.crashed.Store(true)
	c.mu.Lock()
	c.mu.lives[p.name]++
	delete(c.mu.broken, p.host)
	c.mu.Unlock()
	p.cancel()
	return nil
}

// Restart starts a process again that was stopped, has ended or has crashed: as
// it was started last, as the same instance, on its files.
func (c *Cluster) Restart(name string) {
	c.t.Helper()
	old := c.last(name)
	switch {
	case old == nil:
		c.t.Fatalf("there is no process %s", name)
	case old.config != nil:
		c.startApp(name, old.config)
	default:
		c.Run(name, old.run)
	}
}

// copyStill copies a directory as it is at one instant: again, if it changed
// meanwhile, as it may in real time.
func copyStill(to, from string) error {
	const tries = 100
	for range tries {
		before, err := listing(from)
		if err != nil {
			return err
		}
		if err := os.RemoveAll(to); err != nil {
			return err
		}
		copyErr := os.CopyFS(to, os.DirFS(from))
		after, err := listing(from)
		if err != nil {
			return err
		}
		if copyErr == nil && before == after {
			return nil
		}
	}
	return fmt.Errorf("copy %s: it did not come to rest", from)
}

// listing describes the files of a directory: names, sizes, times.
func listing(dir string) (string, error) {
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil // it was there a moment ago
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Fprintln(&b, path, info.Size(), info.ModTime().UnixNano())
		return nil
	})
	return b.String(), err
}

// Status returns how an application is in a process, as the process sees it.
func (c *Cluster) Status(name string) consumer.Status {
	c.t.Helper()
	return c.App(name).Status()
}

// App returns the application that a process runs.
func (c *Cluster) App(name string) *consumer.App {
	c.t.Helper()
	p := c.running(name)
	if p.app == nil {
		c.t.Fatalf("process %s runs a function of the test's own", name)
	}
	return p.app
}

// Metric returns the sum of all series of one of a process's metrics, since it
// was started last.
func (c *Cluster) Metric(process, metric string) float64 {
	c.t.Helper()
	p := c.running(process)
	if p.stats == nil {
		c.t.Fatalf("process %s has its own Registerer", process)
	}
	families, err := p.stats.Gather()
	if err != nil {
		c.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != metric {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// View calls fn, once, with the committed state of a shard, in the process in
// which it runs. If it is on its way to one, View waits until it is there.
func (c *Cluster) View(id consumer.ShardID, fn func(*store.Transaction)) {
	c.t.Helper()
	c.Until("a process to answer for shard "+string(id), func() bool {
		for _, p := range c.apps() {
			called := false
			err := p.app.View(id, func(tx *store.Transaction) error {
				called = true
				fn(tx)
				return nil
			})
			if called && err != nil {
				c.t.Fatalf("view shard %s in process %s: %v", id, p.name, err)
			}
			if called {
				return true
			}
		}
		return false
	})
}

// bury removes from their groups the processes that are gone for longer than
// their session. A broker does so by itself, but not this one where the process
// was about to join when it went: it would count as a member for ever.
func (c *Cluster) bury() {
	c.t.Helper()
	c.mu.Lock()
	processes := slices.Clone(c.mu.processes)
	c.mu.Unlock()
	alive := make(map[[2]string]bool)
	for _, p := range processes {
		if p.app != nil && p.live() {
			alive[[2]string{p.config.cfg.Application, p.instance}] = true
		}
	}
	for _, p := range processes {
		if p.app == nil || p.live() || p.buried {
			continue
		}
		session := cmp.Or(p.config.cfg.SessionTimeout, sessionTimeout)
		if time.Since(time.Unix(0, p.gone.Load())) <= session+time.Second {
			continue
		}
		p.buried = true
		if alive[[2]string{p.config.cfg.Application, p.instance}] {
			continue
		}
		ctx, cancel := c.context()
		err := c.admin.RemoveInstance(ctx, p.config.cfg.Application, p.instance)
		cancel()
		if err != nil {
			c.t.Fatal(err)
		}
	}
}

// apps returns the processes that run an application and can be reached.
func (c *Cluster) apps() (ps []*process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.mu.processes {
		if p.app != nil && p.live() && !c.mu.broken[p.host] {
			ps = append(ps, p)
		}
	}
	return ps
}
