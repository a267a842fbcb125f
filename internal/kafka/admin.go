package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Admin looks at a cluster and creates what is missing. Safe for concurrent
// use.
type Admin struct {
	cfg    Config
	cl     *kgo.Client
	adm    *kadm.Client
	cancel context.CancelFunc
}

// TopicInfo is what the cluster says about a topic.
type TopicInfo struct {
	Name        string
	ID          topic.ID
	Partitions  int
	Replication int
}

// TopicSpec says how a topic is to be created.
type TopicSpec struct {
	Name        string
	Partitions  int   // 0: the broker's default
	Replication int16 // 0 or -1: the broker's default
	Settings    map[string]string
}

// At names a place in a partition: [Earliest], [End], [StableEnd] or a [Time].
type At struct {
	place place
	time  time.Time
}

type place int8

const (
	atEarliest place = iota
	atEnd
	atStableEnd
	atTime
)

var (
	Earliest  = At{place: atEarliest}  // the first offset that the partition holds
	End       = At{place: atEnd}       // the high watermark
	StableEnd = At{place: atStableEnd} // the last stable offset
)

// Time is the first offset whose timestamp is t or later, or the end.
func Time(t time.Time) At { return At{place: atTime, time: t} }

// NewAdmin returns an admin. It connects to no broker.
func NewAdmin(cfg Config) (*Admin, error) {
	cfg = cfg.withDefaults()
	ctx, cancel := context.WithCancel(context.Background())
	cl, err := cfg.newClient(ctx)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("admin: %w", err)
	}
	return &Admin{cfg: cfg, cl: cl, adm: kadm.NewClient(cl), cancel: cancel}, nil
}

// Close ends the admin. Calls that still run return.
func (a *Admin) Close() {
	a.cancel()
	a.cl.Close()
}

// Topics returns what the cluster says about the named topics, or about all of
// them. One that does not exist has no entry.
func (a *Admin) Topics(ctx context.Context, names ...string) (map[string]TopicInfo, error) {
	topics, err := metadata(ctx, a.cl, names...)
	if err != nil {
		return nil, fmt.Errorf("look up topics %q: %w", names, err)
	}
	infos := make(map[string]TopicInfo, len(topics))
	for _, t := range topics {
		if t.Topic == nil {
			continue
		}
		switch err := kerr.ErrorForCode(t.ErrorCode); {
		case err == nil:
		case isUnknownTopic(err):
			continue
		case kerr.IsRetriable(err) && len(t.Partitions) > 0: // without a leader just now
		default:
			return nil, fmt.Errorf("look up topic %s: %w", *t.Topic, classed(err))
		}
		info := TopicInfo{Name: *t.Topic, ID: t.TopicID, Partitions: len(t.Partitions)}
		for _, p := range t.Partitions {
			info.Replication = max(info.Replication, len(p.Replicas))
		}
		infos[info.Name] = info
	}
	return infos, nil
}

// SettingsOfTopics returns every setting of the topics that holds, as TopicSettings
// does, with one request to each broker that is asked. A topic whose settings
// can't be told is left out.
func (a *Admin) SettingsOfTopics(ctx context.Context, names ...string) (map[string]map[string]string, error) {
	rs, err := a.adm.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("look up the settings of %d topics: %w", len(names), classed(err))
	}
	all := make(map[string]map[string]string, len(rs))
	for _, r := range rs {
		if r.Err == nil {
			all[r.Name] = settingsIn(r)
		}
	}
	return all, nil
}

// settingsIn takes the settings out of an answer.
func settingsIn(r kadm.ResourceConfig) map[string]string {
	settings := make(map[string]string, len(r.Configs))
	for _, c := range r.Configs {
		if c.Value != nil {
			settings[c.Key] = *c.Value
		}
	}
	return settings
}

// TopicSettings returns every setting of the topic that holds, by Kafka's
// names, the defaults included.
func (a *Admin) TopicSettings(ctx context.Context, name string) (map[string]string, error) {
	rs, err := a.adm.DescribeTopicConfigs(ctx, name)
	if err == nil {
		var r kadm.ResourceConfig
		if r, err = rs.On(name, nil); err == nil {
			err = r.Err
		}
		if err == nil {
			return settingsIn(r), nil
		}
	}
	return nil, fmt.Errorf("look up the settings of topic %s: %w", name, classed(err))
}

