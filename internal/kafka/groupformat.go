package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What a group's members say to each other has the form of Kafka's own
// consumers, so that its tools can show it, around bytes of our own.
const (
	protocolType = "consumer"
	protocolName = "pawl"
)

// encodeSubscription is what a member tells the leader. wish, if it is not -1,
// makes it differ from what the member said in other generations, since a
// coordinator starts no rebalance for a member that says the same again.
func encodeSubscription(topics []string, user []byte, wish int32) []byte {
	m := kmsg.NewConsumerMemberMetadata()
	m.Version = 2
	m.Topics = slices.Sorted(slices.Values(topics))
	m.UserData = user
	m.Generation = wish
	return m.AppendTo(nil)
}

func decodeSubscription(b []byte) (topics []string, user []byte, err error) {
	m := kmsg.NewConsumerMemberMetadata()
	if err := m.ReadFrom(b); err != nil {
		return nil, nil, fmt.Errorf("subscription of %d bytes: %w", len(b), err)
	}
	return m.Topics, m.UserData, nil
}

// encodeAssignment is what the leader tells a member: its partitions, and how
// many partitions each topic had, so that any later leader can see whether
// that has changed.
func encodeAssignment(parts []topic.Partition, counts map[string]int32) []byte {
	parts = slices.SortedFunc(slices.Values(parts), topic.Partition.Compare)
	m := kmsg.NewConsumerMemberAssignment()
	m.Version = 0
	for _, p := range parts {
		if n := len(m.Topics); n == 0 || m.Topics[n-1].Topic != p.Topic {
			t := kmsg.NewConsumerMemberAssignmentTopic()
			t.Topic = p.Topic
			m.Topics = append(m.Topics, t)
		}
		t := &m.Topics[len(m.Topics)-1]
		t.Partitions = append(t.Partitions, p.Number)
	}
	m.UserData = encodeCounts(counts)
	return m.AppendTo(nil)
}

func decodeAssignment(b []byte) (parts []topic.Partition, counts map[string]int32, err error) {
	if len(b) == 0 {
		return nil, nil, nil // the leader left this member out
	}
	m := kmsg.NewConsumerMemberAssignment()
	if err := m.ReadFrom(b); err != nil {
		return nil, nil, fmt.Errorf("assignment of %d bytes: %w", len(b), err)
	}
	for _, t := range m.Topics {
		for _, n := range t.Partitions {
			parts = append(parts, topic.Partition{Topic: t.Topic, Number: n})
		}
	}
	slices.SortFunc(parts, topic.Partition.Compare)
	counts, err = decodeCounts(m.UserData)
	if err != nil {
		return nil, nil, fmt.Errorf("assignment: %w", err)
	}
	return parts, counts, nil
}

// countsVersion is the first byte of encoded counts. What a later version adds
// comes after what this one has.
const countsVersion = 1

// encodeCounts appends, per topic in order, the length of its name, its name
// and its number of partitions.
func encodeCounts(counts map[string]int32) []byte {
	b := []byte{countsVersion}
	b = binary.AppendUvarint(b, uint64(len(counts)))
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		b = binary.AppendUvarint(b, uint64(len(name)))
		b = append(b, name...)
		b = binary.AppendUvarint(b, uint64(counts[name]))
	}
	return b
}

var errCounts = errors.New("partition counts are cut short or malformed")

func decodeCounts(b []byte) (map[string]int32, error) {
	if len(b) == 0 || b[0] < countsVersion {
		return nil, errCounts
	}
	b = b[1:]
	number := func(most uint64) (uint64, bool) {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > most {
			return 0, false
		}
		b = b[n:]
		return v, true
	}
	topics, ok := number(uint64(len(b)))
	if !ok {
		return nil, errCounts
	}
	counts := make(map[string]int32)
	for range topics {
		size, ok := number(topic.NameMax)
		if !ok || size > uint64(len(b)) {
			return nil, errCounts
		}
		name := string(b[:size])
		b = b[size:]
		n, ok := number(1<<31 - 1)
		if !ok {
			return nil, errCounts
		}
		counts[name] = int32(n)
	}
	return counts, nil
}
