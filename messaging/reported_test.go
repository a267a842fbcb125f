package messaging_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/topic"
)

// logged is a log whose lines can be looked at.
type logged struct {
	logger *slog.Logger
	mu     sync.Mutex
	lines  []string
}

func newLogged(t *testing.T) *logged {
	l := new(logged)
	l.logger = slog.New(slog.NewTextHandler(io.MultiWriter(l, testWriter{t}), nil))
	return l
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(b))
	return len(b), nil
}

// has says whether one line has all of the parts.
func (l *logged) has(parts ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		all := true
		for _, part := range parts {
			all = all && strings.Contains(line, part)
		}
		if all {
			return true
		}
	}
	return false
}

// metricOf returns the value of a metric that has no labels of its own.
func metricOf(t *testing.T, r *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// Metadata that is of no use is logged, with its offset, and counted.
func TestForeignMetadataIsReported(t *testing.T) {
	for text, want := range map[string]float64{"someone else's": 1, "pawl1.AAAAAAAAAAAA": 1, "": 0} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1)
				log, reg := newLogged(t), prometheus.NewRegistry()
				b.Publish(work, numbers("m", 10)...)
				consumertest.SetGroupOffset(b.Cluster, "test.worker", topic.Partition{Topic: "work"}, 4, text)
				b.work("p1", messaging.Config{Logger: log.logger, Registerer: reg}, nil)
				b.running(1, "p1")
				if got := metricOf(t, reg, "pawl_messaging_snapshots_ignored_total"); got != want {
					t.Errorf("%v commits' metadata are counted as ignored, want %v", got, want)
				}
				if got := log.has("metadata of the last commit is of no use", "offset=4", "partition=work-0"); got != (want > 0) {
					t.Errorf("logged: %v, want %v", got, want > 0)
				}
			})
		})
	}
}

// A forgotten ack is logged once, with its offset and key.
func TestForgottenAckIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		log := newLogged(t)
		k := newKeep()
		b.work("p1", messaging.Config{StuckAfter: time.Minute, Logger: log.logger}, func(ctx context.Context, d messaging.Delivery) error {
			if string(d.Value()) == "m3" {
				return k.handle(ctx, d)
			}
			return nil
		})
		b.publish(0, "key", numbers("m", 4)...)
		b.Until("it to be handed out", func() bool { return k.len() == 1 })
		want := []string{"was given to a handler and is not settled", "offset=3", "key", "partition=work-0"}
		b.Advance(50 * time.Second)
		if log.has(want...) {
			t.Error("it is logged before its time")
		}
		b.Advance(time.Minute)
		if !log.has(want...) {
			t.Errorf("no line has %q", want)
		}
	})
}

// What an owner before had read and not settled is counted when it comes again.
func TestRedeliveredIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		reg := prometheus.NewRegistry()
		k := newKeep()
		hold := func(ctx context.Context, d messaging.Delivery) error {
			if strings.HasPrefix(string(d.Value()), "held") {
				return k.handle(ctx, d)
			}
			return nil
		}
		b.work("p1", messaging.Config{Order: messaging.Unordered}, hold)
		for i := range 5 {
			b.publish(0, fmt.Sprint(i), fmt.Sprint("held", i), fmt.Sprint("m", i))
		}
		b.Advance(5 * time.Second)
		if got := b.stats("p1").Redelivered; got != 0 {
			t.Errorf("%d messages were redelivered that came for the first time", got)
		}
		b.Crash("p1")
		b.work("p2", messaging.Config{Order: messaging.Unordered, Registerer: reg}, nil)
		b.publish(0, "new", "new")
		b.Advance(30 * time.Second)
		b.idle("p2")
		if got := b.stats("p2").Redelivered; got != 5 {
			t.Errorf("%d messages were redelivered, want the 5 that were read and not settled", got)
		}
		if got := metricOf(t, reg, "pawl_messaging_redelivered_total"); got != 5 {
			t.Errorf("the metric says %v, want 5", got)
		}
	})
}