// Waiting for the cluster to agree: how long, and how often it is asked.
const (
	agreeTimeout  = 15 * time.Second
	agreeInterval = 20 * time.Millisecond
)

// request is what the library is given: what is not set is the cluster's default.
func (s TopicSpec) request() (partitions int32, replication int16, settings map[string]*string) {
	partitions, replication = int32(s.Partitions), s.Replication
	if partitions == 0 {
		partitions = -1
	}
	if replication == 0 {
		replication = -1
	}
	settings = make(map[string]*string, len(s.Settings))
	for k, v := range s.Settings {
		settings[k] = &v
	}
	return partitions, replication, settings
}

// CreateTopic creates a topic and waits until it can be written to. A topic
// that exists is left as it is; created is then false.
func (a *Admin) CreateTopic(ctx context.Context, spec TopicSpec) (created bool, err error) {
	partitions, replication, settings := spec.request()
	r, err := a.adm.CreateTopic(ctx, partitions, replication, settings, spec.Name)
	if err == nil {
		err = r.Err
	}
	switch {
	case err == nil:
		created = true
	case errors.Is(err, kerr.TopicAlreadyExists):
	default:
		return false, fmt.Errorf("create topic %s: %w", spec.Name, classed(said(err, r.ErrMessage)))
	}
	err = a.agree(ctx, func() (bool, error) {
		topics, err := metadata(ctx, a.cl, spec.Name)
		if err != nil || len(topics) != 1 || topics[0].ErrorCode != 0 || len(topics[0].Partitions) == 0 {
			return false, err
		}
		return !slices.ContainsFunc(topics[0].Partitions, func(p kmsg.MetadataResponseTopicPartition) bool { return p.Leader < 0 }), nil
	})
	if err != nil {
		return created, fmt.Errorf("wait for topic %s to appear: %w", spec.Name, err)
	}
	return created, nil
}

// agree waits until the cluster shows what was asked of it.
func (a *Admin) agree(ctx context.Context, seen func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, agreeTimeout)
	defer cancel()
	for {
		ok, err := seen()
		if err != nil && !Transient(err) {
			return err
		}
		if ok && err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(agreeInterval):
		}
	}
}

// DeleteTopics deletes topics and waits until they are gone. One that does not
// exist is none to delete.
func (a *Admin) DeleteTopics(ctx context.Context, names ...string) error {
	if len(names) == 0 {
		return nil
	}
	rs, err := a.adm.DeleteTopics(ctx, names...)
	if err != nil {
		return fmt.Errorf("delete topics %q: %w", names, classed(err))
	}
	for _, r := range rs.Sorted() {
		if r.Err != nil && !isUnknownTopic(r.Err) {
			return fmt.Errorf("delete topic %s: %w", r.Topic, classed(said(r.Err, r.ErrMessage)))
		}
	}
	err = a.agree(ctx, func() (bool, error) {
		left, err := a.Topics(ctx, names...)
		return len(left) == 0, err
	})
	if err != nil {
		return fmt.Errorf("wait for topics %q to be gone: %w", names, err)
	}
	return nil
}

// CreatePartitions raises the topic's number of partitions to total.
func (a *Admin) CreatePartitions(ctx context.Context, name string, total int) error {
	rs, err := a.adm.UpdatePartitions(ctx, total, name)
	if err == nil {
		var r kadm.CreatePartitionsResponse
		if r, err = rs.On(name, nil); err == nil {
			err = said(r.Err, r.ErrMessage)
		}
	}
	if err != nil {
		return fmt.Errorf("give topic %s %d partitions: %w", name, total, classed(err))
	}
	err = a.agree(ctx, func() (bool, error) {
		ts, err := a.Topics(ctx, name)
		return ts[name].Partitions >= total, err
	})
	if err != nil {
		return fmt.Errorf("wait for topic %s to have %d partitions: %w", name, total, err)
	}
	return nil
}

// Offsets returns the offset at a place of each partition.
func (a *Admin) Offsets(ctx context.Context, at At, parts ...topic.Partition) (map[topic.Partition]int64, error) {
	return listOffsets(ctx, a.cl, at, parts...)
}

