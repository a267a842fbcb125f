package pawl

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/config"
)

// settings are what flags and variables say.
type settings struct {
	consumer.Config
	tls config.TLSFiles
	embedded
	process

	stop string
}

// fields has the setting of each field of the configuration.
var fields = map[string]string{
	"Application": "application", "Instance": "instance", "StateDir": "state-dir", "Start": "start", "OnFailure": "on-failure",
	"OnOffsetOutOfRange": "on-offset-out-of-range", "CommitInterval": "commit-interval", "CommitPause": "commit-pause",
	"TransactionBytes": "transaction-bytes", "TransactionMessages": "transaction-messages", "TransactionTimeout": "transaction-timeout",
	"FlushInterval": "flush-interval", "FlushBytes": "flush-bytes", "StartTimeout": "start-timeout", "FenceTimeout": "fence-timeout", "RestoreStall": "restore-stall",
	"BackoffMin": "backoff-min", "BackoffMax": "backoff-max", "DrainTimeout": "drain", "StuckAfter": "stuck-after",
	"SessionTimeout": "session-timeout", "HeartbeatInterval": "heartbeat-interval", "TopicsInterval": "topics-interval",
	"Memory": "memory", "CreateTopics": "partitions", "Replication": "replication",
}

// table returns every setting of a program.
func (s *settings) table() []config.Setting {
	return slices.Concat([]config.Setting{
		config.BrokersSetting(&s.Cluster, "a broker within the process"),
		{Name: "application", Value: config.Text(&s.Application, "NAME"), Unset: "the program's file name", Help: "name of the application and of its group"},
		{Name: "instance", Value: config.Text(&s.Instance, "NAME"), Unset: "host name and state directory", Help: "name of this process within the group, the same after a restart"},
		{Name: "state-dir", Value: config.Path(&s.StateDir, "DIR"), Unset: "with the broker within the process, ~/.local/state/pawl/APPLICATION", Help: "directory of the shards' databases, and of the data of the broker within the process; needed with --brokers"},
	}, s.embedded.table(), config.ClusterSettings(&s.Cluster, &s.tls), []config.Setting{
		{Name: "start", Value: config.Parsed(&s.Start, "earliest|latest|TIME", parseStart), Default: "earliest", Help: "where a shard begins that has never consumed"},
		{Name: "on-failure", Value: config.Choice(&s.OnFailure, consumer.StopShard, consumer.Retry, consumer.DeadLetter, consumer.Skip), Default: string(consumer.StopShard), Help: "what becomes of a message that fails"},
		{Name: "on-offset-out-of-range", Value: config.Choice(&s.OnOffsetOutOfRange, consumer.FailShard, consumer.GoToEarliest, consumer.GoToLatest), Default: string(consumer.FailShard), Help: "what to do when messages are gone that were not consumed"},
		{Name: "accept-state-loss", Value: config.Bool(&s.AcceptStateLoss), Help: "start shards from nothing whose state is lost"},

		{Name: "commit-interval", Value: config.Duration(&s.CommitInterval), Default: "100ms", Help: "longest time that a transaction stays open for more messages"},
		{Name: "commit-pause", Value: config.Duration(&s.CommitPause), Default: "5ms", Help: "time between two commits of a shard"},
		{Name: "transaction-bytes", Value: config.Bytes(&s.TransactionBytes), Default: "16MiB", Help: "writes and output that close a transaction"},
		{Name: "transaction-messages", Value: config.Int(&s.TransactionMessages, 1), Default: "100000", Help: "messages that close a transaction"},
		{Name: "transaction-timeout", Value: config.Duration(&s.TransactionTimeout), Default: "10s", Help: "time after which the broker aborts an open transaction"},
		{Name: "flush-interval", Value: config.Duration(&s.FlushInterval), Default: "60s", Help: "age of unflushed state that a crash makes the process read again"},
		{Name: "flush-bytes", Value: config.Bytes(&s.FlushBytes), Default: "64MiB", Help: "and its size"},
		{Name: "start-timeout", Value: config.Duration(&s.StartTimeout), Default: "30s", Help: "time that the brokers are waited for at start"},
		{Name: "fence-timeout", Value: config.Duration(&s.FenceTimeout), Default: "60s", Help: "time to end what a shard's last owner has begun"},
		{Name: "restore-stall", Value: config.Duration(&s.RestoreStall), Default: "60s", Help: "time without progress after which a restore fails and says why"},
		{Name: "backoff-min", Value: config.Duration(&s.BackoffMin), Default: "100ms", Help: "time before a failed shard starts again, at first"},
		{Name: "backoff-max", Value: config.Duration(&s.BackoffMax), Default: "30s", Help: "and at most"},
		{Name: "drain", Value: config.Duration(&s.DrainTimeout), Default: "30s", Help: "time for a stop"},
		{Name: "stuck-after", Value: config.Duration(&s.StuckAfter), Default: "5m", Help: "time after which a call of Consume makes the process unready"},
		{Name: "session-timeout", Value: config.Duration(&s.SessionTimeout), Default: "10s", Help: "time without a heartbeat after which the group counts the process as gone"},
		{Name: "heartbeat-interval", Value: config.Duration(&s.HeartbeatInterval), Default: "300ms", Help: "time between heartbeats"},
		{Name: "topics-interval", Value: config.Duration(&s.TopicsInterval), Default: "10s", Help: "how often topics are looked at for new partitions"},
		{Name: "memory", Value: config.Bytes(&s.Memory), Unset: memoryUnset, Help: "budget that all limits in bytes and the garbage collector's are derived from"},
		{Name: "replication", Value: config.Int(&s.Replication, 1), Unset: "the broker's", Help: "replication factor of the topics that are created"},
		{Name: "allow-old-broker", Value: config.Bool(&s.AllowOldBroker), Help: "run on brokers older than Apache Kafka 4.0"},
		{Name: "stop", Value: config.Choice(&s.stop, "leave", "keep"), Default: "leave", Help: "at the end, leave the group, or keep the membership for a restart within the session timeout"},
	}, s.process.table())
}

