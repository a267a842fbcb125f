package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlstream/pawl/internal/devbroker"
	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What a broker answers that passes by itself is waited for; what does not is
// told, and the partition is read no further until Consume is called for it.
func TestFetchErrors(t *testing.T) {
	for _, tc := range []struct {
		code  *kerr.Error
		class error // of what is told; nil: it is waited for
	}{
		{kerr.NotLeaderForPartition, nil},
		{kerr.FencedLeaderEpoch, nil},
		{kerr.UnknownLeaderEpoch, nil},
		{kerr.LeaderNotAvailable, nil},
		{kerr.ReplicaNotAvailable, nil},
		{kerr.KafkaStorageError, nil},
		{kerr.OffsetNotAvailable, nil},
		{kerr.RequestTimedOut, nil},
		{kerr.UnknownTopicOrPartition, nil},
		{kerr.UnknownTopicID, nil},
		{kerr.InconsistentTopicID, nil},
		{kerr.OffsetOutOfRange, nil}, // which it is not
		{kerr.TopicAuthorizationFailed, ErrUnauthorized},
		{kerr.UnknownServerError, kerr.UnknownServerError},
		{kerr.UnsupportedCompressionType, kerr.UnsupportedCompressionType},
	} {
		t.Run(tc.code.Message, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				dev(t, func(e *env) {
					d := e.topic("in", 1, nil)
					p := topic.Partition{Topic: d.Name()}
					e.publish(d, "a")
					defer e.dev.Fail(devbroker.Fault{Key: int16(kmsg.Fetch), Code: tc.code.Code, Times: 3})()
					r := e.reader()
					r.Consume(d, 0, 0)
					begun := time.Now()
					var b Batch
					for tries := 0; ; tries++ {
						err := r.Poll(e.ctx, 10, &b)
						if tc.class == nil || tries == 3 {
							if err != nil || len(b.Envelopes) != 1 {
								t.Fatalf("poll: %d messages, %v, want one", len(b.Envelopes), err)
							}
							if took := time.Since(begun); virtual && (took < 100*time.Millisecond) != (tc.class != nil) || took > time.Second {
								t.Errorf("it took %v", took)
							}
							return
						}
						broken := (*PartitionError)(nil)
						if !errors.As(err, &broken) || broken.Partition != p || !errors.Is(err, tc.class) {
							t.Fatalf("poll: %v, want a PartitionError of %v", err, tc.class)
						}
						ctx, cancel := context.WithTimeout(e.ctx, time.Second)
						if err := r.Poll(ctx, 10, &b); !errors.Is(err, context.DeadlineExceeded) {
							t.Fatalf("poll of a partition that is read no further: %v", err)
						}
						cancel()
						r.Consume(d, 0, 0)
						begun = time.Now()
					}
				})
			})
		})
	}
}

// A topic that was there and is unknown for good is told.
func TestFetchUnknownForGood(t *testing.T) {
	for _, code := range []*kerr.Error{kerr.UnknownTopicID, kerr.InconsistentTopicID, kerr.UnknownTopicOrPartition} {
		bubble(t, func(t *testing.T) {
			dev(t, func(e *env) {
				d := e.topic("in", 1, nil)
				defer e.dev.Fail(devFault(int16(kmsg.Fetch), code.Code))()
				r := e.reader()
				r.Consume(d, 0, 0)
				begun := time.Now()
				var b Batch
				if err := r.Poll(e.ctx, 10, &b); !errors.Is(err, ErrUnknownTopic) {
					t.Errorf("%s: poll: %v, want ErrUnknownTopic", code.Message, err)
				}
				if took := time.Since(begun); virtual && (took < time.Second || took > 5*time.Second) {
					t.Errorf("%s: it took %v", code.Message, took)
				}
			})
		})
	}
}

