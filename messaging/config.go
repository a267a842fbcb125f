package messaging

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/topic"
)

// Config configures a consumer in one process. Cluster, Topic and Application
// are enough. Zero fields mean the defaults that are named beside them.
type Config struct {
	// Cluster is how to reach the brokers of Topic. Required.
	Cluster cluster.Cluster

	// Topic is the input. Required.
	Topic string

	// Application names the application: lower-case letters, digits and
	// hyphens. Required.
	Application string

	// Consumer names the consumer among those of the application: letters,
	// digits, '_' and '-'. Default: the topic's name, with '-' for each '.'.
	Consumer string

	// Instance, when set, makes this process a static member of the group: one
	// that comes back under the same name within SessionTimeout has its
	// partitions at once. No two processes may share one.
	Instance string

	// Start is where a partition begins for which the group has committed
	// nothing: Earliest, Latest or a time. It is resolved once. A partition
	// that appears later is consumed from its beginning. Default: Earliest.
	Start Start

	// OnOffsetOutOfRange says what to do when the committed offset is no
	// longer in the partition: GoToEarliest, GoToLatest or Fail. What was
	// missed is logged and counted. Default: GoToEarliest.
	OnOffsetOutOfRange OutOfRange

	// Order says which messages may be handled beside each other: ByKey,
	// KeyRelaxed, ByPartition or Unordered. Default: ByKey.
	Order Order

	Concurrency int // handlers that run at once: 16

	// Limits per partition, above which it is fetched no further.
	MaxUnsettled int // messages that were read and are not settled: 10,000
	MaxSpan      int // messages from the oldest unsettled one to the last that was read: 100,000

	// MaxBytes is the limit of all partitions in this process together: the
	// bytes of messages that were fetched and are not settled. Half of it is
	// promised to the partitions and their delay topics in equal shares, and half
	// lent to those that need more, so that none can take another's room. A
	// message that is larger than a share is let in when nothing else of its
	// topic is there. Default: 128 MiB.
	MaxBytes int64

	// RateLimit is how many messages a second are given to handlers in this
	// process. 0: no limit.
	RateLimit float64

	// HandlerTimeout, when set, ends a handler's context that long after the
	// message was handed over. The time that it waited before does not count.
	HandlerTimeout time.Duration

	Retry       Retry
	Breaker     Breaker
	DeadLetters DeadLetters

	// For RunBatch: the most messages of a call, 100.
	BatchMax int

	StartTimeout      time.Duration // for the brokers to be there at start: 30 s
	CommitInterval    time.Duration // the most by which a commit follows an ack: 500 ms
	DrainTimeout      time.Duration // how long handlers have to return after a revoke or a stop: 10 s
	WriteTimeout      time.Duration // of one try to write a retry or a dead letter: 10 s
	StuckAfter        time.Duration // a message that is with a handler, or makes no progress, for so long turns the process unready, and so does an open breaker: 5 min
	SessionTimeout    time.Duration // 10 s
	HeartbeatInterval time.Duration // 300 ms
	TopicsInterval    time.Duration // how often new partitions are looked for: 10 s

	Logger     *slog.Logger          // default: slog.Default()
	Registerer prometheus.Registerer // where metrics are registered while it runs; nil: nowhere

	// TracerProvider, when set, gives each call of the handler a span: a child
	// of the one that the message was published in. Without it the handler's
	// context carries that one.
	TracerProvider trace.TracerProvider
}

// Order says which messages may be handled beside each other.
type Order string

// The orders.
const (
	// ByKey handles messages of one key one after the other, in the order of
	// their offsets. One that is to be retried holds back later ones of its
	// key until it is settled; others go on. Messages with a null key are in
	// no order.
	ByKey Order = "key"

	// KeyRelaxed is ByKey, but a message in a delay topic does not hold back
	// its key.
	KeyRelaxed Order = "key-relaxed"

	// ByPartition handles messages of one partition one after the other. Every
	// retry is made in place, and everything behind it waits.
	ByPartition Order = "partition"

	// Unordered handles any messages beside each other.
	Unordered Order = "unordered"
)

