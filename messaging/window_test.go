package messaging

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// slowAcks is an ack manager that anyone can see is right.
type slowAcks struct {
	limit       int
	items       map[int64]bool // every id that was read: whether it is settled
	level, read int64
	started     bool
}

func (s *slowAcks) ids() []int64 { return slices.Sorted(maps.Keys(s.items)) }

// held is how many items there are from the oldest unsettled one on.
func (s *slowAcks) held() int {
	ids := s.ids()
	for i, id := range ids {
		if !s.items[id] {
			return len(ids) - i
		}
	}
	return 0
}

func (s *slowAcks) advance() {
	for _, id := range s.ids() {
		if !s.items[id] {
			return
		}
		s.level = max(s.level, id)
	}
}

func (s *slowAcks) ReadItem(id int64) error {
	switch {
	case id <= s.read:
		return ErrNotAbove
	case s.held() >= s.limit:
		return ErrWindowFull
	}
	if !s.started {
		s.started = true
		s.level = max(s.level, id-1)
	}
	s.read, s.items[id] = id, false
	return nil
}

func (s *slowAcks) AckItem(id int64) int64 {
	if _, ok := s.items[id]; ok {
		s.items[id] = true
	}
	s.advance()
	return s.level
}

func (s *slowAcks) SetAckLevel(n int64) {
	if n <= s.level {
		return
	}
	for id := range s.items {
		if id <= n {
			s.items[id] = true
		}
	}
	s.level, s.read = n, max(s.read, n)
	s.advance()
}

func (s *slowAcks) SetReadLevel(n int64) { s.read = max(s.read, n) }
func (s *slowAcks) GetReadLevel() int64  { return s.read }
func (s *slowAcks) GetAckLevel() int64   { return s.level }
func (s *slowAcks) GetBacklogCount() int64 {
	n := int64(0)
	for _, settled := range s.items {
		if !settled {
			n++
		}
	}
	return n
}

// An ack manager does what a slow and obvious one does, whatever is asked of
// it: with gaps, duplicates, unknown ids, levels set by hand, a full window.
func TestAckManagerModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 200).Draw(t, "limit")
		next := rapid.Int64Range(0, 3).Draw(t, "first")
		var acks AckManager = NewAckManager(limit)
		var slow AckManager = &slowAcks{limit: limit, items: make(map[int64]bool), level: -1, read: -1}
		known := []int64{0}
		check := func(deed string) {
			if got, want := acks.GetAckLevel(), slow.GetAckLevel(); got != want {
				t.Fatalf("%s: ack level %d, want %d", deed, got, want)
			}
			if got, want := acks.GetReadLevel(), slow.GetReadLevel(); got != want {
				t.Fatalf("%s: read level %d, want %d", deed, got, want)
			}
			if got, want := acks.GetBacklogCount(), slow.GetBacklogCount(); got != want {
				t.Fatalf("%s: backlog %d, want %d", deed, got, want)
			}
		}
		gap := rapid.OneOf(rapid.Just(int64(1)), rapid.Just(int64(1)), rapid.Int64Range(1, 5), rapid.Int64Range(1, 1<<40))
		read := func(t *rapid.T) {
			id := next
			next += gap.Draw(t, "gap")
			got, want := acks.ReadItem(id), slow.ReadItem(id)
			if !errors.Is(got, want) {
				t.Fatalf("read %d: %v, want %v", id, got, want)
			}
			known = append(known, id)
			check(fmt.Sprint("read ", id))
		}
		ack := func(t *rapid.T) {
			id := rapid.SampledFrom(known[max(0, len(known)-100):]).Draw(t, "id") + rapid.Int64Range(-1, 1).Draw(t, "beside")
			if got, want := acks.AckItem(id), slow.AckItem(id); got != want {
				t.Fatalf("ack %d: level %d, want %d", id, got, want)
			}
			check(fmt.Sprint("ack ", id))
		}
		t.Repeat(map[string]func(*rapid.T){
			"read":  read,
			"read2": read,
			"ack":   ack,
			"ack2":  ack,
			"ack3":  ack,
			"read again": func(t *rapid.T) {
				id := rapid.SampledFrom(known).Draw(t, "id")
				got, want := acks.ReadItem(id), slow.ReadItem(id)
				if !errors.Is(got, want) {
					t.Fatalf("read %d again: %v, want %v", id, got, want)
				}
				check(fmt.Sprint("read again ", id))
			},
			"set ack level": func(t *rapid.T) {
				n := rapid.SampledFrom(known).Draw(t, "id") + rapid.Int64Range(-2, 2).Draw(t, "beside")
				acks.SetAckLevel(n)
				slow.SetAckLevel(n)
				next = max(next, acks.GetReadLevel()+1)
				check(fmt.Sprint("set ack level ", n))
			},
			"set read level": func(t *rapid.T) {
				n := slow.GetReadLevel() + rapid.Int64Range(-2, 2).Draw(t, "beside")
				acks.SetReadLevel(n)
				slow.SetReadLevel(n)
				next = max(next, acks.GetReadLevel()+1)
				check(fmt.Sprint("set read level ", n))
			},
		})
	})
}

