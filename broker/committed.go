package broker

import (
	"github.com/twmb/franz-go/pkg/kbin"
)

// offsetOf names what a group's offset is of.
type offsetOf struct {
	topic     string
	partition int32
}

// committed is a group's offset in a partition: the next one that it consumes.
type committed struct {
	offset      int64
	leaderEpoch int32
	metadata    string
	at          int64 // when it was committed
}

func (c committed) encode() []byte {
	b := []byte{formatVersion}
	b = kbin.AppendVarlong(b, c.offset)
	b = kbin.AppendInt32(b, c.leaderEpoch)
	b = kbin.AppendVarlong(b, c.at)
	return kbin.AppendCompactString(b, c.metadata)
}

func decodeCommitted(val []byte) (c committed, err error) {
	err = decode("a committed offset", val, func(_ byte, d *decoder) {
		c = committed{offset: d.Varlong(), leaderEpoch: d.Int32(), at: d.Varlong(), metadata: d.CompactString()}
	})
	return c, err
}

// commitLocked stages a group's offset.
func (g *group) commitLocked(of offsetOf, c committed, o *op) {
	g.offsets[of] = c
	o.set(committedKey(g.id, of.topic, of.partition), c.encode())
}

// deleteOffsetLocked stages that a group has no offset.
func (g *group) deleteOffsetLocked(of offsetOf, o *op) {
	delete(g.offsets, of)
	o.remove(committedKey(g.id, of.topic, of.partition))
}

// addPendingLocked notes that a transaction will commit an offset.
func (g *group) addPendingLocked(of offsetOf) { g.pending[of]++ }

// settlePendingLocked notes that it has, or won't.
func (g *group) settlePendingLocked(of offsetOf) {
	if g.pending[of]--; g.pending[of] <= 0 {
		delete(g.pending, of)
	}
}

// expireOffsetsLocked stages the end of offsets that nobody has used for that
// long: those of a group without members, counted from when the last one left
// or, if later, from the commit.
func (g *group) expireOffsetsLocked(at, retention int64, o *op) {
	if len(g.members) > 0 {
		return
	}
	for of, c := range g.offsets {
		if g.pending[of] == 0 && at-max(c.at, g.emptySince) >= retention {
			g.deleteOffsetLocked(of, o)
		}
	}
}