// Retry says how often and when a message is handled again whose handler
// returned an error.
//
//	attempt 1 ─ back-off ─ attempt 2 … attempt InPlace ─ tier 1 ─ attempt ─ tier 2 ─ … ─ dead letter
type Retry struct {
	// InPlace is how many attempts are made before a message goes to the first
	// tier, the first one among them: 3.
	InPlace int

	// The back-off between attempts in place doubles from BackoffMin, 100 ms,
	// to BackoffMax, 5 s. It is never less than half of that, by chance.
	BackoffMin, BackoffMax time.Duration

	// Tiers are the delays of the delay topics, in rising order. A message
	// goes through each of them once. nil: 10 s, 1 min, 10 min. Empty and not
	// nil: none. Tiers can be changed while messages are in them.
	Tiers []time.Duration
}

// attempts is how many attempts a message has.
func (r Retry) attempts() int { return r.InPlace + len(r.Tiers) }

// Breaker pauses all handlers when everything fails.
type Breaker struct {
	// Failures is after how many failed attempts without a success in between
	// it opens: 100. Negative: never.
	Failures int

	// Cooldown is how long it is open before one message is tried: 5 s. It
	// doubles each time that this fails, up to CooldownMax, 1 min.
	Cooldown, CooldownMax time.Duration
}

// DeadLetters says where dead letters go.
type DeadLetters struct {
	Topic   string           // default: <application>.<consumer>.dlq
	Cluster *cluster.Cluster // default: that of the input

	// MaxCrashes is how often the process may end while it handles a message
	// before that becomes a dead letter: 3. See ReasonCrash.
	MaxCrashes int
}

// Start is where a partition begins for which nothing was committed.
type Start struct {
	place string
	at    time.Time
}

// Earliest starts with the first message that the partition holds, Latest with
// the next that comes.
var (
	Earliest = Start{}
	Latest   = Start{place: "latest"}
)

// StartTime starts with the first message whose timestamp is t or later.
func StartTime(t time.Time) Start { return Start{place: "time", at: t} }

// String returns earliest, latest, or the time.
func (s Start) String() string {
	switch s.place {
	case "":
		return "earliest"
	case "time":
		return s.at.Format(time.RFC3339)
	}
	return s.place
}

// OutOfRange is the decision about messages that are no longer there.
type OutOfRange string

// The decisions about missing messages.
const (
	GoToEarliest OutOfRange = "earliest" // go on with the first message that is there
	GoToLatest   OutOfRange = "latest"   // go on with the next message that comes
	Fail         OutOfRange = "fail"     // Run ends with an error that says which messages are missing
)

// defaultTiers are the delays of the delay topics.
var defaultTiers = []time.Duration{10 * time.Second, time.Minute, 10 * time.Minute}

func (c Config) withDefaults() Config {
	c.Consumer = cmp.Or(c.Consumer, strings.ReplaceAll(c.Topic, ".", "-"))
	c.OnOffsetOutOfRange = cmp.Or(c.OnOffsetOutOfRange, GoToEarliest)
	c.Order = cmp.Or(c.Order, ByKey)
	c.Concurrency = cmp.Or(c.Concurrency, 16)
	c.MaxUnsettled = cmp.Or(c.MaxUnsettled, 10_000)
	c.MaxSpan = cmp.Or(c.MaxSpan, 100_000)
	c.MaxBytes = cmp.Or(c.MaxBytes, 128<<20)
	c.Retry.InPlace = cmp.Or(c.Retry.InPlace, 3)
	c.Retry.BackoffMin = cmp.Or(c.Retry.BackoffMin, 100*time.Millisecond)
	c.Retry.BackoffMax = cmp.Or(c.Retry.BackoffMax, max(5*time.Second, c.Retry.BackoffMin))
	if c.Retry.Tiers == nil {
		c.Retry.Tiers = defaultTiers
	}
	c.Retry.Tiers = slices.Clone(c.Retry.Tiers)
	c.Breaker.Failures = cmp.Or(c.Breaker.Failures, 100)
	c.Breaker.Cooldown = cmp.Or(c.Breaker.Cooldown, 5*time.Second)
	c.Breaker.CooldownMax = cmp.Or(c.Breaker.CooldownMax, max(time.Minute, c.Breaker.Cooldown))
	c.DeadLetters.Topic = cmp.Or(c.DeadLetters.Topic, DeadLetterTopic(c.Application, c.Consumer))
	c.DeadLetters.MaxCrashes = cmp.Or(c.DeadLetters.MaxCrashes, 3)
	c.BatchMax = cmp.Or(c.BatchMax, 100)
	c.StartTimeout = cmp.Or(c.StartTimeout, 30*time.Second)
	c.CommitInterval = cmp.Or(c.CommitInterval, 500*time.Millisecond)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 10*time.Second)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, 10*time.Second)
	c.StuckAfter = cmp.Or(c.StuckAfter, 5*time.Minute)
	c.SessionTimeout = cmp.Or(c.SessionTimeout, 10*time.Second)
	c.HeartbeatInterval = cmp.Or(c.HeartbeatInterval, 300*time.Millisecond)
	c.TopicsInterval = cmp.Or(c.TopicsInterval, 10*time.Second)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