// The outcomes that the interface names, one by one.
func TestAckManager(t *testing.T) {
	for _, start := range []int64{0, 1, 7, 1 << 40} {
		m := NewAckManager(3)
		if a, r := m.GetAckLevel(), m.GetReadLevel(); a != -1 || r != -1 {
			t.Fatalf("levels before the first read: %d and %d, want -1 and -1", a, r)
		}
		if err := m.ReadItem(start); err != nil {
			t.Fatal(err)
		}
		if got, want := m.GetAckLevel(), start-1; got != want {
			t.Errorf("after reading %d the ack level is %d, want %d", start, got, want)
		}
		if err := m.ReadItem(start); !errors.Is(err, ErrNotAbove) || m.GetBacklogCount() != 1 {
			t.Errorf("reading %d again: %v and backlog %d, want %v and 1", start, err, m.GetBacklogCount(), ErrNotAbove)
		}
		if got, want := m.AckItem(start+1), start-1; got != want {
			t.Errorf("acking an unknown id: level %d, want %d", got, want)
		}
		for _, id := range []int64{start + 1, start + 1_000_000} {
			if err := m.ReadItem(id); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.ReadItem(start + 1_000_001); !errors.Is(err, ErrWindowFull) {
			t.Errorf("reading into a full window: %v, want %v", err, ErrWindowFull)
		}
		m.AckItem(start + 1)
		if got, want := m.AckItem(start), start+1; got != want {
			t.Errorf("acking the first after the second: level %d, want %d", got, want)
		}
		if got := m.AckItem(start); got != start+1 || m.GetBacklogCount() != 1 {
			t.Errorf("acking twice: level %d and backlog %d, want %d and 1", got, m.GetBacklogCount(), start+1)
		}
		m.SetReadLevel(start)
		if got, want := m.GetReadLevel(), start+1_000_000; got != want {
			t.Errorf("read level set back: %d, want %d", got, want)
		}
		m.SetAckLevel(start + 2_000_000)
		if a, r, n := m.GetAckLevel(), m.GetReadLevel(), m.GetBacklogCount(); a != start+2_000_000 || r != a || n != 0 {
			t.Errorf("ack level set beyond: levels %d and %d, backlog %d, want %d, the same, and 0", a, r, n, start+2_000_000)
		}
	}
}

// Acks come from many goroutines, in any order.
func TestAckManagerConcurrent(t *testing.T) {
	const n = 20_000
	m := NewAckManager(n)
	for i := range int64(n) {
		if err := m.ReadItem(3 * i); err != nil {
			t.Fatal(err)
		}
	}
	order := rand.New(rand.NewPCG(1, 2)).Perm(n)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			last := int64(-1)
			for i := g; i < n; i += 8 {
				level := m.AckItem(3 * int64(order[i]))
				if level < last {
					t.Errorf("the level went from %d back to %d", last, level)
				}
				last = level
			}
		})
	}
	wg.Wait()
	if got, want := m.GetAckLevel(), int64(3*(n-1)); got != want || m.GetBacklogCount() != 0 {
		t.Errorf("level %d, backlog %d, want %d and 0", got, m.GetBacklogCount(), want)
	}
}

func FuzzAckManager(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 0x81, 0x80, 0x83, 0x82})
	f.Add([]byte{5, 0xff, 0x41, 0x85, 0xc0})
	f.Fuzz(func(t *testing.T, ops []byte) {
		m := NewAckManager(16)
		s := &slowAcks{limit: 16, items: make(map[int64]bool), level: -1, read: -1}
		for i, op := range ops {
			arg := int64(op & 0x3f)
			switch op >> 6 {
			case 0:
				if got, want := m.ReadItem(arg), s.ReadItem(arg); !errors.Is(got, want) {
					t.Fatalf("op %d: read %d: %v, want %v", i, arg, got, want)
				}
			case 1:
				m.SetAckLevel(arg)
				s.SetAckLevel(arg)
			default:
				m.AckItem(arg)
				s.AckItem(arg)
			}
			if m.GetAckLevel() != s.level || m.GetReadLevel() != s.read || m.GetBacklogCount() != s.GetBacklogCount() {
				t.Fatalf("op %d: levels %d, %d and backlog %d, want %d, %d and %d", i, m.GetAckLevel(), m.GetReadLevel(), m.GetBacklogCount(), s.level, s.read, s.GetBacklogCount())
			}
		}
	})
}

const benchWindow = 100_000

// A read and an ack, in order.
func BenchmarkAckManagerInOrder(b *testing.B) {
	m := NewAckManager(benchWindow)
	b.ReportAllocs()
	for i := range int64(b.N) {
		if err := m.ReadItem(i); err != nil {
			b.Fatal(err)
		}
		m.AckItem(i)
	}
}

// A read and an ack, in random order over a window of 100,000.
func BenchmarkAckManagerRandom(b *testing.B) {
	m := NewAckManager(2 * benchWindow)
	order := rand.New(rand.NewPCG(1, 2)).Perm(benchWindow)
	next := int64(0)
	for range benchWindow {
		if err := m.ReadItem(next); err != nil {
			b.Fatal(err)
		}
		next++
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		round, at := i/benchWindow, i%benchWindow
		if err := m.ReadItem(next); err != nil {
			b.Fatal(err)
		}
		next++
		m.AckItem(int64(round*benchWindow + order[at]))
	}
}
