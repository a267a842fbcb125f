package kafka

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// slab is the records of one Publish in the library's form, and what became of
// each.
type slab struct {
	recs []kgo.Record
	left atomic.Int64  // promises that are not in
	done chan struct{} // closed when all are

	mu struct {
		sync.Mutex
		failed []failure
	}
}

type failure struct {
	rec *kgo.Record
	err error
}

// newSlab takes the caller's records. Keys and values are shared with it.
func newSlab(recs []Record) *slab {
	s := &slab{recs: make([]kgo.Record, len(recs)), done: make(chan struct{})}
	n := 0
	for i := range recs {
		n += len(recs[i].Headers)
	}
	headers := make([]kgo.RecordHeader, 0, n)
	now := time.Now()
	for i := range recs {
		r := &recs[i]
		k := &s.recs[i]
		*k = kgo.Record{Topic: r.Topic, Partition: max(r.Partition, -1), Key: r.Key, Value: r.Value, Timestamp: r.Timestamp, Offset: -1}
		if r.Timestamp.IsZero() {
			k.Timestamp = now
		}
		if len(r.Headers) > 0 {
			from := len(headers)
			for _, h := range r.Headers {
				headers = append(headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
			}
			k.Headers = headers[from:len(headers):len(headers)]
		}
	}
	s.left.Store(int64(len(recs)))
	return s
}

// promise takes what became of one record.
func (s *slab) promise(r *kgo.Record, err error) {
	if err != nil {
		s.mu.Lock()
		s.mu.failed = append(s.mu.failed, failure{r, err})
		s.mu.Unlock()
	}
	if s.left.Add(-1) == 0 {
		close(s.done)
	}
}

// failures returns the records that failed. Every promise is in.
func (s *slab) failures() []failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.failed
}

// index returns where a record is in the slab, and was in the caller's slice.
func (s *slab) index(r *kgo.Record) int {
	for i := range s.recs {
		if &s.recs[i] == r {
			return i
		}
	}
	return -1
}
