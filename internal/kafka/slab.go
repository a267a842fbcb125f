package kafka

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// slab is the records of one transaction in the library's form, and what
// became of each. It may be filled again once every promise is in.
type slab struct {
	recs    []kgo.Record
	headers []kgo.RecordHeader
	left    atomic.Int64 // promises that are not in
	done    chan struct{}

	mu struct {
		sync.Mutex
		failed []failure
	}
}

type failure struct {
	rec *kgo.Record
	err error
}

// fill takes the caller's records. Keys and values are shared with it.
func (s *slab) fill(recs []Record) {
	if cap(s.recs) < len(recs) {
		s.recs = make([]kgo.Record, len(recs)+len(recs)/4)
	}
	s.recs = s.recs[:len(recs)]
	n := 0
	for i := range recs {
		n += len(recs[i].Headers)
	}
	if cap(s.headers) < n {
		s.headers = make([]kgo.RecordHeader, 0, n+n/4)
	}
	s.headers = s.headers[:0]
	now := time.Now()
	for i := range recs {
		r := &recs[i]
		k := &s.recs[i]
		*k = kgo.Record{Topic: r.Topic, Partition: max(r.Partition, -1), Key: r.Key, Value: r.Value, Timestamp: r.Timestamp, Offset: -1}
		if r.Timestamp.IsZero() {
			k.Timestamp = now
		}
		if len(r.Headers) > 0 {
			from := len(s.headers)
			for _, h := range r.Headers {
				s.headers = append(s.headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
			}
			k.Headers = s.headers[from:len(s.headers):len(s.headers)]
		}
	}
	s.left.Store(int64(len(recs)))
	s.done = make(chan struct{})
	s.mu.failed = nil
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
