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

	// cutsMax is how often in a row a connection is cut off before that is taken
	// for an answer: a port that wants TLS or SASL does so, and once in a while
	// so does a broker that starts or stops.
	cutsMax = 3
)

// Await does what needs the cluster at start, again and again for as long as
// patience lasts, while what is wrong may go away by itself: a broker that is
// not up yet, or is busy. That it waits, and for what, it logs once. What only
// somebody can mend, such as a wrong password, it returns at once.
func Await(ctx context.Context, patience time.Duration, log *slog.Logger, do func() error) error {
	begun := time.Now()
	cuts := 0 // in a row
	for wait, tries := awaitPauseMin, 1; ; wait, tries = min(2*wait, awaitPauseMax), tries+1 {
		err := do()
		waited := time.Since(begun)
		wrong := mistaken(err)
		if wrong != nil && isConnectionLoss(wrong.Err) {
			cuts++
		} else {
			cuts = 0
		}
		switch {
		case err == nil:
			if tries > 1 {
				log.Info("the cluster is there", "waited", waited.Round(time.Millisecond))
			}
			return nil
		case ctx.Err() != nil:
			return err
		case !Transient(err), wrong != nil && (cuts == 0 || cuts >= cutsMax):
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

// mistaken returns the error of a broker that was reached, and for which this
// side is set up wrongly; nil if there is none.
func mistaken(err error) *ConnectError {
	if e := (*ConnectError)(nil); errors.As(err, &e) && e.kind != Unreached {
		return e
	}
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if e := mistaken(err); e != nil {
				return e
			}
		}
	case interface{ Unwrap() error }:
		return mistaken(e.Unwrap())
	}
	return nil
}
