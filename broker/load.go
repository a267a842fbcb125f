package broker

import (
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/twmb/franz-go/pkg/kbin"
)

// What concerns the whole broker, by its key.
const (
	metaCluster      = "cluster"
	metaNextNumber   = "next partition"
	metaNextProducer = "next producer"
)

// load reads the state. It reads what is kept about the data, and not the data:
// the time and the memory that it takes don't grow with them, but for a few
// bytes for each chunk.
func (b *Broker) load() error {
	for _, part := range []struct {
		what   string
		prefix byte
		read   func(key, val []byte) error
	}{
		{"the broker's own", prefixMeta, b.loadMeta},
		{"topics", prefixTopic, b.loadTopic},
		{"partitions", prefixPartition, b.loadPartition},
		{"chunks", prefixChunk, b.loadChunk},
		{"producers", prefixProducer, b.loadProducer},
		{"transactions", prefixTransaction, b.loadTransaction},
		{"groups", prefixGroup, b.loadGroup},
		{"committed offsets", prefixOffset, b.loadCommitted},
		{"pending offsets", prefixPending, b.loadPending},
	} {
		if err := b.each(part.prefix, part.read); err != nil {
			return fmt.Errorf("load %s: %w", part.what, err)
		}
	}
	for _, p := range b.mu.partitions {
		if err := b.checkPartition(p); err != nil {
			return fmt.Errorf("load %s: %w", p, err)
		}
		p.visible.start, p.visible.high = p.start, p.next
		p.settleLocked()
	}
	if b.id == "" {
		id := randomID()
		b.id = base64.RawURLEncoding.EncodeToString(id[:])
		if err := b.db.Set(metaKey(metaCluster), kbin.AppendCompactString([]byte{formatVersion}, b.id), pebble.Sync); err != nil {
			return fmt.Errorf("name the cluster: %w", err)
		}
	}
	return nil
}

// each calls fn with all keys that begin with a prefix.
func (b *Broker) each(prefix byte, fn func(key, val []byte) error) (err error) {
	it, err := b.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefix}, UpperBound: []byte{prefix + 1}})
	if err != nil {
		return storageError(err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		val, err := it.ValueAndErr()
		if err != nil {
			return storageError(err)
		}
		if err := fn(it.Key(), val); err != nil {
			return err
		}
	}
	if err := it.Error(); err != nil {
		return storageError(err)
	}
	return nil
}

func (b *Broker) loadMeta(key, val []byte) error {
	name := string(key[1:])
	return decode(name, val, func(_ byte, d *decoder) {
		switch name {
		case metaCluster:
			b.id = d.CompactString()
		case metaNextNumber:
			b.mu.nextNumber = d.Uint32()
		case metaNextProducer:
			// Those of the run that were not used never will be.
			b.mu.producers.stored = d.Int64()
			b.mu.producers.next = b.mu.producers.stored
		}
	})
}

func (b *Broker) loadTopic(key, val []byte) error {
	t, err := decodeTopic(key, val)
	if err != nil {
		return err
	}
	t.policy = b.settings.policy(t.settings)
	b.mu.topics[t.name], b.mu.topicIDs[t.id] = t, t
	for _, p := range t.partitions {
		if b.mu.partitions[p.id] != nil || p.id >= b.mu.nextNumber {
			return fmt.Errorf("%w: %s has the number %d", ErrCorrupt, p, p.id)
		}
		b.mu.partitions[p.id] = p
	}
	return nil
}

// owner finds the partition that a key belongs to.
func (b *Broker) owner(key []byte) (*partition, int64, error) {
	var n int64
	if len(key) == 5 {
		key = append(append([]byte(nil), key...), make([]byte, 8)...)
	}
	number, n, err := partOfKey(key)
	if err != nil {
		return nil, 0, err
	}
	p := b.mu.partitions[number]
	if p == nil {
		return nil, 0, fmt.Errorf("%w: key %x is of a partition that is not there", ErrCorrupt, key)
	}
	return p, n, nil
}

