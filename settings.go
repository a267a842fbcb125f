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

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/config"
)

// settings are what flags and variables say.
type settings struct {
	consumer.Config
	tls config.TLSFiles
	embedded

	stop      string
	admin     string
	logLevel  slog.Level
	logFormat string
	version   bool
}

// table returns every setting of a program.
func (s *settings) table() []config.Setting {
	return slices.Concat([]config.Setting{
		{Name: "brokers", Value: config.List(&s.Cluster.Brokers, "HOST:PORT"), Unset: "a broker within the process", Help: "Kafka brokers to start from"},
		{Name: "application", Value: config.Text(&s.Application, "NAME"), Unset: "the program's file name", Help: "name of the application and of its group"},
		{Name: "instance", Value: config.Text(&s.Instance, "NAME"), Unset: "host name and state directory", Help: "name of this process within the group, the same after a restart"},
		{Name: "state-dir", Value: config.Text(&s.StateDir, "DIR"), Unset: "with the broker within the process, ~/.local/state/pawl/APPLICATION", Help: "directory of the shards' databases, and of the data of the broker within the process; needed with --brokers"},
	}, s.embedded.table(), loginSettings(&s.Cluster, &s.tls), []config.Setting{
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
		{Name: "fence-timeout", Value: config.Duration(&s.FenceTimeout), Default: "60s", Help: "time to end what a shard's last owner has begun"},
		{Name: "restore-stall", Value: config.Duration(&s.RestoreStall), Default: "60s", Help: "time without progress after which a restore fails and says why"},
		{Name: "backoff-min", Value: config.Duration(&s.BackoffMin), Default: "100ms", Help: "time before a failed shard starts again, at first"},
		{Name: "backoff-max", Value: config.Duration(&s.BackoffMax), Default: "30s", Help: "and at most"},
		{Name: "drain", Value: config.Duration(&s.DrainTimeout), Default: "30s", Help: "time for a stop"},
		{Name: "stuck-after", Value: config.Duration(&s.StuckAfter), Default: "5m", Help: "time after which a call of Consume makes the process unready"},
		{Name: "session-timeout", Value: config.Duration(&s.SessionTimeout), Default: "10s", Help: "time without a heartbeat after which the group counts the process as gone"},
		{Name: "heartbeat-interval", Value: config.Duration(&s.HeartbeatInterval), Default: "300ms", Help: "time between heartbeats"},
		{Name: "topics-interval", Value: config.Duration(&s.TopicsInterval), Default: "10s", Help: "how often topics are looked at for new partitions"},
		{Name: "memory", Value: config.Bytes(&s.Memory), Default: "512MiB", Help: "budget of all shards' caches, tables and transactions"},
		{Name: "replication", Value: config.Int(&s.Replication, 1), Unset: "the broker's", Help: "replication factor of the topics that are created"},
		{Name: "allow-old-broker", Value: config.Bool(&s.AllowOldBroker), Help: "run on brokers older than Apache Kafka 4.0"},
		{Name: "stop", Value: config.Choice(&s.stop, "leave", "keep"), Default: "leave", Help: "at the end, leave the group, or keep the membership for a restart within the session timeout"},
	}, processSettings(&s.admin, &s.logLevel, &s.logFormat, &s.version))
}

// loginSettings are those by which a program is let in by brokers.
func loginSettings(c *cluster.Cluster, f *config.TLSFiles) []config.Setting {
	return []config.Setting{
		{Name: "tls", Value: config.Bool(&f.On), Help: "use TLS; the other TLS flags imply it"},
		{Name: "tls-ca", Value: config.Text(&f.CA, "FILE"), Unset: "the system's", Help: "certificates that sign the brokers'"},
		{Name: "tls-cert", Value: config.Text(&f.Cert, "FILE"), Help: "certificate of this client"},
		{Name: "tls-key", Value: config.Text(&f.Key, "FILE"), Help: "key of this client's certificate"},
		{Name: "tls-server-name", Value: config.Text(&f.ServerName, "HOST"), Unset: "the host of each broker's address", Help: "name that the brokers' certificates must have"},
		{Name: "sasl-mechanism", Value: config.Choice(&c.SASL.Mechanism, cluster.Plain, cluster.ScramSHA256, cluster.ScramSHA512), Unset: "none", Help: "how to log in"},
		{Name: "sasl-username", Value: config.Text(&c.SASL.Username, "NAME"), Help: "who logs in"},
		{Name: "sasl-password", Value: config.SecretText(&c.SASL.Password), Secret: true, Help: "password; there is no flag for it"},
	}
}

// processSettings are those of the process around what it runs.
func processSettings(admin *string, level *slog.Level, format *string, version *bool) []config.Setting {
	return []config.Setting{
		{Name: "admin", Value: config.Parsed(admin, "HOST:PORT", parseAddress), Default: "127.0.0.1:0", Help: "where /metrics, /healthz, /readyz and /v1/status are served; port 0 is a free one"},
		{Name: "log-level", Value: config.Parsed(level, "debug|info|warn|error", parseLevel), Default: "info", Help: "least level that is logged"},
		{Name: "log-format", Value: config.Choice(format, "text", "json"), Default: "text", Help: "format of the log, which goes to standard error"},
		{Name: "version", Value: config.Bool(version), FlagOnly: true, Help: "print the version and exit"},
	}
}

// load fills the settings in, and checks what one says of another. What the
// values themselves may be is left to consumer.New.
func (s *settings) load(o Options) error {
	if err := config.Load(s.table(), o.Args, o.Env); err != nil || s.version {
		return err
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if s.Application == "" {
		s.Application = applicationOf(o.Name)
	}
	s.KeepMembership = s.stop == "keep"
	if len(s.Cluster.Brokers) == 0 {
		if s.tls.Wanted() || s.Cluster.SASL != (cluster.SASL{}) {
			bad("TLS or SASL is set and no brokers are named: set --brokers")
		}
		if s.partitions == 0 {
			s.partitions = defaultPartitions
		}
		s.CreateTopics = s.partitions
		errs = append(errs, s.embedded.check())
		if s.StateDir == "" {
			var err error
			s.StateDir, err = defaultStateDir(o.Env, s.Application)
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	if s.StateDir == "" {
		bad("--brokers is set and no state directory: set --state-dir to a directory that outlives the process, so that a restart need not restore")
	}
	errs = append(errs, s.embedded.unused("create the topics, or give their descriptions topic.Partitions")...)
	var err error
	if s.Cluster.TLS, err = s.tls.Load(); err != nil {
		errs = append(errs, err)
	}
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
