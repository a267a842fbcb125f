package cli

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Kills are spread evenly over the messages, in order, as many of processes and
// of the broker as are wanted; every third process stays down; and a seed makes
// the same plan again.
func TestPlanStrikes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		kills := rapid.IntRange(0, 300).Draw(t, "kills")
		brokerKills := rapid.IntRange(0, 100).Draw(t, "brokerKills")
		messages := rapid.Int64Range(1, 1_000_000).Draw(t, "messages")
		plan := planStrikes(seed, kills, brokerKills, messages, 2)
		if len(plan) != kills+brokerKills {
			t.Fatalf("%d strikes, want %d and %d", len(plan), kills, brokerKills)
		}
		if again := planStrikes(seed, kills, brokerKills, messages, 2); !slices.Equal(plan, again) {
			t.Fatalf("seed %d made two plans: %v and %v", seed, plan, again)
		}
		part := float64(messages) / float64(len(plan)+1)
		before, killed := int64(0), 0
		for i, s := range plan {
			if low, high := int64(part*(float64(i)+0.75)), int64(part*(float64(i)+1.25)); s.at < low || s.at > high {
				t.Fatalf("strike %d of %d comes at %d of %d, want %d to %d", i, len(plan), s.at, messages, low, high)
			}
			if s.at < before || s.at > messages {
				t.Fatalf("strike %d comes at %d, after one at %d, of %d", i, s.at, before, messages)
			}
			before = s.at
			if s.broker {
				if brokerKills--; s.stays {
					t.Fatalf("strike %d: the broker stays down", i)
				}
				continue
			}
			if want := killed%3 == 2; s.stays != want {
				t.Fatalf("strike %d: stays is %t, want %t", i, s.stays, want)
			}
			killed++
			if s.victim < 0 || s.victim > 1 {
				t.Fatalf("strike %d: victim %d of 2", i, s.victim)
			}
		}
		if killed != kills || brokerKills != 0 {
			t.Fatalf("%d kills of processes, want %d; %d of the broker are missing", killed, kills, brokerKills)
		}
	})
}

// Other seeds make other plans, with either process as a victim.
func TestPlanStrikesOfSeeds(t *testing.T) {
	victims := make(map[int]int)
	points := make(map[int64]bool)
	for seed := range uint64(100) {
		s := planStrikes(seed, 1, 0, 100_000, 2)[0]
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
