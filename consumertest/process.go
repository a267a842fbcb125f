package consumertest

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/clock"
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
	ctx, cancel := context.WithCancel(clock.With(context.Background(), c.clock(p.name)))
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
