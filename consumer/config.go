package consumer

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pawlstream/pawl/cluster"
)

// Config configures the consumers of one application in one process. Zero
// fields mean the defaults that are named beside them.
type Config struct {
	// Application names the application: lower-case letters, digits and
	// hyphens. It is the name of the group, and begins the names of changelog
	// topics, dead-letter topics and transactional IDs. Required.
	Application string

	// Cluster is how to reach the brokers. Required.
	Cluster cluster.Cluster

	// StateDir is the directory of the shards' databases. It belongs to one
	// process at a time. Required.
	StateDir string

	// Instance names this process among those of the application, the same
	// after a restart: a process that comes back within SessionTimeout has its
	// shards at once. Default: the host's name and the state directory.
	Instance string

	// Start is where a shard begins that has never consumed: Earliest, Latest
	// or a time. It is resolved once. A partition that appears later is
	// consumed from its beginning, whatever Start says. Default: Earliest.
	Start Start

	// OnOffsetOutOfRange says what to do when messages that were not consumed
	// are no longer there: FailShard, GoToEarliest or GoToLatest. Default:
	// FailShard.
	OnOffsetOutOfRange OutOfRange

	// OnFailure says what becomes of a message that fails alone, with an error
	// that is not marked by Transient: StopShard, Retry, DeadLetter or Skip.
	// Default: StopShard.
	OnFailure OnFailure

	CommitInterval      time.Duration // the longest that a transaction stays open for more messages: 100 ms
	CommitPause         time.Duration // between the end of a commit and the next: 5 ms, and more with many busy shards
	TransactionBytes    int64         // writes and output of a transaction that close it: 16 MiB
	TransactionMessages int           // messages of a transaction that close it: 100,000
	TransactionTimeout  time.Duration // after which the broker aborts an open transaction: 10 s
	FlushInterval       time.Duration // the age of unflushed state that a crash makes this process read again: 60 s
	FlushBytes          int64         // and its size: 64 MiB
	StartTimeout        time.Duration // for the brokers to be there at start: 30 s
	FenceTimeout        time.Duration // for the last owner's transaction to end: 60 s
	RestoreStall        time.Duration // without progress, after which a restore fails and says why: 60 s
	BackoffMin          time.Duration // before a failed shard starts again, at first: 100 ms
	BackoffMax          time.Duration // and at most: 30 s
	DrainTimeout        time.Duration // for a stop: 30 s
	StuckAfter          time.Duration // a Consume that runs longer makes the process unready: 5 min
	SessionTimeout      time.Duration // without a heartbeat, after which the group counts this process as gone: 10 s
	HeartbeatInterval   time.Duration // 300 ms
	TopicsInterval      time.Duration // how often topics are looked at for new partitions: 10 s

	// Memory is the budget in bytes of what all shards of the process hold in
	// memory: block cache, memtables, tables, transactions. Default: 512 MiB.
	Memory int64

	// CreateTopics creates consumed topics and outputs that are missing, with
	// this number of partitions where their description does not say. Zero
	// creates only those whose description says. Changelog topics are created
	// in any case.
	CreateTopics int

	// Replication is the replication factor of the topics that are created.
	// Default: the broker's.
	Replication int16

	// KeepMembership leaves the group's membership in place when Run returns,
	// for a process that comes back within SessionTimeout. Otherwise its
	// shards move at once.
	KeepMembership bool

	// AcceptStateLoss starts shards from nothing whose state is lost. See
	// ErrStateLost.
	AcceptStateLoss bool

	// AllowOldBroker runs on brokers older than Apache Kafka 4.0, which can
	// leave a dead process's transaction open for ever.
	AllowOldBroker bool

	// Logger takes the log. Default: slog.Default().
	Logger *slog.Logger

	// Registerer takes the metrics, whose names begin with pawl_. Nil: none.
	Registerer prometheus.Registerer
}

// The defaults, each with its reason where it is not plain.
const (
	defaultCommitInterval      = 100 * time.Millisecond
	defaultCommitPause         = 5 * time.Millisecond // Kafka holds a Produce in the first milliseconds after EndTxn: spaced commits take 1.6 ms, others 21
	defaultTransactionBytes    = 16 << 20
	defaultTransactionMessages = 100_000
	defaultTransactionTimeout  = 10 * time.Second // a transaction is only open while it is on the wire
	defaultFlushInterval       = 60 * time.Second
	defaultFlushBytes          = 64 << 20
	defaultStartTimeout        = 30 * time.Second // what starts beside this process, such as a broker, is there by then
	defaultFenceTimeout        = 60 * time.Second
	defaultRestoreStall        = 60 * time.Second
	defaultBackoffMin          = 100 * time.Millisecond
	defaultBackoffMax          = 30 * time.Second
	defaultDrainTimeout        = 30 * time.Second
	defaultStuckAfter          = 5 * time.Minute
	defaultSessionTimeout      = 10 * time.Second
	defaultHeartbeatInterval   = 300 * time.Millisecond // at 3 s a clean hand-over takes 2 s, at 300 ms 0.2 s
	defaultTopicsInterval      = 10 * time.Second
	defaultMemory              = 512 << 20
	minMemory                  = 64 << 20
)

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// withDefaults returns c with every zero field filled in.
func (c Config) withDefaults() Config {
	setDefault(&c.CommitInterval, defaultCommitInterval)
	setDefault(&c.CommitPause, min(defaultCommitPause, c.CommitInterval))
	setDefault(&c.TransactionBytes, defaultTransactionBytes)
	setDefault(&c.TransactionMessages, defaultTransactionMessages)
	setDefault(&c.TransactionTimeout, defaultTransactionTimeout)
	setDefault(&c.FlushInterval, defaultFlushInterval)
	setDefault(&c.FlushBytes, defaultFlushBytes)
	setDefault(&c.StartTimeout, defaultStartTimeout)
	setDefault(&c.FenceTimeout, defaultFenceTimeout)
	setDefault(&c.RestoreStall, defaultRestoreStall)
	setDefault(&c.BackoffMin, defaultBackoffMin)
	setDefault(&c.BackoffMax, defaultBackoffMax)
	setDefault(&c.DrainTimeout, defaultDrainTimeout)
	setDefault(&c.StuckAfter, defaultStuckAfter)
	setDefault(&c.SessionTimeout, defaultSessionTimeout)
	setDefault(&c.HeartbeatInterval, defaultHeartbeatInterval)
	setDefault(&c.TopicsInterval, defaultTopicsInterval)
	setDefault(&c.Memory, defaultMemory)
	setDefault(&c.Logger, slog.Default())
	if c.Instance == "" {
		c.Instance = defaultInstance(c.StateDir)
	}
	return c
}

