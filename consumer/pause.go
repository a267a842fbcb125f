package consumer

import "fmt"

// Pause stops a shard that is here, or will come here, from consuming: it
// finishes the open transaction, keeps its state and its place in the group, and
// waits. An empty ID pauses all shards, those that come later too. It lasts until
// Resume, in this process: a shard that moves goes on where it comes to.
func (a *App) Pause(id ShardID) error { return a.setPaused(id, true) }

// Resume ends a Pause. With an empty ID it ends every one.
func (a *App) Resume(id ShardID) error { return a.setPaused(id, false) }

func (a *App) setPaused(id ShardID, pause bool) error {
	if err := a.notePaused(id, pause); err != nil {
		return err
	}
	what := "resumed"
	if pause {
		what = "paused"
	}
	if id == "" {
		a.log.Info(what, "shards", "all")
	} else {
		a.log.Info(what, "shard", string(id))
	}
	return nil
}

// notePaused notes what is paused, and tells the shards.
func (a *App) notePaused(id ShardID, pause bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case id == "":
		a.mu.paused = pause
		if !pause {
			clear(a.mu.pausedShards)
		}
	case a.mu.shards[id] == nil:
		return fmt.Errorf("shard %s: %w", id, ErrNotHere)
	case pause:
		a.mu.pausedShards[id] = true
	default:
		if a.mu.paused {
			return fmt.Errorf("shard %s can't be resumed alone: the application is paused in this process", id)
		}
		delete(a.mu.pausedShards, id)
	}
	for _, s := range a.mu.shards {
		s.setPaused(a.pausedLocked(s.id))
	}
	return nil
}

func (a *App) pausedLocked(id ShardID) bool { return a.mu.paused || a.mu.pausedShards[id] }

// setPaused tells the shard, whose loop may be waiting.
func (s *shard) setPaused(paused bool) {
	s.paused.Store(paused)
	s.wake()
}

// wake makes the loop look again what to do.
func (s *shard) wake() {
	select {
	case s.woken <- struct{}{}:
	default: // it has been told
	}
}
