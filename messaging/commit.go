package messaging

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// commitLoop commits what is settled, every CommitInterval.
func (w *Worker) commitLoop(ctx context.Context) {
	t := time.NewTicker(w.cfg.CommitInterval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		w.mu.Lock()
		var ps []*partition
		for _, p := range w.mu.partitions {
			ps = append(ps, p)
		}
		w.mu.Unlock()
		c, cancel := context.WithTimeout(ctx, w.cfg.SessionTimeout)
		err := w.commit(c, false, ps...)
		cancel()
		if err != nil && ctx.Err() == nil {
			w.metrics.commitFailures.Add(1)
			w.log.Debug("commit", "error", err)
		}
		w.mu.Lock()
		if err == nil {
			w.mu.commitErr = nil
		} else if w.mu.commitErr == nil {
			w.mu.commitErr, w.mu.commitAt = err, time.Now()
		}
		w.mu.Unlock()
	}
}

// commitFinally commits what drained partitions have settled, again if the
// group is just rebalancing.
func (w *Worker) commitFinally(ctx context.Context, ps ...*partition) error {
	for {
		err := w.commit(ctx, true, ps...)
		if err == nil || ctx.Err() != nil || errors.Is(err, kafka.ErrNotMember) && !w.isMember(ps) {
			return err
		}
		select {
		case <-time.After(idlePoll):
		case <-ctx.Done():
			return err
		}
	}
}

// isMember says whether the partitions were assigned to who this process is in
// the group now.
func (w *Worker) isMember(ps []*partition) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(ps, func(p *partition) bool { return p.memberID != w.mu.memberID })
}

// commit commits what is settled of partitions. clean says that they were
// drained.
func (w *Worker) commit(ctx context.Context, clean bool, ps ...*partition) error {
	select {
	case w.committing <- struct{}{}:
		defer func() { <-w.committing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	byMember := make(map[string]map[topic.Partition]kafka.Committed)
	for _, p := range ps {
		offsets := byMember[p.memberID]
		if offsets == nil {
			offsets = make(map[topic.Partition]kafka.Committed)
			byMember[p.memberID] = offsets
		}
		p.offsets(offsets, clean)
	}
	var errs []error
	for id, offsets := range byMember {
		if len(offsets) == 0 {
			continue
		}
		if err := w.member.CommitOffsetsAs(ctx, id, offsets); err != nil {
			errs = append(errs, err)
			continue
		}
		w.metrics.commits.Add(1)
		for _, p := range ps {
			if p.memberID == id {
				p.committed(offsets)
			}
		}
	}
	return errors.Join(errs...)
}

// offsets adds what is to be committed of the partition, where it is not what
// was committed before. clean says that nothing of it will be handled after.
func (p *partition) offsets(into map[topic.Partition]kafka.Committed, clean bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.phase == phaseFenced || p.mu.phase == phaseStarting {
		return
	}
	for _, s := range p.mu.streams {
		if s.gone {
			continue
		}
		rounds := uint64(0)
		if s.tier == streamInput && !clean {
			rounds = p.mu.rounds
		}
		if clean {
			s.suspect, s.crashes = -1, 0
		}
		c := s.commit(rounds)
		if s.hasCommitted {
			invariants.Check(c.Offset >= s.committed.Offset, "the committed offset of %s would go from %d to %d", s.id, s.committed.Offset, c.Offset)
		}
		if !s.hasCommitted || c != s.committed {
			into[s.id] = c
		}
	}
}

// committed takes note of what was committed.
func (p *partition) committed(all map[topic.Partition]kafka.Committed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.mu.streams {
		if c, ok := all[s.id]; ok {
			s.committed, s.hasCommitted = c, true
		}
	}
}
