package messaging

import (
	"cmp"
	"slices"

	"github.com/pawlstream/pawl/internal/invariants"
)

// lane is the messages of one key, or of one partition, that are handled one
// after the other: those that were read, and those that are known to wait in
// delay topics, in the order of their offsets in the input.
//
//	origin   17       21        22       30 …
//	        retry.2  retry.1   input    input
//	        ▲ the first: the next to be handled, or handled now
//
// While the first waits in a delay topic, those from the input join it there.
// Lanes decide; partition does as they say.
type lane struct {
	hash   uint64
	idle   bool // it has no messages, and is kept for those that come
	items  []laneItem
	base   []laneItem // the array of items from its start, empty: items moves on in it
	active *delivery  // being handled, or on its way to where that leads; mostly the first
}

// laneItem is one message of a lane, in its place that counts: a message that
// was written to a delay topic is void where it was before.
type laneItem struct {
	order  int64     // its place: its offset in the input, or a returnPlace
	d      *delivery // nil while it was not read there
	hop    int32
	tier   int16 // which stream it is in: streamInput, streamRedrive, or a delay topic
	moving bool  // it is being written to another topic
}

// returnRoom is how many offsets of a topic have a place before the input: more
// than a topic ever has.
const returnRoom = 1 << 57

// returnPlace is the place of a message in a lane whose order is that in which
// messages are read: of one that came back by a topic, before all of the input.
// No two streams share one: so what has the same place is the same message.
func returnPlace(tier int, at int64) int64 {
	invariants.Check(tier > streamInput && tier < streamTiers+tiersMax && at < returnRoom, "offset %d of stream %d has no place of its own", at, tier)
	return at - int64(streamTiers+tiersMax-tier)*returnRoom
}

// insert adds a message that was read. It returns false for a copy that does
// not count: the message is further on, or at hand already. One that was
// written to a delay topic may be read there before the write is confirmed; or
// one that an owner before has written there after it had lost the partition.
// void is a copy that was at hand and no longer counts.
func (l *lane) insert(d *delivery) (ok bool, void *delivery) {
	i, found := l.search(d.order)
	if !found {
		l.add(i, laneItem{order: d.order, hop: d.hop, tier: int16(d.s.tier), d: d})
		return true, nil
	}
	it := &l.items[i]
	if d.hop < it.hop || d.hop == it.hop && it.d != nil {
		return false, nil
	}
	if it.d != nil && it.d != l.active && !it.moving {
		void = it.d
	}
	*it = laneItem{order: d.order, hop: d.hop, tier: int16(d.s.tier), d: d}
	return true, void
}

// expect takes note of a message that is known to be in a delay topic.
func (l *lane) expect(order int64, hop, tier int) {
	i, found := l.search(order)
	if !found {
		l.add(i, laneItem{order: order, hop: int32(hop), tier: int16(tier)})
	} else if it := &l.items[i]; int32(hop) > it.hop {
		it.hop, it.tier = int32(hop), int16(tier)
	}
}

func (l *lane) search(order int64) (int, bool) {
	if n := len(l.items); n == 0 || l.items[n-1].order < order {
		return n, false // as most are
	}
	return slices.BinarySearchFunc(l.items, order, func(it laneItem, order int64) int { return cmp.Compare(it.order, order) })
}

// step says what is to be done next, and marks it as being done: the first
// message is to be handled, or messages are to join it in the delay topic that
// it is in.
func (l *lane) step() (handle *delivery, join []*delivery, tier int) {
	if l.active != nil || len(l.items) == 0 {
		return nil, nil, 0
	}
	first := &l.items[0]
	if first.moving {
		return nil, nil, 0
	}
	if first.d != nil && !first.d.waits {
		l.active = first.d
		if first.d.chained { // it is where it has to be
			return nil, nil, 0
		}
		return first.d, nil, 0
	}
	if first.tier == streamInput || first.order < 0 { // behind which those of the input keep their places
		return nil, nil, 0
	}
	for i := range l.items[1:] {
		if it := &l.items[i+1]; it.tier == streamInput && it.d != nil && !it.moving {
			it.moving = true
			join = append(join, it.d)
		}
	}
	return nil, join, int(first.tier)
}

