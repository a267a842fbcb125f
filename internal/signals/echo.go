// Package signals tells one wish to stop from two.
package signals

import (
	"os"
	"time"
)

// echoWindow is within what the same signal is the first one once more. A program
// that ends another one's group, as timeout(1) and some supervisors do, sends it
// to the process and then to the group that it is in.
const echoWindow = 200 * time.Millisecond

// Echo remembers the first signal to stop.
type Echo struct {
	first os.Signal
	at    time.Time
}

// First notes the first signal, which came at a time.
func (e *Echo) First(s os.Signal, at time.Time) { e.first, e.at = s, at }

// Hears says whether a signal is the first one once more, and no second wish.
func (e *Echo) Hears(s os.Signal, at time.Time) bool {
	return s == e.first && at.Sub(e.at) < echoWindow
}
