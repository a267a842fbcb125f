package kafka

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func (e *env) reader() *Reader {
	e.Helper()
	r, err := NewReader(e.config(), ReaderConfig{Committed: true})
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(r.Close)
	return r
}

func (e *env) publish(d *topic.Description, values ...string) {
	e.Helper()
	p, err := NewProducer(e.config())
	if err != nil {
		e.Fatal(err)
	}
	defer p.Close()
	if err := p.Publish(e.ctx, to(d, values...)...); err != nil {
		e.Fatalf("publish %q: %v", values, err)
	}
}

// aborted writes a transaction to partition 0 and aborts it.
func (e *env) aborted(s *Session, d *topic.Description, values ...string) {
	e.Helper()
	recs := to(d, values...)
	for i := range recs {
		recs[i].Key = []byte("aborted") // a compacted topic wants one
	}
	if err := s.encode(e.ctx, recs); err != nil {
		e.Fatal(err)
	}
	if failed, err := s.write(e.ctx); err != nil || len(failed) > 0 {
		e.Fatalf("write what is to be aborted: %v, %v", failed, err)
	}
	if err := s.end(e.ctx, false); err != nil {
		e.Fatal(err)
	}
}

// Positions pass markers and aborted messages, wherever they stand.
func TestPollPassesMarkersAndAborts(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("in", 1, nil)
		p := topic.Partition{Topic: d.Name()}
		s := e.session("a")
		e.aborted(s, d, "x", "y") // 0, 1, marker 2
		e.commit(s, d, "a", "b")  // 3, 4, marker 5
		e.aborted(s, d, "z")      // 6, marker 7
		r := e.reader()
		r.Consume(d, 0, 0)
		var b Batch
		var got []string
		next := int64(0)
		for next < 8 {
			if err := r.Poll(e.ctx, 100, &b); err != nil {
				e.Fatalf("poll at %d: %v", next, err)
			}
			for _, m := range b.Envelopes {
				got = append(got, fmt.Sprint(m.Offset, string(m.Value)))
			}
			for _, pb := range b.Parts {
				if pb.Partition != p || pb.Next <= next {
					e.Fatalf("poll at %d brought %+v", next, pb)
				}
				next = pb.Next
				if pb.StableEnd != 8 || pb.HighWatermark != 8 || pb.LogStart != 0 {
					e.Errorf("the broker's offsets are %+v, want 0 to 8", pb)
				}
			}
		}
		if want := []string{"3a", "4b"}; !slices.Equal(got, want) || next != 8 {
			e.Errorf("read %q up to %d, want %q up to 8", got, next, want)
		}
	})
}

func TestConsumeMovesAndStops(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("in", 2, nil)
		var recs []Record
		for i := range 10 {
			recs = append(recs, Record{Topic: d.Name(), Partition: int32(i % 2), Value: fmt.Append(nil, i)})
		}
		s := e.session("a")
		if _, err := s.Commit(e.ctx, recs); err != nil {
			e.Fatal(err)
		}
		var b Batch
		poll := func(max int) (got []string) {
			e.Helper()
			for len(got) == 0 {
				if err := s.Poll(e.ctx, max, &b); err != nil {
					e.Fatal(err)
				}
				for _, m := range b.Envelopes {
					got = append(got, string(m.Value))
				}
			}
			return got
		}
		s.Consume(d, 0, 0)
		if got, want := poll(2), []string{"0", "2"}; !slices.Equal(got, want) {
			e.Fatalf("polled %q, want %q", got, want)
		}
		// The rest was fetched already: it must not be seen.
		s.Consume(d, 0, 4)
		if got, want := poll(100), []string{"8"}; !slices.Equal(got, want) {
			e.Errorf("after a move to 4 polled %q, want %q", got, want)
		}
		s.Consume(d, 0, 1)
		if got, want := poll(1), []string{"2"}; !slices.Equal(got, want) {
			e.Errorf("after a move back to 1 polled %q, want %q", got, want)
		}
		s.StopConsuming(topic.Partition{Topic: d.Name()})
		s.Consume(d, 1, 3)
		if got, want := poll(100), []string{"7", "9"}; !slices.Equal(got, want) {
			e.Errorf("of the other partition polled %q, want %q", got, want)
		}
		if n := s.Buffered(); n > 1 { // its marker at most
			e.Errorf("%d records are buffered of partitions that are read to their end or no longer", n)
		}
	})
}

