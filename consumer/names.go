package consumer

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/pawlstream/pawl/topic"
)

// Every name that Pawl makes on a cluster is made here. An application's name
// holds no dot, so the first dot ends it, and names of two applications can't
// meet.

// maxName is the longest name that Pawl makes, as Kafka limits topic names.
const maxName = topic.NameMax

var applicationName = regexp.MustCompile(`^[a-z0-9-]+$`)

// CheckApplication returns an error that says what is wrong with the name of
// an application, if anything is.
func CheckApplication(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("no application is named")
	case !applicationName.MatchString(name):
		return fmt.Errorf("application name %q: want lower-case letters, digits and hyphens", name)
	case len(name) > maxName:
		return fmt.Errorf("application name %.40q… has %d bytes: want at most %d", name, len(name), maxName)
	}
	return nil
}

func shardID(set string, partition int32) ShardID {
	return ShardID(fmt.Sprintf("%s-%03d", set, partition))
}

// NewShardID returns the ID of the shard that consumes a partition of a set.
func NewShardID(set string, partition int32) ShardID { return shardID(set, partition) }

// split returns the set and the partition that make up the ID.
func (id ShardID) split() (set string, partition int32, ok bool) {
	i := strings.LastIndexByte(string(id), '-')
	if i < 0 {
		return "", 0, false
	}
	n, err := strconv.ParseInt(string(id[i+1:]), 10, 32)
	if err != nil || shardID(string(id[:i]), int32(n)) != id {
		return "", 0, false
	}
	return string(id[:i]), int32(n), true
}

// TransactionalID returns the transactional ID of a shard's producer.
func TransactionalID(application string, id ShardID) string { return application + "." + string(id) }

// ChangelogTopic returns the name of the changelog topic of a set.
func ChangelogTopic(application, set string) string { return application + "." + set + ".changelog" }

// DeadLetterTopic returns the name of the dead-letter topic of a set.
func DeadLetterTopic(application, set string) string { return application + "." + set + ".dlq" }

// checkNames refuses a set whose names would be too long for Kafka, or which
// holds what would be one of the application's own topics.
func checkNames(application, set string, topics []string) error {
	for _, name := range []string{ChangelogTopic(application, set), DeadLetterTopic(application, set), TransactionalID(application, shardID(set, 99999))} {
		if len(name) > maxName {
			return fmt.Errorf("the name %.60q… has %d bytes, and Kafka takes %d: shorten the application's or the topic's name, or declare a set", name, len(name), maxName)
		}
	}
	for _, t := range topics {
		if strings.HasPrefix(t, application+".") && (strings.HasSuffix(t, ".changelog") || strings.HasSuffix(t, ".dlq")) {
			return fmt.Errorf("topic %s is named like one of application %s's own: consume it from another application", t, application)
		}
	}
	return nil
}
