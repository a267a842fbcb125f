package consumertest

import (
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/store"
)

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
