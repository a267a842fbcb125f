package broker

import (
	"context"
	"slices"
)

// expiredLocked is the offset below which the partition's chunks are to be
// deleted: those that are too old, and the oldest ones of those that are too
// many. What is not decided yet stays.
func (p *partition) expiredLocked(at int64) int64 {
	rules := p.topic.policy
	if !rules.delete {
		return p.start
	}
	total := p.bytes()
	start := p.start
	for _, c := range p.chunks {
		old := rules.retention >= 0 && at-c.time() > rules.retention
		many := rules.retentionBytes >= 0 && total-c.bytes >= rules.retentionBytes
		if c.batches == 0 || !old && !many || c.next > p.visible.stable {
			break
		}
		total -= c.bytes
		start = c.next
	}
	return start
}

// retain deletes what the topics' policies don't keep.
func (b *Broker) retain(at int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.mu.partitions {
		start := p.expiredLocked(at)
		if start <= p.start {
			continue
		}
		b.config.Logger.Debug("retention deletes", "partition", p.String(), "from", p.start, "to", start)
		var o op
		p.raiseStartLocked(start, &o)
		b.stageLocked(&o)
		b.reclaim(p)
	}
}

// reclaim notes, with the lock held, that data of these partitions were
// deleted. The storage doesn't give their space back by itself.
func (b *Broker) reclaim(partitions ...*partition) {
	for _, p := range partitions {
		b.mu.reclaim[p.id] = struct{}{}
	}
}

// reclaimNow gives the space of deleted data back.
func (b *Broker) reclaimNow(ctx context.Context) {
	b.mu.Lock()
	var ids []uint32
	for id := range b.mu.reclaim {
		ids = append(ids, id)
	}
	clear(b.mu.reclaim)
	round := b.barrierLocked()
	b.mu.Unlock()
	if len(ids) == 0 || b.durable(round) != nil {
		return
	}
	slices.Sort(ids)
	for len(ids) > 0 {
		n := 1 // neighbours go together
		for n < len(ids) && ids[n] == ids[n-1]+1 {
			n++
		}
		first, last := partitionKey(prefixBatch, ids[0]), after(partitionKey(prefixBatch, ids[n-1]))
		if err := b.db.Compact(ctx, first, last, false); err != nil && ctx.Err() == nil {
			b.config.Logger.Warn("give the space of deleted data back", "dir", b.dir, "error", err)
		}
		ids = ids[n:]
	}
}