// memoryUnset says what memory is where it is not set.
const memoryUnset = "512MiB, or two fifths of the memory that there is"

// load fills the settings in, and checks what one says of another. What the
// values themselves may be is left to consumer.New.
func (s *settings) load(o Options) error {
	if done, err := s.read(s.table(), o); done {
		return err
	}
	errs := []error{s.process.check()}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	s.named(&s.Application, o)
	s.budget(&s.Memory, o)
	s.KeepMembership = s.stop == "keep"
	errs = append(errs, s.reach(&s.Cluster, s.tls))
	if len(s.Cluster.Brokers) == 0 {
		if s.partitions == 0 {
			s.partitions = defaultPartitions
		}
		s.CreateTopics = s.partitions
		errs = append(errs, s.embedded.check())
		if s.StateDir == "" {
			var err error
			s.StateDir, err = defaultStateDir(o.Env, s.Application)
			errs = append(errs, err)
			s.loaded.Derive("state-dir", s.StateDir, "for the broker within the process")
		}
		return errors.Join(errs...)
	}
	if s.StateDir == "" {
		bad("%s is set and no state directory: set --state-dir to a directory that outlives the process, so that a restart need not restore", s.loaded.Named("brokers"))
	}
	errs = append(errs, s.embedded.unused("create the topics, or give their descriptions topic.Partitions")...)
	return errors.Join(errs...)
}

// applicationOf makes a program's file name fit for an application's name.
func applicationOf(program string) string {
	base := strings.TrimSuffix(filepath.Base(program), ".exe")
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(base))
	if name = strings.Trim(name, "-"); name == "" {
		return "pawl"
	}
	return name
}

// parseAddress takes an address to listen on, whose host may be empty.
func parseAddress(s string) (string, error) {
	if _, port, err := net.SplitHostPort(s); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err == nil {
			return s, nil
		}
	}
	return "", errors.New("want HOST:PORT or :PORT, such as 127.0.0.1:8080")
}

func parseStart(s string) (consumer.Start, error) {
	start, err := consumer.ParseStart(s)
	if err != nil || s == "" {
		return start, errors.New("want earliest, latest or a time such as 2006-01-02T15:04:05Z")
	}
	return start, nil
}

func parseLevel(s string) (slog.Level, error) {
	switch s {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, errors.New("want debug, info, warn or error")
}