var (
	applicationName = regexp.MustCompile(`^[a-z0-9-]+$`)
	consumerName    = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)
)

// validate reports everything that is wrong with c, whose defaults are filled
// in.
func (c Config) validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fieldError{field, fmt.Errorf(format, args...)})
	}
	if !applicationName.MatchString(c.Application) {
		bad("Application", "application name %q: want lower-case letters, digits and hyphens", c.Application)
	}
	if c.Topic == "" {
		bad("Topic", "no topic is named")
	} else if err := topic.CheckName(c.Topic); err != nil {
		errs = append(errs, err)
	}
	if c.Topic != "" && !consumerName.MatchString(c.Consumer) {
		bad("Consumer", "consumer name %q: want letters, digits, '_' and '-'", c.Consumer)
	}
	for _, name := range []string{RetryTopic(c.Application, c.Consumer, tiersMax), OutcomesTopic(c.DeadLetters.Topic)} {
		if len(name) > topic.NameMax {
			bad("Application", "the name %.60q… has %d bytes, and Kafka takes %d: shorten the application's or the consumer's name", name, len(name), topic.NameMax)
		}
	}
	if err := topic.CheckName(c.DeadLetters.Topic); err != nil {
		bad("DeadLetters.Topic", "dead letters: %w", err)
	}
	if c.DeadLetters.Topic == c.Topic && c.DeadLetters.Cluster == nil {
		bad("DeadLetters.Topic", "dead letters go to the input %s: they would come back for ever", c.Topic)
	}
	back := []string{RedriveTopic(c.Application, c.Consumer)}
	for n := range tiersMax {
		back = append(back, RetryTopic(c.Application, c.Consumer, n+1))
	}
	if slices.Contains(back, c.DeadLetters.Topic) {
		bad("DeadLetters.Topic", "dead letters go to %s, by which messages come back to this consumer: they would come back for ever", c.DeadLetters.Topic)
	}
	if slices.Contains(back, c.Topic) {
		bad("Topic", "the input is %s, by which messages come back to this consumer: they would be handled twice", c.Topic)
	}
	if err := c.Cluster.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("cluster: %w", err))
	}
	if c.DeadLetters.Cluster != nil {
		if err := c.DeadLetters.Cluster.Validate(); err != nil {
			bad("DeadLetters.Cluster", "cluster of the dead letters: %w", err)
		}
	}
	if c.Start.place == "time" && c.Start.at.Before(time.Unix(0, 0)) {
		bad("Start", "start %v: want a time after 1970", c.Start.at)
	}
	errs = append(errs, oneOf("order", c.Order, ByKey, KeyRelaxed, ByPartition, Unordered),
		oneOf("decision about offsets out of range", c.OnOffsetOutOfRange, GoToEarliest, GoToLatest, Fail))
	for _, n := range []struct {
		field, name     string
		value, min, max int64
	}{
		{"Concurrency", "concurrency", int64(c.Concurrency), 1, 100_000},
		{"MaxUnsettled", "most unsettled messages", int64(c.MaxUnsettled), 1, 10_000_000},
		{"MaxSpan", "span", int64(c.MaxSpan), 1, 100_000_000},
		{"MaxBytes", "bytes", c.MaxBytes, 1 << 10, 1 << 40},
		{"Retry.InPlace", "attempts in place", int64(c.Retry.InPlace), 1, 1000},
		{"DeadLetters.MaxCrashes", "crashes", int64(c.DeadLetters.MaxCrashes), 1, 1000},
		{"BatchMax", "batch", int64(c.BatchMax), 1, 100_000},
		{"Retry.Tiers", "number of tiers", int64(len(c.Retry.Tiers)), 0, tiersMax},
	} {
		if n.value < n.min || n.value > n.max {
			bad(n.field, "%s is %d: want %d to %d", n.name, n.value, n.min, n.max)
		}
	}
	if c.RateLimit < 0 || math.IsNaN(c.RateLimit) || math.IsInf(c.RateLimit, 0) {
		bad("RateLimit", "rate limit is %v a second: want 0 for none, or more", c.RateLimit)
	}
	type limited struct {
		field, name     string
		value, min, max time.Duration
	}
	durations := []limited{
		{"Retry.BackoffMin", "shortest back-off", c.Retry.BackoffMin, time.Millisecond, c.Retry.BackoffMax},
		{"Retry.BackoffMax", "longest back-off", c.Retry.BackoffMax, c.Retry.BackoffMin, time.Hour},
		{"Breaker.Cooldown", "breaker's cool-down", c.Breaker.Cooldown, time.Millisecond, c.Breaker.CooldownMax},
		{"Breaker.CooldownMax", "breaker's longest cool-down", c.Breaker.CooldownMax, c.Breaker.Cooldown, 24 * time.Hour},
		{"StartTimeout", "start timeout", c.StartTimeout, time.Millisecond, 24 * time.Hour},
		{"CommitInterval", "commit interval", c.CommitInterval, 10 * time.Millisecond, time.Minute},
		{"DrainTimeout", "drain timeout", c.DrainTimeout, 10 * time.Millisecond, time.Hour},
		{"WriteTimeout", "write timeout", c.WriteTimeout, 100 * time.Millisecond, time.Hour},
		{"StuckAfter", "stuck limit", c.StuckAfter, time.Second, 7 * 24 * time.Hour},
		{"SessionTimeout", "session timeout", c.SessionTimeout, 500 * time.Millisecond, 30 * time.Minute},
		{"HeartbeatInterval", "heartbeat interval", c.HeartbeatInterval, 10 * time.Millisecond, c.SessionTimeout / 3},
		{"TopicsInterval", "topics interval", c.TopicsInterval, 100 * time.Millisecond, time.Hour},
	}
	if c.HandlerTimeout != 0 {
		durations = append(durations, limited{"HandlerTimeout", "handler timeout", c.HandlerTimeout, time.Millisecond, 7 * 24 * time.Hour})
	}
	for i, d := range c.Retry.Tiers {
		durations = append(durations, limited{"Retry.Tiers", fmt.Sprintf("delay of tier %d", i+1), d, tierMin, tierMax})
	}
	for _, d := range durations {
		if d.value < d.min || d.value > d.max {
			bad(d.field, "%s is %v: want %v to %v", d.name, d.value, d.min, d.max)
		}
	}
	if !slices.IsSorted(c.Retry.Tiers) {
		bad("Retry.Tiers", "delays of the tiers are %v: want rising order", c.Retry.Tiers)
	}
	return errors.Join(errs...)
}