// However often a partition is moved, and whatever was fetched meanwhile, what
// comes next is what stands at the place that was asked for last.
func TestConsumeMovesAnywhere(t *testing.T) {
	const messages = 500
	seed := time.Now().UnixNano()
	brokers(t, func(e *env) {
		random := rand.New(rand.NewPCG(uint64(seed), 0))
		d := e.topic("in", 2, nil)
		var recs []Record
		for i := range 2 * messages {
			recs = append(recs, Record{Topic: d.Name(), Partition: int32(i % 2), Value: make([]byte, 100)})
		}
		s := e.session("a")
		if _, err := s.Commit(e.ctx, recs); err != nil {
			e.Fatal(err)
		}
		var b Batch
		next := make(map[int32]int64) // where each partition stands
		for range 100 {
			p := random.Int32N(2)
			if next[p] = random.Int64N(messages); random.IntN(10) == 0 {
				s.StopConsuming(topic.Partition{Topic: d.Name(), Number: p})
				delete(next, p)
			} else {
				s.Consume(d, p, next[p])
			}
			for range random.IntN(4) {
				if len(next) == 0 {
					break
				}
				ctx, cancel := context.WithTimeout(e.ctx, 50*time.Millisecond) // both may be read to their end
				err := s.Poll(ctx, 1+random.IntN(messages), &b)
				cancel()
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					e.Fatalf("seed %d: poll: %v", seed, err)
				}
				for _, m := range b.Envelopes {
					if want, ok := next[m.Partition]; !ok || m.Offset != want {
						e.Fatalf("seed %d: message %d of partition %d, which stands at %d (read: %v)", seed, m.Offset, m.Partition, want, ok)
					}
					next[m.Partition]++
				}
				for _, pb := range b.Parts {
					next[pb.Partition.Number] = pb.Next
				}
			}
		}
	})
}

func TestOffsetOutOfRange(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("in", 1, nil)
		p := topic.Partition{Topic: d.Name()}
		e.publish(d, "0", "1", "2", "3", "4")
		if err := e.admin().DeleteRecords(e.ctx, p, 3); err != nil {
			e.Fatal(err)
		}
		r := e.reader()
		var b Batch
		for _, at := range []int64{1, 9} {
			r.Consume(d, 0, at)
			err := r.Poll(e.ctx, 100, &b)
			want := OffsetRangeError{Partition: p, Offset: at, Earliest: 3, End: 5}
			if re := (*OffsetRangeError)(nil); !errors.As(err, &re) || *re != want {
				e.Errorf("poll at %d: %v, want %v", at, err, &want)
			}
			if len(b.Envelopes) > 0 {
				e.Errorf("poll at %d brought %d messages", at, len(b.Envelopes))
			}
		}
		// It is read no further until told.
		ctx, cancel := context.WithTimeout(e.ctx, 300*time.Millisecond)
		defer cancel()
		if err := r.Poll(ctx, 100, &b); !errors.Is(err, context.DeadlineExceeded) {
			e.Errorf("poll of nothing: %v, want the context's error", err)
		}
		r.Consume(d, 0, 3)
		if err := r.Poll(e.ctx, 100, &b); err != nil || len(b.Envelopes) != 2 {
			e.Errorf("poll at 3: %d messages, %v, want 2", len(b.Envelopes), err)
		}
	})
}

// What is out of range is where the reader has come to, and not where it began:
// what has lost its end is told from what has lost its beginning by that.
func TestOffsetOutOfRangeOnTheWay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dev(t, func(e *env) {
			d := e.topic("in", 1, nil)
			p := topic.Partition{Topic: d.Name()}
			e.publish(d, "0", "1", "2", "3", "4", "5")
			r := e.reader()
			r.Consume(d, 0, 1)
			var b Batch
			for read := 0; read < 2; read += len(b.Envelopes) {
				if err := r.Poll(e.ctx, 2-read, &b); err != nil {
					t.Fatal(err)
				}
			}
			r.Pause(p) // what else was fetched is dropped
			if err := e.admin().DeleteRecords(e.ctx, p, 5); err != nil {
				t.Fatal(err)
			}
			r.Resume(p)
			err := r.Poll(e.ctx, 100, &b)
			want := OffsetRangeError{Partition: p, Offset: 3, Earliest: 5, End: 6}
			if re := (*OffsetRangeError)(nil); !errors.As(err, &re) || *re != want {
				t.Errorf("poll: %v, want %v", err, &want)
			}
		})
	})
}

func TestPollEndsWithClose(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("in", 1, nil)
		r := e.reader()
		r.Consume(d, 0, 0)
		ended := make(chan error)
		go func() {
			var b Batch
			ended <- r.Poll(e.ctx, 1, &b)
		}()
		r.Close()
		if err := <-ended; !errors.Is(err, ErrClosed) {
			e.Errorf("poll of a closed reader: %v, want ErrClosed", err)
		}
	})
}

