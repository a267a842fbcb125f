package broker

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// A definition is a setting of the broker or of topics, by Kafka's name.
type definition struct {
	name     string // of a topic's setting, or of one that is the broker's alone
	broker   string // what the broker calls the default of a topic's setting
	initial  string
	kind     kmsg.ConfigType
	min, max float64
	allowed  []string // of a string or a list, if not all
}

const (
	kindBool   = kmsg.ConfigTypeBoolean
	kindString = kmsg.ConfigTypeString
	kindInt    = kmsg.ConfigTypeInt
	kindLong   = kmsg.ConfigTypeLong
	kindDouble = kmsg.ConfigTypeDouble
	kindList   = kmsg.ConfigTypeList
)

const noMax = math.MaxInt64

// topicDefinitions are the settings that a topic may have of its own. Those of
// replication and of files that this broker doesn't have are accepted, since
// tools set them, and mean nothing.
var topicDefinitions = []definition{
	{"cleanup.policy", "log.cleanup.policy", "delete", kindList, 0, 0, []string{"delete", "compact"}},
	{"compression.type", "compression.type", "producer", kindString, 0, 0, []string{"producer"}},
	{"delete.retention.ms", "log.cleaner.delete.retention.ms", "86400000", kindLong, 0, noMax, nil},
	{"file.delete.delay.ms", "log.segment.delete.delay.ms", "60000", kindLong, 0, noMax, nil},
	{"flush.messages", "log.flush.interval.messages", "9223372036854775807", kindLong, 1, noMax, nil},
	{"flush.ms", "log.flush.interval.ms", "9223372036854775807", kindLong, 0, noMax, nil},
	{"index.interval.bytes", "log.index.interval.bytes", "4096", kindInt, 0, math.MaxInt32, nil},
	{"max.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms", "9223372036854775807", kindLong, 1, noMax, nil},
	{"max.message.bytes", "message.max.bytes", "1048588", kindInt, 0, frameMax - 1<<20, nil},
	{"message.timestamp.after.max.ms", "log.message.timestamp.after.max.ms", "3600000", kindLong, 0, noMax, nil},
	{"message.timestamp.before.max.ms", "log.message.timestamp.before.max.ms", "9223372036854775807", kindLong, 0, noMax, nil},
	{"message.timestamp.type", "log.message.timestamp.type", "CreateTime", kindString, 0, 0, []string{"CreateTime", "LogAppendTime"}},
	{"min.cleanable.dirty.ratio", "log.cleaner.min.cleanable.ratio", "0.5", kindDouble, 0, 1, nil},
	{"min.compaction.lag.ms", "log.cleaner.min.compaction.lag.ms", "0", kindLong, 0, noMax, nil},
	{"min.insync.replicas", "min.insync.replicas", "1", kindInt, 1, math.MaxInt32, nil},
	{"preallocate", "log.preallocate", "false", kindBool, 0, 0, nil},
	{"retention.bytes", "log.retention.bytes", "-1", kindLong, -1, noMax, nil},
	{"retention.ms", "log.retention.ms", "604800000", kindLong, -1, noMax, nil},
	{"segment.bytes", "log.segment.bytes", "1073741824", kindInt, 14, math.MaxInt32, nil},
	{"segment.index.bytes", "log.index.size.max.bytes", "10485760", kindInt, 4, math.MaxInt32, nil},
	{"segment.jitter.ms", "log.roll.jitter.ms", "0", kindLong, 0, noMax, nil},
	{"segment.ms", "log.roll.ms", "604800000", kindLong, 1, noMax, nil},
	{"unclean.leader.election.enable", "unclean.leader.election.enable", "false", kindBool, 0, 0, nil},
}

// brokerDefinitions are the settings that only the broker has.
var brokerDefinitions = []definition{
	{"auto.create.topics.enable", "", "false", kindBool, 0, 0, nil},
	{"delete.topic.enable", "", "true", kindBool, 0, 0, nil},
	{"fetch.max.bytes", "", "57671680", kindInt, 1024, 1 << 30, nil},
	{"group.initial.rebalance.delay.ms", "", "0", kindInt, 0, math.MaxInt32, nil},
	{"group.max.session.timeout.ms", "", "1800000", kindInt, 1, math.MaxInt32, nil},
	{"group.max.size", "", "10000", kindInt, 1, math.MaxInt32, nil},
	{"group.min.session.timeout.ms", "", "6000", kindInt, 1, math.MaxInt32, nil},
	{"log.cleaner.backoff.ms", "", "15000", kindLong, 1, noMax, nil},
	{"log.retention.check.interval.ms", "", "300000", kindLong, 1, noMax, nil},
	{"max.connections", "", "10000", kindInt, 1, math.MaxInt32, nil},
	{"num.partitions", "", "1", kindInt, 1, partitionsMax, nil},
	{"offset.metadata.max.bytes", "", "4096", kindInt, 0, 1 << 20, nil},
	{"offsets.retention.check.interval.ms", "", "600000", kindLong, 1, noMax, nil},
	{"offsets.retention.minutes", "", "10080", kindInt, 1, math.MaxInt32, nil},
	{"producer.id.expiration.ms", "", "86400000", kindInt, 1, math.MaxInt32, nil},
	{"transaction.abort.timed.out.transaction.cleanup.interval.ms", "", "1000", kindInt, 1, math.MaxInt32, nil},
	{"transaction.max.timeout.ms", "", "900000", kindInt, 1, math.MaxInt32, nil},
	{"transactional.id.expiration.ms", "", "604800000", kindInt, 1, math.MaxInt32, nil},
}