// What tiers can be.
const (
	tiersMax = 16
	tierMin  = 10 * time.Millisecond
	tierMax  = 30 * 24 * time.Hour
)

// fieldError is what is wrong with a field of a Config.
type fieldError struct {
	field string // as Go names it: Retry.BackoffMin
	err   error
}

func (e fieldError) Error() string { return e.err.Error() }
func (e fieldError) Unwrap() error { return e.err }

// Field names the field, for programs that know what set it.
func (e fieldError) Field() string { return e.field }

func oneOf[T ~string](what string, value T, choices ...T) error {
	if slices.Contains(choices, value) {
		return nil
	}
	names := make([]string, len(choices))
	for i, c := range choices {
		names[i] = string(c)
	}
	return fmt.Errorf("%s %q: want %s", what, string(value), strings.Join(names, ", "))
}

// Every name that Pawl makes on a cluster for messaging is made here.

// Group returns the name of a consumer's group.
func Group(application, consumer string) string { return application + "." + consumer }

// RetryTopic returns the name of the nth delay topic of a consumer, from 1.
func RetryTopic(application, consumer string, n int) string {
	return fmt.Sprintf("%s.retry.%d", Group(application, consumer), n)
}

// RedriveTopic returns the name of the topic by which dead letters come back
// to a consumer.
func RedriveTopic(application, consumer string) string {
	return Group(application, consumer) + ".redrive"
}

// DeadLetterTopic returns the default name of a consumer's dead-letter topic.
func DeadLetterTopic(application, consumer string) string {
	return Group(application, consumer) + ".dlq"
}

// OutcomesTopic returns the name of the topic that says what became of the
// letters of a dead-letter topic.
func OutcomesTopic(deadLetters string) string { return deadLetters + ".outcomes" }
