package broker

import (
	"encoding/binary"
	"fmt"

	"github.com/twmb/franz-go/pkg/kbin"
)

// The keys of the storage. Numbers are big endian, so that keys order as the
// numbers do. A partition is named by a number of its own, given once and never
// again, so that nothing a deleted topic left can be taken for another's.
//
//	m | name                          what concerns the whole broker
//	i | topic ID                      a topic: name, partitions, settings
//	p | partition                     a partition: bounds, and its last chunk
//	s | partition | base offset       a chunk of a partition that is closed
//	d | partition | last offset       a batch of records, as it is sent
//	a | partition | marker's offset   an aborted transaction
//	q | partition | producer ID       what a producer wrote last: sequences, open transaction
//	x | transactional ID              a transactional ID: producer, epoch, state
//	y | transactional ID | group | topic | partition   an offset that a transaction will commit
//	g | group                         a group: generation and members
//	o | group | topic | partition     a committed offset
//
// A batch is found by its last offset: the first key at or above an offset is
// the batch that holds it, or the next one after a gap.
const (
	prefixMeta        = 'm'
	prefixTopic       = 'i'
	prefixPartition   = 'p'
	prefixChunk       = 's'
	prefixBatch       = 'd'
	prefixAborted     = 'a'
	prefixProducer    = 'q'
	prefixTransaction = 'x'
	prefixPending     = 'y'
	prefixGroup       = 'g'
	prefixOffset      = 'o'
)

// formatVersion is the version of all that is stored. Raising it needs a
// release that reads both.
const formatVersion = 1

func metaKey(name string) []byte { return append([]byte{prefixMeta}, name...) }

func topicKey(id [16]byte) []byte { return append([]byte{prefixTopic}, id[:]...) }

// partitionKey returns a key that is a prefix and a partition.
func partitionKey(prefix byte, partition uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{prefix}, partition)
}

// offsetKey returns a key of a partition that ends in a number, which is not
// negative.
func offsetKey(prefix byte, partition uint32, n int64) []byte {
	k := make([]byte, 0, 13)
	k = append(k, prefix)
	k = binary.BigEndian.AppendUint32(k, partition)
	return binary.BigEndian.AppendUint64(k, uint64(n))
}

// partOfKey takes a key of offsetKey apart.
func partOfKey(key []byte) (partition uint32, n int64, err error) {
	if len(key) != 13 {
		return 0, 0, fmt.Errorf("%w: key %x has %d bytes, want 13", ErrCorrupt, key, len(key))
	}
	return binary.BigEndian.Uint32(key[1:]), int64(binary.BigEndian.Uint64(key[5:])), nil
}

func transactionKey(id string) []byte { return append([]byte{prefixTransaction}, id...) }

func groupKey(id string) []byte { return append([]byte{prefixGroup}, id...) }

// committedKey is the key of a group's offset.
func committedKey(group, topic string, partition int32) []byte {
	k := appendName([]byte{prefixOffset}, group)
	k = appendName(k, topic)
	return binary.BigEndian.AppendUint32(k, uint32(partition))
}

// pendingKey is the key of an offset that a transaction will commit.
func pendingKey(id, group, topic string, partition int32) []byte {
	k := appendName([]byte{prefixPending}, id)
	k = appendName(k, group)
	k = appendName(k, topic)
	return binary.BigEndian.AppendUint32(k, uint32(partition))
}

// appendName appends a name with its length before it: names may hold any byte.
func appendName(k []byte, name string) []byte {
	k = binary.BigEndian.AppendUint16(k, uint16(len(name)))
	return append(k, name...)
}

// nameMax is the longest name that a key can hold.
const nameMax = 1<<15 - 1

// takeName takes a name off a key.
func takeName(k []byte) (name string, rest []byte, err error) {
	if len(k) < 2 || len(k) < 2+int(binary.BigEndian.Uint16(k)) {
		return "", nil, fmt.Errorf("%w: a key's name is cut short", ErrCorrupt)
	}
	n := 2 + int(binary.BigEndian.Uint16(k))
	return string(k[2:n]), k[n:], nil
}

// decodeCommittedKey takes a key of committedKey apart.
func decodeCommittedKey(key []byte) (group, topic string, partition int32, err error) {
	rest := key[1:]
	if group, rest, err = takeName(rest); err == nil {
		topic, rest, err = takeName(rest)
	}
	if err == nil && len(rest) != 4 {
		err = fmt.Errorf("%w: offset key %x", ErrCorrupt, key)
	}
	if err != nil {
		return "", "", 0, err
	}
	return group, topic, int32(binary.BigEndian.Uint32(rest)), nil
}

// decodePendingKey takes a key of pendingKey apart.
func decodePendingKey(key []byte) (id, group, topic string, partition int32, err error) {
	id, rest, err := takeName(key[1:])
	if err != nil {
		return "", "", "", 0, err
	}
	group, topic, partition, err = decodeCommittedKey(append([]byte{prefixOffset}, rest...))
	return id, group, topic, partition, err
}

// after returns the first key behind all that begin with a prefix.
func after(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}

// A decoder reads a stored value. Its end must be the value's.
type decoder struct{ kbin.Reader }

// decode reads a value that begins with a version up to max.
func decode(what string, val []byte, read func(version byte, d *decoder)) error {
	if len(val) == 0 {
		return fmt.Errorf("%w: %s is empty", ErrCorrupt, what)
	}
	d := &decoder{kbin.Reader{Src: val[1:]}}
	if val[0] != formatVersion {
		return fmt.Errorf("%w: %s has version %d", ErrNewerFormat, what, val[0])
	}
	read(val[0], d)
	if !d.Ok() || len(d.Src) != 0 {
		return fmt.Errorf("%w: %s can't be decoded", ErrCorrupt, what)
	}
	return nil
}

// count reads how many elements follow, each of at least a byte.
func (d *decoder) count() int {
	n := int(d.Uvarint())
	if n > len(d.Src) {
		d.Src = nil
		d.Int8() // there is no such byte: the value is bad from here on
		return 0
	}
	return n
}

func appendCount(b []byte, n int) []byte { return kbin.AppendUvarint(b, uint32(n)) }
