package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/kafka"
)

// A Member is a process of an application, as the group tells of it.
type Member struct {
	Instance string
	Host     string    // where it connects from, as the broker sees it
	Admin    string    // HOST:PORT of its admin API; empty if it has none, or is of an older version
	Shards   []ShardID // that it is assigned
	Reason   string    // why nothing else is known of it
}

// Members returns the processes of an application that are in its group now.
func Members(ctx context.Context, c cluster.Cluster, application string) ([]Member, error) {
	if err := CheckApplication(application); err != nil {
		return nil, err
	}
	admin, err := kafka.NewAdmin(kafka.Config{Cluster: c, ClientID: "pawl", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	joined, err := admin.Members(ctx, application)
	if err != nil {
		return nil, err
	}
	members := make([]Member, 0, len(joined))
	for _, j := range joined {
		members = append(members, memberOf(j))
	}
	return members, nil
}

func memberOf(j kafka.JoinedMember) Member {
	m := Member{Instance: j.Instance, Host: j.Host}
	meta, err := parseMetadata(j.Metadata)
	if err != nil {
		m.Reason = fmt.Sprintf("what it says of itself can't be read: %v", err)
		return m
	}
	m.Admin = meta.Admin
	for _, p := range j.Partitions {
		for set, topics := range meta.Sets {
			if slices.Contains(topics, p.Topic) {
				m.Shards = append(m.Shards, shardID(set, p.Number))
			}
		}
	}
	slices.Sort(m.Shards)
	m.Shards = slices.Compact(m.Shards)
	return m
}

// Applications returns the names of the applications that have processes in the
// cluster now, in order.
func Applications(ctx context.Context, c cluster.Cluster) ([]string, error) {
	admin, err := kafka.NewAdmin(kafka.Config{Cluster: c, ClientID: "pawl", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	return admin.Applications(ctx)
}

// Announce tells the group, and so tools, where the admin API of this process
// is. It is called before Run.
func (a *App) Announce(admin string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.admin = admin
}

// Topology says what an application is made of.
type Topology struct {
	Sets    []SetTopology
	Outputs []string // topics that its consumers say they publish to, in order
}

// SetTopology is a co-partitioned set of consumed topics: one shard for each
// partition.
type SetTopology struct {
	Name        string
	Topics      []string // consumed, in order
	Changelog   string
	DeadLetters string // empty where the failure policy has none
	Outputs     []string
}

// Topology returns what the application is made of.
func (a *App) Topology() Topology {
	var t Topology
	for _, set := range a.sets {
		s := SetTopology{Name: set.name, Topics: topicNames(set.topics), Changelog: ChangelogTopic(a.cfg.Application, set.name)}
		if a.cfg.OnFailure == DeadLetter {
			s.DeadLetters = DeadLetterTopic(a.cfg.Application, set.name)
		}
		if o, ok := set.consumer.(Outputs); ok {
			s.Outputs = topicNames(o.Outputs())
			slices.Sort(s.Outputs)
			t.Outputs = append(t.Outputs, s.Outputs...)
		}
		t.Sets = append(t.Sets, s)
	}
	slices.Sort(t.Outputs)
	t.Outputs = slices.Compact(t.Outputs)
	return t
}
