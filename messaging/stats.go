package messaging

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// Stats says how a consumer is in this process.
type Stats struct {
	Application string
	Consumer    string
	Topic       string
	Group       string
	Joined      bool  // the group has given this process an assignment
	Generation  int32 // of that assignment
	Paused      bool  // by Pause
	Breaker     string
	BreakerOpen time.Time        // since when the breaker is not closed; zero: it is
	BreakerErr  error            // that of the last attempt that failed, while it is not closed
	Partitions  []PartitionStats // in order of their numbers

	// Since the worker was started.
	Acked         int64            // messages
	Failed        int64            // attempts
	RetriedNow    int64            // attempts after which the message stayed in its place
	RetriedLater  int64            // attempts after which the message went to a delay topic
	Followed      int64            // messages that joined one of their key in a delay topic
	DeadLetters   map[string]int64 // by reason
	Redelivered   int64            // messages that were read again, and were not settled at the last commit before
	Crashed       int64            // messages that ended the process again and again
	Missed        int64            // offsets that were gone before they were read
	Recreated     int64            // partitions that began anew because a topic was deleted and made anew
	Abandoned     int64            // handlers that did not return in time
	BreakerOpened int64
	WriteFailures int64 // tries to write retries or dead letters
}

// PartitionStats says how one partition is.
type PartitionStats struct {
	Partition int32
	Phase     string // starting, running or draining
	Reason    string // why it does not run yet, or what of it can't be read or written
	Since     time.Time

	Committed int64 // the offset
	Position  int64 // all below was read
	Lag       int64 // messages that were not read, up to the last stable offset; -1: unknown

	InFlight int   // given to a handler and not settled
	Backlog  int64 // read and not settled, in all its topics
	Delayed  int   // of these, waiting until they are due
	Bytes    int64 // fetched and not settled, in all its topics: see Config.MaxBytes
	Held     int64 // in delay topics, as far as they hold back a key or are held back
	Full     bool  // a limit is reached: it is fetched no further
	Unsaved  int   // settled messages that the last commit had no room for

	Oldest *Oldest // the oldest unsettled message; nil if there is none
}

// Oldest is the oldest unsettled message of the input in a partition.
type Oldest struct {
	Offset  int64
	Key     []byte
	Attempt int
	Since   time.Time // when this process fetched it, to a second or so; later attempts change nothing about it
	Handed  time.Time // when a handler was given it; zero: it waits for one
}

// Stats returns how the consumer is. It may be called at any time.
func (w *Worker) Stats() Stats {
	w.mu.Lock()
	s := Stats{
		Application: w.cfg.Application, Consumer: w.cfg.Consumer, Topic: w.cfg.Topic, Group: w.group,
		Joined: w.mu.joined, Generation: w.mu.generation, Paused: w.mu.paused,
	}
	ps := slices.Collect(maps.Values(w.mu.partitions))
	w.mu.Unlock()
	failing := w.unreadable()
	m := &w.metrics
	state, opened := w.breaker.status()
	s.Breaker, s.BreakerOpened = string(state), opened
	s.BreakerOpen, s.BreakerErr = w.breaker.ailing()
	s.Acked, s.Failed, s.RetriedNow, s.RetriedLater = m.acked.Load(), m.failed.Load(), m.retriedInPlace.Load(), m.retriedLater.Load()
	s.Followed, s.Redelivered, s.Crashed, s.Missed = m.followed.Load(), m.redelivered.Load(), m.crashed.Load(), m.missed.Load()
	s.Abandoned, s.WriteFailures, s.Recreated = m.abandoned.Load(), m.writeFailures.Load(), m.recreated.Load()
	s.DeadLetters = m.letters()
	for _, p := range ps {
		if st, ok := p.stats(failing); ok {
			s.Partitions = append(s.Partitions, st)
		}
	}
	slices.SortFunc(s.Partitions, func(a, b PartitionStats) int { return int(a.Partition) - int(b.Partition) })
	return s
}

func (p *partition) stats(failing map[topic.Partition]kafka.ReadFailure) (PartitionStats, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.phase == phaseFenced {
		return PartitionStats{}, false
	}
	st := PartitionStats{Partition: p.id.Number, Phase: string(p.mu.phase), Reason: p.mu.reason, Since: p.mu.since, Lag: -1, InFlight: p.mu.out, Delayed: p.mu.delayed.len()}
	for to, err := range p.mu.failingErr {
		if err != nil {
			st.Reason = fmt.Sprintf("%s can't be written for %v: %v", [2]string{"retries", "dead letters"}[to], time.Since(p.mu.failing[to]).Round(time.Second), err)
		}
	}
	for _, l := range p.mu.lanes {
		for i := range l.items {
			if l.items[i].tier != streamInput {
				st.Held++
			}
		}
	}
	for _, s := range p.mu.streams {
		if f, ok := failing[s.id]; ok && p.mu.phase == phaseRunning {
			st.Reason = strings.TrimPrefix(fmt.Sprintf("%s; %s can't be read for %v: %v", st.Reason, s.id, time.Since(f.Since).Round(time.Second), f.Err), "; ")
		}
		st.Backlog += s.window.unsettled
		st.Unsaved += s.overflow
		st.Bytes += s.held()
		st.Full = st.Full || s.want
		if s.tier != streamInput {
			continue
		}
		st.Committed, st.Position = s.committed.Offset, s.next
		if s.highWater >= 0 {
			st.Lag = max(0, s.highWater-s.next)
		}
		st.Oldest = s.oldest()
	}
	return st, true
}

// oldest says which message of the input is the oldest that is not settled.
func (s *stream) oldest() *Oldest {
	offset, d, ok := s.oldestLocked()
	if !ok {
		return nil
	}
	o := &Oldest{Offset: offset, Attempt: 1, Since: s.ages.of(offset)}
	if d == nil {
		o.Key = slices.Clone(s.inbox.parts[0].At(s.inbox.at).Key)
		return o
	}
	o.Offset, o.Key, o.Attempt = d.origin(), slices.Clone(d.key), int(d.attempt)
	if d.handed != nil {
		o.Handed = *d.handed
	}
	return o
}
