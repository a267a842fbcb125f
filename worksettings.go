package pawl

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/config"
	"github.com/pawlstream/pawl/messaging"
)

// workSettings are what flags and variables say of a program that works on a
// queue.
type workSettings struct {
	messaging.Config
	tls config.TLSFiles
	embedded
	process

	stateDir string
	memory   int64

	letters    cluster.Cluster // of the dead letters, where it is another one
	lettersTLS config.TLSFiles
}

// lettersPrefix begins the settings of the cluster of the dead letters, which
// are those of any cluster.
const lettersPrefix = "dead-letters-"

func (s *workSettings) lettersTable() []config.Setting {
	all := slices.Concat([]config.Setting{config.BrokersSetting(&s.letters, "those of the topic")}, config.ClusterSettings(&s.letters, &s.lettersTLS))
	for i := range all {
		all[i].Name = lettersPrefix + all[i].Name
		all[i].Help = "for dead letters on another cluster: " + all[i].Help
		all[i].Cluster = false // a context is of the topic's
	}
	return all
}

// reachLetters finishes the cluster of the dead letters.
func (s *workSettings) reachLetters() error {
	switch {
	case len(s.letters.Brokers) > 0:
		if err := s.loaded.LoadCluster(&s.letters, s.lettersTLS, lettersPrefix); err != nil {
			return err
		}
		s.DeadLetters.Cluster = &s.letters
	case s.lettersTLS.Wanted() || s.letters.SASL != (cluster.SASL{}):
		return fmt.Errorf("TLS or SASL is set for dead letters on another cluster, and no brokers: set --%sbrokers", lettersPrefix)
	}
	return nil
}

// workFields has the setting of each field of the configuration.
var workFields = map[string]string{
	"Application": "application", "Consumer": "consumer", "Instance": "instance", "Start": "start", "RateLimit": "rate-limit",
	"Concurrency": "concurrency", "MaxUnsettled": "max-unsettled", "MaxSpan": "max-span", "MaxBytes": "max-bytes",
	"Retry.InPlace": "retry-attempts", "Retry.BackoffMin": "retry-backoff-min", "Retry.BackoffMax": "retry-backoff-max", "Retry.Tiers": "retry-delays",
	"Breaker.Cooldown": "breaker-cooldown", "DeadLetters.Topic": "dead-letters", "DeadLetters.MaxCrashes": "max-crashes",
	"StartTimeout": "start-timeout", "CommitInterval": "commit-interval", "DrainTimeout": "drain", "WriteTimeout": "write-timeout", "StuckAfter": "stuck-after",
	"SessionTimeout": "session-timeout", "HeartbeatInterval": "heartbeat-interval", "TopicsInterval": "topics-interval", "HandlerTimeout": "handler-timeout",
}

