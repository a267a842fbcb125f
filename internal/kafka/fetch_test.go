package kafka

import (
	"encoding/binary"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/topic"
)

// header is a record batch without its records.
type header struct {
	first, last   int64
	count         int32
	producer      int64
	transactional bool
	control       bool
	cut           bool // only the header came
}

func (h header) append(b []byte) []byte {
	const records = 10
	var attributes uint16
	if h.transactional {
		attributes |= 1 << 4
	}
	if h.control {
		attributes |= 1 << 5
	}
	at := len(b)
	b = append(b, make([]byte, batchOverhead)...)
	binary.BigEndian.PutUint64(b[at:], uint64(h.first))
	binary.BigEndian.PutUint32(b[at+batchLength:], batchOverhead-12+records)
	b[at+batchMagic] = 2
	binary.BigEndian.PutUint16(b[at+batchAttributes:], attributes)
	binary.BigEndian.PutUint32(b[at+batchLastDelta:], uint32(h.last-h.first))
	binary.BigEndian.PutUint64(b[at+batchProducer:], uint64(h.producer))
	binary.BigEndian.PutUint32(b[at+batchCount:], uint32(h.count))
	if h.cut {
		return b
	}
	return append(b, make([]byte, records)...)
}

func TestPassEmpty(t *testing.T) {
	data := func(first, last int64) header {
		return header{first: first, last: last, count: int32(last - first + 1), producer: -1}
	}
	txn := func(producer, first, last int64) header {
		return header{first: first, last: last, count: int32(last - first + 1), producer: producer, transactional: true}
	}
	marker := func(producer, at int64) header {
		return header{first: at, last: at, count: 1, producer: producer, transactional: true, control: true}
	}
	empty := func(first, last int64) header { return header{first: first, last: last, producer: -1} }
	for _, tc := range []struct {
		name    string
		at      int64
		batches []header
		aborted []abortedFrom
		want    int64
	}{
		{"nothing at all: the stable end", 5, nil, nil, 100},
		{"nothing, at the stable end", 100, nil, nil, 100},
		{"a message at the position", 5, []header{data(5, 7)}, nil, 5},
		{"a message around the position", 6, []header{data(5, 7)}, nil, 6},
		{"a gap before a message", 5, []header{data(9, 9)}, nil, 9},
		{"a batch without a record", 5, []header{empty(5, 7)}, nil, 8},
		{"a position within it", 6, []header{empty(5, 7), data(8, 8)}, nil, 8},
		{"a marker", 5, []header{marker(1, 5)}, nil, 6},
		{"only markers", 5, []header{marker(1, 5), marker(2, 6), marker(1, 9)}, nil, 10},
		{"aborted, then its marker", 5, []header{txn(1, 5, 6), marker(1, 7)}, []abortedFrom{{1, 5}}, 8},
		{"aborted, then committed by the same producer", 5, []header{txn(1, 5, 6), marker(1, 7), txn(1, 8, 8)}, []abortedFrom{{1, 5}}, 8},
		{"aborted twice by the same producer", 5, []header{txn(1, 5, 6), marker(1, 7), txn(1, 8, 8), marker(1, 9)}, []abortedFrom{{1, 5}, {1, 8}}, 10},
		{"committed before it aborts", 5, []header{txn(1, 5, 6)}, []abortedFrom{{1, 8}}, 5},
		{"another's aborted", 5, []header{txn(2, 5, 6)}, []abortedFrom{{1, 5}}, 5},
		{"batches below the position", 8, []header{data(5, 7), empty(8, 10)}, nil, 11},
		{"a header without its records", 5, []header{{first: 5, last: 7, producer: -1, cut: true}}, nil, 8},
		{"a message's header without its records", 5, []header{{first: 5, last: 7, count: 3, producer: -1, cut: true}}, nil, 5},
	} {
		var b []byte
		for _, h := range tc.batches {
			b = h.append(b)
		}
		if got, err := passEmpty(b, tc.at, 100, tc.aborted); err != nil || got != tc.want {
			t.Errorf("%s: %d, %v, want %d", tc.name, got, err, tc.want)
		}
	}
}

