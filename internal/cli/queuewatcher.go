package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// queueWatcher knows a run of the demo of a work queue by what is published.
type queueWatcher struct {
	*tail
	topics []string    // input, receipts, dead letters, redriven
	audit  *queueAudit // guarded by the tail's lock
}

func newQueueWatcher(cfg kafka.Config, seed uint64, topics []string) (_ *queueWatcher, err error) {
	w := &queueWatcher{topics: topics, audit: newQueueAudit(seed)}
	if w.tail, err = newTail(cfg, w.takeLocked); err != nil {
		return nil, err
	}
	w.watch(queuePartitions, topics...)
	return w, nil
}

// takeLocked notes what a message says.
func (w *queueWatcher) takeLocked(e *topic.Envelope) {
	at := position{e.Partition, e.Offset}
	switch e.TopicName() {
	case w.topics[0]:
		w.audit.input(at)
	case w.topics[1]:
		w.audit.receipt(at, e.Key, e.Value)
	case w.topics[2]:
		w.audit.letter(at, e.Headers)
	case w.topics[3]:
		w.audit.comeback(at, e.Headers)
	}
}

// await waits until what was read fits the condition.
func (w *queueWatcher) await(ctx context.Context, condition func(*queueAudit) bool) error {
	return w.tail.await(ctx, func() bool { return condition(w.audit) })
}

// look calls fn with what was read so far, which must not be changed.
func (w *queueWatcher) look(fn func(*queueAudit)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fn(w.audit)
}

// queueSnapshot is how a run of the queue demo stands.
type queueSnapshot struct {
	phase          string
	total, fed     int64
	audit          queueAudit // its counts
	kills, planned int
	brokerKills    int
	processes      []processView
}

func (q *queueDemo) queueSnapshot() queueSnapshot {
	q.mu.Lock()
	s := queueSnapshot{phase: q.mu.phase, total: q.mu.total, kills: q.mu.kills, planned: q.cfg.kills, brokerKills: q.mu.brokerKills}
	q.mu.Unlock()
	s.fed = q.feeder.fed()
	for _, p := range q.processes {
		state, pid := p.now()
		s.processes = append(s.processes, processView{p.child.instance, state, pid})
	}
	q.watch.look(func(a *queueAudit) {
		s.audit = *a
		s.audit.items, s.audit.last, s.audit.returnedTo = nil, nil, nil // which belong to the watcher
	})
	return s
}

func (s queueSnapshot) counted() int64 { return s.audit.settled() }

func (s queueSnapshot) percent() int64 {
	if s.total == 0 {
		return 0
	}
	return min(100, s.audit.acked*100/s.total)
}

// line is the snapshot in one line.
func (s queueSnapshot) line(rate float64) string {
	return fmt.Sprintf("%s: %s fed, %s acked (%d%%), %s/s; %s retried, %s dead-lettered, %s redriven, %s redelivered; %d of %d kills%s", s.phase,
		thousands(s.fed), thousands(s.audit.acked), s.percent(), thousands(int64(rate)), thousands(s.audit.retried), thousands(s.audit.deadLettered),
		thousands(s.audit.redriven), thousands(s.audit.redelivered), s.kills, s.planned, ofBroker(s.brokerKills))
}

// lines are the snapshot as it is kept up to date on a terminal, none wider
// than 78 columns.
func (s queueSnapshot) lines(rate float64, passed time.Duration, colour bool) []string {
	green := func(text string) string {
		if !colour {
			return text
		}
		return "\x1b[32m" + text + "\x1b[0m"
	}
	filled := int(s.percent()) * barWidth / 100
	var processes []string
	for _, p := range s.processes {
		processes = append(processes, p.name+" "+p.state.orStarting())
	}
	return []string{
		"",
		fmt.Sprintf("  %-10.10s %s%s %3d%%  %02d:%02d", s.phase, green(strings.Repeat("█", filled)), strings.Repeat("░", barWidth-filled), s.percent(), int(passed.Minutes()), int(passed.Seconds())%60),
		fmt.Sprintf("  %-10s %s fed, %s acked, %s a second", "messages", thousands(s.fed), thousands(s.audit.acked), thousands(int64(rate))),
		fmt.Sprintf("  %-10s %s retried, %s dead-lettered, %s redriven", "failures", thousands(s.audit.retried), thousands(s.audit.deadLettered), thousands(s.audit.redriven)),
		fmt.Sprintf("  %-10s %s", "processes", strings.Join(processes, "   ")),
		fmt.Sprintf("  %-10s %d of %d%s; redelivered %s", "kill -9", s.kills, s.planned, ofBroker(s.brokerKills), thousands(s.audit.redelivered)),
	}
}
