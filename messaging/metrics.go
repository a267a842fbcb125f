package messaging

import (
	"fmt"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what a worker counts. What concerns one partition is taken from
// its stats when it is asked for, and so goes with the partition. The only
// labels are partitions and reasons, of which there are few.
type metrics struct {
	w *Worker

	acked, failed, retriedInPlace, retriedLater, followed  atomic.Int64
	redelivered, crashed, missed, abandoned, writeFailures atomic.Int64
	commits, commitFailures, snapshotsIgnored, recreated   atomic.Int64

	mu struct {
		sync.Mutex
		letters map[string]int64
	}

	handlers histogram
	descs    map[string]*prometheus.Desc
	counts   []count
}

// count is a counter with its name.
type count struct {
	desc  *prometheus.Desc
	value *atomic.Int64
}

func (m *metrics) init(w *Worker) {
	m.w = w
	m.mu.letters = make(map[string]int64)
	labels := prometheus.Labels{"application": w.cfg.Application, "consumer": w.cfg.Consumer}
	counter := func(name, help string, value *atomic.Int64) {
		m.counts = append(m.counts, count{prometheus.NewDesc("pawl_messaging_"+name, help, nil, labels), value})
	}
	counter("acked_total", "Messages acked.", &m.acked)
	counter("failed_attempts_total", "Attempts at a message that failed.", &m.failed)
	counter("retries_in_place_total", "Failed attempts after which the message stayed in its place.", &m.retriedInPlace)
	counter("retries_delayed_total", "Failed attempts after which the message was written to a delay topic.", &m.retriedLater)
	counter("followed_total", "Messages written to a delay topic behind one of their key.", &m.followed)
	counter("redelivered_total", "Messages read again that an owner before had read and not settled.", &m.redelivered)
	counter("crashed_total", "Messages given up because the process ended again and again while it handled them.", &m.crashed)
	counter("missed_total", "Offsets that were gone before they were read.", &m.missed)
	counter("abandoned_handlers_total", "Handlers that did not return in time and were left to themselves.", &m.abandoned)
	counter("write_failures_total", "Tries to write retries or dead letters that failed.", &m.writeFailures)
	counter("commits_total", "Commits of offsets.", &m.commits)
	counter("commit_failures_total", "Commits of offsets that failed.", &m.commitFailures)
	counter("snapshots_ignored_total", "Commits' metadata that could not be used.", &m.snapshotsIgnored)
	counter("recreated_total", "Partitions that began anew because the topic, or one by which messages come back, was deleted and made anew.", &m.recreated)
	m.handlers.desc = prometheus.NewDesc("pawl_messaging_handler_seconds", "Time that a call of the handler took.", nil, labels)
	m.descs = make(map[string]*prometheus.Desc)
	desc := func(name, help string, by ...string) {
		m.descs[name] = prometheus.NewDesc("pawl_messaging_"+name, help, by, labels)
	}
	desc("dead_letters_total", "Messages written to the dead letters, by reason.", "reason")
	desc("in_flight", "Messages given to a handler and not settled.", "partition")
	desc("backlog", "Messages read and not settled.", "partition")
	desc("held_bytes", "Size of messages fetched and not settled.", "partition")
	desc("delayed", "Messages read that wait until they are due.", "partition")
	desc("held", "Messages in delay topics that hold back their key or are held back.", "partition")
	desc("lag_messages", "Messages not read, up to the last stable offset.", "partition")
	desc("oldest_unsettled_offset", "Offset of the oldest unsettled message.", "partition")
	desc("oldest_unsettled_seconds", "Time since the oldest unsettled message was fetched by this process.", "partition")
	desc("full", "1 while a limit keeps the partition from being fetched.", "partition")
	desc("unsaved", "Settled messages that the last commit had no room for: they come again after a crash.", "partition")
	desc("breaker_open", "1 while the circuit breaker lets nothing be handled.")
	desc("breaker_opened_total", "Times that the circuit breaker opened.")
	desc("paused", "1 while handlers are given nothing, as somebody has paused the consumer.")
	desc("partitions", "Partitions assigned to this process.")
}

func (m *metrics) deadLetter(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.letters[reason]++
}

func (m *metrics) letters() map[string]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.mu.letters)
}

// register registers the metrics, and returns what takes them back.
func (m *metrics) register(r prometheus.Registerer) (unregister func(), err error) {
	if r == nil {
		return func() {}, nil
	}
	if err := r.Register(m); err != nil {
		return nil, fmt.Errorf("messaging %s: register its metrics: %w: each consumer of a process wants a name, or a Registerer, of its own", m.w.group, err)
	}
	return func() { r.Unregister(m) }, nil
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.handlers.desc
	for _, c := range m.counts {
		ch <- c.desc
	}
	for _, d := range m.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	ch <- m.handlers.metric()
	for _, c := range m.counts {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(c.value.Load()))
	}
	for reason, n := range m.letters() {
		ch <- prometheus.MustNewConstMetric(m.descs["dead_letters_total"], prometheus.CounterValue, float64(n), reason)
	}
	s := m.w.Stats()
	gauge := func(name string, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(m.descs[name], prometheus.GaugeValue, v, labels...)
	}
	flag := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	for _, p := range s.Partitions {
		n := strconv.Itoa(int(p.Partition))
		gauge("in_flight", float64(p.InFlight), n)
		gauge("backlog", float64(p.Backlog), n)
		gauge("held_bytes", float64(p.Bytes), n)
		gauge("delayed", float64(p.Delayed), n)
		gauge("held", float64(p.Held), n)
		gauge("full", flag(p.Full), n)
		gauge("unsaved", float64(p.Unsaved), n)
		if p.Lag >= 0 {
			gauge("lag_messages", float64(p.Lag), n)
		}
		if p.Oldest != nil {
			gauge("oldest_unsettled_offset", float64(p.Oldest.Offset), n)
			if !p.Oldest.Since.IsZero() {
				gauge("oldest_unsettled_seconds", time.Since(p.Oldest.Since).Seconds(), n)
			}
		}
	}
	gauge("breaker_open", flag(s.Breaker != string(breakerClosed)))
	ch <- prometheus.MustNewConstMetric(m.descs["breaker_opened_total"], prometheus.CounterValue, float64(s.BreakerOpened))
	gauge("paused", flag(s.Paused))
	gauge("partitions", float64(len(s.Partitions)))
}

// histogram counts how long calls took. It takes several at once, which were
// timed together.
type histogram struct {
	desc   *prometheus.Desc
	counts [handlerBuckets + 1]atomic.Uint64 // by bucket; in the last, those above all
	sum    atomic.Int64                      // nanoseconds
}

// The buckets: the first is up to handlerFirst, each other four times as long.
const (
	handlerBuckets = 12
	handlerFirst   = 100 * time.Microsecond
)

// observe takes note of calls that took so long each.
func (h *histogram) observe(took time.Duration, calls int) {
	i, bound := 0, handlerFirst
	for i < handlerBuckets && took > bound {
		i, bound = i+1, 4*bound
	}
	h.counts[i].Add(uint64(calls))
	h.sum.Add(int64(took) * int64(calls))
}

func (h *histogram) metric() prometheus.Metric {
	upTo := make(map[float64]uint64, handlerBuckets)
	count, bound := uint64(0), handlerFirst
	for i := range handlerBuckets {
		count += h.counts[i].Load()
		upTo[bound.Seconds()] = count
		bound *= 4
	}
	count += h.counts[handlerBuckets].Load()
	return prometheus.MustNewConstHistogram(h.desc, count, time.Duration(h.sum.Load()).Seconds(), upTo)
}
