package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// The kinds of groups, as brokers name them.
const (
	GroupClassic  = "classic"  // whose members agree among themselves
	GroupConsumer = "consumer" // whose coordinator assigns (KIP-848)
	GroupShare    = "share"    // whose members share partitions (KIP-932)
	GroupStreams  = "streams"  // of Kafka Streams, whose coordinator assigns (KIP-1071)
)

// ErrUnknownGroup says that there is no such group.
var ErrUnknownGroup = errors.New("unknown group")

// Group is a group that the cluster knows.
type Group struct {
	Name     string
	Kind     string // one of the Group constants, or what a newer broker has
	Protocol string // of a classic group: consumer, connect, or nothing where it is empty
	State    string
}

// GroupDetail is a group with its members.
type GroupDetail struct {
	Group
	Assignor    string // how partitions are assigned, where that is known
	Coordinator int32
	Members     []GroupMember
	Hidden      bool // the group has members of a kind that can't be looked up
}

// GroupMember is a member of a group.
type GroupMember struct {
	ID         string
	Instance   string // the group instance ID of a static member
	Client     string
	Host       string
	Topics     []string          // that it subscribes to
	Partitions []topic.Partition // that it was assigned
}

// Groups returns the groups that the cluster knows, of all kinds, in order.
func (a *Admin) Groups(ctx context.Context) ([]Group, error) {
	listed, err := a.adm.ListGroups(ctx)
	if err != nil {
		return nil, fmt.Errorf("list groups: %w", classed(err))
	}
	var all []Group
	for _, g := range listed.Sorted() {
		kind := strings.ToLower(g.GroupType)
		if kind == "" {
			kind = GroupClassic // of a broker that knows no others
		}
		all = append(all, Group{Name: g.Group, Kind: kind, Protocol: g.ProtocolType, State: g.State})
	}
	return all, nil
}

// DescribeGroup returns a group with its members. Its error matches
// ErrUnknownGroup if there is none.
func (a *Admin) DescribeGroup(ctx context.Context, name string) (GroupDetail, error) {
	groups, err := a.Groups(ctx)
	if err != nil {
		return GroupDetail{}, err
	}
	i := slices.IndexFunc(groups, func(g Group) bool { return g.Name == name })
	if i < 0 {
		return GroupDetail{}, fmt.Errorf("group %q: %w", name, ErrUnknownGroup)
	}
	d := GroupDetail{Group: groups[i], Coordinator: -1}
	switch d.Kind {
	case GroupClassic:
		err = a.describeClassic(ctx, &d)
	case GroupConsumer:
		err = a.describeConsumer(ctx, &d)
	case GroupShare:
		err = a.describeShare(ctx, &d)
	default:
		d.Hidden = d.State != "Empty"
	}
	if err != nil {
		return GroupDetail{}, fmt.Errorf("describe group %s: %w", name, classed(err))
	}
	slices.SortFunc(d.Members, func(x, y GroupMember) int {
		return cmp.Or(cmp.Compare(x.Instance, y.Instance), cmp.Compare(x.ID, y.ID))
	})
	for _, m := range d.Members {
		slices.SortFunc(m.Partitions, topic.Partition.Compare)
		slices.Sort(m.Topics)
	}
	return d, nil
}

func (a *Admin) describeClassic(ctx context.Context, d *GroupDetail) error {
	rs, err := a.adm.DescribeGroups(ctx, d.Name)
	if err != nil {
		return err
	}
	r, err := rs.On(d.Name, nil)
	if err == nil {
		err = said(r.Err, r.ErrMessage)
	}
	if err != nil {
		return err
	}
	d.State, d.Assignor, d.Coordinator = r.State, r.Protocol, r.Coordinator.NodeID
	for _, m := range r.Members {
		gm := newGroupMember(m.MemberID, m.InstanceID, m.ClientID, m.ClientHost)
		if join, ok := m.Join.AsConsumer(); ok {
			gm.Topics = slices.Clone(join.Topics)
		}
		if assigned, ok := m.Assigned.AsConsumer(); ok {
			for _, t := range assigned.Topics {
				for _, n := range t.Partitions {
					gm.Partitions = append(gm.Partitions, topic.Partition{Topic: t.Topic, Number: n})
				}
			}
		}
		d.Members = append(d.Members, gm)
	}
	return nil
}

func newGroupMember(id string, instance *string, client, host string) GroupMember {
	m := GroupMember{ID: id, Client: client, Host: host}
	if instance != nil {
		m.Instance = *instance
	}
	return m
}

func (a *Admin) describeConsumer(ctx context.Context, d *GroupDetail) error {
	rs, err := a.adm.DescribeConsumerGroups(ctx, d.Name)
	if err != nil {
		return err
	}
	r, ok := rs[d.Name]
	if !ok {
		return kerr.GroupIDNotFound
	}
	if r.Err != nil {
		return r.Err
	}
	d.State, d.Assignor, d.Coordinator = r.State, r.AssignorName, r.Coordinator.NodeID
	for _, m := range r.Members {
		gm := newGroupMember(m.MemberID, m.InstanceID, m.ClientID, m.ClientHost)
		gm.Topics, gm.Partitions = slices.Clone(m.SubscribedTopics), partitionsOf(m.Assignment)
		d.Members = append(d.Members, gm)
	}
	return nil
}

func (a *Admin) describeShare(ctx context.Context, d *GroupDetail) error {
	rs, err := a.adm.DescribeShareGroups(ctx, d.Name)
	if err != nil {
		return err
	}
	r, ok := rs[d.Name]
	if !ok {
		return kerr.GroupIDNotFound
	}
	if r.Err != nil {
		return r.Err
	}
	d.State, d.Assignor, d.Coordinator = r.GroupState, r.Assignor, r.Coordinator.NodeID
	for _, m := range r.Members {
		d.Members = append(d.Members, GroupMember{ID: m.MemberID, Client: m.ClientID, Host: m.ClientHost, Topics: slices.Clone(m.SubscribedTopicNames), Partitions: partitionsOf(m.Assignment)})
	}
	return nil
}

func partitionsOf(set kadm.TopicsSet) (all []topic.Partition) {
	set.Each(func(name string, n int32) {
		all = append(all, topic.Partition{Topic: name, Number: n})
	})
	return all
}

// ShareOffsets returns from where on a share group has messages that are not
// settled, by partition.
func (a *Admin) ShareOffsets(ctx context.Context, group string) (map[topic.Partition]int64, error) {
	rs, err := a.adm.DescribeShareGroupOffsets(ctx, group)
	if err == nil {
		err = rs.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("look up the offsets of share group %s: %w", group, classed(err))
	}
	starts := make(map[topic.Partition]int64)
	rs.Each(func(g kadm.DescribedShareGroupOffsets) {
		for name, parts := range g.Offsets {
			for n, p := range parts {
				if p.Err == nil && p.StartOffset >= 0 {
					starts[topic.Partition{Topic: name, Number: n}] = p.StartOffset
				}
			}
		}
	})
	return starts, nil
}
