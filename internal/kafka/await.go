package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

const (
	// awaitPauseMin and awaitPauseMax are between two tries at a cluster that is
	// waited for.
	awaitPauseMin = 100 * time.Millisecond
	awaitPauseMax = time.Second
)

// Await does what needs the cluster at start, again and again for as long as
// patience lasts, while what is wrong may go away by itself: a broker that is
// not up yet, or is busy. That it waits, and for what, it logs once. What only
// somebody can mend, such as a wrong password, it returns at once.
func Await(ctx context.Context, patience time.Duration, log *slog.Logger, do func() error) error {
	begun := time.Now()
	for wait, tries := awaitPauseMin, 1; ; wait, tries = min(2*wait, awaitPauseMax), tries+1 {
		err := do()
		waited := time.Since(begun)
		switch {
		case err == nil:
			if tries > 1 {
				log.Info("the cluster is there", "waited", waited.Round(time.Millisecond))
			}
			return nil
		case ctx.Err() != nil:
			return err
		case !mayPass(err):
			return err
		case waited+wait > patience:
			return fmt.Errorf("%w (waited for %v)", err, waited.Round(time.Millisecond))
		case tries == 1:
			log.Warn("waiting for the cluster", "for at most", patience, "error", err)
		default:
			log.Debug("waiting for the cluster", "waited", waited.Round(time.Millisecond), "error", err)
		}
		if err := pause(ctx, nil, wait); err != nil {
			return context.Cause(ctx)
		}
	}
}

// mayPass says whether an error may be another one, or none, in a moment.
func mayPass(err error) bool {
	return Transient(err) && !mistaken(err)
}

// mistaken says whether any broker was reached, and this side is set up wrongly
// for it.
func mistaken(err error) bool {
	if e := (*ConnectError)(nil); errors.As(err, &e) && e.kind != Unreached {
		return true
	}
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if mistaken(err) {
				return true
			}
		}
	case interface{ Unwrap() error }:
		return mistaken(e.Unwrap())
	}
	return false
}
