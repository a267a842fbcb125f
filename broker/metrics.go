package broker

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics shows what the broker holds to Prometheus, as it is when it is asked.
func (b *Broker) Metrics() prometheus.Collector { return metrics{b} }

type metrics struct{ b *Broker }

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("pawl_broker_"+name, help, labels, nil)
}

var (
	connectionsDesc   = describe("connections", "Connections that are open.")
	refusedDesc       = describe("connections_refused_total", "Connections that were refused, for there were too many.")
	requestsDesc      = describe("requests_total", "Requests that were read.")
	diskBytesDesc     = describe("disk_bytes", "Bytes that the storage takes on disk.")
	diskFullDesc      = describe("disk_full", "1 while the disk has too little room, so that writes are refused.")
	stallsDesc        = describe("stalls_total", "Times that the storage held writes up.")
	topicBytesDesc    = describe("topic_bytes", "Bytes of a topic's batches.", "topic")
	startDesc         = describe("partition_start_offset", "The first offset that is kept.", "topic", "partition")
	stableDesc        = describe("partition_stable_offset", "The offset up to which committed messages can be read.", "topic", "partition")
	endDesc           = describe("partition_end_offset", "The offset up to which messages can be read.", "topic", "partition")
	unreadableDesc    = describe("partition_unreadable_batches", "Batches that somebody could not read because the data are damaged.", "topic", "partition")
	groupMembersDesc  = describe("group_members", "Members of a group.", "group")
	groupOffsetDesc   = describe("group_offset", "A group's committed offset.", "group", "topic", "partition")
	groupLagDesc      = describe("group_lag", "Messages between a group's committed offset and the end.", "group", "topic", "partition")
	openDesc          = describe("transactions_open", "Transactions that are going on.")
	openOldestSecDesc = describe("transaction_oldest_seconds", "Age of the oldest transaction that is going on, or 0.")
)

// Describe implements prometheus.Collector.
func (m metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		connectionsDesc, refusedDesc, requestsDesc, diskBytesDesc, diskFullDesc, stallsDesc, topicBytesDesc, startDesc, stableDesc, endDesc, unreadableDesc,
		groupMembersDesc, groupOffsetDesc, groupLagDesc, openDesc, openOldestSecDesc,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m metrics) Collect(ch chan<- prometheus.Metric) {
	s := m.b.Snapshot()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v int64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	gauge(connectionsDesc, float64(s.Connections))
	counter(refusedDesc, s.Refused)
	counter(requestsDesc, s.Requests)
	gauge(diskBytesDesc, float64(s.DiskBytes))
	full := 0.0
	if s.DiskFull {
		full = 1
	}
	gauge(diskFullDesc, full)
	counter(stallsDesc, s.Stalls)
	for _, t := range s.Topics {
		gauge(topicBytesDesc, float64(t.Bytes), t.Name)
		for _, p := range t.Partitions {
			number := strconv.Itoa(int(p.Number))
			gauge(startDesc, float64(p.Start), t.Name, number)
			gauge(stableDesc, float64(p.Stable), t.Name, number)
			gauge(endDesc, float64(p.End), t.Name, number)
			gauge(unreadableDesc, float64(len(p.Unreadable)), t.Name, number)
		}
	}
	for _, g := range s.Groups {
		gauge(groupMembersDesc, float64(len(g.Members)), g.Name)
		for _, o := range g.Offsets {
			number := strconv.Itoa(int(o.Partition))
			gauge(groupOffsetDesc, float64(o.Offset), g.Name, o.Topic, number)
			if o.Lag >= 0 {
				gauge(groupLagDesc, float64(o.Lag), g.Name, o.Topic, number)
			}
		}
	}
	open, oldest := 0, 0.0
	for _, x := range s.Transactions {
		if x.State == stateOngoing.String() {
			open++
			oldest = max(oldest, x.AgeSeconds)
		}
	}
	gauge(openDesc, float64(open))
	gauge(openOldestSecDesc, oldest)
}