// chain appends up to most messages that come right after the one that is about
// to be handled, so that one handler gets all of them, one after the other.
func (l *lane) chain(most int, into []handout) []handout {
	if len(l.items) == 0 || l.items[0].d != l.active || l.items[0].tier != streamInput {
		return into
	}
	for i := 1; i < len(l.items) && i <= most; i++ {
		it := &l.items[i]
		if it.tier != streamInput || it.d == nil || it.moving || it.d.chained {
			break
		}
		it.d.chained = true
		into = append(into, handout{d: it.d, follows: true})
	}
	return into
}

// done takes a message out that is settled.
func (l *lane) done(d *delivery) {
	l.release(d)
	if len(l.items) > 0 && l.items[0].d == d { // as it is, mostly
		l.remove(0)
	} else if i, found := l.search(d.order); found && l.items[i].d == d {
		l.remove(i)
	}
}

// moved takes note that a message is now in a delay topic. It returns false if
// it was read there already.
func (l *lane) moved(d *delivery, hop, tier int) bool {
	l.release(d)
	i, found := l.search(d.order)
	if !found || l.items[i].d != d {
		return false
	}
	l.items[i] = laneItem{order: d.order, hop: int32(hop), tier: int16(tier)}
	return true
}

// gone takes out a message that is in a delay topic no more, unless it was read
// there, or is elsewhere by now.
func (l *lane) gone(order int64, hop int32, tier int) bool {
	i, found := l.search(order)
	if !found || l.items[i].d != nil || l.items[i].hop != hop || int(l.items[i].tier) != tier {
		return false
	}
	l.remove(i)
	return true
}

// blocked says whether a message of a delay topic waits for one that was not
// read yet, and in which topic that is.
func (l *lane) blocked(d *delivery) (tier int, ok bool) {
	if len(l.items) == 0 || l.active != nil || l.items[0].d != nil || l.items[0].tier == streamInput {
		return 0, false
	}
	i, found := l.search(d.order)
	if !found || l.items[i].d != d || l.items[i].moving {
		return 0, false
	}
	return int(l.items[0].tier), true
}

// renew marks a message as being written once more to the topic that it is in, and
// says whether it did: not one that is handled, or on its way already.
func (l *lane) renew(d *delivery) bool {
	i, found := l.search(d.order)
	if !found || l.items[i].d != d || l.items[i].moving || l.active == d {
		return false
	}
	l.items[i].moving = true
	return true
}

// move marks a message as being written to another topic.
func (l *lane) move(d *delivery) {
	if i, found := l.search(d.order); found && l.items[i].d == d {
		l.items[i].moving = true
	}
}

// release ends the handling of a message, if it is the one being handled.
func (l *lane) release(d *delivery) {
	if l.active == d {
		l.active = nil
	}
}

// replace puts a new delivery of the same message in its place.
func (l *lane) replace(old, d *delivery) {
	if i, found := l.search(old.order); found && l.items[i].d == old {
		l.items[i].d = d
	}
	if l.active == old {
		l.active = d
	}
}

// add puts an item in a place, mostly the last.
func (l *lane) add(i int, it laneItem) {
	if n := len(l.items); n == cap(l.items) {
		items := make([]laneItem, n, 2*n+2)
		copy(items, l.items)
		l.items, l.base = items, items[:0]
	}
	if i == len(l.items) {
		l.items = append(l.items, it)
		return
	}
	l.items = slices.Insert(l.items, i, it)
}

// remove takes an item out, mostly the first, which takes no time however many
// there are.
func (l *lane) remove(i int) {
	if i > 0 {
		l.items = slices.Delete(l.items, i, i+1)
		return
	}
	l.items[0] = laneItem{}
	l.items = l.items[1:]
	if len(l.items) == 0 {
		l.items = l.base
	}
}
