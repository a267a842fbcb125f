package consumer

import (
	"context"
	"time"
)

// clockStep is by how much a clock is set at least for anybody to be told: what
// is less is what keeps a clock right.
const clockStep = time.Second

// watchClock tells when the machine's time of day is set, and wakes the shards
// then: those that wait for a timer wait for a time that has passed, to come when
// it comes by the clock as it is now.
func (a *App) watchClock(ctx context.Context) {
	t := time.NewTicker(a.cfg.HeartbeatInterval)
	defer t.Stop()
	last := a.clock.Read()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		by := a.clock.Stepped(last)
		last = a.clock.Read()
		if by.Abs() < clockStep {
			continue
		}
		a.log.Warn("the machine's clock was set, or the machine stood still", "by", by.Round(time.Millisecond))
		for _, s := range a.all() {
			s.wake()
		}
	}
}

// until returns when, by time that passes, the time of day is reached.
func (a *App) until(day time.Time) time.Time {
	return time.Now().Add(day.Sub(a.clock.Now()))
}
