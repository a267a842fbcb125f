package cli

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Kills are spread evenly over the messages, in order; every third victim
// stays down; and a seed makes the same plan again.
func TestPlanStrikes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		kills := rapid.IntRange(0, 300).Draw(t, "kills")
		messages := rapid.Int64Range(1, 1_000_000).Draw(t, "messages")
		plan := planStrikes(seed, kills, messages, 2)
		if len(plan) != kills {
			t.Fatalf("%d strikes, want %d", len(plan), kills)
		}
		if again := planStrikes(seed, kills, messages, 2); !slices.Equal(plan, again) {
			t.Fatalf("seed %d made two plans: %v and %v", seed, plan, again)
		}
		part := float64(messages) / float64(kills+1)
		before := int64(0)
		for i, s := range plan {
			if low, high := int64(part*(float64(i)+0.75)), int64(part*(float64(i)+1.25)); s.at < low || s.at > high {
				t.Fatalf("strike %d of %d comes at %d of %d, want %d to %d", i, kills, s.at, messages, low, high)
			}
			if s.at < before || s.at > messages {
				t.Fatalf("strike %d comes at %d, after one at %d, of %d", i, s.at, before, messages)
			}
			before = s.at
			if want := i%3 == 2; s.stays != want {
				t.Fatalf("strike %d: stays is %t, want %t", i, s.stays, want)
			}
			if s.victim < 0 || s.victim > 1 {
				t.Fatalf("strike %d: victim %d of 2", i, s.victim)
			}
		}
	})
}

// Other seeds make other plans, with either process as a victim.
func TestPlanStrikesOfSeeds(t *testing.T) {
	victims := make(map[int]int)
	points := make(map[int64]bool)
	for seed := range uint64(100) {
		s := planStrikes(seed, 1, 100_000, 2)[0]
		victims[s.victim]++
		points[s.at] = true
	}
	if victims[0] < 25 || victims[1] < 25 {
		t.Errorf("victims of 100 seeds: %v, want about as many of each", victims)
	}
	if len(points) < 90 {
		t.Errorf("100 seeds strike at %d different points", len(points))
	}
}
