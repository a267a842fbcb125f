package consumertest

import (
	"fmt"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/clock"
	"github.com/pawlstream/pawl/topic"
)

// now is the time of the shard's clock.
func (s *Shard) now() time.Time { return time.Now().Add(s.late) }

// Advance commits what is open, moves the shard's clock, which says when timers
// are due and what has outlived its TTL, and does what an application does as time
// goes by: it fires the timers that are due, each in a transaction of its own, in
// order of their times, and sweeps over the keys. An error fails the test: see
// TryAdvance.
func (s *Shard) Advance(d time.Duration) {
	s.t.Helper()
	if err := s.TryAdvance(d); err != nil {
		s.t.Fatalf("shard %s: %v%s", s.id, err, stack(err))
	}
}

// TryAdvance is Advance for a Fire or Flush that may fail. An error has aborted
// the transaction of the timer that failed, as Abort does: it is still due, and
// so are those after it.
func (s *Shard) TryAdvance(d time.Duration) error {
	s.t.Helper()
	if err := s.TryCommit(); err != nil {
		return err
	}
	s.late += d
	if err := s.fireDue(); err != nil {
		return err
	}
	return s.sweep()
}

// fireDue fires the timers that are due, also those that are set meanwhile.
func (s *Shard) fireDue() error {
	s.t.Helper()
	c, ok := s.consumer.(consumer.TimerConsumer)
	for ok {
		due, err := s.db.DueTimers(s.now(), 1)
		if err != nil {
			s.t.Fatalf("shard %s: %v", s.id, err)
		}
		if len(due) == 0 {
			break
		}
		timer := due[0]
		if _, err := s.db.TakeTimer(timer); err != nil {
			s.t.Fatalf("shard %s: %v", s.id, err)
		}
		s.open++
		if err := s.publishing(func(p *topic.Publisher) error { return c.Fire(timer.Key, timer.At, s.handle, p) }); err != nil {
			s.Abort()
			return &consumer.TimerError{Shard: s.id, Key: timer.Key, At: timer.At, Err: err}
		}
		if err := s.TryCommit(); err != nil {
			return err
		}
	}
	return nil
}

// sweep goes over all keys once.
func (s *Shard) sweep() error {
	s.t.Helper()
	sweep := consumer.NewSweep(s.db, s.consumer)
	for done := sweep == nil; !done; {
		err := call(func() (err error) {
			done, err = sweep.Step(1000)
			return err
		})
		if err != nil {
			s.Abort()
			return fmt.Errorf("sweep: %w", err)
		}
		if s.db.Transaction().Size() == 0 {
			continue
		}
		s.open++
		if err := s.TryCommit(); err != nil {
			return err
		}
	}
	return nil
}

// StepClock sets the clock of the machine that a process runs on forward, or
// back, also before the process is started, and for all its lives: the time of
// day, which timers and the TTL of tables go by. How much time passes is another
// matter: that is the same for all, and only Advance, Settle and Until move it.
func (c *Cluster) StepClock(name string, by time.Duration) { c.clock(name).Step(by) }

// clock is the clock of a process's machine.
func (c *Cluster) clock(name string) *clock.Clock {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.clocks[name] == nil {
		if c.mu.clocks == nil {
			c.mu.clocks = make(map[string]*clock.Clock)
		}
		c.mu.clocks[name] = new(clock.Clock)
	}
	return c.mu.clocks[name]
}