// A topic that is deleted and created again under its name is another topic:
// nothing goes on in it as if it were the same.
func TestTopicRecreated(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("in", 1, nil)
		s := e.session("a")
		e.commit(s, d, "old")
		r := e.reader()
		r.Consume(d, 0, 0)
		var b Batch
		if err := r.Poll(e.ctx, 100, &b); err != nil || len(b.Envelopes) != 1 {
			e.Fatalf("poll: %d messages, %v, want 1", len(b.Envelopes), err)
		}
		a := e.admin()
		if err := a.DeleteTopics(e.ctx, d.Name()); err != nil {
			e.Fatal(err)
		}
		if _, err := a.CreateTopic(e.ctx, TopicSpec{Name: d.Name(), Partitions: 1}); err != nil {
			e.Fatal(err)
		}
		e.publish(d, "1", "2", "3", "4")
		_, err := s.Commit(e.ctx, to(d, "in the old session"))
		if !errors.Is(err, ErrUnknownTopic) {
			e.Errorf("commit to the topic that is gone: %v, want ErrUnknownTopic", err)
		}
		for { // the library takes its time to believe it
			err := r.Poll(e.ctx, 100, &b)
			if errors.Is(err, ErrUnknownTopic) {
				break
			}
			if err != nil || len(b.Envelopes) > 0 {
				e.Fatalf("poll: %d messages, %v, want ErrUnknownTopic", len(b.Envelopes), err)
			}
		}
		e.commit(e.session("a"), d, "5")
		e.wantCommitted(d, "1", "2", "3", "4", "5")
	})
}

func TestOffsets(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("in", 1, nil)
		p := topic.Partition{Topic: d.Name()}
		prod, err := NewProducer(e.config())
		if err != nil {
			e.Fatal(err)
		}
		defer prod.Close()
		at := time.UnixMilli(1700000000000)
		for i := range 3 {
			if err := prod.Publish(e.ctx, Record{Topic: d.Name(), Timestamp: at.Add(time.Duration(i) * time.Second)}); err != nil {
				e.Fatal(err)
			}
		}
		a := e.admin()
		for name, tc := range map[string]struct {
			at   At
			want int64
		}{
			"earliest":         {Earliest, 0},
			"end":              {End, 3},
			"stable end":       {StableEnd, 3},
			"before the first": {Time(at.Add(-time.Hour)), 0},
			"on the second":    {Time(at.Add(time.Second)), 1},
			"after the second": {Time(at.Add(1500 * time.Millisecond)), 2},
			"after the last":   {Time(at.Add(time.Hour)), 3},
			"before 1970":      {Time(time.UnixMilli(-2)), 0},
		} {
			got, err := a.Offsets(e.ctx, tc.at, p)
			if err != nil || got[p] != tc.want {
				e.Errorf("%s: %d, %v, want %d", name, got[p], err, tc.want)
			}
		}
		if _, err := a.Offsets(e.ctx, End, topic.Partition{Topic: e.name("missing")}); !errors.Is(err, ErrUnknownTopic) {
			e.Errorf("offsets of a topic that does not exist: %v, want ErrUnknownTopic", err)
		}
	})
}

// javaBatches are record batches that the Java client has written, by name.
func javaBatches(t testing.TB) map[string][]byte {
	t.Helper()
	file, err := os.ReadFile("testdata/batches.tsv")
	if err != nil {
		t.Fatal(err)
	}
	raw := make(map[string][]byte)
	for _, line := range strings.Split(strings.TrimSpace(string(file)), "\n")[1:] {
		cols := strings.Split(line, "\t")
		b, err := hex.DecodeString(cols[2])
		if err != nil || fmt.Sprint(len(b)) != cols[1] {
			t.Fatalf("%s: %d bytes, %v, want %s", cols[0], len(b), err, cols[1])
		}
		raw[cols[0]] = b
	}
	return raw
}

// What the Java client has written is read as it was meant: null and empty
// apart, headers in order and repeated, timestamps in any order.
func TestReadJavaBatches(t *testing.T) {
	raw := javaBatches(t)
	type message struct {
		Key, Value []byte
		Millis     int64
		Headers    []topic.Header
	}
	want := []message{
		{nil, []byte("v0"), 1700000000000, nil},
		{[]byte{}, []byte{}, 1700000000001, nil},
		{[]byte("k"), nil, 1699999999000, nil},
		{[]byte("k"), []byte("v3"), 1700000000500, []topic.Header{{Key: "a", Value: []byte{0, 0xff}}, {Key: "a", Value: []byte{}}, {Key: "", Value: []byte{1}}, {Key: "n", Value: nil}}},
	}
	for _, name := range []string{"four records, no compression", "same, snappy"} {
		t.Run(name, func(t *testing.T) {
			brokers(t, func(e *env) {
				d := e.topic("in", 1, nil)
				e.publish(d, "0", "1", "2", "3", "4", "5", "6")
				if err := e.produceRaw(d, raw[name]); err != nil {
					e.Fatal(err)
				}
				var got []message
				for i, m := range e.read(d, 0)[7:] {
					if m.Offset != int64(7+i) {
						e.Errorf("message %d has offset %d", i, m.Offset)
					}
					got = append(got, message{m.Key, m.Value, m.Timestamp.UnixMilli(), m.Headers})
				}
				if diff := cmp.Diff(want, got); diff != "" {
					e.Errorf("read otherwise than written (-want +got):\n%s", diff)
				}
			})
		})
	}
	t.Run("control batch", func(t *testing.T) {
		brokers(t, func(e *env) {
			d := e.topic("in", 1, nil)
			if err := e.produceRaw(d, raw["control batch: commit marker at offset 8, coordinator epoch 2"]); err == nil && e.dev == nil {
				e.Error("a client that produced a control batch was not refused")
			}
		})
	})
}

