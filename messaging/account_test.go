package messaging_test

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/topic"
)

// account looks at what the group has committed while a body runs, and judges at
// its end what was handed out:
//
//   - what is committed never goes back, neither the offset nor what is said to
//     be settled above it, and is never beyond the end;
//   - nothing is settled in the input that no handler was given: it would be lost;
//   - what a commit settled that the broker was seen to have is not given to a
//     handler by an assignment that began after that.
//
// It looks now and then, and whenever the body does. An assignment that is seen
// for the first time began after the look before.
type account struct {
	s     *stage
	every time.Duration
	stop  context.CancelFunc
	done  sync.WaitGroup
	turn  chan struct{} // has room for one: who looks, and owns what follows

	states  []map[topic.Partition]kafka.Committed
	after   map[messaging.Epoch]int // the state that an assignment began after; -1: none
	settled map[settledAt]settled

	forgetful bool // so much is settled that commits can't say all of it
}

type settledAt struct {
	state int
	p     topic.Partition
}

// settled is what a commit settles.
type settled struct {
	below int64
	above []messaging.Span
}

func (s settled) has(offset int64) bool {
	if offset < s.below {
		return true
	}
	i, found := slices.BinarySearchFunc(s.above, offset, func(sp messaging.Span, o int64) int { return int(sp.From - o) })
	return found || i > 0 && offset < s.above[i-1].To
}

// holds says whether everything that the other one settles is settled.
func (s settled) holds(o settled) bool {
	if s.below < o.below {
		return false
	}
	for _, sp := range o.above {
		from := max(sp.From, s.below)
		i, found := slices.BinarySearchFunc(s.above, from, func(sp messaging.Span, o int64) int { return int(sp.From - o) })
		if !found {
			i--
		}
		if from < sp.To && (i < 0 || s.above[i].To < sp.To) {
			return false
		}
	}
	return true
}

func newAccount(s *stage, every time.Duration) *account {
	a := &account{s: s, every: every, turn: make(chan struct{}, 1), after: make(map[messaging.Epoch]int), settled: make(map[settledAt]settled)}
	ctx, cancel := context.WithCancel(context.Background())
	a.stop = cancel
	a.done.Go(func() { a.run(ctx) })
	return a
}

func (a *account) run(ctx context.Context) {
	t := time.NewTicker(a.every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		_, _ = a.look(ctx) // the broker is being killed, or the body has ended
	}
}

// look returns what is committed now, and takes note of it, and of who has begun
// since the last look.
func (a *account) look(ctx context.Context) (map[topic.Partition]kafka.Committed, error) {
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	state, err := a.s.admin.Committed(ctx, a.s.group())
	if err != nil {
		return nil, err
	}
	last := len(a.states) - 1
	for _, p := range a.s.running() {
		for _, e := range messaging.Epochs(p.w) {
			if _, known := a.after[e]; !known {
				a.after[e] = last
			}
		}
	}
	if last < 0 || !maps.Equal(a.states[last], state) {
		a.states = append(a.states, state)
	}
	return state, nil
}

// at returns what a state settles of a partition.
func (a *account) at(state int, p topic.Partition) settled {
	key := settledAt{state, p}
	set, ok := a.settled[key]
	if !ok {
		c := a.states[state][p]
		above, err := messaging.SettledAbove(c, a.s.id(p.Topic), p.Number)
		if err != nil {
			a.s.t.Errorf("what is committed of %s at %d: %v", p, c.Offset, err)
		}
		set = settled{c.Offset, above}
		a.settled[key] = set
	}
	return set
}

// close ends the account, and judges.
func (a *account) close() {
	a.s.t.Helper()
	a.stop()
	a.done.Wait()
	a.s.commits()
	for i, state := range a.states[1:] {
		for p, before := range a.states[i] {
			switch c := state[p]; {
			case c == before:
			case c.Offset < before.Offset:
				a.s.t.Errorf("what is committed of %s went from %d back to %d", p, before.Offset, c.Offset)
			case !a.forgetful && !a.at(i+1, p).holds(a.at(i, p)):
				a.s.t.Errorf("what is settled of %s went back from %+v to %+v", p, a.at(i, p), a.at(i+1, p))
			}
		}
	}
	end := len(a.states) - 1
	for p, c := range a.states[end] {
		if most := a.s.end(p); c.Offset > most {
			a.s.t.Errorf("%s is committed to %d, and ends at %d", p, c.Offset, most)
		}
	}
	a.judge(end)
}

func (a *account) judge(end int) {
	type place struct {
		partition int32
		offset    int64
	}
	seen := make(map[place]bool) // from wherever it was read
	wrong := 0
	for _, c := range a.s.ever() {
		seen[place{c.partition, c.offset}] = true
		if after, ok := a.after[c.epoch]; ok && after >= 0 && a.at(after, c.stream).has(c.at) {
			if wrong++; wrong <= 5 {
				a.s.t.Errorf("%q, %s at %d, was given to %s by an assignment that began when %+v was settled", c.value, c.stream, c.at, c.process, a.at(after, c.stream))
			}
		}
	}
	for n := range a.s.partitions {
		p := topic.Partition{Topic: a.s.work.Name(), Number: n}
		lost := []int64{}
		for o := range a.s.end(p) {
			if a.at(end, p).has(o) && !seen[place{n, o}] {
				lost = append(lost, o)
			}
		}
		if len(lost) > 0 {
			a.s.t.Errorf("%d messages of %s are settled that no handler was given, first %d", len(lost), p, lost[0])
		}
	}
	if wrong > 5 {
		a.s.t.Errorf("and %d more", wrong-5)
	}
}
