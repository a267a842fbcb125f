package main

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// However messages are merged into counts, each measured one has one latency:
// from when it was due to the first count that includes it.
func TestLiveMeasuresEachMessageOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.IntRange(1, 5).Draw(t, "keys")
		l := newLive(keys)
		start := time.Unix(0, 0)
		var want, got time.Duration
		sent, counted := make([][]due, keys), make([]int, keys)
		measured := 0
		receive := func(key, n int, now time.Time) {
			for _, d := range sent[key][counted[key]:n] {
				if d.measured {
					want += now.Sub(d.at)
				}
			}
			counted[key] = n
			if err := l.receive(key, int64(n), now); err != nil {
				t.Fatal(err)
			}
		}
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		for i := range 200 {
			now := start.Add(time.Duration(i) * time.Millisecond)
			key := r.IntN(keys)
			if r.IntN(3) > 0 {
				d := due{now, r.IntN(2) == 0}
				if d.measured {
					measured++
				}
				sent[key] = append(sent[key], d)
				l.send(key, d)
			} else if left := len(sent[key]) - counted[key]; left > 0 {
				receive(key, counted[key]+1+r.IntN(left), now)
			}
		}
		for key := range keys {
			if len(sent[key]) > counted[key] {
				receive(key, len(sent[key]), start.Add(time.Second))
			}
		}
		for _, d := range l.mu.took {
			got += d
		}
		if l.outstanding() != 0 || len(l.mu.took) != measured || got != want {
			t.Errorf("%d outstanding, %d latencies that add up to %v; want 0, %d and %v", l.outstanding(), len(l.mu.took), got, measured, want)
		}
	})
}

// A count that includes more than was sent, or not more than the last one, is
// wrong: something was counted twice.
func TestLiveRefusesWrongCounts(t *testing.T) {
	l := newLive(1)
	l.send(0, due{})
	l.send(0, due{})
	if err := l.receive(0, 3, time.Now()); err == nil {
		t.Error("three of two messages counted: want an error")
	}
	if err := l.receive(0, 1, time.Now()); err != nil {
		t.Error(err)
	}
	if err := l.receive(0, 1, time.Now()); err == nil {
		t.Error("the same count twice: want an error")
	}
}

func TestPercentiles(t *testing.T) {
	var all []time.Duration
	for i := range 1000 {
		all = append(all, time.Duration(999-i)*time.Millisecond)
	}
	if got, want := *percentilesOf(all), (percentiles{500, 990, 999}); got != want {
		t.Errorf("percentiles of 0 to 999 ms = %v, want %v", got, want)
	}
	if got, want := *percentilesOf(all[:1]), (percentiles{0, 0, 0}); got != want {
		t.Errorf("percentiles of one latency = %v, want %v", got, want)
	}
}
