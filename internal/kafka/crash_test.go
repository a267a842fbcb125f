package kafka

import (
	"slices"
	"sync"
	"testing"

	"github.com/pawlstream/pawl/internal/invariants"
)

// A commit passes each crash point once, in this order.
func TestCrashPoints(t *testing.T) {
	if !invariants.Enabled { // builds without the tag have none
		return
	}
	points := []string{"produce-before", "produce-after", "endtxn-sent", "endtxn-replied"}
	bubble(t, func(t *testing.T) {
		dev(t, func(e *env) {
			d := e.topic("out", 1, nil)
			s := e.session("a")
			e.commit(s, d, "warm")
			var mu sync.Mutex
			var passed []string
			for _, p := range points {
				defer invariants.Arm(p, func() {
					mu.Lock()
					defer mu.Unlock()
					passed = append(passed, p)
				})()
			}
			e.commit(s, d, "x")
			e.aborted(s, d, "y") // an abort passes none
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(passed, points) {
				t.Errorf("passed %q, want %q", passed, points)
			}
		})
	})
}
