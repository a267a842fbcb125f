package cli

// position is where in a topic a message is.
type position struct {
	Partition int32 `json:"partition"`
	Offset    int64 `json:"offset"`
}

// hop audits one consumer: of the positions of its input, how often each is
// named by a committed message of its output. Exactly once means that every
// one is named once. Inputs and outputs may be added in any order.
type hop struct {
	parts map[int32][]uint32  // by partition and offset: 0 where no message is known, else 1 more than it was named
	early map[position]uint32 // named, and no message is known there yet
	top   map[int32]int64     // by partition of the input: one above the highest offset named

	inputs  int64 // messages of the input
	covered int64 // those of them that are named
	surplus int64 // how often one was named that had been named before

	// Messages of one input partition are consumed in order, so that wherever
	// their outputs go, they stand there in order.
	last     map[[2]int32]int64 // by partition of the output and of the input
	disorder int64
}

func newHop() *hop {
	return &hop{
		parts: make(map[int32][]uint32),
		early: make(map[position]uint32),
		top:   make(map[int32]int64),
		last:  make(map[[2]int32]int64),
	}
}

// input notes that there is a message to be consumed.
func (h *hop) input(at position) {
	part := h.parts[at.Partition]
	for int64(len(part)) <= at.Offset {
		part = append(part, 0)
	}
	h.parts[at.Partition] = part
	if part[at.Offset] > 0 {
		return // read before
	}
	named := h.early[at]
	delete(h.early, at)
	part[at.Offset] = 1 + named
	h.inputs++
	if named > 0 {
		h.covered++
		h.surplus += int64(named) - 1
	}
}

// output notes a message in a partition of the output that names a position.
func (h *hop) output(partition int32, names position) {
	way := [2]int32{partition, names.Partition}
	if before, ok := h.last[way]; ok && names.Offset <= before {
		h.disorder++
	}
	h.last[way] = names.Offset
	h.top[names.Partition] = max(h.top[names.Partition], names.Offset+1)
	part := h.parts[names.Partition]
	if names.Offset < 0 || names.Offset >= int64(len(part)) || part[names.Offset] == 0 {
		h.early[names]++
		return
	}
	if part[names.Offset] == 1 {
		h.covered++
	} else {
		h.surplus++
	}
	part[names.Offset]++
}

// lost is how many positions are not named.
func (h *hop) lost() int64 { return h.inputs - h.covered }

// skipped is how many positions are not named, below one of their partition
// that is: messages are consumed in order, so these were passed over.
func (h *hop) skipped() (n int64) {
	for partition, part := range h.parts {
		for offset, mark := range part {
			if int64(offset) < h.top[partition] && mark == 1 {
				n++
			}
		}
	}
	return n
}

// strays is how often a position was named at which there is no message.
func (h *hop) strays() (n int64) {
	for _, times := range h.early {
		n += int64(times)
	}
	return n
}
