package messaging

import (
	"math"
	"sync"

	"github.com/pawlstream/pawl/internal/invariants"
)

// window finds the level up to which every item is settled, though items
// settle in any order.
//
//	     level                                read
//	       ▼                                    ▼
//	… ✓ ✓ ✓ │ · ✓ ✓ · ✓ · · ✓ ✓ ✓ ✓ ✓ · ✓ ✓ ✓ ✓ │
//	          ▲ oldest unsettled item
//
// It holds the items from the oldest unsettled one on, in a ring, in order of
// their ids. What lies between two ids takes no room, and no time to pass. Each
// item has a sequence number, without gaps, by which it is found at once; by
// its id it is found by interpolation, at once where gaps are even.
//
// It is not safe for concurrent use.
type window struct {
	items []item // a ring; its length is a power of two
	head  int    // where in the ring the oldest unsettled item is
	n     int    // how many items it holds
	first uint64 // sequence number of the oldest
	limit int    // of n

	level     int64 // everything up to it is settled
	read      int64 // the last id that was read
	unsettled int64
	started   bool // something was read
}

type item struct {
	id      int64
	d       *delivery // nil in an AckManager, and once it is settled
	settled bool
}

const windowMin = 64 // the least ring

func newWindow(limit int) *window {
	return &window{limit: limit, level: -1, read: -1, items: make([]item, windowMin)}
}

// at returns the item at a place, counted from the oldest.
func (w *window) at(i int) *item { return &w.items[(w.head+i)&(len(w.items)-1)] }

// add takes note of an item that was read. It returns its sequence number.
func (w *window) add(id int64, d *delivery) (uint64, error) {
	if id <= w.read {
		return 0, ErrNotAbove
	}
	if w.n >= w.limit {
		return 0, ErrWindowFull
	}
	if !w.started {
		w.started = true
		w.level = max(w.level, id-1)
	}
	if w.n == len(w.items) {
		w.grow()
	}
	w.read = id
	it := w.at(w.n)
	it.id, it.settled = id, false
	if d != nil {
		it.d = d // what is settled has none
	}
	w.n++
	w.unsettled++
	return w.first + uint64(w.n-1), nil
}

func (w *window) grow() {
	items := make([]item, 2*len(w.items))
	n := copy(items, w.items[w.head:])
	copy(items[n:], w.items[:w.head])
	w.items, w.head = items, 0
}

// settle settles the item with a sequence number that add returned, and says
// whether it was not settled before.
func (w *window) settle(seq uint64) bool {
	if seq < w.first {
		return false
	}
	i := seq - w.first
	invariants.Check(i < uint64(w.n), "item %d was never read: the window holds %d from %d", seq, w.n, w.first)
	return w.settleAt(int(i))
}

func (w *window) settleAt(i int) bool {
	it := w.at(i)
	if it.settled {
		return false
	}
	it.settled, it.d = true, nil
	w.unsettled--
	if i == 0 {
		w.advance()
	}
	return true
}

// replace puts another delivery in the place of an unsettled item's.
func (w *window) replace(seq uint64, d *delivery) {
	if seq >= w.first && seq-w.first < uint64(w.n) {
		w.at(int(seq - w.first)).d = d
	}
}

// advance moves the level over what is settled.
func (w *window) advance() {
	mask := len(w.items) - 1
	for w.n > 0 {
		it := &w.items[w.head]
		if !it.settled {
			break
		}
		w.level = it.id
		w.head = (w.head + 1) & mask
		w.n--
		w.first++
	}
	if w.n == 0 && len(w.items) > 1<<16 {
		w.items, w.head = make([]item, windowMin), 0 // it had to be large once
	}
}

// find returns the place of an id.
func (w *window) find(id int64) (int, bool) {
	if w.n == 0 {
		return 0, false
	}
	if w.items[w.head].id == id {
		return 0, true
	}
	lo, hi := 0, w.n-1
	for steps := 0; lo <= hi; steps++ {
		a, b := w.at(lo).id, w.at(hi).id
		if id < a || id > b {
			return 0, false
		}
		mid := lo
		switch {
		case steps >= 4:
			mid = lo + (hi-lo)/2 // gaps are uneven here
		case b > a:
			mid = lo + int(float64(id-a)/float64(b-a)*float64(hi-lo))
		}
		switch at := w.at(mid).id; {
		case at == id:
			return mid, true
		case at < id:
			lo = mid + 1
		default:
			hi = mid - 1
		}
	}
	return 0, false
}

// settleTo settles everything up to level, read or not.
func (w *window) settleTo(level int64) {
	if level <= w.level {
		return
	}
	mask := len(w.items) - 1
	for w.n > 0 && w.items[w.head].id <= level {
		if !w.items[w.head].settled {
			w.unsettled--
		}
		w.items[w.head].d = nil
		w.head = (w.head + 1) & mask
		w.n--
		w.first++
	}
	w.level = level
	w.read = max(w.read, level)
	w.advance()
}

// oldest returns the id of the oldest unsettled item.
func (w *window) oldest() (int64, bool) {
	if w.n == 0 {
		return 0, false
	}
	return w.items[w.head].id, true
}

// span is how many items there are from the oldest unsettled one to the last
// that was read.
func (w *window) span() int { return w.n }

// NewAckManager returns an ack manager whose window holds up to limit items:
// from the oldest unsettled one to the last that was read. That bounds its
// state, also when the oldest is never settled. With a limit below 1 there is
// none.
func NewAckManager(limit int) AckManager {
	if limit < 1 {
		limit = math.MaxInt
	}
	return &ackManager{w: newWindow(limit)}
}

// ackManager is a window that is safe for concurrent use.
type ackManager struct {
	mu sync.Mutex
	w  *window
}

func (m *ackManager) ReadItem(id int64) error {
	m.mu.Lock()
	_, err := m.w.add(id, nil)
	m.mu.Unlock()
	return err
}

func (m *ackManager) GetReadLevel() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.w.read
}

func (m *ackManager) SetReadLevel(readLevel int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.w.read = max(m.w.read, readLevel)
}

func (m *ackManager) AckItem(id int64) (ackLevel int64) {
	m.mu.Lock()
	if i, ok := m.w.find(id); ok {
		m.w.settleAt(i)
	}
	ackLevel = m.w.level
	m.mu.Unlock()
	return ackLevel
}

func (m *ackManager) GetAckLevel() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.w.level
}

func (m *ackManager) SetAckLevel(ackLevel int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.w.settleTo(ackLevel)
}

func (m *ackManager) GetBacklogCount() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.w.unsettled
}
