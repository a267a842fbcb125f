package kafka

import (
	"cmp"
	"slices"
)

// memory decides what partitions keep of the memory of their batches from one
// transaction to the next. A session may write to thousands of them, a few at a
// time: all of them together keep a few times what the larger ones of the last
// transactions took, those that were written to last before the others.
type memory struct {
	held  []*target // that keep any
	bytes int       // how much
	peak  int       // what transactions take: that of the largest, less a sixteenth with each after it
	turn  int64     // transactions so far
}

// kept is what a partition keeps.
type kept struct {
	bytes int
	turn  int64 // the last transaction that wrote to the partition
}

const (
	// keptTimes is how much is kept for each byte that was written: a buffer is
	// twice as large as what is in it where it has just grown, and two sets of
	// partitions may take turns.
	keptTimes = 4

	// keptMin is kept whatever was written.
	keptMin = 256 << 10
)

// keep takes the memory of a transaction that has ended.
func (m *memory) keep(written []*target) {
	if len(written) == 0 {
		return
	}
	m.turn++
	took := 0
	for _, t := range written {
		took += max(len(t.buf), batchMin)
		if t.kept.bytes == 0 {
			m.held = append(m.held, t)
		}
		m.bytes += cap(t.buf) - t.kept.bytes
		t.kept = kept{bytes: cap(t.buf), turn: m.turn}
	}
	m.peak = max(took, m.peak-m.peak/16)
	most := max(keptTimes*m.peak, keptMin)
	if m.bytes <= most {
		return
	}
	slices.SortFunc(m.held, func(a, b *target) int {
		return cmp.Or(cmp.Compare(b.kept.turn, a.kept.turn), cmp.Compare(a.kept.bytes, b.kept.bytes))
	})
	bytes, n := 0, 0
	for _, t := range m.held {
		if bytes+t.kept.bytes > most {
			t.batches, t.kept = batches{}, kept{}
			continue
		}
		bytes += t.kept.bytes
		m.held[n] = t
		n++
	}
	clear(m.held[n:])
	m.held, m.bytes = m.held[:n], bytes
}