// What has gone wrong with a partition is told by a later poll, when the one that
// was about to tell it is given up, or the partition is paused before.
func TestVerdictIsNotLost(t *testing.T) {
	if !virtual { // it waits until there is a verdict
		return
	}
	bubble(t, func(t *testing.T) {
		dev(t, func(e *env) {
			d := e.topic("in", 1, nil)
			p := topic.Partition{Topic: d.Name()}
			r := e.reader()
			r.Consume(d, 0, 9)
			time.Sleep(time.Second) // virtual time
			given, up := context.WithCancel(e.ctx)
			up()
			var b Batch
			if err := r.Poll(given, 10, &b); !errors.Is(err, context.Canceled) {
				t.Errorf("a poll that is given up: %v", err)
			}
			if err, re := r.Poll(e.ctx, 10, &b), (*OffsetRangeError)(nil); !errors.As(err, &re) || re.Offset != 9 {
				t.Errorf("the poll after it: %v, want an OffsetRangeError at 9", err)
			}

			defer e.dev.Fail(devFault(int16(kmsg.Fetch), kerr.UnknownTopicID.Code))()
			r.Consume(d, 0, 0)
			time.Sleep(10 * time.Second) // virtual time
			r.Pause(p)
			r.Resume(p)
			ctx, cancel := context.WithTimeout(e.ctx, time.Minute)
			defer cancel()
			if err := r.Poll(ctx, 10, &b); !errors.Is(err, ErrUnknownTopic) {
				t.Errorf("a poll after a pause: %v, want ErrUnknownTopic", err)
			}
		})
	})
}

// A topic that may not be looked at is told as a whole, once.
func TestLookUpRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dev(t, func(e *env) {
			d := e.topic("in", 2, nil)
			defer e.dev.Fail(devFault(int16(kmsg.Metadata), kerr.TopicAuthorizationFailed.Code))()
			r := e.reader()
			r.Consume(d, 0, 0)
			r.Consume(d, 1, 0)
			var b Batch
			err := r.Poll(e.ctx, 10, &b)
			broken := (*PartitionError)(nil)
			if !errors.As(err, &broken) || broken.Partition != (topic.Partition{Topic: d.Name(), Number: -1}) || !errors.Is(err, ErrUnauthorized) {
				t.Errorf("poll: %v, want ErrUnauthorized for all of the topic", err)
			}
			ctx, cancel := context.WithTimeout(e.ctx, time.Second)
			defer cancel()
			if err := r.Poll(ctx, 10, &b); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("poll: %v, want the context's error", err)
			}
		})
	})
}

// A topic, and a partition, that is not there yet is waited for.
func TestConsumeBeforeThereIsAny(t *testing.T) {
	if !virtual { // it takes seconds
		return
	}
	bubble(t, func(t *testing.T) {
		dev(t, func(e *env) {
			d := topic.Bytes(e.name("later")).Description
			r := e.reader()
			r.Consume(d, 0, 0)
			r.Consume(d, 1, 0)
			a := e.admin()
			time.Sleep(10 * time.Second) // virtual time
			if _, err := a.CreateTopic(e.ctx, TopicSpec{Name: d.Name(), Partitions: 1}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second) // virtual time
			if err := a.CreatePartitions(e.ctx, d.Name(), 2); err != nil {
				t.Fatal(err)
			}
			prod, err := NewProducer(e.config())
			if err != nil {
				t.Fatal(err)
			}
			defer prod.Close()
			for n := range int32(2) {
				if err := prod.Publish(e.ctx, Record{Topic: d.Name(), Partition: n, Value: []byte{'a'}}); err != nil {
					t.Fatal(err)
				}
			}
			begun, got := time.Now(), 0
			for got < 2 {
				var b Batch
				if err := r.Poll(e.ctx, 10, &b); err != nil {
					t.Fatal(err)
				}
				got += len(b.Envelopes)
			}
			if took := time.Since(begun); took > lookPauseMax+fetchMaxWait {
				t.Errorf("both partitions were read %v after they were there", took)
			}
		})
	})
}

// A broker that is cut off, with a fetch under way, is fetched from when it is
// back.
func TestFetchAfterACut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dev(t, func(e *env) {
			d := e.topic("in", 1, nil)
			e.publish(d, "a")
			far := e.config()
			far.Cluster = e.dev.Host("far")
			r, err := NewReader(far, ReaderConfig{})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			r.Consume(d, 0, 0)
			var b Batch
			for _, next := range []string{"b", "c"} {
				if err := r.Poll(e.ctx, 10, &b); err != nil || len(b.Envelopes) != 1 {
					t.Fatalf("poll: %d messages, %v, want one", len(b.Envelopes), err)
				}
				e.dev.Cut("far")
				e.publish(d, next)
				ctx, cancel := context.WithTimeout(e.ctx, 3*time.Second)
				if err := r.Poll(ctx, 10, &b); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("poll of a broker that is cut off: %v", err)
				}
				cancel()
				e.dev.Heal("far")
			}
			if err := r.Poll(e.ctx, 10, &b); err != nil || len(b.Envelopes) != 1 || string(b.Envelopes[0].Value) != "c" {
				t.Errorf("poll: %d messages, %v, want c", len(b.Envelopes), err)
			}
		})
	})
}

