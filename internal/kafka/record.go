package kafka

import (
	"time"

	"github.com/pawlstream/pawl/topic"
)

// Record is a message on its way to a partition. Its slices must not be
// written to until the call that took it has returned.
type Record struct {
	Topic     string
	Partition int32 // -1: as the key says, and anywhere for a null key
	Key       []byte
	Value     []byte
	Headers   []topic.Header
	Timestamp time.Time // zero: the time of sending
}

// Batch is what Poll fills. Its slices are used again by the next Poll into
// it; the bytes that the envelopes point to are not.
type Batch struct {
	Envelopes []topic.Envelope // of each partition in order; partitions one after the other, as in Parts
	Parts     []PartBatch
	Bytes     int // of keys, values and headers
}

// PartBatch is what Poll brought of one partition.
type PartBatch struct {
	Partition topic.Partition
	Count     int   // how many of the envelopes are of this partition
	Next      int64 // the position after all of it: messages, markers and what was aborted

	// What the broker said with it.
	HighWatermark int64
	StableEnd     int64 // the last stable offset: read committed ends here
	LogStart      int64
}

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() {
	clear(b.Envelopes)
	b.Envelopes, b.Parts, b.Bytes = b.Envelopes[:0], b.Parts[:0], 0
}