// table returns every setting of such a program.
func (s *workSettings) table() []config.Setting {
	return slices.Concat([]config.Setting{
		config.BrokersSetting(&s.Cluster, "a broker within the process"),
		{Name: "application", Value: config.Text(&s.Application, "NAME"), Unset: "the program's file name", Help: "name of the application; its group is APPLICATION.CONSUMER"},
		{Name: "consumer", Value: config.Text(&s.Consumer, "NAME"), Unset: "the topic's name", Help: "name of the consumer among those of the application"},
		{Name: "instance", Value: config.Text(&s.Instance, "NAME"), Unset: "none: a new member at each start", Help: "name of this process within the group, the same after a restart"},
		{Name: "state-dir", Value: config.Path(&s.stateDir, "DIR"), Unset: "~/.local/state/pawl/APPLICATION", Help: "directory of the data of the broker within the process"},
	}, s.embedded.table(), config.ClusterSettings(&s.Cluster, &s.tls), []config.Setting{
		{Name: "start", Value: config.Parsed(&s.Start, "earliest|latest|TIME", parseWorkStart), Default: "earliest", Help: "where a partition begins that was never consumed"},
		{Name: "on-offset-out-of-range", Value: config.Choice(&s.OnOffsetOutOfRange, messaging.GoToEarliest, messaging.GoToLatest, messaging.Fail), Default: string(messaging.GoToEarliest), Help: "what to do when messages are gone that were not consumed"},

		{Name: "order", Value: config.Choice(&s.Order, messaging.ByKey, messaging.KeyRelaxed, messaging.ByPartition, messaging.Unordered), Default: string(messaging.ByKey), Help: "which messages are handled one after the other"},
		{Name: "concurrency", Value: config.Int(&s.Concurrency, 1), Default: "16", Help: "handlers that run at once"},
		{Name: "rate-limit", Value: config.Parsed(&s.RateLimit, "N", parseRate), Unset: "no limit", Help: "messages a second that are given to handlers"},
		{Name: "handler-timeout", Value: config.Duration(&s.HandlerTimeout), Unset: "no limit", Help: "time after which a handler's context ends"},
		{Name: "max-unsettled", Value: config.Int(&s.MaxUnsettled, 1), Default: "10000", Help: "messages of a partition that are read and not settled, above which it is read no further"},
		{Name: "max-span", Value: config.Int(&s.MaxSpan, 1), Default: "100000", Help: "and messages from the oldest of them to the last"},
		{Name: "max-bytes", Value: config.Bytes(&s.MaxBytes), Unset: "a quarter of --memory", Help: "size of messages that are fetched and not settled, of all partitions together"},

		{Name: "retry-attempts", Value: config.Int(&s.Retry.InPlace, 1), Default: "3", Help: "attempts before a message goes to the first delay topic, the first among them"},
		{Name: "retry-backoff-min", Value: config.Duration(&s.Retry.BackoffMin), Default: "100ms", Help: "time between these attempts, at first"},
		{Name: "retry-backoff-max", Value: config.Duration(&s.Retry.BackoffMax), Default: "5s", Help: "and at most"},
		{Name: "retry-delays", Value: config.ParsedList(&s.Retry.Tiers, "DURATION,…|none", parseDelays), Default: "10s,1m,10m", Help: "delays of the delay topics, each of which a message goes through once"},
		{Name: "breaker-failures", Value: config.Int(&s.Breaker.Failures, 1), Default: "100", Help: "failed attempts without a success between them after which handlers pause"},
		{Name: "breaker-cooldown", Value: config.Duration(&s.Breaker.Cooldown), Default: "5s", Help: "time before one message is tried then"},
		{Name: "dead-letters", Value: config.Text(&s.DeadLetters.Topic, "TOPIC"), Unset: "APPLICATION.CONSUMER.dlq", Help: "where messages go whose attempts are used up"},
	}, s.lettersTable(), []config.Setting{
		{Name: "max-crashes", Value: config.Int(&s.DeadLetters.MaxCrashes, 1), Default: "3", Help: "ends of the process while it handles a message that make it a dead letter"},

		{Name: "start-timeout", Value: config.Duration(&s.StartTimeout), Default: "30s", Help: "time that the brokers are waited for at start"},
		{Name: "commit-interval", Value: config.Duration(&s.CommitInterval), Default: "500ms", Help: "the most by which a commit follows an ack"},
		{Name: "drain", Value: config.Duration(&s.DrainTimeout), Default: "10s", Help: "time that handlers have to return at a stop or a revoke"},
		{Name: "write-timeout", Value: config.Duration(&s.WriteTimeout), Default: "10s", Help: "time of one try to write a retry or a dead letter"},
		{Name: "stuck-after", Value: config.Duration(&s.StuckAfter), Default: "5m", Help: "time with a handler, or without progress, after which a message makes the process unready"},
		{Name: "session-timeout", Value: config.Duration(&s.SessionTimeout), Default: "10s", Help: "time without a heartbeat after which the group counts the process as gone"},
		{Name: "heartbeat-interval", Value: config.Duration(&s.HeartbeatInterval), Default: "300ms", Help: "time between heartbeats"},
		{Name: "topics-interval", Value: config.Duration(&s.TopicsInterval), Default: "10s", Help: "how often the topic is looked at for new partitions"},
		{Name: "memory", Value: config.Bytes(&s.memory), Unset: memoryUnset, Help: "budget that limits in bytes and the garbage collector's are derived from"},
	}, s.process.table())
}

// load fills the settings in, and checks what one says of another. What the
// values themselves may be is left to messaging.New.
func (s *workSettings) load(o Options) error {
	if done, err := s.read(s.table(), o); done {
		return err
	}
	errs := []error{s.process.check()}
	s.named(&s.Application, o)
	s.budget(&s.memory, o)
	if s.MaxBytes == 0 {
		s.MaxBytes = s.memory / 4
		s.loaded.Derive("max-bytes", sizeText(s.MaxBytes), "by --memory")
	}
	errs = append(errs, s.reach(&s.Cluster, s.tls), s.reachLetters())
	if len(s.Cluster.Brokers) == 0 {
		if s.partitions == 0 {
			s.partitions = defaultPartitions
		}
		errs = append(errs, s.embedded.check())
		if s.stateDir == "" {
			var err error
			s.stateDir, err = defaultStateDir(o.Env, s.Application)
			errs = append(errs, err)
			s.loaded.Derive("state-dir", s.stateDir, "for the broker within the process")
		}
		return errors.Join(errs...)
	}
	errs = append(errs, s.embedded.unused("create the topic")...)
	if s.stateDir != "" {
		errs = append(errs, fmt.Errorf("%s is for the broker within the process: a queue on others keeps nothing here", s.loaded.Named("state-dir")))
	}
	return errors.Join(errs...)
}

func parseWorkStart(s string) (messaging.Start, error) {
	switch s {
	case "earliest":
		return messaging.Earliest, nil
	case "latest":
		return messaging.Latest, nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return messaging.Start{}, errors.New("want earliest, latest or a time such as 2006-01-02T15:04:05Z")
	}
	return messaging.StartTime(t), nil
}

// parseRate takes a number above zero: none is said by leaving it out.
func parseRate(s string) (float64, error) {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) || n <= 0 {
		return 0, errors.New("want a number above zero")
	}
	return n, nil
}

// parseDelays takes durations between commas, or none.
func parseDelays(s string) ([]time.Duration, error) {
	delays := []time.Duration{}
	if s == "none" {
		return delays, nil
	}
	for text := range strings.SplitSeq(s, ",") {
		d, err := time.ParseDuration(strings.TrimSpace(text))
		if err != nil || d <= 0 {
			return nil, errors.New("want durations such as 10s,1m,10m, or none")
		}
		delays = append(delays, d)
	}
	return delays, nil
}
