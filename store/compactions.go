package store

import (
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// compactions says when a database may compact. The library's default asks each
// database ten times a second whether it wants to, and goes on asking after an
// Open that failed. This one asks when a flush or a compaction has ended, which
// is when the answer changes; and a restore can hold it.
type compactions struct {
	pebble.CompactionScheduler
	held atomic.Bool
}

func newCompactions() *compactions {
	return &compactions{CompactionScheduler: pebble.NewConcurrencyLimitSchedulerWithNoPeriodicGrantingForTest()}
}

// TrySchedule implements pebble.CompactionScheduler.
func (c *compactions) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	if c.held.Load() {
		return false, nil
	}
	return c.CompactionScheduler.TrySchedule()
}

// hold makes compactions wait that have not begun.
func (c *compactions) hold() { c.held.Store(true) }

// release lets them go on. Those that were refused ask no more by themselves:
// but the end of one makes the scheduler look for what waits, and so does a
// permission that is given back.
func (c *compactions) release() {
	c.held.Store(false)
	if ok, permission := c.CompactionScheduler.TrySchedule(); ok {
		permission.Done()
	}
}