// listOffsetsRequest asks for the offset at a place of each partition.
func listOffsetsRequest(at At, parts []topic.Partition) *kmsg.ListOffsetsRequest {
	const earliest, latest = -2, -1
	stamp, isolation := int64(latest), int8(0)
	switch at.place {
	case atEarliest:
		stamp = earliest
	case atStableEnd:
		isolation = 1
	case atTime:
		stamp = max(at.time.UnixMilli(), 0) // the negative ones are places
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	req.IsolationLevel = isolation
	byTopic := make(map[string][]kmsg.ListOffsetsRequestTopicPartition)
	for _, p := range parts {
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.Timestamp = p.Number, stamp
		byTopic[p.Topic] = append(byTopic[p.Topic], rp)
	}
	for name, rps := range byTopic {
		t := kmsg.NewListOffsetsRequestTopic()
		t.Topic, t.Partitions = name, rps
		req.Topics = append(req.Topics, t)
	}
	return req
}

func listOffsets(ctx context.Context, cl *kgo.Client, at At, parts ...topic.Partition) (map[topic.Partition]int64, error) {
	offsets := make(map[topic.Partition]int64, len(parts))
	if len(parts) == 0 {
		return offsets, nil
	}
	req := listOffsetsRequest(at, parts)
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, fmt.Errorf("list offsets: %w", classed(err))
	}
	var beyond []topic.Partition // those where nothing is as late as the time
	for _, t := range resp.Topics {
		for _, rp := range t.Partitions {
			p := topic.Partition{Topic: t.Topic, Number: rp.Partition}
			if err := kerr.ErrorForCode(rp.ErrorCode); err != nil {
				return nil, fmt.Errorf("list offsets of %s: %w", p, classed(err))
			}
			if rp.Offset < 0 {
				beyond = append(beyond, p)
				continue
			}
			offsets[p] = rp.Offset
		}
	}
	if len(beyond) > 0 && at.place == atTime {
		ends, err := listOffsets(ctx, cl, End, beyond...)
		if err != nil {
			return nil, err
		}
		for p, o := range ends {
			offsets[p] = o
		}
	}
	for _, p := range parts {
		if _, ok := offsets[p]; !ok {
			return nil, fmt.Errorf("list offsets of %s: %w", p, ErrUnknownTopic)
		}
	}
	return offsets, nil
}

// DeleteRecords deletes what the partition holds before an offset.
func (a *Admin) DeleteRecords(ctx context.Context, p topic.Partition, before int64) error {
	var os kadm.Offsets
	os.Add(kadm.Offset{Topic: p.Topic, Partition: p.Number, At: before, LeaderEpoch: -1})
	rs, err := a.adm.DeleteRecords(ctx, os)
	if err == nil {
		err = rs.Error()
	}
	if err != nil {
		return fmt.Errorf("delete records of %s before %d: %w", p, before, classed(err))
	}
	return nil
}

// DeleteGroup deletes a group that has no members. One that does not exist is
// none to delete.
func (a *Admin) DeleteGroup(ctx context.Context, group string) error {
	r, err := a.adm.DeleteGroup(ctx, group)
	if err == nil {
		err = r.Err
	}
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return fmt.Errorf("delete group %s: %w", group, classed(err))
	}
	return nil
}

// Committed is what a group has committed for a partition.
type Committed struct {
	Offset   int64
	Metadata string
}

// Committed returns what the group has committed.
func (a *Admin) Committed(ctx context.Context, group string) (map[topic.Partition]Committed, error) {
	rs, err := a.adm.FetchOffsets(ctx, group)
	if err == nil {
		err = rs.Error()
	}
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return nil, fmt.Errorf("look up what group %s has committed: %w", group, classed(err))
	}
	all := make(map[topic.Partition]Committed)
	rs.Each(func(r kadm.OffsetResponse) {
		if r.At >= 0 {
			all[topic.Partition{Topic: r.Topic, Number: r.Partition}] = Committed{Offset: r.At, Metadata: r.Metadata}
		}
	})
	return all, nil
}

// CommitOffsets commits offsets for a group that has no members.
func (a *Admin) CommitOffsets(ctx context.Context, group string, offsets map[topic.Partition]Committed) error {
	var os kadm.Offsets
	for p, c := range offsets {
		os.Add(kadm.Offset{Topic: p.Topic, Partition: p.Number, At: c.Offset, LeaderEpoch: -1, Metadata: c.Metadata})
	}
	rs, err := a.adm.CommitOffsets(ctx, group, os)
	if err == nil {
		err = rs.Error()
	}
	if err != nil {
		return fmt.Errorf("commit offsets of group %s: %w", group, classed(err))
	}
	return nil
}
