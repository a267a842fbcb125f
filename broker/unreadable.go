package broker

import (
	"fmt"
	"maps"
	"slices"
)

// unreadableMax is how many places that can't be read a partition remembers.
const unreadableMax = 1000

// noteUnreadable remembers that a partition can't be read at an offset: the last
// one of a batch, or the one from which on nothing could be found. It is logged
// once. The storage library's errors hold where they were made too, which says
// nothing to whoever reads the log, so it is their text that is logged.
func (b *Broker) noteUnreadable(p *partition, at int64, err error) {
	b.mu.Lock()
	_, known := p.unreadable[at]
	if !known && len(p.unreadable) < unreadableMax {
		if p.unreadable == nil {
			p.unreadable = make(map[int64]struct{})
		}
		p.unreadable[at] = struct{}{}
		p.damaged.Store(true)
	}
	full := len(p.unreadable) >= unreadableMax
	b.mu.Unlock()
	if !known && !full {
		b.config.Logger.Error("a batch can't be read", "dir", b.dir, "partition", p.String(), "offset", at, "error", err.Error())
	}
}

// noteRead remembers that a partition could be read between two offsets, both
// included: what failed before was of the moment.
func (b *Broker) noteRead(p *partition, first, last int64) {
	if !p.damaged.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(p.unreadable, func(at int64, _ struct{}) bool { return first <= at && at <= last })
	p.damaged.Store(len(p.unreadable) > 0)
}

// unreadableLocked returns, in order, where the partition can't be read: what
// has been deleted since is of no interest to anybody.
func (p *partition) unreadableLocked() []int64 {
	maps.DeleteFunc(p.unreadable, func(at int64, _ struct{}) bool { return at < p.visible.start })
	p.damaged.Store(len(p.unreadable) > 0)
	return slices.Sorted(maps.Keys(p.unreadable))
}

// Warnings says what is wrong in the broker while it goes on, a line each: the
// partitions that can't be read in places, for their data are damaged.
func (b *Broker) Warnings() (lines []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(b.mu.topics)) {
		for _, p := range b.mu.topics[name].partitions {
			if !p.damaged.Load() {
				continue
			}
			if at := p.unreadableLocked(); len(at) == 1 {
				lines = append(lines, fmt.Sprintf("partition %s can't be read at offset %d", p, at[0]))
			} else if len(at) > 1 {
				lines = append(lines, fmt.Sprintf("partition %s can't be read in %d places, the first at offset %d", p, len(at), at[0]))
			}
		}
	}
	return lines
}
