package cli

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// However often and irregularly it is asked, a pacer is never ahead of its
// rate by more than a burst, and not behind if it is asked often enough.
func TestPacer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.IntRange(1, 50_000).Draw(t, "rate")
		p := pacer{rate: rate}
		now := time.Unix(1_700_000_000, 0)
		began, sent := now, 0
		waited := true
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			n, wait := p.due(now, 1<<40)
			if n < 0 || wait <= 0 {
				t.Fatalf("%d due, and then a wait of %v", n, wait)
			}
			if n > 0 {
				p.sent(n)
				sent += n
				waited = false
			} else {
				now = now.Add(wait)
				waited = true
			}
			if late := rapid.Int64Range(0, int64(50*time.Millisecond)).Draw(t, "late"); rapid.Bool().Draw(t, "is late") {
				now = now.Add(time.Duration(late))
			}
		}
		passed := now.Sub(began).Seconds() * float64(rate)
		burst := max(2, float64(rate)/4)
		if float64(sent) > passed+burst {
			t.Fatalf("%d sent in %v at %d a second", sent, now.Sub(began), rate)
		}
		if short := passed - float64(sent); waited && rate <= 20_000 && short > burst+float64(rate)/5 {
			t.Fatalf("only %d sent in %v at %d a second", sent, now.Sub(began), rate)
		}
	})
}

func TestPacerWithoutLimit(t *testing.T) {
	var p pacer
	for _, tt := range []struct {
		room int64
		want int
	}{{1 << 40, feedBatch}, {7, 7}, {0, 0}, {-3, 0}} {
		if got, _ := p.due(time.Now(), tt.room); got != tt.want {
			t.Errorf("room for %d: %d due, want %d", tt.room, got, tt.want)
		}
	}
}

// A feed that was held at its gate does not catch up.
func TestPacerAfterAGate(t *testing.T) {
	p := pacer{rate: 1000}
	now := time.Unix(1_700_000_000, 0)
	p.due(now, 0)
	n, _ := p.due(now.Add(time.Minute), 1<<40)
	if want := 250; n != want {
		t.Errorf("%d due after a minute at the gate, want %d: a quarter of a second's", n, want)
	}
}

func TestGate(t *testing.T) {
	f := &feeder{}
	f.mu.moved = make(chan struct{})
	moved := f.mu.moved
	f.allow(10, 4, 17)
	select {
	case <-moved:
	default:
		t.Error("who waits for the gate is not told that it moved")
	}
	var got []int64
	for f.allowMore() {
		got = append(got, f.allowed())
	}
	if len(got) != 2 || got[0] != 14 || got[1] != 17 {
		t.Errorf("the gate went to %v, want 14 and 17", got)
	}
}