func (b *Broker) loadPartition(key, val []byte) error {
	p, _, err := b.owner(key)
	if err != nil {
		return err
	}
	return p.decode(val)
}

func (b *Broker) loadChunk(key, val []byte) error {
	p, _, err := b.owner(key)
	if err != nil {
		return err
	}
	c, err := decodeChunk(val)
	if err != nil {
		return err
	}
	last := *p.active()
	p.chunks[len(p.chunks)-1] = c
	p.chunks = append(p.chunks, last)
	return nil
}

func (b *Broker) loadProducer(key, val []byte) error {
	p, id, err := b.owner(key)
	if err != nil {
		return err
	}
	s, err := decodeProducerState(val)
	if err != nil {
		return err
	}
	p.producers[id] = s
	if s.txnFirst >= 0 {
		p.visible.open[id] = s.txnFirst
	}
	return nil
}

func (b *Broker) loadTransaction(key, val []byte) error {
	x, err := decodeTransaction(key, val, func(n uint32) *partition { return b.mu.partitions[n] })
	if err != nil {
		return err
	}
	b.mu.transactions[x.id] = x
	b.mu.byProducer[x.producer] = x
	return nil
}

func (b *Broker) loadGroup(key, val []byte) error {
	return b.groupLocked(string(key[1:])).decode(val)
}

func (b *Broker) loadCommitted(key, val []byte) error {
	group, topic, partition, err := decodeCommittedKey(key)
	if err != nil {
		return err
	}
	c, err := decodeCommitted(val)
	if err != nil {
		return err
	}
	b.groupLocked(group).offsets[offsetOf{topic, partition}] = c
	return nil
}

func (b *Broker) loadPending(key, val []byte) error {
	id, group, topic, partition, err := decodePendingKey(key)
	if err != nil {
		return err
	}
	c, err := decodeCommitted(val)
	if err != nil {
		return err
	}
	x := b.mu.transactions[id]
	if x == nil || x.state != stateOngoing {
		return fmt.Errorf("%w: an offset is pending for transaction %q, which is not going on", ErrCorrupt, id)
	}
	k := pendingOffset{group, offsetOf{topic, partition}}
	x.offsets[k] = c
	b.groupLocked(group).addPendingLocked(k.offsetOf)
	return nil
}

// checkPartition makes sure that what is kept about a partition fits together,
// and fits its last batch.
func (b *Broker) checkPartition(p *partition) error {
	if p.start < 0 || p.start > p.next || p.active().next != p.next && p.active().batches > 0 {
		return fmt.Errorf("%w: it goes from %d to %d, its last chunk to %d", ErrCorrupt, p.start, p.next, p.active().next)
	}
	for i, c := range p.chunks {
		if c.base > c.next || i > 0 && c.base < p.chunks[i-1].next {
			return fmt.Errorf("%w: chunk %d goes from %d to %d", ErrCorrupt, i, c.base, c.next)
		}
	}
	for id, s := range p.producers {
		x := b.mu.byProducer[id]
		if s.txnFirst >= 0 && (x == nil || x.state != stateOngoing) {
			return fmt.Errorf("%w: producer %d has a transaction open that nobody knows", ErrCorrupt, id)
		}
	}
	if !invariants.Enabled {
		return nil
	}
	it, err := b.db.NewIter(&pebble.IterOptions{LowerBound: partitionKey(prefixBatch, p.id), UpperBound: after(partitionKey(prefixBatch, p.id))})
	if err != nil {
		return storageError(err)
	}
	if it.Last() {
		if _, last, err := partOfKey(it.Key()); err != nil || last >= p.next {
			return errors.Join(fmt.Errorf("%w: its last batch ends at %d, and it at %d", ErrCorrupt, last, p.next), err, it.Close())
		}
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return storageError(err)
	}
	return nil
}

// resume begins what goes on by itself: members of groups have their sessions
// anew.
func (b *Broker) resume() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, g := range b.mu.groups {
		for _, m := range g.members {
			g.renewLocked(m)
		}
	}
}
