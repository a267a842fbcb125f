package broker

import (
	"fmt"
	"maps"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func (b *Broker) createTopics(_ *connection, req *kmsg.CreateTopicsRequest) answer {
	resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	var o op
	named := make(map[string]int)
	for _, t := range req.Topics {
		named[t.Topic]++
	}
	for _, q := range req.Topics {
		if named[q.Topic] == 0 {
			continue
		}
		rt := kmsg.NewCreateTopicsResponseTopic()
		rt.Topic, rt.NumPartitions, rt.ReplicationFactor = q.Topic, -1, -1
		rt.Configs = []kmsg.CreateTopicsResponseTopicConfig{}
		if named[q.Topic] > 1 {
			named[q.Topic] = 0
			rt.ErrorCode, rt.ErrorMessage = kerr.InvalidRequest.Code, kmsg.StringPtr("the topic is named more than once")
			resp.Topics = append(resp.Topics, rt)
			continue
		}
		count, own, err, why := b.plannedTopicLocked(q)
		switch {
		case err != nil:
			rt.ErrorCode, rt.ErrorMessage = err.Code, kmsg.StringPtr(why)
		case b.outOfSpace():
			rt.ErrorCode, rt.ErrorMessage = kerr.KafkaStorageError.Code, kmsg.StringPtr("the broker's disk is full")
		default:
			rt.NumPartitions, rt.ReplicationFactor = count, 1
			for _, d := range topicDefinitions {
				c := kmsg.NewCreateTopicsResponseTopicConfig()
				c.Name, c.Value, c.Source = d.name, kmsg.StringPtr(b.settings.ofTopic(own, d.name)), int8(b.sourceOf(own, d))
				rt.Configs = append(rt.Configs, c)
			}
			if !req.ValidateOnly {
				rt.TopicID = b.createTopicLocked(q.Topic, count, own, &o).id
			}
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return answer{resp: resp, round: b.stageLocked(&o)}
}

// collidingLocked returns a topic that there is whose name differs in '.' and '_'
// alone, or "". Kafka takes no second one of those.
func (b *Broker) collidingLocked(name string) (other string) {
	if !strings.ContainsAny(name, "._") {
		return ""
	}
	plain := strings.ReplaceAll(name, ".", "_")
	for other := range b.mu.topics {
		if len(other) == len(plain) && strings.ReplaceAll(other, ".", "_") == plain {
			return other
		}
	}
	return ""
}

// plannedTopicLocked says what a topic would be like, or why it can't be.
func (b *Broker) plannedTopicLocked(q kmsg.CreateTopicsRequestTopic) (count int32, own map[string]string, code *kerr.Error, why string) {
	fail := func(code *kerr.Error, format string, args ...any) (int32, map[string]string, *kerr.Error, string) {
		return 0, nil, code, fmt.Sprintf(format, args...)
	}
	if err := checkTopicName(q.Topic); err != nil {
		return fail(kerr.InvalidTopicException, "%v", err)
	}
	if b.mu.topics[q.Topic] != nil {
		return fail(kerr.TopicAlreadyExists, "topic %q already exists", q.Topic)
	}
	if other := b.collidingLocked(q.Topic); other != "" {
		return fail(kerr.InvalidTopicException, "topic %q would be %q where metrics write '_' for '.'", q.Topic, other)
	}
	count = q.NumPartitions
	switch {
	case len(q.ReplicaAssignment) > 0:
		if q.NumPartitions != -1 || q.ReplicationFactor != -1 {
			return fail(kerr.InvalidRequest, "both a replica assignment and counts are given")
		}
		seen := make(map[int32]bool)
		for _, a := range q.ReplicaAssignment {
			if len(a.Replicas) != 1 || a.Replicas[0] != nodeID || seen[a.Partition] || a.Partition < 0 || int(a.Partition) >= len(q.ReplicaAssignment) {
				return fail(kerr.InvalidReplicaAssignment, "the only broker is %d, and partitions count from 0", nodeID)
			}
			seen[a.Partition] = true
		}
		count = int32(len(q.ReplicaAssignment))
	case count == -1:
		count = int32(b.settings.number("num.partitions"))
	case count < 1 || count > partitionsMax:
		return fail(kerr.InvalidPartitions, "a topic has between 1 and %d partitions, not %d", partitionsMax, count)
	}
	if q.ReplicationFactor != -1 && q.ReplicationFactor != 1 && len(q.ReplicaAssignment) == 0 {
		return fail(kerr.InvalidReplicationFactor, "there is one broker, and so one replica, not %d", q.ReplicationFactor)
	}
	own = make(map[string]string)
	for _, c := range q.Configs {
		if c.Value == nil {
			return fail(kerr.InvalidConfig, "setting %s has no value", c.Name)
		}
		d, ok := topicSettings[c.Name]
		if !ok {
			return fail(kerr.InvalidConfig, "a topic has no setting %q", c.Name)
		}
		if err := d.check(*c.Value); err != nil {
			return fail(kerr.InvalidConfig, "%v", err)
		}
		own[c.Name] = *c.Value
	}
	return count, own, nil, ""
}

func (b *Broker) deleteTopics(_ *connection, req *kmsg.DeleteTopicsRequest) answer {
	resp := req.ResponseKind().(*kmsg.DeleteTopicsResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	var o op
	asked := req.Topics
	for _, name := range req.TopicNames {
		q := kmsg.NewDeleteTopicsRequestTopic()
		q.Topic = kmsg.StringPtr(name)
		asked = append(asked, q)
	}
	for _, q := range asked {
		rt := kmsg.NewDeleteTopicsResponseTopic()
		rt.Topic, rt.TopicID = q.Topic, q.TopicID
		var t *topic
		if q.Topic != nil {
			if t = b.mu.topics[*q.Topic]; t == nil {
				rt.ErrorCode = kerr.UnknownTopicOrPartition.Code
			}
		} else if t = b.mu.topicIDs[q.TopicID]; t == nil {
			rt.ErrorCode = kerr.UnknownTopicID.Code
		}
		if t != nil && !b.settings.bool("delete.topic.enable") {
			rt.ErrorCode = kerr.TopicDeletionDisabled.Code
		} else if t != nil {
			rt.Topic, rt.TopicID = kmsg.StringPtr(t.name), t.id
			b.deleteTopicLocked(t, &o)
			b.reclaim(t.partitions...)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return answer{resp: resp, round: b.stageLocked(&o)}
}

func (b *Broker) createPartitions(_ *connection, req *kmsg.CreatePartitionsRequest) answer {
	resp := req.ResponseKind().(*kmsg.CreatePartitionsResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	var o op
	for _, q := range req.Topics {
		rt := kmsg.NewCreatePartitionsResponseTopic()
		rt.Topic = q.Topic
		fail := func(err *kerr.Error, format string, args ...any) {
			rt.ErrorCode, rt.ErrorMessage = err.Code, kmsg.StringPtr(fmt.Sprintf(format, args...))
		}
		t := b.mu.topics[q.Topic]
		switch {
		case t == nil:
			fail(kerr.UnknownTopicOrPartition, "there is no topic %q", q.Topic)
		case int(q.Count) <= len(t.partitions) || q.Count > partitionsMax:
			fail(kerr.InvalidPartitions, "topic %s has %d partitions, and can't have %d: only more, up to %d", q.Topic, len(t.partitions), q.Count, partitionsMax)
		case b.outOfSpace():
			fail(kerr.KafkaStorageError, "the broker's disk is full")
		case !req.ValidateOnly:
			b.growTopicLocked(t, q.Count, &o)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return answer{resp: resp, round: b.stageLocked(&o)}
}

func (b *Broker) setSettingsLocked(t *topic, own map[string]string, o *op) {
	t.settings, t.policy = own, b.settings.policy(own)
	o.set(topicKey(t.id), t.encode())
}

// brokerName is the broker's name as a resource with settings.
func isBrokerName(name string) bool { return name == "" || name == fmt.Sprint(nodeID) }

func (b *Broker) alterConfigs(_ *connection, req *kmsg.AlterConfigsRequest) answer {
	resp := req.ResponseKind().(*kmsg.AlterConfigsResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	var o op
	for _, q := range req.Resources {
		rr := kmsg.NewAlterConfigsResponseResource()
		rr.ResourceType, rr.ResourceName = q.ResourceType, q.ResourceName
		t, err, why := b.alterableLocked(q.ResourceType, q.ResourceName)
		own := make(map[string]string) // what is not named goes back to its default
		for _, c := range q.Configs {
			if err != nil {
				break
			}
			switch d, ok := topicSettings[c.Name]; {
			case !ok:
				err, why = kerr.InvalidConfig, fmt.Sprintf("a topic has no setting %q", c.Name)
			case c.Value == nil:
				err, why = kerr.InvalidConfig, fmt.Sprintf("setting %s has no value", c.Name)
			default:
				if e := d.check(*c.Value); e != nil {
					err, why = kerr.InvalidConfig, e.Error()
				}
				own[c.Name] = *c.Value
			}
		}
		if err != nil {
			rr.ErrorCode, rr.ErrorMessage = err.Code, kmsg.StringPtr(why)
		} else if !req.ValidateOnly {
			b.setSettingsLocked(t, own, &o)
		}
		resp.Resources = append(resp.Resources, rr)
	}
	return answer{resp: resp, round: b.stageLocked(&o)}
}

// alterableLocked finds the topic whose settings are to change.
func (b *Broker) alterableLocked(kind kmsg.ConfigResourceType, name string) (*topic, *kerr.Error, string) {
	switch {
	case kind == kmsg.ConfigResourceTypeBroker:
		return nil, kerr.InvalidConfig, "the broker's settings are given when it starts, and don't change"
	case kind != kmsg.ConfigResourceTypeTopic:
		return nil, kerr.InvalidRequest, fmt.Sprintf("resources of type %s have no settings here", kind)
	}
	t := b.mu.topics[name]
	if t == nil {
		return nil, kerr.UnknownTopicOrPartition, fmt.Sprintf("there is no topic %q", name)
	}
	return t, nil, ""
}

func (b *Broker) incrementalAlterConfigs(_ *connection, req *kmsg.IncrementalAlterConfigsRequest) answer {
	resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	var o op
	for _, q := range req.Resources {
		rr := kmsg.NewIncrementalAlterConfigsResponseResource()
		rr.ResourceType, rr.ResourceName = q.ResourceType, q.ResourceName
		t, err, why := b.alterableLocked(q.ResourceType, q.ResourceName)
		if err == nil {
			own := maps.Clone(t.settings)
			if err, why = b.patch(own, q.Configs); err == nil && !req.ValidateOnly {
				b.setSettingsLocked(t, own, &o)
			}
		}
		if err != nil {
			rr.ErrorCode, rr.ErrorMessage = err.Code, kmsg.StringPtr(why)
		}
		resp.Resources = append(resp.Resources, rr)
	}
	return answer{resp: resp, round: b.stageLocked(&o)}
}

// patch changes a topic's own settings one by one.
func (b *Broker) patch(own map[string]string, changes []kmsg.IncrementalAlterConfigsRequestResourceConfig) (*kerr.Error, string) {
	seen := make(map[string]bool)
	for _, c := range changes {
		d, ok := topicSettings[c.Name]
		if !ok {
			return kerr.InvalidConfig, fmt.Sprintf("a topic has no setting %q", c.Name)
		}
		if seen[c.Name] {
			return kerr.InvalidRequest, fmt.Sprintf("setting %s is named twice", c.Name)
		}
		seen[c.Name] = true
		if c.Op == kmsg.IncrementalAlterConfigOpDelete {
			delete(own, c.Name)
			continue
		}
		if c.Value == nil {
			return kerr.InvalidRequest, fmt.Sprintf("setting %s has no value", c.Name)
		}
		v := *c.Value
		if c.Op == kmsg.IncrementalAlterConfigOpAppend || c.Op == kmsg.IncrementalAlterConfigOpSubtract {
			if d.kind != kindList {
				return kerr.InvalidConfig, fmt.Sprintf("setting %s is not a list", c.Name)
			}
			v = changeList(b.settings.ofTopic(own, c.Name), v, c.Op == kmsg.IncrementalAlterConfigOpAppend)
		} else if c.Op != kmsg.IncrementalAlterConfigOpSet {
			return kerr.InvalidRequest, fmt.Sprintf("setting %s: operation %d is not known", c.Name, c.Op)
		}
		if err := d.check(v); err != nil {
			return kerr.InvalidConfig, err.Error()
		}
		own[c.Name] = v
	}
	return nil, ""
}
