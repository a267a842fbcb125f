package messaging

import (
	"time"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// StepClock sets the worker's wall clock forward, or back.
func StepClock(w *Worker, by time.Duration) { w.clock.step.Add(int64(by)) }

// Epoch is one assignment of a partition to a worker: it tells it from the next.
type Epoch any

// Epochs returns the assignments that a worker has now.
func Epochs(w *Worker) (es []Epoch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.mu.partitions {
		es = append(es, p)
	}
	return es
}

// SourceOf says of which assignment a delivery is, and where it was read.
func SourceOf(d Delivery) (e Epoch, stream topic.Partition, offset int64) {
	own := d.(*delivery)
	return own.s.p, own.s.id, own.at
}

// Span is the offsets from From on, below To.
type Span struct{ From, To int64 }

// SettledAbove returns what a commit says is settled above its offset.
func SettledAbove(c kafka.Committed, id topic.ID, partition int32) (spans []Span, err error) {
	snap, err := decodeSnapshot(c.Metadata, place{id: id, partition: partition, offset: c.Offset})
	for _, s := range snap.settled {
		spans = append(spans, Span{s.from, s.to})
	}
	return spans, err
}
