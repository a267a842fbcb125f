package main

import (
	"errors"
	"fmt"
)

// limits are what is promised of the figures, and how those of a run were worse.
type limits struct{ worse []error }

// What a row of so many keys must reach, as a share of plain polling.
var leastShare = map[int]float64{1_000: 0.60, 100_000: 0.18}

// What a message may take, in milliseconds, at every load.
const (
	mostP50 = 15.0
	mostP99 = 60.0
)

// throughput takes the share of a row. Of other rows than the usual ones nothing
// is promised.
func (l *limits) throughput(r row, share float64) {
	if least, ok := leastShare[r.keys]; ok && !(share >= least) {
		l.worse = append(l.worse, fmt.Errorf("%d keys: %.1f %% of plain polling, want %.0f %% at least", r.keys, 100*share, 100*least))
	}
}

// latency takes the figures of a load.
func (l *limits) latency(of load, f figures) {
	for _, q := range []struct {
		name      string
		got, most float64
	}{{"p50", f.P50, mostP50}, {"p99", f.P99, mostP99}} {
		if !(q.got <= q.most) {
			l.worse = append(l.worse, fmt.Errorf("%d/s on %d shard(s): %s is %.1f ms, want %.0f ms at most", of.rate, of.partitions, q.name, q.got, q.most))
		}
	}
}

// err returns what was worse than promised.
func (l *limits) err() error { return errors.Join(l.worse...) }
