package messaging

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pawlstream/pawl/internal/kafka"
)

// claims is what the leader is told of this process.
func (w *Worker) claims() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return claims{V: claimsFormat, ID: w.mu.memberID, Owned: slices.Sorted(maps.Keys(w.mu.partitions)), Admin: w.mu.admin}.marshal()
}

// assigned takes a new assignment. Heartbeats wait for it.
func (w *Worker) assigned(a kafka.Assignment) {
	w.mu.Lock()
	w.mu.joined, w.mu.generation, w.mu.assignment = true, a.Generation, a
	lost := w.mu.memberID != "" && w.mu.memberID != a.MemberID
	var void []*partition
	if lost {
		// The group took this process for gone: others may have had its
		// partitions meanwhile.
		void = slices.Collect(maps.Values(w.mu.partitions))
		clear(w.mu.partitions)
	}
	w.mu.memberID = a.MemberID
	// What is new is claimed from here on, before the member can join again.
	for _, id := range a.Partitions {
		if id.Topic == w.cfg.Topic && w.mu.partitions[id.Number] == nil && !w.mu.stopping {
			p := newPartition(w, id, a.MemberID)
			w.mu.partitions[id.Number] = p
			w.mu.begun = append(w.mu.begun, p)
		}
	}
	w.mu.Unlock()
	for _, p := range void {
		w.log.Warn("the partition is lost: the group took this process for gone", "partition", p.id.String())
		p.fence(ErrRevoked)
		w.abandon(p)
	}
	select {
	case w.assignments <- struct{}{}:
	default:
	}
}

// follow acts on the newest assignment.
func (w *Worker) follow(drains *sync.WaitGroup) {
	w.mu.Lock()
	a := w.mu.assignment
	mine := make(map[int32]bool)
	for _, p := range a.Partitions {
		if p.Topic == w.cfg.Topic {
			mine[p.Number] = true
		}
	}
	var revoked []*partition
	for n, p := range w.mu.partitions {
		if !mine[n] {
			revoked = append(revoked, p)
		}
	}
	begun, renewed := w.mu.begun, w.mu.renewed
	w.mu.begun, w.mu.renewed = nil, nil
	w.mu.Unlock()
	w.log.Info("assigned", "generation", a.Generation, "partitions", len(mine), "new", len(begun), "revoked", len(revoked))
	for _, p := range begun {
		w.running.Go(p.run) // ends when it is fenced
	}
	for _, p := range revoked {
		p.mu.Lock()
		draining := p.mu.phase == phaseDraining || p.mu.phase == phaseFenced
		p.mu.Unlock()
		if draining {
			continue
		}
		p.drain(ErrRevoked)
		drains.Go(func() {
			w.finish(p, ErrRevoked)
			w.released <- p
		})
	}
	w.renew(drains, renewed)
}

// finish waits for a drain, commits, and fences.
func (w *Worker) finish(p *partition, cause error) {
	w.awaitIdle(w.cfg.DrainTimeout, p)
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	if err := w.commitFinally(ctx, p); err != nil {
		p.log.Warn("commit after a drain: what was settled since the last commit will come again", "error", err)
	}
	p.fence(cause)
	w.abandon(p)
	w.awaitEnd(p.done)
}

// release lets go of a partition that was drained.
func (w *Worker) release(p *partition) {
	w.mu.Lock()
	if w.mu.partitions[p.id.Number] == p {
		delete(w.mu.partitions, p.id.Number)
	}
	w.mu.Unlock()
}

// releaseTogether is how long a partition that was let go of waits for others,
// so that all of them move in one rebalance.
const releaseTogether = 20 * time.Millisecond
