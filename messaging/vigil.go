package messaging

import "time"

// vigil watches over what is unsettled in a stream: whether its oldest message
// makes progress, and whether any message, wherever it is, has been with a
// handler for too long. partition.mu guards it; the partition's goroutine looks
// every choreInterval.
type vigil struct {
	oldest sight
	moved  time.Time // when the oldest was seen to be another than before, or to wait until it is due, or for the end of a pause

	next  uint64    // the place in the window from which to look for messages that are stuck
	stuck *delivery // one that was found
}

// vigilMax is how many messages are looked at at once: handlers wait for that
// long. So it takes some seconds to look at a large window, which is done only
// while its oldest message has been there for long enough.
const vigilMax = 4096

// sight is what is seen of the oldest unsettled message. While it is the same,
// there is no progress.
type sight struct {
	offset  int64 // in the stream; -1: there is none
	attempt int32
	handed  *time.Time
	written bool  // it is on its way to a delay topic or the dead letters
	first   int64 // in its lane: which is to be settled before it
}

// oldestLocked returns the oldest unsettled message of a stream: that of its
// window, or the first of the inbox, which is no delivery yet.
func (s *stream) oldestLocked() (offset int64, d *delivery, ok bool) {
	switch {
	case s.window.n > 0:
		return s.window.at(0).id, s.window.at(0).d, true
	case s.inbox.count > 0:
		return s.inbox.parts[0].Offset(s.inbox.at), nil, true
	}
	return -1, nil, false
}

// seeLocked returns what is seen of a stream's oldest message.
func (s *stream) seeLocked() (v sight, d *delivery) {
	offset, d, _ := s.oldestLocked()
	v = sight{offset: offset}
	if d == nil {
		return v, nil
	}
	v.attempt, v.handed, v.written = d.attempt, d.handed, d.state.Load() != pending
	if d.lane != nil && len(d.lane.items) > 0 {
		v.first = d.lane.items[0].order
	}
	return v, d
}

// watchLocked looks at a stream.
func (p *partition) watchLocked(s *stream, now time.Time) {
	v := &s.vigil
	seen, d := s.seeLocked()
	if seen != v.oldest || p.waitsLocked(d) || p.w.pool.paused.Load() && !seen.written {
		v.oldest, v.moved = seen, now
	}
	if p.stuckLocked(v.stuck, now) {
		return
	}
	v.stuck = nil
	if since := s.ages.of(seen.offset); s.window.n == 0 || !since.IsZero() && now.Sub(since) < p.w.cfg.StuckAfter {
		return // none has been here for so long
	}
	w := s.window
	v.next = max(v.next, w.first)
	for range min(vigilMax, w.n) {
		if v.next >= w.first+uint64(w.n) {
			v.next = w.first
		}
		d := w.at(int(v.next - w.first)).d
		v.next++
		if !p.stuckLocked(d, now) {
			continue
		}
		v.stuck = d
		if !d.logged {
			d.logged = true
			p.log.Warn("a message was given to a handler and is not settled", "topic", s.id.Topic, "offset", d.origin(), "key", quote(d.key), "for", now.Sub(*d.handed).Round(time.Second))
		}
		return
	}
}

// stuckLocked says whether a message has been with a handler for too long, or
// unacked since.
func (p *partition) stuckLocked(d *delivery, now time.Time) bool {
	return d != nil && d.handed != nil && d.state.Load() == pending && now.Sub(*d.handed) >= p.w.cfg.StuckAfter
}

// waitsLocked says whether a message has to wait: until it is due, or for one of
// its key that has to, or that is with a handler, or in what can't be read yet of
// a delay topic.
func (p *partition) waitsLocked(d *delivery) bool {
	switch {
	case d == nil:
		return false
	case d.waits:
		return true
	case d.lane == nil || len(d.lane.items) == 0 || d.lane.items[0].d == d:
		return false
	}
	first := &d.lane.items[0]
	if first.d != nil {
		return first.d.waits || first.d.handed != nil && first.d.state.Load() == pending
	}
	in := p.mu.streams[first.tier]
	return in.want || in.next < in.highWater
}

// stalledLocked returns the oldest message of a stream if it makes no progress,
// and why that is.
func (p *partition) stalledLocked(s *stream, now time.Time) (offset int64, d *delivery, why string) {
	v := &s.vigil
	seen, d := s.seeLocked()
	if p.mu.phase != phaseRunning || seen.offset < 0 || seen != v.oldest || now.Sub(v.moved) < p.w.cfg.StuckAfter || p.waitsLocked(d) {
		return -1, nil, ""
	}
	switch {
	case seen.written:
		return d.origin(), d, "it is to be written elsewhere, and is not"
	case seen.handed != nil: // see stuckLocked
		return -1, nil, ""
	case d != nil && d.lane != nil && len(d.lane.items) > 0 && d.lane.items[0].d == nil:
		return d.origin(), d, "the one of its key that comes before it is not where it was written to, " + p.mu.streams[d.lane.items[0].tier].id.String()
	case d != nil:
		return d.origin(), d, "no handler has been given it"
	}
	return seen.offset, nil, "no handler has been given it"
}
