package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TopicDetail is all that the cluster says about a topic.
type TopicDetail struct {
	TopicInfo
	Internal bool // one of the cluster's own
	Parts    []PartitionDetail
	Settings []Setting
}

// PartitionDetail is what the cluster says about a partition. Offsets are -1
// where there is nobody to ask: the partition has no leader.
type PartitionDetail struct {
	Number    int32
	Leader    int32 // -1: none
	Replicas  []int32
	InSync    []int32
	Earliest  int64
	End       int64 // the high watermark
	StableEnd int64 // the last stable offset
	Bytes     int64 // on the leader's disk; -1 where that can't be told
}

// Setting is one setting of a topic.
type Setting struct {
	Name      string
	Value     string
	Default   string // that holds where the topic has none of its own
	Own       bool   // set for this topic
	Sensitive bool   // Value is hidden
}

// ListTopics returns what the cluster says about all topics, in order, without
// their offsets and settings.
func (a *Admin) ListTopics(ctx context.Context) ([]TopicDetail, error) {
	topics, err := metadata(ctx, a.cl)
	if err != nil {
		return nil, fmt.Errorf("list topics: %w", classed(err))
	}
	var all []TopicDetail
	for _, t := range topics {
		if t.Topic == nil || len(t.Partitions) == 0 {
			continue // deleted just now
		}
		all = append(all, newTopicDetail(t))
	}
	slices.SortFunc(all, func(x, y TopicDetail) int { return cmp.Compare(x.Name, y.Name) })
	return all, nil
}

func newTopicDetail(t kmsg.MetadataResponseTopic) TopicDetail {
	d := TopicDetail{TopicInfo: TopicInfo{Name: *t.Topic, ID: t.TopicID, Partitions: len(t.Partitions)}, Internal: t.IsInternal}
	for _, p := range t.Partitions {
		d.Replication = max(d.Replication, len(p.Replicas))
		d.Parts = append(d.Parts, PartitionDetail{Number: p.Partition, Leader: p.Leader, Replicas: p.Replicas, InSync: p.ISR, Earliest: -1, End: -1, StableEnd: -1, Bytes: -1})
	}
	slices.SortFunc(d.Parts, func(x, y PartitionDetail) int { return cmp.Compare(x.Number, y.Number) })
	return d
}

// DescribeTopic returns all that the cluster says about a topic.
func (a *Admin) DescribeTopic(ctx context.Context, name string) (TopicDetail, error) {
	fail := func(err error) (TopicDetail, error) {
		return TopicDetail{}, fmt.Errorf("describe topic %s: %w", name, classed(err))
	}
	topics, err := metadata(ctx, a.cl, name)
	if err != nil {
		return fail(err)
	}
	if len(topics) != 1 || topics[0].Topic == nil {
		return fail(kerr.UnknownTopicOrPartition)
	}
	if err := kerr.ErrorForCode(topics[0].ErrorCode); err != nil && (!kerr.IsRetriable(err) || len(topics[0].Partitions) == 0) {
		return fail(err)
	}
	d := newTopicDetail(topics[0])
	var led []topic.Partition
	for _, p := range d.Parts {
		if p.Leader >= 0 {
			led = append(led, topic.Partition{Topic: name, Number: p.Number})
		}
	}
	for _, at := range []At{Earliest, End, StableEnd} {
		offsets, err := a.Offsets(ctx, at, led...)
		if err != nil {
			return fail(err)
		}
		for i := range d.Parts {
			o, ok := offsets[topic.Partition{Topic: name, Number: d.Parts[i].Number}]
			switch {
			case !ok:
			case at == Earliest:
				d.Parts[i].Earliest = o
			case at == End:
				d.Parts[i].End = o
			default:
				d.Parts[i].StableEnd = o
			}
		}
	}
	a.sizes(ctx, &d)
	if d.Settings, err = a.settings(ctx, name); err != nil {
		return fail(err)
	}
	return d, nil
}

// sizes looks up what partitions take on disk. Who may describe a topic need
// not be allowed that, so a refusal takes nothing from the rest.
func (a *Admin) sizes(ctx context.Context, d *TopicDetail) {
	var set kadm.TopicsSet
	for _, p := range d.Parts {
		set.Add(d.Name, p.Number)
	}
	dirs, err := a.adm.DescribeAllLogDirs(ctx, set)
	if err != nil {
		a.cfg.Logger.Debug("look up what a topic takes on disk", "topic", d.Name, "error", err)
	}
	for i := range d.Parts {
		p := &d.Parts[i]
		if found, ok := dirs[p.Leader].LookupPartition(d.Name, p.Number); ok {
			p.Bytes = found.Size
		}
	}
}

