package consumer

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what an application counts. What concerns one shard is taken
// from its status when it is asked for, and so goes with the shard.
type metrics struct {
	app *App

	messages      prometheus.Counter
	commits       prometheus.Counter
	commitSeconds prometheus.Histogram
	aborts        prometheus.Counter
	failed        *prometheus.CounterVec
	dropped       *prometheus.CounterVec
	deadLetters   *prometheus.CounterVec
	timers        prometheus.Counter
	failures      prometheus.Counter
	fenced        prometheus.Counter
	restored      prometheus.Counter
	discarded     *prometheus.CounterVec
	abandoned     prometheus.Counter
	haltFailed    prometheus.Counter
	aheadFailed   prometheus.Counter

	lag, phase, running, stuck *prometheus.Desc
}

func newMetrics(a *App) *metrics {
	labels := prometheus.Labels{"application": a.cfg.Application}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels})
	}
	counters := func(name, help string, by ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, by)
	}
	desc := func(name, help string, by ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, by, labels)
	}
	m := &metrics{
		app:      a,
		messages: counter("pawl_messages_total", "Messages consumed, in committed transactions."),
		commits:  counter("pawl_commits_total", "Transactions committed."),
		commitSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "pawl_commit_seconds", Help: "Time from the end of Flush to a committed transaction applied to the database.",
			ConstLabels: labels, Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16)}),
		aborts:      counter("pawl_aborts_total", "Transactions aborted because something in them failed."),
		failed:      counters("pawl_failed_messages_total", "Messages, and transactions of several, that failed: by reason.", "reason"),
		dropped:     counters("pawl_dropped_total", "Messages passed without being consumed: by reason.", "reason"),
		deadLetters: counters("pawl_dead_letters_total", "Messages published to the dead-letter topic: by reason.", "reason"),
		timers:      counter("pawl_timers_total", "Timers fired, in committed transactions."),
		failures:    counter("pawl_shard_failures_total", "Times that a shard failed and backed off."),
		fenced:      counter("pawl_fenced_total", "Times that a shard was fenced by another process, or its transaction timed out."),
		restored:    counter("pawl_restored_records_total", "Changelog records read to restore state."),
		discarded:   counters("pawl_state_discarded_total", "Local copies of state discarded: by reason.", "reason"),
		abandoned:   counter("pawl_abandoned_calls_total", "Calls of user code that did not return in time and were left to themselves, without HaltShard."),
		haltFailed:  counter("pawl_halt_failures_total", "Calls of HaltShard that panicked."),
		aheadFailed: counter("pawl_prefetch_failures_total", "Calls of Prefetch that failed or panicked."),
		lag:         desc("pawl_lag_messages", "Messages not consumed, up to the last stable offset.", "shard"),
		phase:       desc("pawl_shard_phase", "1 for the phase that the shard is in.", "shard", "phase"),
		running:     desc("pawl_shards_running", "Shards that run in this process."),
		stuck:       desc("pawl_shards_stuck", "Shards whose user code runs for longer than the limit."),
	}
	m.begin()
	return m
}

// begin gives the counters that have reasons a series for each from the start: an
// alert on the growth of one sees its first event then.
func (m *metrics) begin() {
	for _, why := range []string{"decode", "panic", "error"} { // see reason
		m.failed.WithLabelValues(why)
		m.deadLetters.WithLabelValues(why)
		m.dropped.WithLabelValues(why)
	}
	m.dropped.WithLabelValues("missing")
	for _, why := range []string{"corrupt", "position", "fatal", "accepted"} {
		m.discarded.WithLabelValues(why)
	}
}

func (m *metrics) counters() []prometheus.Collector {
	return []prometheus.Collector{m.messages, m.commits, m.commitSeconds, m.aborts, m.failed, m.dropped, m.deadLetters, m.timers,
		m.failures, m.fenced, m.restored, m.discarded, m.abandoned, m.haltFailed, m.aheadFailed}
}

// register registers the metrics, and returns what takes them back.
func (m *metrics) register(r prometheus.Registerer) (unregister func(), err error) {
	if r == nil {
		return func() {}, nil
	}
	if err := r.Register(m); err != nil {
		return nil, fmt.Errorf("application %s: register its metrics: %w: each application of a process wants a name, or a Registerer, of its own", m.app.cfg.Application, err)
	}
	return func() { r.Unregister(m) }, nil
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.counters() {
		c.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{m.lag, m.phase, m.running, m.stuck} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.counters() {
		c.Collect(ch)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	running, stuck := 0, 0
	for _, s := range m.app.Status().Shards {
		if s.Phase == Running {
			running++
		}
		if s.Busy != nil && s.Busy.Stack != "" {
			stuck++
		}
		gauge(m.phase, 1, string(s.ID), string(s.Phase))
		if s.Lag >= 0 {
			gauge(m.lag, float64(s.Lag), string(s.ID))
		}
	}
	gauge(m.running, float64(running))
	gauge(m.stuck, float64(stuck))
}