// A partition that is moved does not wait for the fetch under way, and neither
// does what takes the place of all that it was for.
func TestMovesCutTheFetchOff(t *testing.T) {
	if !virtual { // it measures time
		return
	}
	bubble(t, func(t *testing.T) {
		dev(t, func(e *env) {
			d := e.topic("in", 2, nil)
			e.publish(d, "a", "b")
			r, err := NewReader(e.config(), ReaderConfig{MaxWait: 5 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			var b Batch
			begun := time.Now()
			r.Consume(d, 1, 0)      // where there is nothing
			time.Sleep(time.Second) // virtual time
			r.StopConsuming(topic.Partition{Topic: d.Name(), Number: 1})
			for _, at := range []int64{0, 1, 0, 1} {
				r.Consume(d, 0, at)
				if err := r.Poll(e.ctx, 10, &b); err != nil || len(b.Envelopes) != 2-int(at) {
					t.Fatalf("poll at %d: %d messages, %v", at, len(b.Envelopes), err)
				}
				time.Sleep(time.Second) // the fetch at the end is under way
			}
			if took := time.Since(begun); took > 6*time.Second {
				t.Errorf("it took %v, want the five that it sleeps", took)
			}
		})
	})
}

// What is paused brings nothing, also of what was fetched, and goes on where it
// was.
func TestPauseAndResume(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("in", 1, nil)
		p := topic.Partition{Topic: d.Name()}
		e.publish(d, "a", "b", "c", "d")
		r := e.reader()
		r.Consume(d, 0, 0)
		var b Batch
		poll := func(max int, want ...string) {
			e.Helper()
			var got []string
			for len(got) == 0 {
				if err := r.Poll(e.ctx, max, &b); err != nil {
					e.Fatal(err)
				}
				for _, m := range b.Envelopes {
					got = append(got, string(m.Value))
				}
			}
			if !slices.Equal(got, want) {
				e.Fatalf("polled %q, want %q", got, want)
			}
		}
		poll(1, "a")
		for _, next := range []string{"b", "c"} {
			r.Pause(p)
			if n := r.Buffered(); n > 0 {
				e.Errorf("%d messages are held of what is paused", n)
			}
			ctx, cancel := context.WithTimeout(e.ctx, 700*time.Millisecond)
			if err := r.Poll(ctx, 10, &b); !errors.Is(err, context.DeadlineExceeded) {
				e.Errorf("poll of what is paused: %v, %d messages", err, len(b.Envelopes))
			}
			cancel()
			r.Resume(p)
			poll(1, next)
		}
		poll(10, "d")
		// What answers the fetch under way is not for a reader that pauses.
		ctx, cancel := context.WithTimeout(e.ctx, 100*time.Millisecond)
		if err := r.Poll(ctx, 10, &b); !errors.Is(err, context.DeadlineExceeded) {
			e.Errorf("poll at the end: %v, %d messages", err, len(b.Envelopes))
		}
		cancel()
		r.Pause(p)
		e.publish(d, "e")
		ctx, cancel = context.WithTimeout(e.ctx, 700*time.Millisecond)
		if err := r.Poll(ctx, 10, &b); !errors.Is(err, context.DeadlineExceeded) {
			e.Errorf("poll of what is paused: %v, %d messages", err, len(b.Envelopes))
		}
		cancel()
		r.Resume(p)
		poll(10, "e")
		r.Pause(p)
		r.Consume(d, 0, 0) // which does not end it
		ctx, cancel = context.WithTimeout(e.ctx, 700*time.Millisecond)
		defer cancel()
		if err := r.Poll(ctx, 10, &b); !errors.Is(err, context.DeadlineExceeded) {
			e.Errorf("poll of what is paused: %v, %d messages", err, len(b.Envelopes))
		}
		r.Resume(p)
		poll(10, "a", "b", "c", "d", "e")
	})
}

