package broker

import (
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kbin"
)

// topic is a named list of partitions with settings.
type topic struct {
	id         [16]byte
	name       string
	partitions []*partition
	settings   map[string]string // its own
	policy     policy            // what they come to
	deleted    bool
}

// partitionsMax is how many partitions a topic may have.
const partitionsMax = 100_000

const topicNameMax = 249

// checkTopicName says what is wrong with a topic's name.
func checkTopicName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("a topic's name may not be empty")
	case name == "." || name == "..":
		return fmt.Errorf("a topic's name may not be %q", name)
	case len(name) > topicNameMax:
		return fmt.Errorf("a topic's name has %d bytes, more than %d", len(name), topicNameMax)
	}
	for _, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return fmt.Errorf("a topic's name may hold letters, digits, '.', '_' and '-', not %q", c)
		}
	}
	return nil
}

// encode is the topic as it is stored.
func (t *topic) encode() []byte {
	b := []byte{formatVersion}
	b = kbin.AppendCompactString(b, t.name)
	b = appendCount(b, len(t.partitions))
	for _, p := range t.partitions {
		b = kbin.AppendUint32(b, p.id)
	}
	b = appendCount(b, len(t.settings))
	for _, name := range slices.Sorted(maps.Keys(t.settings)) {
		b = kbin.AppendCompactString(b, name)
		b = kbin.AppendCompactString(b, t.settings[name])
	}
	return b
}

// decodeTopic reads a stored topic.
func decodeTopic(key, val []byte) (*topic, error) {
	if len(key) != 17 {
		return nil, fmt.Errorf("%w: topic key %x", ErrCorrupt, key)
	}
	t := &topic{settings: make(map[string]string)}
	copy(t.id[:], key[1:])
	err := decode("a topic", val, func(_ byte, d *decoder) {
		t.name = d.CompactString()
		for i := range d.count() {
			t.partitions = append(t.partitions, newPartition(t, int32(i), d.Uint32()))
		}
		for range d.count() {
			name := d.CompactString()
			t.settings[name] = d.CompactString()
		}
	})
	return t, err
}

// createTopicLocked stages a new topic.
func (b *Broker) createTopicLocked(name string, partitions int32, own map[string]string, o *op) *topic {
	t := &topic{id: randomID(), name: name, settings: own, policy: b.settings.policy(own)}
	b.mu.topics[name], b.mu.topicIDs[t.id] = t, t
	b.growTopicLocked(t, partitions, o)
	return t
}

// growTopicLocked stages partitions that a topic has more.
func (b *Broker) growTopicLocked(t *topic, count int32, o *op) {
	for n := int32(len(t.partitions)); n < count; n++ {
		p := newPartition(t, n, b.mu.nextNumber)
		b.mu.nextNumber++
		t.partitions = append(t.partitions, p)
		b.mu.partitions[p.id] = p
		o.set(partitionKey(prefixPartition, p.id), p.encode())
	}
	o.set(topicKey(t.id), t.encode())
	o.set(metaKey(metaNextNumber), kbin.AppendUint32([]byte{formatVersion}, b.mu.nextNumber))
}

// deleteTopicLocked stages the end of a topic: all that is kept of it, in open
// transactions and groups too.
func (b *Broker) deleteTopicLocked(t *topic, o *op) {
	t.deleted = true
	delete(b.mu.topics, t.name)
	delete(b.mu.topicIDs, t.id)
	for _, p := range t.partitions {
		for _, x := range b.mu.transactions {
			if _, ok := x.partitions[p]; ok {
				delete(x.partitions, p)
				o.set(transactionKey(x.id), x.encode())
			}
		}
		for _, prefix := range []byte{prefixPartition, prefixChunk, prefixBatch, prefixAborted, prefixProducer} {
			o.removePrefix(partitionKey(prefix, p.id))
		}
		delete(b.mu.partitions, p.id)
		b.mu.recents.dropLocked(p)
		p.wakeLocked()
	}
	o.remove(topicKey(t.id))
	for _, x := range b.mu.transactions {
		for k := range x.offsets {
			if k.topic == t.name {
				delete(x.offsets, k)
				o.remove(pendingKey(x.id, k.group, k.topic, k.partition))
			}
		}
	}
	for _, g := range b.mu.groups {
		for k := range g.offsets {
			if k.topic == t.name {
				g.deleteOffsetLocked(k, o)
			}
		}
	}
}
