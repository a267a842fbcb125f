package consumertest

import (
	"fmt"
	"time"

	"github.com/pawlstream/pawl/internal/devbroker"
)

// host returns the name of the host of a process's present life, or of the
// next one if it does not run. A life that has crashed keeps its host, which
// stays cut.
func (c *Cluster) host(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.mu.lives[name]; n > 0 {
		return fmt.Sprintf("%s#%d", name, n)
	}
	return name
}

func (c *Cluster) setBroken(host string, broken bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.broken[host] = broken
	if !broken {
		delete(c.mu.broken, host)
	}
}

// Freeze stops a process as SIGSTOP does, as far as others see: what it sends,
// and what is sent to it, waits until Thaw. Its code runs on.
func (c *Cluster) Freeze(process string) {
	c.rest()
	c.setBroken(c.host(process), true)
	c.broker.Freeze(c.host(process))
}

// Thaw ends a Freeze.
func (c *Cluster) Thaw(process string) {
	c.broker.Thaw(c.host(process))
	c.setBroken(c.host(process), false)
}

// Cut breaks all connections of a process and lets it make no new ones until
// Heal.
func (c *Cluster) Cut(process string) {
	c.rest()
	c.setBroken(c.host(process), true)
	c.broker.Cut(c.host(process))
}

// Heal ends a Cut.
func (c *Cluster) Heal(process string) {
	c.broker.Heal(c.host(process))
	c.setBroken(c.host(process), false)
}

// Delay makes every request of a process, and every reply to it, take that long
// on its way. Zero ends it.
func (c *Cluster) Delay(process string, d time.Duration) { c.broker.Delay(c.host(process), d) }

// Fail makes the broker answer the next so many requests of a kind, from a
// process, with an error, without acting on them; -1 is all until remove is
// called. Requests and errors have the names that the Kafka protocol gives
// them: "EndTxn", "NOT_COORDINATOR". With an empty error the connection breaks
// in place of an answer. The process may be one that is not started yet.
func (c *Cluster) Fail(process, request, code string, times int) (remove func()) {
	c.t.Helper()
	return c.broker.Fail(devbroker.Fault{Host: c.host(process), Key: c.request(request), Times: times, Code: c.code(code)})
}

// DropReply lets the broker act on the nth request of a kind that the process
// sends from now on, counted from 1, and loses its answer: the connection
// breaks.
func (c *Cluster) DropReply(process, request string, nth int) (remove func()) {
	c.t.Helper()
	return c.broker.DropReply(devbroker.Fault{Host: c.host(process), Key: c.request(request), Nth: nth})
}

// Hold keeps all requests of a kind, and what their connections send after
// them, from the broker, until release is called.
func (c *Cluster) Hold(process, request string) (release func()) {
	c.t.Helper()
	return c.broker.Hold(devbroker.Fault{Host: c.host(process), Key: c.request(request), Times: -1})
}

// Requests returns how many requests of a kind a process has sent since it last
// crashed.
func (c *Cluster) Requests(process, request string) int {
	c.t.Helper()
	key, host := c.request(request), c.host(process)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.requests[hostRequest{host, key}]
}

// sent is told of each request.
func (c *Cluster) sent(host string, key int16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.requests[hostRequest{host, key}]++
}

func (c *Cluster) request(name string) int16 {
	c.t.Helper()
	key, ok := requests[name]
	if !ok {
		c.t.Fatalf("there is no request named %q", name)
	}
	return key
}

func (c *Cluster) code(name string) int16 {
	c.t.Helper()
	code, ok := codes[name]
	if !ok {
		c.t.Fatalf("there is no error named %q", name)
	}
	return code
}

// requests has the API keys that Pawl's clients use, by name.
var requests = map[string]int16{
	"Produce":                 0,
	"Fetch":                   1,
	"ListOffsets":             2,
	"Metadata":                3,
	"OffsetCommit":            8,
	"OffsetFetch":             9,
	"FindCoordinator":         10,
	"JoinGroup":               11,
	"Heartbeat":               12,
	"LeaveGroup":              13,
	"SyncGroup":               14,
	"DescribeGroups":          15,
	"ListGroups":              16,
	"ApiVersions":             18,
	"CreateTopics":            19,
	"DeleteTopics":            20,
	"DeleteRecords":           21,
	"InitProducerID":          22,
	"AddPartitionsToTxn":      24,
	"AddOffsetsToTxn":         25,
	"EndTxn":                  26,
	"TxnOffsetCommit":         28,
	"DescribeConfigs":         32,
	"CreatePartitions":        37,
	"DeleteGroups":            42,
	"IncrementalAlterConfigs": 44,
	"DescribeCluster":         60,
	"DescribeProducers":       61,
	"DescribeTransactions":    65,
	"ListTransactions":        66,
}

// codes has the errors that a test may want, by name. The empty one breaks the
// connection.
var codes = map[string]int16{
	"":                                      0,
	"UNKNOWN_SERVER_ERROR":                  -1,
	"OFFSET_OUT_OF_RANGE":                   1,
	"CORRUPT_MESSAGE":                       2,
	"UNKNOWN_TOPIC_OR_PARTITION":            3,
	"LEADER_NOT_AVAILABLE":                  5,
	"NOT_LEADER_OR_FOLLOWER":                6,
	"REQUEST_TIMED_OUT":                     7,
	"MESSAGE_TOO_LARGE":                     10,
	"NETWORK_EXCEPTION":                     13,
	"COORDINATOR_LOAD_IN_PROGRESS":          14,
	"COORDINATOR_NOT_AVAILABLE":             15,
	"NOT_COORDINATOR":                       16,
	"INVALID_TIMESTAMP":                     32,
	"NOT_ENOUGH_REPLICAS":                   19,
	"ILLEGAL_GENERATION":                    22,
	"UNKNOWN_MEMBER_ID":                     25,
	"REBALANCE_IN_PROGRESS":                 27,
	"TOPIC_AUTHORIZATION_FAILED":            29,
	"GROUP_AUTHORIZATION_FAILED":            30,
	"CLUSTER_AUTHORIZATION_FAILED":          31,
	"POLICY_VIOLATION":                      44,
	"OUT_OF_ORDER_SEQUENCE_NUMBER":          45,
	"DUPLICATE_SEQUENCE_NUMBER":             46,
	"INVALID_PRODUCER_EPOCH":                47,
	"INVALID_TXN_STATE":                     48,
	"INVALID_PRODUCER_ID_MAPPING":           49,
	"CONCURRENT_TRANSACTIONS":               51,
	"TRANSACTION_COORDINATOR_FENCED":        52,
	"TRANSACTIONAL_ID_AUTHORIZATION_FAILED": 53,
	"KAFKA_STORAGE_ERROR":                   56,
	"UNKNOWN_PRODUCER_ID":                   59,
	"FENCED_INSTANCE_ID":                    82,
	"INVALID_RECORD":                        87,
	"PRODUCER_FENCED":                       90,
	"TRANSACTION_ABORTABLE":                 120,
}
