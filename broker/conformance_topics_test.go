package broker_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// described returns what a topic's settings are, in the order of their names,
// each with where it comes from and what else would be it.
func (s *suite) described(w *wire, topic string, names ...string) string {
	s.Helper()
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Version, req.IncludeSynonyms = 4, true
	req.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: topic, ConfigNames: names}}
	var lines []string
	for _, c := range query[*kmsg.DescribeConfigsResponse](w, req).Resources[0].Configs {
		line := fmt.Sprintf("%s=%s %v default=%t readonly=%t %v", c.Name, *c.Value, c.Source, c.IsDefault, c.ReadOnly, c.ConfigType)
		for _, y := range c.ConfigSynonyms {
			line += fmt.Sprintf(" %s=%s(%v)", y.Name, *y.Value, y.Source)
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// eventually asks until the answer is what is wanted: Kafka's brokers hear of a
// change a little after it was answered.
func eventually(s *suite, what string, ask func() string, want string) {
	s.Helper()
	for range 100 {
		if ask() == want {
			return
		}
		pause(s.ctx, 20*time.Millisecond)
	}
	s.Errorf("%s: %s\nwant %s", what, ask(), want)
}

// Requests about topics, their partitions and their settings that ask for what
// can't be are answered as Kafka answers them, and change nothing.
func TestConformBadTopics(t *testing.T) {
	conform(t, func(s *suite) {
		w := s.dial()
		name, id := s.topic(2, "retention.ms", "1000000", "cleanup.policy", "compact")
		const (
			compact  = "cleanup.policy=compact DYNAMIC_TOPIC_CONFIG default=false readonly=false LIST cleanup.policy=compact(DYNAMIC_TOPIC_CONFIG) log.cleanup.policy=delete(DEFAULT_CONFIG)"
			both     = "cleanup.policy=delete,compact DYNAMIC_TOPIC_CONFIG default=false readonly=false LIST cleanup.policy=delete,compact(DYNAMIC_TOPIC_CONFIG) log.cleanup.policy=delete(DEFAULT_CONFIG)"
			deletes  = "cleanup.policy=delete DEFAULT_CONFIG default=false readonly=false LIST log.cleanup.policy=delete(DEFAULT_CONFIG)"
			kept     = "\nretention.ms=1000000 DYNAMIC_TOPIC_CONFIG default=false readonly=false LONG retention.ms=1000000(DYNAMIC_TOPIC_CONFIG)"
			kept7    = "\nretention.ms=7000 DYNAMIC_TOPIC_CONFIG default=false readonly=false LONG retention.ms=7000(DYNAMIC_TOPIC_CONFIG)"
			keptWeek = "\nretention.ms=604800000 DEFAULT_CONFIG default=false readonly=false LONG"
		)
		now := func(what, want string) {
			t.Helper()
			eventually(s, what, func() string { return s.described(w, name, "retention.ms", "cleanup.policy") }, want)
		}
		now("created", compact+kept)

		alter := func(what string, validate bool, key, value string, want error) {
			t.Helper()
			req := kmsg.NewPtrAlterConfigsRequest()
			req.Version, req.ValidateOnly = 2, validate
			req.Resources = []kmsg.AlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: name,
				Configs: []kmsg.AlterConfigsRequestResourceConfig{{Name: key, Value: &value}}}}
			s.want(what, query[*kmsg.AlterConfigsResponse](w, req).Resources[0].ErrorCode, want)
		}
		alter("alter, to see", true, "retention.ms", "5", nil)
		alter("alter what is not known", false, "nosuch", "5", kerr.InvalidConfig)
		alter("alter to no number", false, "retention.ms", "abc", kerr.InvalidConfig)
		now("after nothing was altered", compact+kept)
		alter("alter one", false, "retention.ms", "7000", nil)
		now("one was altered, and the others are not its own", deletes+kept7)

		p := kmsg.StringPtr
		const set, remove, add, subtract = kmsg.IncrementalAlterConfigOpSet, kmsg.IncrementalAlterConfigOpDelete, kmsg.IncrementalAlterConfigOpAppend, kmsg.IncrementalAlterConfigOpSubtract
		change := func(what string, validate bool, op kmsg.IncrementalAlterConfigOp, key string, value *string, want error) {
			t.Helper()
			req := kmsg.NewPtrIncrementalAlterConfigsRequest()
			req.Version, req.ValidateOnly = 1, validate
			req.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: name,
				Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: key, Op: op, Value: value}}}}
			s.want(what, query[*kmsg.IncrementalAlterConfigsResponse](w, req).Resources[0].ErrorCode, want)
		}
		change("append", false, add, "cleanup.policy", p("compact"), nil)
		now("appended", both+kept7)
		change("subtract", false, subtract, "cleanup.policy", p("delete"), nil)
		now("subtracted", compact+kept7)
		change("append to a number", false, add, "retention.ms", p("3"), kerr.InvalidConfig)
		change("delete", false, remove, "retention.ms", nil, nil)
		now("deleted", compact+keptWeek)
		change("set to null", false, set, "retention.ms", nil, kerr.InvalidRequest)
		change("set, to see", true, set, "retention.ms", p("9"), nil)
		change("set to no policy", false, set, "cleanup.policy", p("foo"), kerr.InvalidConfig)
		change("set to no type", false, set, "message.timestamp.type", p("Bogus"), kerr.InvalidConfig)
		now("after nothing was changed", compact+keptWeek)

		create := func(what, topic string, parts int32, factor int16, validate bool, nodes []int32, want error) {
			t.Helper()
			req := kmsg.NewPtrCreateTopicsRequest()
			req.Version, req.TimeoutMillis, req.ValidateOnly = 7, 10_000, validate
			ct := kmsg.NewCreateTopicsRequestTopic()
			ct.Topic, ct.NumPartitions, ct.ReplicationFactor = topic, parts, factor
			for i, n := range nodes {
				ct.ReplicaAssignment = append(ct.ReplicaAssignment, kmsg.CreateTopicsRequestTopicReplicaAssignment{Partition: int32(i), Replicas: []int32{n}})
			}
			req.Topics = append(req.Topics, ct)
			s.want("create "+what, query[*kmsg.CreateTopicsResponse](w, req).Topics[0].ErrorCode, want)
		}
		create("one that exists", name, 1, 1, false, nil, kerr.TopicAlreadyExists)
		create("one, to see", s.prefix+"v", 3, 1, true, nil, nil)
		create("the one that was looked at", s.prefix+"v", 3, 1, false, nil, nil)
		create("three replicas", s.prefix+"r", 1, 3, false, nil, kerr.InvalidReplicationFactor)
		create("no replicas", s.prefix+"r", 1, 0, false, nil, kerr.InvalidReplicationFactor)
		create("no partitions", s.prefix+"r", 0, 1, false, nil, kerr.InvalidPartitions)
		create("by the defaults", s.prefix+"d", -1, -1, false, nil, nil)
		create("on the node", s.prefix+"n", -1, -1, false, []int32{1}, nil)
		create("on no node", s.prefix+"n2", -1, -1, false, []int32{7}, kerr.InvalidReplicaAssignment)
		create("on the node, with a number", s.prefix+"n3", 2, 1, false, []int32{1}, kerr.InvalidRequest)
		for _, bad := range []string{"", ".", "..", "a/b", "ä", strings.Repeat("x", 250)} {
			create(fmt.Sprintf("%q", bad), bad, 1, 1, false, nil, kerr.InvalidTopicException)
		}
		create("a.b", s.prefix+"a.b", 1, 1, false, nil, nil)
		create("a_b beside a.b", s.prefix+"a_b", 1, 1, false, nil, kerr.InvalidTopicException)

		grow := func(what, topic string, n int32, validate bool, want error) {
			t.Helper()
			req := kmsg.NewPtrCreatePartitionsRequest()
			req.Version, req.TimeoutMillis, req.ValidateOnly = 3, 10_000, validate
			req.Topics = []kmsg.CreatePartitionsRequestTopic{{Topic: topic, Count: n}}
			s.want("partitions: "+what, query[*kmsg.CreatePartitionsResponse](w, req).Topics[0].ErrorCode, want)
		}
		grow("fewer", name, 1, false, kerr.InvalidPartitions)
		grow("as many", name, 2, false, kerr.InvalidPartitions)
		grow("more, to see", name, 9, true, nil)
		grow("of none", s.prefix+"none", 3, false, kerr.UnknownTopicOrPartition)
		grow("more", name, 3, false, nil)

		none, bad := s.prefix+"none", "a/b"
		look := func(what string, topic *string, id [16]byte, want error, parts int) {
			t.Helper()
			req := kmsg.NewPtrMetadataRequest()
			req.Version = 12
			req.Topics = []kmsg.MetadataRequestTopic{{Topic: topic, TopicID: id}}
			says := func(err error, parts int) string { return fmt.Sprintf("%v, %d partitions", err, parts) }
			eventually(s, "look "+what, func() string {
				r := query[*kmsg.MetadataResponse](w, req).Topics[0]
				return says(kerr.ErrorForCode(r.ErrorCode), len(r.Partitions))
			}, says(want, parts))
		}
		look("by name", &name, [16]byte{}, nil, 3)
		look("by ID", nil, id, nil, 3)
		look("by no ID", nil, [16]byte{9}, kerr.UnknownTopicID, 0)
		look("by no name", &none, [16]byte{}, kerr.UnknownTopicOrPartition, 0)
		look("by a bad name", &bad, [16]byte{}, kerr.InvalidTopicException, 0)

		drop := func(what string, q kmsg.DeleteTopicsRequestTopic, want error) {
			t.Helper()
			req := kmsg.NewPtrDeleteTopicsRequest()
			req.Version, req.TimeoutMillis, req.Topics = 6, 10_000, []kmsg.DeleteTopicsRequestTopic{q}
			s.want("delete "+what, query[*kmsg.DeleteTopicsResponse](w, req).Topics[0].ErrorCode, want)
		}
		drop("by no ID", kmsg.DeleteTopicsRequestTopic{TopicID: [16]byte{9}}, kerr.UnknownTopicID)
		drop("by no name", kmsg.DeleteTopicsRequestTopic{Topic: &none}, kerr.UnknownTopicOrPartition)
		drop("by ID", kmsg.DeleteTopicsRequestTopic{TopicID: id}, nil)
		look("for what was deleted", &name, [16]byte{}, kerr.UnknownTopicOrPartition, 0)
		drop("what was deleted", kmsg.DeleteTopicsRequestTopic{Topic: &name}, kerr.UnknownTopicOrPartition)
	})
}
