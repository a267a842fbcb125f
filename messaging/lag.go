package messaging

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/pawlstream/pawl/topic"
)

// lagInterval is how often the ends of partitions are asked for that have brought
// nothing for so long: those that are empty, and those whose lag matters most,
// which are full, paused, or can't be read.
const lagInterval = 5 * time.Second

// lagLoop keeps the lag of partitions true of which no fetch tells it, until ctx
// ends. It asks for all of them at once, and holds a partition's lock only to
// note the answer.
func (w *Worker) lagLoop(ctx context.Context) {
	t := time.NewTicker(lagInterval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		silent := w.silent(time.Now().Add(-lagInterval))
		asked, cancel := context.WithTimeout(ctx, lagInterval)
		ends, err := w.admin.StableEnds(asked, slices.Collect(maps.Keys(silent))...)
		cancel()
		if err != nil && ctx.Err() == nil {
			w.log.Debug("ask where partitions end", "error", err)
		}
		for id, end := range ends {
			silent[id].p.ends(silent[id], end)
		}
	}
}

// silent returns the inputs of partitions that run, and of whose end nothing was
// heard since a time.
func (w *Worker) silent(since time.Time) map[topic.Partition]*stream {
	w.mu.Lock()
	ps := slices.Collect(maps.Values(w.mu.partitions))
	w.mu.Unlock()
	silent := make(map[topic.Partition]*stream)
	for _, p := range ps {
		p.mu.Lock()
		if p.mu.phase == phaseRunning {
			if s := p.mu.streams[streamInput]; !s.heard.After(since) {
				silent[s.id] = s
			}
		}
		p.mu.Unlock()
	}
	return silent
}

// ends takes note of where a stream ends. An answer that a fetch has overtaken
// changes nothing.
func (p *partition) ends(s *stream, end int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isCurrentLocked(s) {
		s.highWater, s.heard = max(s.highWater, end), time.Now()
	}
}
