package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// A cluster that is not there yet is waited for, with one line of log; what only
// somebody can mend is said at once, and the rest when patience ends.
func TestAwait(t *testing.T) {
	down := &ConnectError{Broker: "a:1", Err: syscall.ECONNREFUSED}
	login := &ConnectError{Broker: "b:1", Err: kerr.SaslAuthenticationFailed, kind: BadLogin}
	cut := &ConnectError{Broker: "c:1", Err: syscall.ECONNRESET, kind: WantsSASL}
	for _, c := range []struct {
		name  string
		err   error
		until time.Duration // when it goes away
		tries int           // at most
		took  time.Duration // at most
		fails bool
	}{
		{"it is there", nil, 0, 1, 0, false},
		{"it comes soon", down, 300 * time.Millisecond, 3, 300 * time.Millisecond, false},
		{"it comes late", down, 29 * time.Second, 40, 30 * time.Second, false},
		{"it does not come", down, time.Hour, 40, 30 * time.Second, true},
		{"the password is wrong", login, time.Hour, 1, 0, true},
		{"the password is wrong, and another broker is down", errors.Join(down, fmt.Errorf("and: %w", login)), time.Hour, 1, 0, true},
		{"a connection is cut off once", cut, 50 * time.Millisecond, 2, 100 * time.Millisecond, false},
		{"connections are cut off", cut, time.Hour, 3, 300 * time.Millisecond, true},
		{"the topic does not exist", fmt.Errorf("topic x: %w", ErrUnknownTopic), time.Hour, 1, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				begun, tries := time.Now(), 0
				err := Await(t.Context(), 30*time.Second, slog.New(slog.NewTextHandler(&log, nil)), func() error {
					tries++
					if time.Since(begun) >= c.until {
						return nil
					}
					return c.err
				})
				if (err != nil) != c.fails || c.fails && !errors.Is(err, c.err) {
					t.Errorf("error %v, want one: %v", err, c.fails)
				}
				if took := time.Since(begun); tries > c.tries || took > c.took {
					t.Errorf("%d tries in %v, want at most %d in %v", tries, took, c.tries, c.took)
				}
				want := 0
				if tries > 1 {
					want = 1
				}
				if got := strings.Count(log.String(), "waiting for the cluster"); got != want {
					t.Errorf("it is logged %d times that it waits, want %d:\n%s", got, want, log.String())
				}
			})
		})
	}
}

// Whoever waits for a cluster can be told to stop.
func TestAwaitIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopped := errors.New("stopped")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(5*time.Second, func() { cancel(stopped) })
		begun := time.Now()
		err := Await(ctx, time.Hour, slog.New(slog.DiscardHandler), func() error { return syscall.ECONNREFUSED })
		if took := time.Since(begun); !errors.Is(err, stopped) || took != 5*time.Second {
			t.Errorf("%v after %v, want %v after 5s", err, took, stopped)
		}
	})
}
