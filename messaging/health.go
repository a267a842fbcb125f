package messaging

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// writesFailing is how long retries or dead letters can't be written before the
// process is no longer ready.
const writesFailing = 5 * time.Second

// readsFailing is likewise how long a partition can't be read, if StuckAfter is
// not shorter. While a broker is restarted others take over its partitions, which
// is soon done and no reason.
const readsFailing = 30 * time.Second

// unreadable returns the partitions of topics that can't be read just now.
func (w *Worker) unreadable() map[topic.Partition]kafka.ReadFailure {
	w.mu.Lock()
	r := w.mu.reader
	w.mu.Unlock()
	if r == nil {
		return nil
	}
	return r.Failing()
}

// Health returns nil when the consumer does what it is there for, and otherwise
// everything that keeps it from it:
//
//   - it has not joined its group, or a partition does not run yet;
//   - commits fail, retries or dead letters can't be written, or a partition or
//     its delay topics can't be read;
//   - a message, whichever, has been with a handler for longer than
//     Config.StuckAfter, or unacked since the handler returned Later;
//   - the oldest unsettled message of a partition or of a delay topic makes no
//     progress for that long, and does not wait until it is due;
//   - the circuit breaker is not closed for that long: every attempt fails.
//
// A consumer that is paused does as it was told: that messages wait for Resume,
// and that no attempt closes the breaker, is nothing to report. Stats shows it.
//
// A message is looked at once a second, or every few seconds where very many are
// unsettled, so the last three may show that much later.
func (w *Worker) Health() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	now := time.Now()
	since := func(t time.Time) time.Duration { return now.Sub(t).Round(time.Second) }
	w.mu.Lock()
	switch {
	case !w.mu.started:
		bad("it has not started")
	case w.mu.stopping:
		bad("it stops")
	case !w.mu.joined:
		bad("it has not joined group %s", w.group)
	}
	if w.mu.commitErr != nil && now.Sub(w.mu.commitAt) >= w.cfg.SessionTimeout {
		bad("commits fail for %v: %w", since(w.mu.commitAt), w.mu.commitErr)
	}
	paused := w.mu.paused
	ps := slices.Collect(maps.Values(w.mu.partitions))
	w.mu.Unlock()
	failing := w.unreadable()
	open, last := w.breaker.ailing()
	if !open.IsZero() && !paused && now.Sub(open) >= w.cfg.StuckAfter {
		bad("the circuit breaker is open since %s, as handlers fail: %w", open.UTC().Format(time.RFC3339), last)
	}
	slices.SortFunc(ps, func(a, b *partition) int { return int(a.id.Number) - int(b.id.Number) })
	for _, p := range ps {
		p.mu.Lock()
		if p.mu.phase == phaseStarting {
			bad("partition %s does not run yet: %s", p.id, p.mu.reason)
		}
		for to, err := range p.mu.failingErr {
			if err != nil && now.Sub(p.mu.failing[to]) >= writesFailing {
				bad("partition %s: %s can't be written for %v: %w", p.id, [2]string{"retries", "dead letters"}[to], since(p.mu.failing[to]), err)
			}
		}
		for _, s := range p.mu.streams {
			if f, ok := failing[s.id]; ok && p.mu.phase == phaseRunning && now.Sub(f.Since) >= min(readsFailing, w.cfg.StuckAfter) {
				bad("partition %s: %s can't be read for %v: %w", p.id, s.id, since(f.Since), f.Err)
			}
			for _, d := range s.suspectsLocked() {
				if p.stuckLocked(d, now) {
					bad("partition %s: the message at offset %d with key %s is unsettled in its handler for %v", p.id, d.origin(), quote(d.key), since(*d.handed))
					break
				}
			}
			offset, d, why := p.stalledLocked(s, now)
			switch {
			case offset < 0:
			case d != nil && d.state.Load() != pending || open.IsZero():
				bad("partition %s: the oldest unsettled message, at offset %d, makes no progress for %v: %s", p.id, offset, since(s.vigil.moved), why)
			}
		}
		p.mu.Unlock()
	}
	return errors.Join(errs...)
}

// suspectsLocked returns the messages of a stream that may be stuck: the oldest
// one, and one that was found to be.
func (s *stream) suspectsLocked() []*delivery {
	_, d, _ := s.oldestLocked()
	return []*delivery{d, s.vigil.stuck}
}