// Messages stay what they are while more is fetched into memory that was given
// back; one fetch at most is held.
func TestRecycledMemory(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dev(t, func(e *env) {
			d := e.topic("in", 1, nil)
			const messages, each = 300, 10
			var recs []Record
			for i := range messages {
				recs = append(recs, Record{Topic: d.Name(), Key: fmt.Append(nil, i), Value: fmt.Append(make([]byte, 100), i)})
			}
			s, err := NewSession(e.config(), SessionConfig{TransactionalID: e.name("a"), FetchMaxPartitionBytes: 2000, MaxBatchBytes: 1000})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if _, err := s.Fence(e.ctx); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Commit(e.ctx, recs); err != nil {
				t.Fatal(err)
			}
			s.Consume(d, 0, 0)
			var kept []topic.Envelope
			for len(kept) < messages {
				f, err := s.Fetch(e.ctx, each)
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range f.Parts {
					for i := range p.Len() {
						kept = append(kept, p.At(i))
					}
					p.Recycle()
				}
				if n := s.Buffered(); n > 40 {
					t.Fatalf("%d messages are held, of a limit of 2000 bytes", n)
				}
			}
			for i, m := range kept {
				if string(m.Key) != fmt.Sprint(i) || !strings.HasSuffix(string(m.Value), fmt.Sprint(i)) || m.Offset != int64(i) {
					t.Fatalf("message %d is %d, %q", i, m.Offset, m.Key)
				}
			}
		})
	})
}

// A request asks for everything that may be fetched, each topic once and
// another partition first each time.
func TestFetchRequest(t *testing.T) {
	r := reading{life: context.Background(), config: fetchConfig{committed: true, log: slog.New(slog.DiscardHandler)}.withDefaults()}
	r.mu.paused = map[topic.Partition]bool{{Topic: "b", Number: 1}: true}
	r.mu.topics = map[string]*known{"a": {id: topic.ID{1}, seen: true}, "b": {id: topic.ID{2}, seen: true}}
	f := &fetcher{r: &r, wake: make(chan struct{}, 1)}
	for _, p := range []topic.Partition{{Topic: "a"}, {Topic: "b"}, {Topic: "a", Number: 1}, {Topic: "b", Number: 1}} {
		f.joinLocked(&consumed{partition: p, next: 5, term: 3, epoch: 2})
	}
	var firsts []string
	for range 4 {
		_, kreq, all := f.next()
		req := kreq.(*kmsg.FetchRequest)
		if len(all) != 3 || len(req.Topics) != 2 || req.SessionEpoch != -1 || req.IsolationLevel != 1 || req.MaxBytes != fetchMaxBytes || req.MaxWaitMillis != 500 {
			t.Fatalf("asked for %d partitions of %d topics: %+v", len(all), len(req.Topics), req)
		}
		p := req.Topics[0].Partitions[0]
		if p.FetchOffset != 5 || p.CurrentLeaderEpoch != 3 || p.LastFetchedEpoch != 2 || p.PartitionMaxBytes != fetchMaxPartitionBytes {
			t.Errorf("asked for %+v", p)
		}
		firsts = append(firsts, fmt.Sprint(req.Topics[0].Topic, p.Partition))
		f.cancel()
	}
	if want := []string{"b0", "a1", "a0", "a0"}; !slices.Equal(firsts, want) {
		t.Errorf("first came %q, want %q", firsts, want)
	}
	f.held = 1
	if _, req, _ := f.next(); req != nil {
		t.Errorf("asked for more while something is held: %+v", req)
	}
	f.held = 0
	for limit, want := range map[int]int32{4096: 4096, 0: 1, fetchMaxBytes + 1: fetchMaxBytes} {
		r.LimitPartition(limit)
		_, kreq, _ := f.next()
		if got := kreq.(*kmsg.FetchRequest).Topics[0].Partitions[0].PartitionMaxBytes; got != want {
			t.Errorf("with a limit of %d a partition may send %d, want %d", limit, got, want)
		}
		f.cancel()
	}
	r.mu.topics["b"].id = topic.ID{} // a cluster that has none
	if _, req, _ := f.next(); req.MaxVersion() != fetchByName {
		t.Errorf("asked with version %d without an ID", req.MaxVersion())
	}
	f.cancel()
}

