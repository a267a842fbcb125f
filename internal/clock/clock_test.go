package clock

import (
	"testing"
	"testing/synctest"
	"time"
)

// Time that passes, and a clock that is set, are told apart, and age never goes
// back.
func TestSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct{ passes, step, since time.Duration }{
			{time.Second, 0, time.Second},
			{time.Second, time.Hour, time.Hour + time.Second},
			{time.Second, -time.Hour, time.Second},
			{2 * time.Hour, -time.Hour, 2 * time.Hour},
		} {
			c := From(With(t.Context(), &Clock{}))
			r := c.Read()
			time.Sleep(tt.passes) // virtual time
			c.Step(tt.step)
			if got := c.Since(r); got != tt.since {
				t.Errorf("%v after a reading, and set by %v: since %v, want %v", tt.passes, tt.step, got, tt.since)
			}
			if got := c.Stepped(r); got != tt.step {
				t.Errorf("%v after a reading, and set by %v: stepped %v", tt.passes, tt.step, got)
			}
			if got, want := c.Now(), time.Now().Add(tt.step); !got.Equal(want) {
				t.Errorf("now %v, want %v", got, want)
			}
		}
		var own *Clock
		if got := own.Now(); !got.Equal(time.Now()) || From(t.Context()) != nil {
			t.Errorf("the machine's own clock says %v at %v", got, time.Now())
		}
	})
}
