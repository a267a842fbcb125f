package messaging

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// A topic that is deleted and made anew under its name is another one. Its
// offsets begin at 0 again, and nothing that is known of the old one's says
// anything about its messages:
//
//	reads fail ──► another ID? ──► drain ──► commit the other topics ──► fence ──► a new epoch
//	                    │                                                              │
//	                    └── the same, or no topic at all: read on                      └─► locate
//
// So the epoch ends as it does with a revoke: late acks are refused, and what
// was not settled of an input that is gone is gone with it. What was committed
// carries the topic's ID (see snapshot), and is not trusted by whoever has the
// partition next, also where no process was there to see the change.

// lookAtTopics asks which topics there are, after one could not be read, and has
// the partitions begin anew that read one that was before. While a topic that is
// needed is not there none does: what was read of it is here alone.
func (w *Worker) lookAtTopics(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	w.mu.Lock()
	ps := slices.Collect(maps.Values(w.mu.partitions))
	w.mu.Unlock()
	names := make(map[string]bool)
	for _, p := range ps {
		p.mu.Lock()
		for _, s := range p.mu.streams {
			names[s.id.Topic] = true
		}
		p.mu.Unlock()
	}
	if len(names) == 0 {
		return
	}
	infos, err := w.admin.Topics(ctx, slices.Sorted(maps.Keys(names))...)
	if err != nil {
		w.log.Debug("look which topics are there", "error", err)
		return
	}
	gone := make(map[string]bool)
	ps = slices.DeleteFunc(ps, func(p *partition) bool { return !p.outlive(infos, gone) })
	if len(ps) == 0 {
		return
	}
	w.log.Warn("a topic was deleted, and made anew under its name: partitions begin anew", "topics", slices.Sorted(maps.Keys(gone)), "partitions", len(ps))
	w.metrics.recreated.Add(int64(len(ps)))
	w.mu.Lock()
	w.mu.renewed = append(w.mu.renewed, ps...)
	w.mu.Unlock()
	w.look()
}

// look has the newest assignment looked at again.
func (w *Worker) look() {
	select {
	case w.assignments <- struct{}{}:
	default:
	}
}

// outlive says whether a partition reads topics whose names are those of others
// now, and was not found to before. It adds them to gone.
func (p *partition) outlive(infos map[string]kafka.TopicInfo, gone map[string]bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.phase != phaseRunning {
		return false // one that starts finds it out, or is found when it runs
	}
	var found []*stream
	for _, s := range p.mu.streams {
		info, there := infos[s.id.Topic]
		switch none := (topic.ID{}); {
		case s.gone, !there && s.tier < streamTiers+len(p.w.cfg.Retry.Tiers):
			return false
		case there && s.tid != info.ID && s.tid != none && info.ID != none:
			found = append(found, s)
		}
	}
	for _, s := range found {
		s.gone, gone[s.id.Topic] = true, true
	}
	return len(found) > 0
}

// renew ends the epoch of partitions, and begins another.
func (w *Worker) renew(drains *sync.WaitGroup, ps []*partition) {
	for _, p := range ps {
		p.mu.Lock()
		running := p.mu.phase == phaseRunning
		p.mu.Unlock()
		if !running {
			continue // it is revoked
		}
		p.drain(fmt.Errorf("a topic was made anew: %w", ErrRevoked))
		drains.Go(func() {
			w.awaitIdle(w.cfg.DrainTimeout, p)
			outlived := p.carry()
			w.finish(p, ErrRevoked)
			w.succeed(p, outlived)
		})
	}
}

// carry has what was read of delay topics that are gone, and is nowhere else,
// written to those that took their place. It returns the topics that are gone.
func (p *partition) carry() map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	gone := make(map[string]bool)
	for _, s := range p.mu.streams {
		if !s.gone {
			continue
		}
		gone[s.id.Topic] = true
		if s.tier == streamInput {
			if n := s.window.unsettled + int64(s.inbox.count); n > 0 {
				p.log.Warn("messages of the topic that was deleted were not settled, and are gone with it", "topic", s.id.Topic, "messages", n)
			}
			continue
		}
		if n := len(s.expected); n > 0 {
			p.log.Error("messages that waited in a delay topic are gone with it, and will not be handled again", "topic", s.id.Topic, "messages", n)
			p.w.metrics.missed.Add(int64(n))
		}
		for i := range s.window.n {
			if d := s.window.at(i).d; d != nil && d.state.CompareAndSwap(pending, settled) {
				p.jobLocked(&job{d: d, tier: s.tier, hop: int(d.hop) + 1, anew: true})
			}
		}
	}
	return gone
}

// succeed begins the epoch that follows one that has ended for its topics, or
// lets the partition go if it was revoked meanwhile.
func (w *Worker) succeed(p *partition, outlived map[string]bool) {
	w.mu.Lock()
	switch {
	case w.mu.partitions[p.id.Number] != p: // lost
		w.mu.Unlock()
	case w.mu.stopping || !slices.Contains(w.mu.assignment.Partitions, p.id):
		w.mu.Unlock()
		w.released <- p
	default:
		next := newPartition(w, p.id, p.memberID)
		next.outlived = outlived
		w.mu.partitions[p.id.Number] = next
		w.mu.begun = append(w.mu.begun, next)
		w.mu.Unlock()
		w.look()
	}
}

// locateAnew sets the position of a stream whose topic took the place of the one
// that c was committed of. The input's is as Config.OnOffsetOutOfRange says; of a
// delay topic everything is read, since it is the queue's own. What is there
// from the beginning begins at offset 0: brokers that have not heard of the new
// topic yet would say what the old one holds.
func (w *Worker) locateAnew(s *stream, c kafka.Committed, earliest, end int64) error {
	to := int64(0)
	if s.tier == streamInput {
		s.p.setRounds(1)
		switch w.cfg.OnOffsetOutOfRange {
		case Fail:
			return fmt.Errorf("topic %s was deleted, and made anew under its name: %w", s.id.Topic, &missingError{&kafka.OffsetRangeError{Partition: s.id, Offset: c.Offset, Earliest: earliest, End: end}})
		case GoToLatest:
			to = end
		}
	}
	if !s.p.outlived[s.id.Topic] { // else it was said
		s.p.log.Warn("what was committed is of a topic that was deleted, and made anew under its name", "topic", s.id.Topic, "offset", c.Offset, "goes on at", to)
		w.metrics.recreated.Add(1)
	}
	s.begin(to, snapshot{suspect: -1})
	return nil
}