func FuzzPassEmpty(f *testing.F) {
	for _, b := range javaBatches(f) {
		f.Add(b, int64(7))
		f.Add(b, int64(9))
		f.Add(append(b, b...), int64(0))
	}
	f.Add(header{first: 1, last: 3, producer: -1}.append(nil), int64(1))
	f.Fuzz(func(t *testing.T, b []byte, at int64) {
		next, err := passEmpty(b, at, at, nil)
		if err == nil && next < at {
			t.Errorf("from %d the next offset is %d, which is back", at, next)
		}
	})
}

// A partition that ends in what a reader never sees can still be read to its
// end.
func TestC46NextOffsetReachesEnd(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("log", 1, nil)
		p := topic.Partition{Topic: d.Name()}
		s := e.session("a")
		for at, want := range map[int64]int64{0: 0} {
			if got, err := s.NextOffset(e.ctx, p, at); err != nil || got != want {
				e.Errorf("in an empty partition the next offset after %d is %d, %v, want %d", at, got, err, want)
			}
		}
		e.commit(s, d, "a", "b") // 0, 1, marker 2
		e.aborted(s, d, "x")     // 3, marker 4
		e.aborted(s, d, "y")     // 5, marker 6
		e.commit(s, d, "c")      // 7, marker 8
		e.aborted(s, d, "z")     // 9, marker 10
		for at, want := range map[int64]int64{0: 0, 1: 1, 2: 7, 3: 7, 4: 7, 5: 7, 6: 7, 7: 7, 8: 11, 9: 11, 10: 11, 11: 11} {
			if got, err := s.NextOffset(e.ctx, p, at); err != nil || got != want {
				e.Errorf("the next offset after %d is %d, %v, want %d", at, got, err, want)
			}
		}
	})
}

// The cleaner of a real broker has dropped the messages, and in time the
// markers, before the end: a reader gets there all the same.
func TestC09CleanedTail(t *testing.T) {
	addr := os.Getenv("PAWL_TEST_KAFKA")
	if addr == "" { // the in-process broker never cleans
		return
	}
	e := newEnv(t, cluster.Cluster{Brokers: strings.Split(addr, ",")}, nil)
	d := e.topic("log", 1, map[string]string{
		"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001", "segment.ms": "100", "delete.retention.ms": "0", "min.compaction.lag.ms": "0",
	})
	p := topic.Partition{Topic: d.Name()}
	s := e.session("a")
	write := func(key, value string) {
		if _, err := s.Commit(e.ctx, []Record{{Topic: d.Name(), Key: []byte(key), Value: []byte(value)}}); err != nil {
			e.Fatal(err)
		}
	}
	for _, v := range []string{"1", "2", "3", "4"} {
		write("k", v)
		time.Sleep(120 * time.Millisecond) // real time, so that the broker begins another segment
	}
	e.aborted(s, d, "never")
	time.Sleep(120 * time.Millisecond) // likewise
	write("end", "e")

	// Wait until something was cleaned away, which the broker does every 15 s.
	ends, err := e.admin().Offsets(e.ctx, StableEnd, p)
	if err != nil {
		e.Fatal(err)
	}
	for len(e.read(d, 0)) > 2 {
		if e.ctx.Err() != nil {
			e.Fatal("nothing was cleaned within a minute")
		}
		time.Sleep(500 * time.Millisecond) // real time: the broker's cleaner has no other sign
	}
	// Wherever a reader stands, it reaches the end by messages and NextOffset.
	for at := range ends[p] {
		r := e.reader()
		r.Consume(d, 0, at)
		var b Batch
		next := at
		for steps := 0; next < ends[p]; steps++ {
			if steps > 20 {
				e.Fatalf("a reader from %d stands at %d for ever, below the end %d", at, next, ends[p])
			}
			n, err := r.NextOffset(e.ctx, p, next)
			if err != nil || n < next {
				e.Fatalf("the next offset after %d is %d, %v", next, n, err)
			}
			if next = n; next >= ends[p] {
				break
			}
			if err := r.Poll(e.ctx, 100, &b); err != nil {
				e.Fatalf("poll from %d at %d: %v", at, next, err)
			}
			for _, m := range b.Envelopes {
				if m.Offset < at {
					e.Errorf("a reader from %d got %d", at, m.Offset)
				}
			}
			for _, pb := range b.Parts {
				next = max(next, pb.Next)
			}
		}
	}
}
