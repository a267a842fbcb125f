package main

// partitions is the number of every topic's partitions.
const partitions = 4

// workload is one program over one input.
type workload struct {
	name    string // for -only
	title   string // in the tables
	program string // count or map
	input   input
	extra   bool // runs only when it is asked for by name
	rate    int  // messages a second that are sent while latency is measured; 0 measures throughput
	streams streamsSettings
	pawl    []variant
}

// streamsSettings are those of Kafka Streams, beside those that are the same
// for all workloads.
type streamsSettings struct {
	java       []string // options of the JVM
	properties map[string]string
}

// variant is one way of running Pawl.
type variant struct {
	note                string // what differs from the defaults
	transactionMessages int    // consumer.Config.TransactionMessages
}

// tuned made Kafka Streams fastest at counting many keys: no
// record cache, which costs more than it saves when keys hardly repeat within
// a commit, and batches as large as are worth it.
var tuned = map[string]string{
	"statestore.cache.max.bytes":      "0",
	"commit.interval.ms":              "500",
	"max.poll.records":                "10000",
	"buffered.records.per.partition":  "10000",
	"producer.linger.ms":              "10",
	"producer.batch.size":             "131072",
	"producer.transaction.timeout.ms": "10000",
}

// Its parallel collector burns less CPU than the default one on all of them.
var parallel = []string{"-XX:+UseParallelGC"}

// The messages of an input have keys of 10 bytes and values of 100.
var (
	uniform  = input{name: "uniform-100k", keys: 100_000, messages: 5_000_000}
	few      = input{name: "uniform-1k", keys: 1_000, messages: 20_000_000}
	zipf     = input{name: "zipf-1m", keys: 1_000_000, zipf: 1.1, messages: 5_000_000}
	once     = input{name: "once-5m", keys: 5_000_000, once: true, messages: 5_000_000}
	defaults = []variant{{}}
)

// workloads are all there are. Kafka Streams' settings in each are the best of
// those tried for it, at exactly_once_v2.
var workloads = []workload{
	{
		name: "count-100k", title: "count, 100,000 keys", program: "count", input: uniform,
		streams: streamsSettings{java: parallel, properties: tuned},
		// Pawl merges a key's changes within a transaction, and its
		// transactions are large while it catches up. A short transaction
		// takes that away: then both publish and log a change for nearly every
		// message.
		pawl: []variant{{}, {note: ", transactions of 4,096 messages", transactionMessages: 4096}},
	},
	{
		name: "count-1k", title: "count, 1,000 keys", program: "count", input: few,
		streams: streamsSettings{java: parallel}, pawl: defaults,
	},
	{
		name: "zipf", title: "count, 1,000,000 keys, Zipf 1.1", program: "count", input: zipf,
		streams: streamsSettings{java: parallel}, pawl: defaults,
	},
	{
		name: "map", title: "map, one to one", program: "map", input: uniform,
		streams: streamsSettings{java: parallel}, pawl: defaults,
	},
	{
		// Each key is new: nothing that is cached helps.
		name: "cold", title: "count, 5,000,000 keys, each once", program: "count", input: once, extra: true,
		streams: streamsSettings{java: parallel, properties: tuned}, pawl: defaults,
	},
	{
		// A short interval of commits is the earliest where the processors have
		// room for it; where they have not, Kafka Streams falls behind with it.
		name: "latency", title: "count, 100,000 keys, committed every 20 ms by Kafka Streams", program: "count", rate: 20_000,
		input:   input{name: "live", keys: 100_000},
		streams: streamsSettings{properties: map[string]string{"commit.interval.ms": "20", "producer.linger.ms": "0"}},
		pawl:    defaults,
	},
	{
		name: "latency-100", title: "count, 100,000 keys, committed every 100 ms, its default, by Kafka Streams", program: "count", rate: 20_000,
		input:   input{name: "live-100", keys: 100_000},
		streams: streamsSettings{java: parallel, properties: map[string]string{"producer.linger.ms": "0", "statestore.cache.max.bytes": "0"}},
		pawl:    defaults,
	},
}
