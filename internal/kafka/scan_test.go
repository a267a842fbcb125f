package kafka

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawlstream/pawl/topic"
	"pgregory.net/rapid"
)

// A scan reads what is in its spans, and ends, whatever stands at their ends:
// markers, and what was aborted.
func TestScan(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("scanned", 2, nil)
		s := e.session("writer")
		for i := range 3 {
			e.commit(s, d, fmt.Sprintf("v%d", i)) // a message and a marker each
		}
		part := topic.Partition{Topic: d.Name()}
		for _, tt := range []struct {
			from, to int64
			want     string
		}{{0, 6, "[v0 v1 v2]"}, {0, 1, "[v0]"}, {0, 2, "[v0]"}, {1, 2, "[]"}, {1, 3, "[v1]"}, {5, 6, "[]"}, {4, 4, "[]"}, {5, 4, "[]"}} {
			got, reached := []string{}, tt.from
			err := Scan(e.ctx, e.config(), ReaderConfig{Committed: true}, []Span{{part, tt.from, tt.to}, {topic.Partition{Topic: d.Name(), Number: 1}, 0, 0}}, func(es []topic.Envelope, next map[topic.Partition]int64) error {
				for _, e := range es {
					got = append(got, string(e.Value))
				}
				reached = max(reached, next[part])
				return nil
			})
			if err != nil || fmt.Sprint(got) != tt.want {
				e.Errorf("from %d to %d: %v, %v, want %s", tt.from, tt.to, got, err, tt.want)
			}
			if reached > max(tt.from, tt.to) {
				e.Errorf("from %d to %d: reached %d", tt.from, tt.to, reached)
			}
		}
		enough := errors.New("enough")
		err := Scan(e.ctx, e.config(), ReaderConfig{}, []Span{{part, 0, NoEnd}}, func([]topic.Envelope, map[topic.Partition]int64) error { return enough })
		if !errors.Is(err, enough) {
			e.Errorf("a scan whose caller has enough: %v", err)
		}
	})
}

// The last record of a key is found, however much was written after it, and
// only what is committed counts.
func TestLastRecords(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("log", 3, nil)
		a := e.admin()
		s := e.session("writer")
		part := func(n int32) topic.Partition { return topic.Partition{Topic: d.Name(), Number: n} }
		commit := func(n int32, key, value string) {
			e.Helper()
			if _, err := s.Commit(e.ctx, []Record{{Topic: d.Name(), Partition: n, Key: []byte(key), Value: []byte(value)}}); err != nil {
				e.Fatal(err)
			}
		}
		commit(0, "k", "first")
		commit(0, "k", "last")
		var many []Record
		for range 6000 {
			many = append(many, Record{Topic: d.Name(), Partition: 0, Key: []byte("other"), Value: []byte("x")})
		}
		if _, err := s.Commit(e.ctx, many); err != nil {
			e.Fatal(err)
		}
		commit(1, "other", "x")
		got, err := a.LastRecords(e.ctx, []byte("k"), part(0), part(1), part(2))
		if err != nil || len(got) != 1 || string(got[part(0)].Value) != "last" {
			e.Errorf("found %v, %v, want the last one of partition 0 alone", got, err)
		}
		if _, err := a.LastRecords(e.ctx, []byte("k"), part(9)); err == nil {
			e.Error("a partition that is not there was searched")
		}
	})
}

// Timestamps come back as they were written, also such as were meant in
// another unit.
func TestAbsurdTimestampsAreKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 1 << 57
		want := rapid.Int64Range(-most, most-1).Draw(t, "ms")
		seen := time.Unix(0, want*1e6) // as the library makes a time of it
		if got := exactTime(seen).UnixMilli(); got != want {
			t.Fatalf("%d ms became %d", want, got)
		}
	})
	brokers(t, func(e *env) {
		d := e.topic("times", 1, map[string]string{"message.timestamp.after.max.ms": "9223372036854775807", "retention.ms": "-1"})
		s := e.session("writer")
		const micros = 1755933141855875
		for _, ms := range []int64{micros, -1, 0, 1700000000000} {
			if _, err := s.Commit(e.ctx, []Record{{Topic: d.Name(), Value: []byte("x"), Timestamp: time.UnixMilli(ms)}}); err != nil {
				e.Fatal(err)
			}
		}
		var got []int64
		err := Scan(e.ctx, e.config(), ReaderConfig{Committed: true}, []Span{{topic.Partition{Topic: d.Name()}, 0, 8}}, func(es []topic.Envelope, _ map[topic.Partition]int64) error {
			for _, e := range es {
				got = append(got, e.Timestamp.UnixMilli())
			}
			return nil
		})
		if want := []int64{micros, -1, 0, 1700000000000}; err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			e.Errorf("timestamps %v, %v, want %v", got, err, want)
		}
	})
}

// One that a coordinator will end is not ended by hand.
func TestAbortHanging(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("held", 1, nil)
		part := topic.Partition{Topic: d.Name()}
		for _, p := range []PartitionProducer{
			{Partition: part, ProducerID: 7, StartOffset: -1},
			{Partition: part, ProducerID: 7, StartOffset: 0, Held: true},
		} {
			if err := e.admin().AbortHanging(e.ctx, p); err == nil {
				e.Errorf("%+v was aborted", p)
			}
		}
	})
}
