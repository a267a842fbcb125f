package messaging

// expected is a message that a lane waits for: it was written to a delay topic,
// or seen there at the start, and was not read yet.
//
//	lane      17 ── 21 ── 22          while 17 is expected, 21 and 22 wait
//	           └─► retry.2, offset 5
//
// Once its stream has passed the offset it was read, or is gone: deleted, or
// past its retention. What is gone must not hold back its key.
type expected struct {
	lane  *lane
	at    int64 // the offset in the stream
	order int64 // its place in the lane
	hop   int32
}

// expectLocked takes note of what is to come in a stream. What is written there
// comes in the order in which it was written.
func (p *partition) expectLocked(s *stream, e expected) {
	if s.gone { // it is in the topic that took its place, where the next epoch finds it
		return
	}
	if n := len(s.expected); n > 0 {
		e.at = max(e.at, s.expected[n-1].at)
	}
	s.expected = append(s.expected, e)
	if e.at < s.next { // it is passed already
		p.w.metrics.missed.Add(p.goneLocked(s))
	}
}

// goneLocked lets the lanes go on that wait for what a stream has passed and not
// brought. It returns how many messages are gone.
func (p *partition) goneLocked(s *stream) (n int64) {
	var freed []*lane
	i := 0
	for ; i < len(s.expected) && s.expected[i].at < s.next; i++ {
		e := &s.expected[i]
		if e.lane.gone(e.order, e.hop, s.tier) {
			freed = append(freed, e.lane)
		}
	}
	if s.expected = s.expected[i:]; len(s.expected) == 0 {
		s.expected = nil
	}
	if len(freed) == 0 {
		return 0
	}
	p.log.Error("messages that waited in a delay topic are gone, and will not be handled again: their keys go on", "topic", s.id.Topic, "messages", len(freed), "below", s.next)
	if p.mu.phase == phaseRunning || p.mu.phase == phaseStarting {
		for _, l := range freed {
			p.advanceLocked(l)
		}
	}
	return int64(len(freed))
}
