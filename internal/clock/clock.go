// Package clock tells the time of day of a machine, as apart from how much time
// has passed: the one can be set, by hundreds of milliseconds or by days, forward
// and back, and also stands still while a virtual machine is suspended only to
// jump when it goes on; the other goes on evenly. What is stored, or read from a
// message, is of the first kind, and has to stand its being set; what waits in a
// process is of the second.
package clock

import (
	"context"
	"sync/atomic"
	"time"
)

// A Clock is a machine's time of day. Nil is the machine's own.
type Clock struct {
	ahead atomic.Int64 // of the machine's
}

// Now returns the time of day. It has no monotonic reading: what is compared with
// it is compared by the calendar.
func (c *Clock) Now() time.Time {
	now := time.Now().Round(0)
	if c == nil {
		return now
	}
	return now.Add(time.Duration(c.ahead.Load()))
}

// Step sets the clock forward, or back.
func (c *Clock) Step(by time.Duration) { c.ahead.Add(int64(by)) }

type key struct{}

// With returns a context whose program goes by a clock. It is for tests: virtual
// time can't be set back, and is the same for all machines.
func With(ctx context.Context, c *Clock) context.Context {
	return context.WithValue(ctx, key{}, c)
}

// From returns the clock that a program is to go by.
func From(ctx context.Context) *Clock {
	c, _ := ctx.Value(key{}).(*Clock)
	return c
}

// A Reading is a moment by both kinds of time.
type Reading struct {
	passed, day time.Time
}

// Read takes a reading.
func (c *Clock) Read() Reading { return Reading{time.Now(), c.Now()} }

// IsZero says whether none was taken.
func (r Reading) IsZero() bool { return r.passed.IsZero() }

// Time is when the reading was taken, by the machine's own time with its monotonic
// part, for those who ask how long ago that is.
func (r Reading) Time() time.Time { return r.passed }

// Day is the time of day at which the reading was taken.
func (r Reading) Day() time.Time { return r.day }

// Since returns how much time has passed since a reading at least: the more of
// what the two kinds of time say. A machine that was suspended has not counted
// that time, and learns of it from its time of day. One whose clock was set
// forward merely takes the reading for older than it is.
func (c *Clock) Since(r Reading) time.Duration {
	return max(time.Since(r.passed), c.Now().Sub(r.day))
}

// Stepped returns by how much the clock was set since a reading.
func (c *Clock) Stepped(r Reading) time.Duration {
	now := c.Read()
	return now.day.Sub(r.day) - now.passed.Sub(r.passed)
}
