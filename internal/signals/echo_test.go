package signals

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// The same signal at once is no second wish; another one is, and so is the same
// a moment later.
func TestEcho(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	var e Echo
	e.First(syscall.SIGTERM, at)
	for _, c := range []struct {
		signal os.Signal
		after  time.Duration
		want   bool
	}{
		{syscall.SIGTERM, 0, true},
		{syscall.SIGTERM, time.Millisecond, true},
		{syscall.SIGINT, time.Millisecond, false},
		{syscall.SIGTERM, time.Second, false},
	} {
		if got := e.Hears(c.signal, at.Add(c.after)); got != c.want {
			t.Errorf("%v after %v: %v, want %v", c.signal, c.after, got, c.want)
		}
	}
}