// produceRaw sends a record batch as it is, but for its offset, which is the
// broker's to give and not in the checksum.
func (e *env) produceRaw(d *topic.Description, batch []byte) error {
	a := e.admin()
	leader, id, err := leaderOf(e.ctx, a.cl, topic.Partition{Topic: d.Name()})
	if err != nil {
		return err
	}
	req := kmsg.NewPtrProduceRequest()
	req.Acks = -1
	req.TimeoutMillis = 5000
	t := kmsg.NewProduceRequestTopic()
	t.Topic, t.TopicID = d.Name(), id
	p := kmsg.NewProduceRequestTopicPartition()
	p.Records = append(make([]byte, 8), batch[8:]...)
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	kresp, err := a.cl.Broker(int(leader)).Request(e.ctx, req)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(kresp.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode)
}

func BenchmarkPoll(b *testing.B) {
	benchmark(b, func(e *env, d *topic.Description) {
		s := e.session("a")
		const n = 100000
		recs := make([]Record, n)
		for i := range recs {
			recs[i] = Record{Topic: d.Name(), Key: fmt.Append(nil, i), Value: make([]byte, 100)}
		}
		if _, err := s.Commit(e.ctx, recs); err != nil {
			b.Fatal(err)
		}
		var batch Batch
		b.ReportAllocs()
		for b.Loop() {
			s.Consume(d, 0, 0)
			for got := 0; got < n; got += len(batch.Envelopes) {
				if err := s.Poll(e.ctx, 16384, &batch); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/record")
	})
}

// A topic is read by its ID: of another one under its name nothing is, and once
// the one before is read no more the other can be.
func TestConsumeID(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("in", 2, nil)
		a := e.admin()
		idOf := func() topic.ID {
			infos, err := a.Topics(e.ctx, d.Name())
			if err != nil {
				e.Fatal(err)
			}
			return infos[d.Name()].ID
		}
		old := idOf()
		e.publish(d, "old")
		r := e.reader()
		if !r.ConsumeID(d, old, 0, 0) || !r.ConsumeID(d, old, 1, 0) {
			e.Fatal("two partitions of one topic can't be read")
		}
		var b Batch
		if err := r.Poll(e.ctx, 100, &b); err != nil || len(b.Envelopes) != 1 {
			e.Fatalf("poll: %d messages, %v, want 1", len(b.Envelopes), err)
		}
		if err := a.DeleteTopics(e.ctx, d.Name()); err != nil {
			e.Fatal(err)
		}
		if _, err := a.CreateTopic(e.ctx, TopicSpec{Name: d.Name(), Partitions: 2}); err != nil {
			e.Fatal(err)
		}
		e.publish(d, "1", "2")
		for p := topic.ID(old); p == old; p = idOf() { // the brokers take their time to agree
		}
		fresh := idOf()
		if r.ConsumeID(d, fresh, 1, 0) {
			e.Error("the new topic is read beside the old one")
		}
		for {
			err := r.Poll(e.ctx, 100, &b)
			if errors.Is(err, ErrUnknownTopic) {
				break
			}
			if err != nil || len(b.Envelopes) > 0 {
				e.Fatalf("poll: %d messages, %v, want ErrUnknownTopic", len(b.Envelopes), err)
			}
		}
		r.StopConsuming(topic.Partition{Topic: d.Name()}, topic.Partition{Topic: d.Name(), Number: 1})
		if !r.ConsumeID(d, fresh, 0, 0) || !r.ConsumeID(d, fresh, 1, 0) {
			e.Fatal("the new topic can't be read once the old one is not")
		}
		n := 0
		for n < 2 {
			if err := r.Poll(e.ctx, 100, &b); err != nil {
				e.Fatal(err)
			}
			n += len(b.Envelopes)
		}
	})
}