// settings returns the settings of a topic, in order.
func (a *Admin) settings(ctx context.Context, name string) ([]Setting, error) {
	rs, err := a.adm.DescribeTopicConfigs(ctx, name)
	if err != nil {
		return nil, err
	}
	r, err := rs.On(name, nil)
	if err = errors.Join(err, r.Err); err != nil {
		return nil, err
	}
	var all []Setting
	for _, c := range r.Configs {
		s := Setting{Name: c.Key, Value: c.MaybeValue(), Default: c.MaybeValue(), Own: c.Source == kmsg.ConfigSourceDynamicTopicConfig, Sensitive: c.Sensitive}
		if s.Own {
			s.Default = ""
			for _, syn := range c.Synonyms {
				if syn.Source != kmsg.ConfigSourceDynamicTopicConfig && syn.Value != nil {
					s.Default = *syn.Value
					break
				}
			}
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(x, y Setting) int { return cmp.Compare(x.Name, y.Name) })
	return all, nil
}

// TopicChange is what is to be changed of a topic. What is not named stays as
// it is.
type TopicChange struct {
	Partitions int               // 0: as many as there are
	Set        map[string]string // settings, by Kafka's names
	Unset      []string          // settings that go back to their defaults
}

// AlterTopic changes a topic. With only it asks the cluster whether it would,
// and changes nothing.
func (a *Admin) AlterTopic(ctx context.Context, name string, c TopicChange, only bool) error {
	fail := func(err error) error { return fmt.Errorf("alter topic %s: %w", name, classed(err)) }
	var alter []kadm.AlterConfig
	for _, k := range slices.Sorted(maps.Keys(c.Set)) {
		v := c.Set[k]
		alter = append(alter, kadm.AlterConfig{Op: kadm.SetConfig, Name: k, Value: &v})
	}
	for _, k := range c.Unset {
		alter = append(alter, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: k})
	}
	if len(alter) > 0 {
		do := a.adm.AlterTopicConfigs
		if only {
			do = a.adm.ValidateAlterTopicConfigs
		}
		rs, err := do(ctx, alter, name)
		if err != nil {
			return fail(err)
		}
		r, err := rs.On(name, nil)
		if err == nil {
			err = said(r.Err, r.ErrMessage)
		}
		if err != nil {
			return fail(err)
		}
	}
	if c.Partitions == 0 {
		return nil
	}
	if !only {
		return a.CreatePartitions(ctx, name, c.Partitions)
	}
	rs, err := a.adm.ValidateUpdatePartitions(ctx, c.Partitions, name)
	if err != nil {
		return fail(err)
	}
	r, err := rs.On(name, nil)
	if err == nil {
		err = said(r.Err, r.ErrMessage)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// ValidateTopic asks the cluster whether it would create a topic, and creates
// none.
func (a *Admin) ValidateTopic(ctx context.Context, spec TopicSpec) error {
	partitions, replication, settings := spec.request()
	rs, err := a.adm.ValidateCreateTopics(ctx, partitions, replication, settings, spec.Name)
	if err == nil {
		var r kadm.CreateTopicResponse
		if r, err = rs.On(spec.Name, nil); err == nil {
			err = said(r.Err, r.ErrMessage)
		}
	}
	if err != nil {
		return fmt.Errorf("create topic %s: %w", spec.Name, classed(err))
	}
	return nil
}

// said adds to a refusal what the broker said with it.
func said(err error, message string) error {
	if err == nil || message == "" {
		return err
	}
	return &refusal{err, message}
}

// refusal is an error code with what the broker says of this very case, which
// takes the place of what is said of the code in general: that may be untrue
// here, as that the number of partitions is below 1 where it is too large.
type refusal struct {
	err     error
	message string
}

func (r *refusal) Error() string {
	var code *kerr.Error
	if errors.As(r.err, &code) {
		return code.Message + ": " + r.message
	}
	return r.err.Error() + ": " + r.message
}

func (r *refusal) Unwrap() error { return r.err }
