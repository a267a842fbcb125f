package broker

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// changeList adds elements to a list, or takes them away.
func changeList(list, elements string, add bool) string {
	all := splitList(list)
	for _, e := range splitList(elements) {
		at := slices.Index(all, e)
		switch {
		case add && at < 0:
			all = append(all, e)
		case !add && at >= 0:
			all = slices.Delete(all, at, at+1)
		}
	}
	return strings.Join(all, ",")
}

// sourceOf says where a topic's setting comes from.
func (b *Broker) sourceOf(own map[string]string, d definition) kmsg.ConfigSource {
	if _, ok := own[d.name]; ok {
		return kmsg.ConfigSourceDynamicTopicConfig
	}
	if _, ok := b.settings[d.broker]; ok {
		return kmsg.ConfigSourceStaticBrokerConfig
	}
	return kmsg.ConfigSourceDefaultConfig
}

func (b *Broker) describeConfigs(_ *connection, req *kmsg.DescribeConfigsRequest) answer {
	resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, q := range req.Resources {
		rr := kmsg.NewDescribeConfigsResponseResource()
		rr.ResourceType, rr.ResourceName = q.ResourceType, q.ResourceName
		rr.Configs = []kmsg.DescribeConfigsResponseResourceConfig{}
		wanted := func(name string) bool { return q.ConfigNames == nil || slices.Contains(q.ConfigNames, name) }
		fail := func(err *kerr.Error, format string, args ...any) {
			rr.ErrorCode, rr.ErrorMessage = err.Code, kmsg.StringPtr(fmt.Sprintf(format, args...))
		}
		switch q.ResourceType {
		case kmsg.ConfigResourceTypeTopic:
			t := b.mu.topics[q.ResourceName]
			if t == nil {
				fail(kerr.UnknownTopicOrPartition, "there is no topic %q", q.ResourceName)
				break
			}
			for _, d := range topicDefinitions {
				if wanted(d.name) {
					rr.Configs = append(rr.Configs, b.describeSetting(t.settings, d, req.IncludeSynonyms))
				}
			}
		case kmsg.ConfigResourceTypeBroker:
			if !isBrokerName(q.ResourceName) {
				fail(kerr.InvalidRequest, "the only broker is %d, not %s", nodeID, q.ResourceName)
				break
			}
			if q.ResourceName == "" {
				break // the cluster's own defaults: none
			}
			for _, name := range slices.Sorted(maps.Keys(brokerSettings)) {
				if wanted(name) {
					rr.Configs = append(rr.Configs, b.describeBrokerSetting(brokerSettings[name], req.IncludeSynonyms))
				}
			}
		default:
			fail(kerr.InvalidRequest, "resources of type %s have no settings here", q.ResourceType)
		}
		resp.Resources = append(resp.Resources, rr)
	}
	return answer{resp: resp, round: b.mu.topicRound}
}

func (b *Broker) describeSetting(own map[string]string, d definition, synonyms bool) kmsg.DescribeConfigsResponseResourceConfig {
	c := kmsg.NewDescribeConfigsResponseResourceConfig()
	c.Name, c.Value, c.ConfigType = d.name, kmsg.StringPtr(b.settings.ofTopic(own, d.name)), d.kind
	c.Source = b.sourceOf(own, d)
	c.IsDefault = c.Source != kmsg.ConfigSourceDynamicTopicConfig
	if !synonyms {
		return c
	}
	add := func(name, v string, source kmsg.ConfigSource) {
		s := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
		s.Name, s.Value, s.Source = name, kmsg.StringPtr(v), source
		c.ConfigSynonyms = append(c.ConfigSynonyms, s)
	}
	if v, ok := own[d.name]; ok {
		add(d.name, v, kmsg.ConfigSourceDynamicTopicConfig)
	}
	if v, ok := b.settings[d.broker]; ok {
		add(d.broker, v, kmsg.ConfigSourceStaticBrokerConfig)
	}
	if !coarser[d.broker] {
		add(d.broker, d.initial, kmsg.ConfigSourceDefaultConfig)
	}
	return c
}

// coarser are the broker's settings that have no default in Kafka, since another
// one in a coarser unit has it, which is no synonym.
var coarser = map[string]bool{"log.retention.ms": true, "log.roll.ms": true, "log.roll.jitter.ms": true, "log.flush.interval.ms": true}

func (b *Broker) describeBrokerSetting(d definition, synonyms bool) kmsg.DescribeConfigsResponseResourceConfig {
	c := kmsg.NewDescribeConfigsResponseResourceConfig()
	c.Name, c.Value, c.ConfigType, c.ReadOnly = d.name, kmsg.StringPtr(b.settings.get(d.name)), d.kind, true
	c.Source, c.IsDefault = kmsg.ConfigSourceDefaultConfig, true
	given, ok := b.settings[d.name]
	if ok {
		c.Source, c.IsDefault = kmsg.ConfigSourceStaticBrokerConfig, false
	}
	if !synonyms {
		return c
	}
	add := func(v string, source kmsg.ConfigSource) {
		s := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
		s.Name, s.Value, s.Source = d.name, kmsg.StringPtr(v), source
		c.ConfigSynonyms = append(c.ConfigSynonyms, s)
	}
	if ok {
		add(given, kmsg.ConfigSourceStaticBrokerConfig)
	}
	add(d.initial, kmsg.ConfigSourceDefaultConfig)
	return c
}
