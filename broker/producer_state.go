package broker

import (
	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
)

// producerState is what a partition knows of a producer: its epoch, its last
// batches, by which one that comes again is known, and its open transaction.
type producerState struct {
	epoch    int16
	used     int64 // when it last wrote, by our clock
	txnFirst int64 // the first offset of its open transaction; -1 if none
	batches  []writtenBatch
}

// writtenBatch is one of a producer's last batches.
type writtenBatch struct {
	firstSeq, lastSeq int32
	base              int64
	time              int64 // its append time, or -1
}

// batchesKept is how many batches back a repetition is known: clients have no
// more in flight.
const batchesKept = 5

func newProducerState(epoch int16) *producerState { return &producerState{epoch: epoch, txnFirst: -1} }

func (s *producerState) encode() []byte {
	b := make([]byte, 0, 16+16*len(s.batches))
	b = append(b, formatVersion)
	b = kbin.AppendInt16(b, s.epoch)
	b = kbin.AppendVarlong(b, s.used)
	b = kbin.AppendVarlong(b, s.txnFirst)
	b = appendCount(b, len(s.batches))
	for _, w := range s.batches {
		b = kbin.AppendVarint(b, w.firstSeq)
		b = kbin.AppendVarint(b, w.lastSeq)
		b = kbin.AppendVarlong(b, w.base)
		b = kbin.AppendVarlong(b, w.time)
	}
	return b
}

func decodeProducerState(val []byte) (*producerState, error) {
	s := &producerState{}
	err := decode("a producer's state", val, func(_ byte, d *decoder) {
		s.epoch, s.used, s.txnFirst = d.Int16(), d.Varlong(), d.Varlong()
		for range d.count() {
			s.batches = append(s.batches, writtenBatch{d.Varint(), d.Varint(), d.Varlong(), d.Varlong()})
		}
	})
	return s, err
}

// lastSeq is the sequence of the last record, or -1.
func (s *producerState) lastSeq() int32 {
	if len(s.batches) == 0 {
		return noSequence
	}
	return s.batches[len(s.batches)-1].lastSeq
}

// find returns the batch, if it is one that was written before. A nil state is
// that of a producer that is not known here.
func (s *producerState) find(b *batch) *writtenBatch {
	if s == nil || b.epoch != s.epoch {
		return nil
	}
	for i := range s.batches {
		if w := &s.batches[i]; w.firstSeq == b.firstSeq && w.lastSeq == b.lastSeq() {
			return w
		}
	}
	return nil
}

// admit decides whether a producer's batch, which is not one that was written
// before, is its next one. A producer that is not known here may begin
// anywhere: what was known may have expired.
func (s *producerState) admit(b *batch) *kerr.Error {
	switch {
	case s == nil:
	case b.epoch < s.epoch:
		return kerr.InvalidProducerEpoch
	case s.txnFirst >= 0 && !b.transactional():
		return kerr.InvalidTxnState
	case b.epoch > s.epoch:
		if b.firstSeq != 0 {
			return kerr.OutOfOrderSequenceNumber
		}
	case b.firstSeq != sequenceAfter(s.lastSeq(), 1):
		return kerr.OutOfOrderSequenceNumber
	}
	return nil
}

// wrote notes a batch that was admitted.
func (s *producerState) wrote(b *batch, at int64) {
	if b.epoch != s.epoch {
		s.epoch, s.batches = b.epoch, nil
	}
	w := writtenBatch{b.firstSeq, b.lastSeq(), b.base(), -1}
	if b.appendTime() {
		w.time = b.maxTime
	}
	if len(s.batches) == batchesKept {
		s.batches = append(s.batches[:0], s.batches[1:]...)
	}
	s.batches = append(s.batches, w)
	s.used = at
}

// ended notes that the producer's transaction has ended in the partition.
func (s *producerState) ended(epoch int16, at int64) {
	if epoch != s.epoch {
		s.epoch, s.batches = epoch, nil
	}
	s.txnFirst = -1
	s.used = at
}