// defaultInstance is the host's name and the state directory.
func defaultInstance(stateDir string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	if abs, err := filepath.Abs(stateDir); err == nil {
		stateDir = abs
	}
	return host + ":" + stateDir
}

// validate reports everything that is wrong with c, whose defaults are filled
// in.
func (c Config) validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fieldError{field, fmt.Errorf(format, args...)})
	}
	if err := CheckApplication(c.Application); err != nil {
		errs = append(errs, fieldError{"Application", err})
	}
	if err := c.Cluster.Validate(); err != nil {
		errs = append(errs, err)
	}
	if c.StateDir == "" {
		bad("StateDir", "no state directory is named")
	}
	for _, d := range []struct {
		field    string
		name     string
		value    time.Duration
		min, max time.Duration
	}{
		{"CommitInterval", "commit interval", c.CommitInterval, time.Millisecond, time.Hour},
		{"CommitPause", "commit pause", c.CommitPause, 0, c.CommitInterval},
		{"TransactionTimeout", "transaction timeout", c.TransactionTimeout, time.Second, 15 * time.Minute},
		{"FlushInterval", "flush interval", c.FlushInterval, time.Second, 24 * time.Hour},
		{"StartTimeout", "start timeout", c.StartTimeout, time.Millisecond, 24 * time.Hour},
		{"FenceTimeout", "fence timeout", c.FenceTimeout, time.Second, time.Hour},
		{"RestoreStall", "restore stall", c.RestoreStall, time.Second, 24 * time.Hour},
		{"BackoffMin", "shortest back-off", c.BackoffMin, time.Millisecond, c.BackoffMax},
		{"BackoffMax", "longest back-off", c.BackoffMax, c.BackoffMin, time.Hour},
		{"DrainTimeout", "drain timeout", c.DrainTimeout, 10 * time.Millisecond, time.Hour},
		{"StuckAfter", "stuck limit", c.StuckAfter, time.Second, 24 * time.Hour},
		{"SessionTimeout", "session timeout", c.SessionTimeout, 500 * time.Millisecond, 30 * time.Minute},
		{"HeartbeatInterval", "heartbeat interval", c.HeartbeatInterval, 10 * time.Millisecond, c.SessionTimeout / 3},
		{"TopicsInterval", "topics interval", c.TopicsInterval, 100 * time.Millisecond, time.Hour},
	} {
		if d.value < d.min || d.value > d.max {
			bad(d.field, "%s is %v: want %v to %v", d.name, d.value, d.min, d.max)
		}
	}
	if c.TransactionBytes < 1<<10 {
		bad("TransactionBytes", "transaction bytes is %d: want at least 1,024", c.TransactionBytes)
	}
	if c.TransactionMessages < 1 {
		bad("TransactionMessages", "transaction messages is %d: want at least 1", c.TransactionMessages)
	}
	if c.FlushBytes < 1<<20 {
		bad("FlushBytes", "flush bytes is %d: want at least 1 MiB", c.FlushBytes)
	}
	if c.Memory < minMemory {
		bad("Memory", "memory is %d bytes: want at least 64 MiB", c.Memory)
	}
	if c.CreateTopics < 0 {
		bad("CreateTopics", "create topics is %d partitions: want 0 or more", c.CreateTopics)
	}
	if strings.TrimSpace(c.Instance) == "" || len(c.Instance) > maxName {
		bad("Instance", "instance %.60q: want 1 to %d bytes", c.Instance, maxName)
	}
	if err := c.Start.validate(); err != nil {
		errs = append(errs, err)
	}
	if err := c.OnFailure.validate(); err != nil {
		errs = append(errs, err)
	}
	if err := c.OnOffsetOutOfRange.validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// fieldError is what is wrong with a field of a Config.
type fieldError struct {
	field string // as Go names it
	err   error
}

func (e fieldError) Error() string { return e.err.Error() }
func (e fieldError) Unwrap() error { return e.err }

// Field names the field, for programs that know what set it.
func (e fieldError) Field() string { return e.field }
