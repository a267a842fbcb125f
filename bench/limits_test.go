package main

import (
	"math"
	"testing"
)

// A figure that is worse than promised, or none at all, fails a run that checks.
func TestLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		few, many, p50, p99 float64
		worse               int
	}{
		"just met":       {0.60, 0.18, 15, 60, 0},
		"few keys":       {0.599, 0.18, 15, 60, 1},
		"many keys":      {0.60, 0.179, 15, 60, 1},
		"p50":            {0.60, 0.18, 15.1, 60, 1},
		"p99":            {0.60, 0.18, 15, 60.1, 1},
		"all":            {0, 0, 100, 100, 4},
		"not a number":   {math.NaN(), math.NaN(), math.NaN(), math.NaN(), 4},
		"better by much": {1, 1, 1, 1, 0},
	} {
		var l limits
		l.throughput(row{1_000, 1}, tt.few)
		l.throughput(row{100_000, 1}, tt.many)
		l.throughput(row{7, 1}, 0)
		l.latency(load{10, 1}, figures{P50: tt.p50, P99: tt.p99})
		if len(l.worse) != tt.worse || (l.err() == nil) != (tt.worse == 0) {
			t.Errorf("%s: %v, want %d worse", name, l.err(), tt.worse)
		}
	}
}
