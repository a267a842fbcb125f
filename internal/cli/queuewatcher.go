package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// queueWatcher reads the topics of a run of the queue demo from their
// beginning, read committed. All that the demo knows of a run, it knows from
// here.
type queueWatcher struct {
	reader *kafka.Reader
	topics []string // input, receipts, dead letters, redriven

	mu struct {
		sync.Mutex
		audit   *queueAudit
		next    map[topic.Partition]int64
		changed chan struct{} // closed, and replaced, when something was read
		err     error         // why nothing more is read
	}
}

func newQueueWatcher(cfg kafka.Config, seed uint64, topics []string) (*queueWatcher, error) {
	reader, err := kafka.NewReader(cfg, kafka.ReaderConfig{Committed: true})
	if err != nil {
		return nil, err
	}
	w := &queueWatcher{reader: reader, topics: topics}
	w.mu.audit = newQueueAudit(seed)
	w.mu.next = make(map[topic.Partition]int64)
	w.mu.changed = make(chan struct{})
	for _, name := range topics {
		for p := range int32(queuePartitions) {
			w.mu.next[topic.Partition{Topic: name, Number: p}] = 0
			reader.Consume(topic.Bytes(name).Description, p, 0)
		}
	}
	return w, nil
}

// run reads until ctx ends.
func (w *queueWatcher) run(ctx context.Context) {
	var batch kafka.Batch
	for {
		err := w.reader.Poll(ctx, pollMax, &batch)
		if ctx.Err() != nil {
			return
		}
		w.mu.Lock()
		w.takeLocked(&batch)
		if err != nil {
			w.mu.err = fmt.Errorf("read what the run has published: %w", err)
		}
		close(w.mu.changed)
		w.mu.changed = make(chan struct{})
		w.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (w *queueWatcher) takeLocked(batch *kafka.Batch) {
	for i := range batch.Envelopes {
		e := &batch.Envelopes[i]
		at := position{e.Partition, e.Offset}
		switch e.TopicName() {
		case w.topics[0]:
			w.mu.audit.input(at)
		case w.topics[1]:
			w.mu.audit.receipt(at, e.Key, e.Value)
		case w.topics[2]:
			w.mu.audit.letter(at, e.Headers)
		case w.topics[3]:
			w.mu.audit.comeback(at, e.Headers)
		}
	}
	for _, p := range batch.Parts {
		w.mu.next[p.Partition] = p.Next
	}
}

// await waits until what was read fits the condition.
func (w *queueWatcher) await(ctx context.Context, condition func(*queueAudit) bool) error {
	return w.wait(ctx, func() bool { return condition(w.mu.audit) })
}

// wait waits until the condition holds, which is called with the watcher
// locked.
func (w *queueWatcher) wait(ctx context.Context, condition func() bool) error {
	for {
		w.mu.Lock()
		ok, changed, err := condition(), w.mu.changed, w.mu.err
		w.mu.Unlock()
		switch {
		case ok:
			return nil
		case err != nil:
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// awaitEnds waits until everything that is there now is read.
func (w *queueWatcher) awaitEnds(ctx context.Context, admin *kafka.Admin) error {
	w.mu.Lock()
	parts := slices.Collect(maps.Keys(w.mu.next))
	w.mu.Unlock()
	ends, err := admin.Offsets(ctx, kafka.End, parts...)
	if err != nil {
		return err
	}
	behind := func() (ps []string) {
		for p, end := range ends {
			if w.mu.next[p] < end {
				ps = append(ps, fmt.Sprintf("%s at %d of %d", p, w.mu.next[p], end))
			}
		}
		return ps
	}
	err = w.wait(ctx, func() bool { return len(behind()) == 0 })
	if err != nil && ctx.Err() != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		return fmt.Errorf("read all that is there: %s: %w", strings.Join(behind(), ", "), err)
	}
	return err
}

// look calls fn with what was read so far, which must not be changed.
func (w *queueWatcher) look(fn func(*queueAudit)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fn(w.mu.audit)
}

// queueSnapshot is how a run of the queue demo stands.
type queueSnapshot struct {
	phase          string
	total, fed     int64
	audit          queueAudit // its counts
	kills, planned int
	processes      []processView
}

func (q *queueDemo) queueSnapshot() queueSnapshot {
	q.mu.Lock()
	s := queueSnapshot{phase: q.mu.phase, total: q.mu.total, kills: q.mu.kills, planned: q.cfg.kills}
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
	return fmt.Sprintf("%s: %s fed, %s acked (%d%%), %s/s; %s retried, %s dead-lettered, %s redriven, %s redelivered; %d of %d kills", s.phase,
		thousands(s.fed), thousands(s.audit.acked), s.percent(), thousands(int64(rate)), thousands(s.audit.retried), thousands(s.audit.deadLettered),
		thousands(s.audit.redriven), thousands(s.audit.redelivered), s.kills, s.planned)
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
		fmt.Sprintf("  %-10s %d of %d; redelivered %s", "kill -9", s.kills, s.planned, thousands(s.audit.redelivered)),
	}
}