// aliases are broker settings that are others in another unit.
var aliases = map[string]struct {
	name string
	unit int64
}{
	"log.retention.hours":   {"log.retention.ms", 3600_000},
	"log.retention.minutes": {"log.retention.ms", 60_000},
	"log.roll.hours":        {"log.roll.ms", 3600_000},
}

var topicSettings, brokerSettings = byName()

func byName() (topics, brokers map[string]definition) {
	topics, brokers = make(map[string]definition), make(map[string]definition)
	for _, d := range topicDefinitions {
		topics[d.name] = d
		of := d
		of.name = d.broker
		brokers[d.broker] = of
	}
	for _, d := range brokerDefinitions {
		brokers[d.name] = d
	}
	return topics, brokers
}

// check says what is wrong with a value.
func (d definition) check(v string) error {
	number := func(n float64, err error) error {
		if err != nil {
			return fmt.Errorf("%s: %q is not a number", d.name, v)
		}
		if n < d.min || n > d.max {
			return fmt.Errorf("%s: %s is out of range", d.name, v)
		}
		return nil
	}
	switch d.kind {
	case kindBool:
		if v != "true" && v != "false" {
			return fmt.Errorf("%s: %q is neither true nor false", d.name, v)
		}
	case kindInt, kindLong:
		n, err := strconv.ParseInt(v, 10, 64)
		return number(float64(n), err)
	case kindDouble:
		return number(strconv.ParseFloat(v, 64))
	case kindList:
		for _, e := range splitList(v) {
			if !slices.Contains(d.allowed, e) {
				return fmt.Errorf("%s: %q is none of %s", d.name, e, strings.Join(d.allowed, ", "))
			}
		}
	case kindString:
		if d.allowed != nil && !slices.Contains(d.allowed, v) {
			return fmt.Errorf("%s: %q is not supported, only %s", d.name, v, strings.Join(d.allowed, ", "))
		}
	}
	return nil
}

func splitList(v string) (all []string) {
	for e := range strings.SplitSeq(v, ",") {
		if e = strings.TrimSpace(e); e != "" {
			all = append(all, e)
		}
	}
	return all
}

// settings are those of the broker: what was given, by name.
type settings map[string]string

func newSettings(given map[string]string) (settings, error) {
	s := make(settings)
	var errs []error
	for name, v := range given {
		if a, ok := aliases[name]; ok {
			if _, both := given[a.name]; both {
				continue // the finer one wins
			}
			n, err := strconv.ParseInt(v, 10, 64)
			if err != nil {
				errs = append(errs, fmt.Errorf("setting %s: %q is not a number", name, v))
				continue
			}
			name = a.name
			if v = "-1"; n >= 0 {
				v = strconv.FormatInt(n*a.unit, 10)
			}
		}
		d, ok := brokerSettings[name]
		if !ok {
			errs = append(errs, fmt.Errorf("setting %q is not known", name))
			continue
		}
		if err := d.check(v); err != nil {
			errs = append(errs, fmt.Errorf("setting %w", err))
		}
		s[name] = v
	}
	return s, errors.Join(errs...)
}

// get returns a setting of the broker.
func (s settings) get(name string) string {
	if v, ok := s[name]; ok {
		return v
	}
	return brokerSettings[name].initial
}

func (s settings) number(name string) int64 { return parseNumber(s.get(name)) }
func (s settings) bool(name string) bool    { return s.get(name) == "true" }

// parseNumber reads a number that was checked before.
func parseNumber(v string) int64 {
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// ofTopic returns what a topic with settings of its own has for one.
func (s settings) ofTopic(own map[string]string, name string) string {
	if v, ok := own[name]; ok {
		return v
	}
	return s.get(topicSettings[name].broker)
}

// policy is what a topic's settings come to.
type policy struct {
	compact, delete  bool
	retention        int64 // ms, -1: for ever
	retentionBytes   int64 // -1: any
	chunkBytes       int64
	chunkTime        int64 // ms
	messageMax       int64
	appendTime       bool
	timeBefore       int64 // ms
	timeAfter        int64 // ms
	deleteRetention  int64 // ms
	dirtyRatio       float64
	compactionLagMin int64 // ms
	compactionLagMax int64 // ms
}

// chunkMax is how big a chunk of a partition grows. Retention deletes, and
// compaction rewrites, a chunk at a time.
const chunkMax = 16 << 20

func (s settings) policy(own map[string]string) policy {
	number := func(name string) int64 { return parseNumber(s.ofTopic(own, name)) }
	clean := splitList(s.ofTopic(own, "cleanup.policy"))
	ratio, err := strconv.ParseFloat(s.ofTopic(own, "min.cleanable.dirty.ratio"), 64)
	if err != nil {
		ratio = 0.5
	}
	return policy{
		compact:          slices.Contains(clean, "compact"),
		delete:           slices.Contains(clean, "delete"),
		retention:        number("retention.ms"),
		retentionBytes:   number("retention.bytes"),
		chunkBytes:       min(number("segment.bytes"), chunkMax),
		chunkTime:        number("segment.ms"),
		messageMax:       number("max.message.bytes"),
		appendTime:       s.ofTopic(own, "message.timestamp.type") == "LogAppendTime",
		timeBefore:       number("message.timestamp.before.max.ms"),
		timeAfter:        number("message.timestamp.after.max.ms"),
		deleteRetention:  number("delete.retention.ms"),
		dirtyRatio:       ratio,
		compactionLagMin: number("min.compaction.lag.ms"),
		compactionLagMax: number("max.compaction.lag.ms"),
	}
}
