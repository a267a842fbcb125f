package messaging

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"github.com/pawlstream/pawl/internal/kafka"
)

// startBackoff is the pause between two tries to start.
const startBackoff = 500 * time.Millisecond

// startTimeout bounds one try to start.
const startTimeout = time.Minute

// missingError says which messages are gone that were not handled, where
// Config.OnOffsetOutOfRange is Fail.
type missingError struct{ *kafka.OffsetRangeError }

// start looks up where the partition is, and begins to read it. It returns
// false if it is to be tried again.
func (p *partition) start() bool {
	ctx, cancel := context.WithTimeout(p.ctx, startTimeout)
	defer cancel()
	err := p.tryStart(ctx)
	if err == nil {
		return true
	}
	p.mu.Lock()
	p.mu.reason = err.Error()
	p.mu.Unlock()
	if p.ctx.Err() == nil {
		var missing *missingError
		if errors.As(err, &missing) {
			p.w.fail(fmt.Errorf("partition %s: %w", p.id, err))
		} else {
			p.log.Warn("start", "error", err)
		}
	}
	return false
}

func (p *partition) tryStart(ctx context.Context) error {
	streams, err := p.w.locate(ctx, p)
	if err != nil {
		return err
	}
	p.mu.Lock()
	if p.mu.phase != phaseStarting {
		p.mu.Unlock()
		return errors.New("revoked")
	}
	p.mu.streams = streams
	clear(p.mu.lanes)
	p.mu.idle = 0
	p.mu.scanned = make(chan struct{})
	scanned := p.mu.scanned
	p.mu.Unlock()

	if p.w.cfg.Order == ByKey {
		if err := p.scan(ctx, streams, scanned); err != nil {
			return fmt.Errorf("read what waits in delay topics: %w", err)
		}
	}
	p.mu.Lock()
	if p.mu.phase != phaseStarting {
		p.mu.Unlock()
		return errors.New("revoked")
	}
	p.mu.phase, p.mu.since, p.mu.reason = phaseRunning, time.Now(), ""
	p.mu.careful = p.mu.rounds >= carefulRounds
	if p.mu.careful {
		p.log.Warn("the process has crashed again and again soon after it got the partition: its messages are handled one at a time", "rounds", p.mu.rounds)
	}
	p.mu.Unlock()
	// Whoever has it next is to know that it was here, also if nothing comes.
	if err := p.w.commit(ctx, false, p); err != nil {
		p.mu.Lock()
		if p.mu.phase == phaseRunning {
			p.mu.phase = phaseStarting
		}
		p.mu.Unlock()
		return fmt.Errorf("commit the start: %w", err)
	}
	p.mu.Lock()
	if p.mu.phase == phaseFenced {
		p.mu.Unlock()
		return errors.New("revoked")
	}
	p.w.allotment.add(streams...)
	p.mu.Unlock()
	p.w.fetch.resize()
	p.w.fetch.begin(streams...)
	return nil
}

// scan reads what waits in the delay topics, for the keys that are held back.
func (p *partition) scan(ctx context.Context, streams []*stream, scanned <-chan struct{}) error {
	ends, err := p.w.ends(ctx, streams[streamRedrive:])
	if err != nil {
		return err
	}
	var scans []*stream
	p.mu.Lock()
	for _, s := range streams[streamRedrive:] {
		if end := ends[s.id]; s.next < end {
			s.scanEnd, s.scanned, s.brought = end, s.next, time.Now()
			scans = append(scans, s)
		}
	}
	p.mu.Unlock()
	if len(scans) == 0 {
		return nil
	}
	p.w.fetch.begin(scans...)
	quiet := time.NewTicker(quietLimit)
	defer quiet.Stop()
	for {
		select {
		case <-scanned:
			return nil
		case now := <-quiet.C:
			p.mu.Lock()
			for _, s := range scans {
				if s.scanEnd >= 0 && now.Sub(s.brought) >= quietLimit {
					p.w.fetch.look(s)
				}
			}
			p.mu.Unlock()
		case <-ctx.Done():
			p.w.fetch.drop(p)
			return context.Cause(ctx)
		}
	}
}

// scanLocked takes note of what waits in a delay topic. It returns true when
// there is no more.
func (p *partition) scanLocked(s *stream, f *kafka.FetchedPart) bool {
	for i := range f.Count {
		e := f.At(i)
		if e.Key == nil || slices.ContainsFunc(s.restored, func(sp span) bool { return sp.from <= e.Offset && e.Offset < sp.to }) {
			continue
		}
		if h, ok := parseHistory(e.Headers); ok && p.isOwn(&h) {
			l := p.laneLocked(maphash.Bytes(keySeed, e.Key))
			l.expect(h.offset, h.hop, s.tier)
			s.expected = append(s.expected, expected{lane: l, at: e.Offset, order: h.offset, hop: int32(h.hop)})
		}
	}
	return p.scannedToLocked(s, f.Next)
}

// scannedToLocked ends the scan of a stream that has reached its end.
func (p *partition) scannedToLocked(s *stream, next int64) bool {
	s.scanned = max(s.scanned, next)
	if next < s.scanEnd {
		return false
	}
	s.scanEnd = -1
	if !slices.ContainsFunc(p.mu.streams, func(s *stream) bool { return s.scanEnd >= 0 }) {
		close(p.mu.scanned)
	}
	return true
}
