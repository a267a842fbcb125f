package messaging

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// However messages come and are settled, none seems to have come later than it
// did, nor earlier by more than a second and a part of the time for which the
// oldest has been here, and what is kept for that is bounded.
func TestAges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a ages
		came := make(map[int64]time.Time)
		now := time.Unix(1_000_000, 0)
		oldest, next := int64(0), int64(0)
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond)
			from := next + rapid.Int64Range(0, 3).Draw(t, "gap")
			a.came(from, oldest, now)
			next = from + rapid.Int64Range(1, 5).Draw(t, "messages")
			for o := from; o < next; o++ {
				came[o] = now
			}
			if rapid.IntRange(0, 9).Draw(t, "settle") == 0 {
				oldest = rapid.Int64Range(oldest, next).Draw(t, "oldest")
			}
			if len(a.marks) > marksMax {
				t.Fatalf("%d marks are kept, want at most %d", len(a.marks), marksMax)
			}
			for o := oldest; o < next; o++ {
				if came[o].IsZero() {
					continue
				}
				slack := time.Second + now.Sub(a.marks[0].at)/4
				if got := a.of(o); got.After(came[o]) || came[o].Sub(got) > slack {
					t.Fatalf("offset %d came at %v, and seems to have at %v: want that, or up to %v before", o, came[o], got, slack)
				}
			}
		}
	})
}
