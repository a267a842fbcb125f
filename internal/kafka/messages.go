package kafka

import (
	"sync"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Messages are messages of one partition, in order, as they were fetched. An
// envelope is made when it is asked for: a shard keeps messages until their
// transaction commits, and envelopes are large.
type Messages struct {
	topic *topic.Description
	recs  []*kgo.Record
}

// MessagesOf returns messages made of the envelopes, which are all of one
// partition.
func MessagesOf(d *topic.Description, es ...topic.Envelope) Messages {
	m := Messages{topic: d}
	for _, e := range es {
		rec := &kgo.Record{Topic: d.Name(), Partition: e.Partition, Offset: e.Offset, Key: e.Key, Value: e.Value, Timestamp: e.Timestamp}
		for _, h := range e.Headers {
			rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		m.recs = append(m.recs, rec)
	}
	return m
}

// Len is how many there are.
func (m Messages) Len() int { return len(m.recs) }

// Slice returns those from one index on, below the other.
func (m Messages) Slice(from, to int) Messages {
	m.recs = m.recs[from:to]
	return m
}

// At returns one of them.
func (m Messages) At(i int) topic.Envelope {
	rec := m.recs[i]
	e := topic.Envelope{
		Topic:     m.topic,
		Partition: rec.Partition,
		Offset:    rec.Offset,
		Key:       rec.Key,
		Value:     rec.Value,
		Timestamp: rec.Timestamp,
	}
	if len(rec.Headers) > 0 {
		e.Headers = headersOf(rec)
	}
	return e
}

// Offset returns the offset of one of them.
func (m Messages) Offset(i int) int64 { return m.recs[i].Offset }

// Recycle gives the messages' memory back, to be fetched into again. Nobody may
// look at them after it; what envelopes made of them point to stays.
func (m Messages) Recycle() {
	for _, rec := range m.recs {
		rec.Recycle()
	}
}

// recordPool keeps the memory that fetched records are decoded into. A record
// is large and full of pointers, so that fresh ones for each fetch cost the
// garbage collector more than all else that a fetch does.
type recordPool struct{ sync.Pool }

// GetRecords implements kgo.PoolRecords.
func (p *recordPool) GetRecords(n int) []kgo.Record {
	if recs, ok := p.Get().(*[]kgo.Record); ok && cap(*recs) >= n {
		return (*recs)[:0]
	}
	return make([]kgo.Record, 0, n)
}

// PutRecords implements kgo.PoolRecords.
func (p *recordPool) PutRecords(recs []kgo.Record) { p.Put(&recs) }

// fetchedRecords is the pool of all sessions of the process.
var fetchedRecords recordPool

func headersOf(rec *kgo.Record) []topic.Header {
	hs := make([]topic.Header, len(rec.Headers))
	for i, h := range rec.Headers {
		hs[i] = topic.Header{Key: h.Key, Value: h.Value}
	}
	return hs
}

// sizeOf is how many bytes of keys, values and headers a record has.
func sizeOf(rec *kgo.Record) int {
	n := len(rec.Key) + len(rec.Value)
	for _, h := range rec.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// Fetched is what Fetch brings: messages that are not envelopes yet.
type Fetched struct {
	Parts []FetchedPart
	Count int // of messages
	Bytes int // of their keys, values and headers
}

// FetchedPart is what Fetch brings of one partition. Its Count is the number of
// its messages.
type FetchedPart struct {
	PartBatch
	Messages
	Bytes int // of keys, values and headers
}
