package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/pawlstream/pawl/topic"
)

// MemberInfo is one member of the group as the leader sees it.
type MemberInfo struct {
	ID       string // the coordinator's name for it
	Instance string // its own name for itself, which a restart keeps
	Topics   []string
	Metadata []byte
}

// MemberConfig says which group to join, as whom, and how to assign.
type MemberConfig struct {
	Group    string
	Instance string // group instance ID; empty for a dynamic member
	Topics   []string

	SessionTimeout    time.Duration // 10 s
	HeartbeatInterval time.Duration // 300 ms
	RebalanceTimeout  time.Duration // 10 s
	TopicsInterval    time.Duration // how often the leader looks for new partitions: 10 s

	// Metadata is asked for what the leader is to know of this member, each
	// time it joins.
	Metadata func() []byte

	// Assign is called on the leader with all members, in order of their
	// instance and ID, and the partition count of every topic that exists. Its
	// answer names members by ID. A member that it leaves out is assigned
	// nothing.
	Assign func(members []MemberInfo, partitions map[string]int32) (map[string][]topic.Partition, error)
}

// Assignment is everything that the member is assigned in a generation.
type Assignment struct {
	Generation int32
	MemberID   string
	Leader     bool
	Partitions []topic.Partition
}

// Member is one process in a consumer group. It fetches nothing.
type Member struct{}

func NewMember(Config, MemberConfig) (*Member, error) { return nil, errors.ErrUnsupported }
func (m *Member) Run(ctx context.Context, onAssigned func(Assignment)) error {
	return errors.ErrUnsupported
}
func (m *Member) Heartbeat(ctx context.Context) error { return errors.ErrUnsupported }
func (m *Member) LastHeartbeat() time.Time            { return time.Time{} }
func (m *Member) CommitOffsets(ctx context.Context, offsets map[topic.Partition]Committed) error {
	return errors.ErrUnsupported
}
func (m *Member) Leave(ctx context.Context) error { return errors.ErrUnsupported }
func (m *Member) Rejoin()                         {}
func (m *Member) Close()                          {}
