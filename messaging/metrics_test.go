package messaging_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pawlstream/pawl/messaging"
)

// series returns the series of a registry, by name and labels, with their
// values.
func series(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				if l.GetName() != "application" && l.GetName() != "consumer" {
					name += " " + l.GetName() + "=" + l.GetValue()
				}
			}
			out[name] += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

// Metrics say how it is, partition by partition; the series of a partition go
// with it, and all of them with the worker.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		r := prometheus.NewRegistry()
		k := newKeep()
		cfg := messaging.Config{Registerer: r, Order: messaging.Unordered, Retry: messaging.Retry{InPlace: 2, Tiers: []time.Duration{}}}
		b.work("p1", cfg, func(ctx context.Context, d messaging.Delivery) error {
			switch string(d.Value()) {
			case "bad":
				return errNo
			case "kept":
				return k.handle(ctx, d)
			}
			return nil
		})
		b.publish(0, "k", "a", "bad", "kept", "b")
		b.publish(1, "k", "c")
		b.Advance(10 * time.Second)
		got := series(t, r)
		for name, want := range map[string]float64{
			"pawl_messaging_acked_total":                         3,
			"pawl_messaging_failed_attempts_total":               2,
			"pawl_messaging_retries_in_place_total":              1,
			"pawl_messaging_dead_letters_total reason=failed":    1,
			"pawl_messaging_in_flight partition=0":               1,
			"pawl_messaging_in_flight partition=1":               0,
			"pawl_messaging_backlog partition=0":                 1,
			"pawl_messaging_oldest_unsettled_offset partition=0": 2,
			"pawl_messaging_lag_messages partition=0":            0,
			"pawl_messaging_partitions":                          2,
			"pawl_messaging_breaker_open":                        0,
			"pawl_messaging_handler_seconds":                     6,
		} {
			if got[name] != want {
				t.Errorf("%s is %v, want %v", name, got[name], want)
			}
		}
		if age := got["pawl_messaging_oldest_unsettled_seconds partition=0"]; age < 9 || age > 11 {
			t.Errorf("the oldest unsettled message is %v s old, want 10", age)
		}
		if err := k.get("kept").Ack(); err != nil {
			t.Fatal(err)
		}
		b.work("p2", messaging.Config{}, nil)
		b.running(1, "p2")
		n := 0
		for name := range series(t, r) {
			if strings.HasPrefix(name, "pawl_messaging_in_flight") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d partitions have series after one was revoked, want 1", n)
		}
		if err := b.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		var left []string
		for name := range series(t, r) {
			left = append(left, name)
		}
		slices.Sort(left)
		if len(left) != 0 {
			t.Errorf("series after the stop: %v", left)
		}
	})
}
