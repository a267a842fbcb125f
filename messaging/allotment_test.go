package messaging

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// modelled is a stream of which the test knows all that an allotment may.
type modelled struct {
	*stream
	held, last int64
	open       bool
	beyond     int64 // what a fetch has brought that no room was booked for
}

// allotted is an allotment and what streams do with it.
type allotted struct {
	*allotment
	streams []*modelled
}

// coming is what the allotment expects of a stream's next fetch.
func (a *allotted) coming(s *modelled) int64 { return max(s.last, a.fetch()) }

func (a *allotted) held() (n int64) {
	for _, s := range a.streams {
		n += s.held
	}
	return n
}

func (a *allotted) note(s *modelled) { s.open = a.allotment.note(&s.account, s.held, s.last, true) }

func (a *allotted) add(n int) {
	var added []*stream
	for range n {
		s := &modelled{stream: new(stream), open: true}
		a.streams, added = append(a.streams, s), append(added, s.stream)
	}
	a.allotment.add(added...)
}

// fetched has a stream that is open fetch so much.
func (a *allotted) fetched(s *modelled, part int64) {
	if !s.open {
		return
	}
	booked := s.account.booked
	if s.held == 0 {
		booked = a.mu.share // which it is let in for, whatever there is
	}
	s.held, s.last = s.held+part, part
	s.beyond = max(s.beyond, s.held-booked)
	a.note(s)
}

// check compares the allotment with what it has to be.
func (a *allotted) check(rt *rapid.T) {
	var lent int64
	for _, s := range a.streams {
		want := s.held
		if s.open && s.held > 0 {
			want += a.coming(s)
		}
		if s.account.booked > want || s.account.booked < s.held {
			rt.Fatalf("a stream that holds %d and is open: %v has booked %d, want %d at most", s.held, s.open, s.account.booked, want)
		}
		lent += max(0, s.account.booked-a.mu.share)
	}
	if lent != a.mu.lent {
		rt.Fatalf("%d are lent by the account, and %d by those of the streams", a.mu.lent, lent)
	}
}

// Whatever streams fetch and settle: together they hold no more than the limit
// and what fetches have brought unexpectedly, one of each stream; whoever is
// within his share is fetched, as is who holds nothing; and when nothing else is
// held a stream has half of what is lent.
func TestAllotment(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.SampledFrom([]int64{1 << 10, 100_000, 1 << 20, 128 << 20}).Draw(rt, "limit")
		a := &allotted{allotment: newAllotment(limit)}
		n := rapid.IntRange(1, 40).Draw(rt, "streams")
		a.add(n)
		for range rapid.IntRange(1, 300).Draw(rt, "steps") {
			s := rapid.SampledFrom(a.streams).Draw(rt, "stream")
			switch rapid.SampledFrom([]string{"fetch", "fill", "settle", "settle all"}).Draw(rt, "do") {
			case "fetch":
				most := a.coming(s) * int64(rapid.SampledFrom([]int{1, 1, 1, 5}).Draw(rt, "times"))
				a.fetched(s, rapid.Int64Range(0, most).Draw(rt, "part"))
			case "fill":
				for i := 0; s.open && i < 1000; i++ {
					a.fetched(s, a.coming(s))
				}
			case "settle":
				s.held -= rapid.Int64Range(0, s.held).Draw(rt, "size")
			case "settle all":
				s.held = 0
			}
			a.note(s)
			s.beyond = min(s.beyond, max(0, s.held-a.mu.share))
			a.check(rt)
			var beyond int64
			for _, s := range a.streams {
				beyond += s.beyond
			}
			if held := a.held(); held > limit+beyond {
				rt.Fatalf("streams hold %d, of which %d came unexpectedly; the limit is %d", held, beyond, limit)
			}
			if within := s.held <= a.mu.share/2 && s.held+a.coming(s) <= a.mu.share; !s.open && (s.held == 0 || within) {
				rt.Fatalf("a stream is not fetched that holds %d, expects %d and has a share of %d", s.held, a.coming(s), a.mu.share)
			}
		}
		for _, s := range a.streams {
			s.held = 0
			a.note(s)
		}
		one := a.streams[0]
		for one.open && one.last <= a.fetch() {
			one.held, one.last = one.held+a.fetch(), a.fetch()
			a.note(one)
		}
		if one.last <= a.fetch() && one.held+a.fetch() < a.mu.share+limit/4 {
			rt.Fatalf("one of %d streams may hold %d, and the limit is %d", n, one.held, limit)
		}
	})
}

// Who borrows leaves as much as he has for others: those that come one after the
// other have half of what was left, and those that come together equal parts.
func TestAllotmentBorrowed(t *testing.T) {
	a := &allotted{allotment: newAllotment(1 << 30)}
	a.add(100)
	fill := func(s *modelled, most int) {
		for ; s.open && most > 0; most-- {
			s.held, s.last = s.held+a.fetch(), a.fetch()
			a.note(s)
		}
	}
	compare := func(wants ...int64) {
		t.Helper()
		for i, want := range wants {
			if got := a.streams[i].held - a.mu.share; got < want-2*a.fetch() || got > want+2*a.fetch() {
				t.Errorf("stream %d has borrowed %d, want about %d", i, got, want)
			}
		}
	}
	for _, s := range a.streams[:4] {
		fill(s, 1<<30)
	}
	compare(1<<28, 1<<27, 1<<26, 1<<25)
	for _, s := range a.streams[:4] {
		s.held = 0
		a.note(s)
	}
	for range 1 << 10 {
		for _, s := range a.streams[:4] {
			fill(s, 1)
		}
	}
	compare(1<<29/5, 1<<29/5, 1<<29/5, 1<<29/5)
}

// Streams that come make all shares smaller, and those that go give back what
// they had.
func TestAllotmentComesAndGoes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a := &allotted{allotment: newAllotment(1 << 20)}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			if len(a.streams) == 0 || rapid.Bool().Draw(rt, "come") {
				a.add(rapid.IntRange(1, 5).Draw(rt, "streams"))
			} else if i := rapid.IntRange(0, len(a.streams)-1).Draw(rt, "stream"); rapid.Bool().Draw(rt, "go") {
				a.remove(a.streams[i].stream)
				if s := a.streams[i]; !a.allotment.note(&s.account, 1<<30, 0, true) {
					rt.Fatal("a stream that has gone is bound by the limit")
				}
				a.streams = slices.Delete(a.streams, i, i+1)
			} else {
				s := a.streams[i]
				if s.open {
					s.last = a.coming(s)
					s.held += s.last
				} else {
					s.held = 0
				}
				a.note(s)
			}
			if n := int64(len(a.streams)); n > 0 && a.mu.share != 1<<19/n {
				rt.Fatalf("the share is %d of %d streams", a.mu.share, n)
			}
			var lent int64
			for _, s := range a.streams {
				lent += max(0, s.account.booked-a.mu.share)
			}
			if lent != a.mu.lent {
				rt.Fatalf("%d are lent by the account, and %d by those of the streams", a.mu.lent, lent)
			}
		}
		for _, s := range a.streams {
			a.remove(s.stream)
		}
		if a.mu.lent != 0 || len(a.mu.accounts) != 0 {
			rt.Fatalf("%d are lent to nobody", a.mu.lent)
		}
	})
}