// Where the leader's log parts from what was read, the end is lost.
func TestLostEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dev(t, func(e *env) {
			d := e.topic("in", 1, nil)
			p := topic.Partition{Topic: d.Name()}
			e.publish(d, "0", "1", "2", "3", "4")
			r := e.reader()
			for _, end := range []int64{3, 5, 9} {
				r.Consume(d, 0, 0)
				var b Batch
				for read := 0; read < 5; read += len(b.Envelopes) {
					if err := r.Poll(e.ctx, 100, &b); err != nil {
						t.Fatal(err)
					}
				}
				answer := kmsg.NewFetchResponseTopicPartition()
				answer.DivergingEpoch.Epoch, answer.DivergingEpoch.EndOffset = 0, end
				r.mu.Lock()
				c := r.mu.parts[p]
				c.epoch = 1
				a := asked{c: c, at: c.next}
				a.unpack(&answer, true)
				r.settleLocked(&a)
				epoch := c.epoch
				r.mu.Unlock()
				ctx, cancel := context.WithTimeout(e.ctx, 100*time.Millisecond)
				err := r.Poll(ctx, 100, &b)
				cancel()
				if end >= 5 { // what comes next there is what is next
					if !errors.Is(err, context.DeadlineExceeded) || epoch != -1 {
						t.Errorf("parted at %d: %v, epoch %d", end, err, epoch)
					}
					continue
				}
				want := OffsetRangeError{Partition: p, Offset: 5, End: end}
				if re := (*OffsetRangeError)(nil); !errors.As(err, &re) || *re != want {
					t.Errorf("poll: %v, want %v", err, &want)
				}
			}
		})
	})
}

// An answer that names what was not asked for, or leaves out what was, or says
// nothing because a quota is used up, does no harm.
func TestOddAnswers(t *testing.T) {
	id := topic.ID{1}
	for name, tc := range map[string]struct {
		resp  kmsg.FetchResponse
		err   error
		fails int
	}{
		"nothing":                    {kmsg.FetchResponse{}, nil, 1},
		"nothing, for a quota":       {kmsg.FetchResponse{ThrottleMillis: 5}, nil, 0},
		"no answer":                  {kmsg.FetchResponse{}, errBroken, 1},
		"another partition":          {kmsg.FetchResponse{Version: 13, Topics: []kmsg.FetchResponseTopic{{TopicID: id, Partitions: []kmsg.FetchResponseTopicPartition{{Partition: 9}}}}}, nil, 1},
		"another topic":              {kmsg.FetchResponse{Version: 13, Topics: []kmsg.FetchResponseTopic{{TopicID: topic.ID{2}, Partitions: []kmsg.FetchResponseTopicPartition{{}}}}}, nil, 1},
		"the same twice":             {kmsg.FetchResponse{Version: 13, Topics: []kmsg.FetchResponseTopic{{TopicID: id, Partitions: []kmsg.FetchResponseTopicPartition{kmsg.NewFetchResponseTopicPartition(), kmsg.NewFetchResponseTopicPartition()}}}}, nil, 0},
		"a batch without an end":     {kmsg.FetchResponse{Version: 12, Topics: []kmsg.FetchResponseTopic{{Topic: "a", Partitions: []kmsg.FetchResponseTopicPartition{{DivergingEpoch: kmsg.NewFetchResponseTopicPartitionDivergingEpoch(), RecordBatches: make([]byte, 5)}}}}}, nil, 1},
		"an old answer, with a name": {kmsg.FetchResponse{Version: 12, Topics: []kmsg.FetchResponseTopic{{Topic: "a", Partitions: []kmsg.FetchResponseTopicPartition{kmsg.NewFetchResponseTopicPartition()}}}}, nil, 0},
	} {
		r := reading{life: context.Background(), config: fetchConfig{log: slog.New(slog.DiscardHandler)}.withDefaults(), look: make(chan struct{}, 1), arrived: make(chan struct{}, 1)}
		r.mu.topics = map[string]*known{"a": {id: id, seen: true}}
		f := &fetcher{r: &r, wake: make(chan struct{}, 1)}
		c := &consumed{partition: topic.Partition{Topic: "a"}, topic: topic.Bytes("a").Description, next: 5}
		f.joinLocked(c)
		ctx, _, all := f.next()
		f.hear(ctx, all, &tc.resp, tc.err)
		if c.fails != tc.fails || c.asked || c.came != nil || (c.leader == nil) != (tc.fails > 0) {
			t.Errorf("%s: %+v, want %d failures", name, c, tc.fails)
		}
	}
}
