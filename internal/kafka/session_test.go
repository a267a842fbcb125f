package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlstream/pawl/internal/devbroker"
	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	keyProduce = int16(kmsg.Produce)
	keyEndTxn  = int16(kmsg.EndTxn)
)

func to(d *topic.Description, values ...string) (recs []Record) {
	for _, v := range values {
		recs = append(recs, Record{Topic: d.Name(), Value: []byte(v)})
	}
	return recs
}

func (e *env) wantCommitted(d *topic.Description, want ...string) {
	e.Helper()
	if got := e.committed(d, 0); !slices.Equal(got, want) {
		e.Errorf("committed in %s: %q, want %q", d, got, want)
	}
}

func (e *env) commit(s *Session, d *topic.Description, values ...string) {
	e.Helper()
	if _, err := s.Commit(e.ctx, to(d, values...)); err != nil {
		e.Fatalf("commit %q: %v", values, err)
	}
}

// tapped is a session whose requests a test decides about.
func (e *env) tapped(id string, before func(key int16) fate) *Session {
	e.Helper()
	inner := *e
	inner.cluster = e.through(before)
	return inner.session(id)
}

func TestCommit(t *testing.T) {
	brokers(t, func(e *env) {
		out, log := e.topic("out", 3, nil), e.topic("log", 1, nil)
		s := e.session("a")
		part := topic.Partition{Topic: out.Name(), Number: topic.PartitionFor([]byte("k"), 3)}
		for i := range 3 {
			res, err := s.Commit(e.ctx, []Record{
				{Topic: out.Name(), Partition: -1, Key: []byte("k"), Value: []byte{byte('a' + i)}},
				{Topic: out.Name(), Partition: -1, Key: []byte("k"), Value: []byte{byte('A' + i)}},
				{Topic: log.Name(), Partition: 0, Value: []byte("offsets")},
			})
			if err != nil {
				e.Fatalf("commit %d: %v", i, err)
			}
			want := map[topic.Partition]int64{part: int64(3*i + 2), {Topic: log.Name()}: int64(2*i + 1)}
			for p, o := range want {
				if res.Next[p] != o {
					e.Errorf("commit %d reached %d in %s, want %d", i, res.Next[p], p, o)
				}
			}
		}
		if got, want := e.committed(out, part.Number), []string{"a", "A", "b", "B", "c", "C"}; !slices.Equal(got, want) {
			e.Errorf("committed %q, want %q", got, want)
		}
	})
}

func TestCommitPartitionsByHand(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("out", 5, nil)
		s := e.session("a")
		var recs []Record
		for i := range 50 {
			key := fmt.Sprint("key", i)
			recs = append(recs, Record{Topic: d.Name(), Partition: -1, Key: []byte(key)})
		}
		for p := range int32(5) {
			recs = append(recs, Record{Topic: d.Name(), Partition: p, Key: []byte("by hand")})
		}
		for range 5 * spreadRun {
			recs = append(recs, Record{Topic: d.Name(), Partition: -1, Value: []byte("null key")})
		}
		if _, err := s.Commit(e.ctx, recs); err != nil {
			e.Fatal(err)
		}
		for p := range int32(5) {
			hand, null := 0, 0
			for _, m := range e.read(d, p) {
				switch {
				case m.Key == nil:
					null++
				case string(m.Key) == "by hand":
					hand++
				case topic.PartitionFor(m.Key, 5) != p:
					e.Errorf("key %q is in partition %d, want %d", m.Key, p, topic.PartitionFor(m.Key, 5))
				}
			}
			if hand != 1 {
				e.Errorf("partition %d holds %d records that name it, want 1", p, hand)
			}
			if null == 0 {
				e.Errorf("partition %d holds no record without a key; they are to be spread", p)
			}
		}
	})
}

func TestI3NothingSent(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("out", 1, nil)
		var ends atomic.Int32
		s := e.tapped("a", func(key int16) fate {
			if key == keyEndTxn {
				ends.Add(1)
			}
			return pass
		})
		if _, err := s.Commit(e.ctx, nil); err == nil || ends.Load() != 0 {
			e.Errorf("the commit of nothing answered %v after %d requests, want an error and none", err, ends.Load())
		}
		e.commit(s, d, "x")
		e.wantCommitted(d, "x")
	})
}

// A broker's "duplicate" comes without an offset, and is no proof of anything.
func TestI3AcknowledgedAndNotWritten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dev(t, func(e *env) {
			d := e.topic("out", 1, nil)
			s := e.session("a")
			e.commit(s, d, "before")
			const duplicateSequenceNumber = 46
			remove := e.dev.Fail(devFault(keyProduce, duplicateSequenceNumber))
			defer remove()
			_, err := s.Commit(e.ctx, to(d, "x"))
			if !errors.Is(err, ErrUnknownOutcome) && !errors.Is(err, ErrFenced) {
				e.Errorf("commit: %v, want ErrUnknownOutcome or ErrFenced", err)
			}
			e.wantCommitted(d, "before")
		})
	})
}

// No record was written, so that the library would turn the commit into an
// abort and report success.
func TestI3CommitTurnedIntoAbort(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("out", 1, map[string]string{"max.message.bytes": "2000"})
		s := e.session("a")
		e.commit(s, d, "before")
		e.setTopic(d, "max.message.bytes", "1000")
		_, err := s.Commit(e.ctx, to(d, strings.Repeat("x", 1500)))
		if re := (*RecordError)(nil); !errors.As(err, &re) || !errors.Is(err, ErrTooLarge) {
			e.Errorf("commit: %v, want a RecordError about size", err)
		}
		e.wantCommitted(d, "before")
		e.commit(s, d, "after")
		e.wantCommitted(d, "before", "after")
	})
}

// The end of a transaction is acted on and nobody hears of it.
func TestI3LostEndTxnReply(t *testing.T) {
	for _, times := range []int32{1, 1 << 30} {
		t.Run(fmt.Sprint(times), func(t *testing.T) {
			brokers(t, func(e *env) {
				d := e.topic("out", 1, nil)
				var armed, lost atomic.Int32
				s := e.tapped("a", func(key int16) fate {
					if key == keyEndTxn && armed.Load() > 0 && lost.Add(1) <= times {
						return loseReply
					}
					return pass
				})
				e.commit(s, d, "before")
				armed.Store(1)
				ctx, cancel := context.WithTimeout(e.ctx, 2*time.Second)
				defer cancel()
				_, err := s.Commit(ctx, to(d, "x"))
				if err != nil && !errors.Is(err, ErrUnknownOutcome) {
					e.Errorf("commit: %v, want nil or ErrUnknownOutcome", err)
				}
				if times > 1 && err == nil {
					e.Error("a commit that nobody confirmed was reported as committed")
				}
				s.Close()
				next := e.session("a")
				e.wantCommitted(d, "before", "x") // committed, once
				e.commit(next, d, "after")
				e.wantCommitted(d, "before", "x", "after")
			})
		})
	}
}

// The connection breaks at each request of a transaction in turn: before it is
// sent, and when its reply is on the way. What is committed is what was
// reported, or unknown and then read.
func TestI3BrokenAnywhere(t *testing.T) {
	for _, f := range []fate{breakOff, loseReply} {
		for _, key := range []int16{keyProduce, keyEndTxn} {
			t.Run(fmt.Sprintf("%s/%d", kmsg.NameForKey(key), f), func(t *testing.T) {
				brokers(t, func(e *env) {
					d := e.topic("out", 1, nil)
					var armed atomic.Bool
					s := e.tapped("a", func(k int16) fate {
						if k == key && armed.CompareAndSwap(true, false) {
							return f
						}
						return pass
					})
					e.commit(s, d, "before")
					armed.Store(true)
					_, err := s.Commit(e.ctx, to(d, "x"))
					e.session("a") // resolves what was open
					got := e.committed(d, 0)
					switch {
					case err == nil && slices.Equal(got, []string{"before", "x"}):
					case errors.Is(err, ErrUnknownOutcome) && (slices.Equal(got, []string{"before", "x"}) || slices.Equal(got, []string{"before"})):
					case errors.Is(err, ErrFenced) && slices.Equal(got, []string{"before"}):
					default:
						e.Errorf("commit answered %v, and %q is committed", err, got)
					}
				})
			})
		}
	}
}

func TestI3Fenced(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("out", 1, nil)
		first := e.session("a")
		e.commit(first, d, "1")
		second := e.session("a")
		_, err := first.Commit(e.ctx, to(d, "2"))
		if !errors.Is(err, ErrFenced) || errors.Is(err, ErrUnknownOutcome) {
			e.Errorf("commit of the first: %v, want ErrFenced", err)
		}
		e.commit(second, d, "3")
		e.wantCommitted(d, "1", "3")
		if _, err := first.Fence(e.ctx); !errors.Is(err, ErrFenced) {
			e.Errorf("a finished session fenced again: %v", err)
		}
	})
}

// Two incarnations overlap: of both attempts exactly one becomes visible.
func TestC02FencedBeforeEnd(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("out", 1, nil)
		reached, release := make(chan struct{}), make(chan struct{})
		var ends atomic.Int32
		first := e.tapped("a", func(key int16) fate {
			if key == keyEndTxn && ends.Add(1) == 1 {
				close(reached)
				<-release
			}
			return pass
		})
		result := make(chan error)
		go func() {
			_, err := first.Commit(e.ctx, to(d, "first"))
			result <- err
		}()
		<-reached
		open, err := e.admin().OpenTransactions(e.ctx, topic.Partition{Topic: d.Name()})
		if err != nil || len(open) != 1 || open[0].TransactionalID != e.name("a") || open[0].StartOffset != 0 {
			e.Errorf("open transactions: %+v, %v; want the one of %s at 0", open, err, e.name("a"))
		}
		second := e.session("a")
		e.commit(second, d, "second")
		close(release)
		if err := <-result; !errors.Is(err, ErrFenced) {
			e.Errorf("commit of the first: %v, want ErrFenced", err)
		}
		e.wantCommitted(d, "second")
	})
}

// The coordinator aborts a transaction that takes too long and raises the
// epoch. That is no end of the world: a new session goes on.
func TestC04TransactionTimedOut(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("out", 1, nil)
		reached, release := make(chan struct{}), make(chan struct{})
		var ends atomic.Int32
		s, err := NewSession(Config{Logger: e.config().Logger, Cluster: e.through(func(key int16) fate {
			if key == keyEndTxn && ends.Add(1) == 1 {
				close(reached)
				<-release
			}
			return pass
		})}, SessionConfig{TransactionalID: e.name("a"), TransactionTimeout: time.Second})
		if err != nil {
			e.Fatal(err)
		}
		e.Cleanup(s.Close)
		if _, err := s.Fence(e.ctx); err != nil {
			e.Fatal(err)
		}
		result := make(chan error)
		go func() {
			_, err := s.Commit(e.ctx, to(d, "late"))
			result <- err
		}()
		<-reached
		a := e.admin()
		if err := a.agree(e.ctx, func() (bool, error) {
			open, err := a.OpenTransactions(e.ctx, topic.Partition{Topic: d.Name()})
			return len(open) == 0, err
		}); err != nil {
			e.Fatalf("wait for the coordinator to abort: %v", err)
		}
		close(release)
		if err := <-result; !errors.Is(err, ErrFenced) {
			e.Errorf("commit after the coordinator's abort: %v, want ErrFenced", err)
		}
		e.commit(e.session("a"), d, "again")
		e.wantCommitted(d, "again")
	})
}

// Fencing ends the predecessor's transaction before it returns.
func TestC16FenceEndsOpenTransaction(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("log", 1, nil)
		reached, release := make(chan struct{}), make(chan struct{})
		defer close(release)
		var commits atomic.Int32
		first := e.tapped("a", func(key int16) fate {
			if key == keyEndTxn && commits.Add(1) == 2 {
				close(reached)
				<-release
			}
			return pass
		})
		e.commit(first, d, "done")
		go first.Commit(e.ctx, to(d, "open")) // its end never comes
		<-reached
		second := e.session("a")
		ends, err := e.admin().Offsets(e.ctx, StableEnd, topic.Partition{Topic: d.Name()})
		if err != nil {
			e.Fatal(err)
		}
		if got, want := ends[topic.Partition{Topic: d.Name()}], int64(4); got != want { // done, marker, open, marker
			e.Errorf("after fencing the stable end is %d, want %d", got, want)
		}
		e.wantCommitted(d, "done")
		e.commit(second, d, "next")
		e.wantCommitted(d, "done", "next")
	})
}

func TestI4RecordTooLarge(t *testing.T) {
	brokers(t, func(e *env) {
		const limit = 2000
		small, other := e.topic("small", 1, map[string]string{"max.message.bytes": fmt.Sprint(limit)}), e.topic("other", 1, nil)
		s := e.session("a")
		big := Record{Topic: small.Name(), Key: []byte("big"), Value: bytes.Repeat([]byte("x"), limit)}
		recs := slices.Concat(to(other, "o1"), to(small, "s1"), []Record{big}, to(small, "s2"), to(other, "o2"))
		_, err := s.Commit(e.ctx, recs)
		re := (*RecordError)(nil)
		if !errors.As(err, &re) || !errors.Is(err, ErrTooLarge) {
			e.Fatalf("commit: %v, want a RecordError about size", err)
		}
		if re.Index != 2 || re.Topic != small.Name() || re.Partition != 0 || string(re.Key) != "big" || re.Limit != limit || re.Size != wireSize(&big) {
			e.Errorf("blamed %+v, want record 2, %d bytes of %d", re, wireSize(&big), limit)
		}
		if Transient(err) {
			e.Error("the refusal of a record is said to be transient")
		}
		if _, err := s.Commit(e.ctx, slices.Delete(recs, 2, 3)); err != nil {
			e.Fatalf("commit of the neighbours: %v", err)
		}
		e.wantCommitted(small, "s1", "s2")
		e.wantCommitted(other, "o1", "o2")
	})
}

// The largest record that the topic takes is taken, and one byte more is not.
func TestC42ExactLimit(t *testing.T) {
	brokers(t, func(e *env) {
		for _, limit := range []int{1000, 1 << 20, 3 << 20} {
			d := e.topic(fmt.Sprint("limit", limit), 1, map[string]string{"max.message.bytes": fmt.Sprint(limit)})
			s := e.session(d.Name())
			r := Record{Topic: d.Name(), Key: []byte("k"), Value: make([]byte, limit)}
			r.Value = r.Value[:limit-(wireSize(&r)-limit)]
			for wireSize(&r) < limit {
				r.Value = r.Value[:len(r.Value)+1]
			}
			if _, err := s.Commit(e.ctx, []Record{r}); err != nil {
				e.Errorf("a record of %d bytes in a topic that takes %d: %v", wireSize(&r), limit, err)
			}
			r.Value = r.Value[:len(r.Value)+1]
			if _, err := s.Commit(e.ctx, []Record{r}); !errors.Is(err, ErrTooLarge) {
				e.Errorf("a record of %d bytes in a topic that takes %d: %v, want ErrTooLarge", wireSize(&r), limit, err)
			}
		}
	})
}

// A batch of many small records is not refused for its size, and a topic may
// change its mind.
func TestC42LimitChanges(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("out", 1, map[string]string{"max.message.bytes": "3000"})
		s := e.session("a")
		var many, want []string
		for i := range 20 {
			many = append(many, fmt.Sprint(i, strings.Repeat("x", 500)))
		}
		e.commit(s, d, many...)
		want = append(want, many...)
		e.setTopic(d, "max.message.bytes", "1000")
		e.commit(s, d, many...)
		want = append(want, many...)
		e.setTopic(d, "max.message.bytes", "10000")
		large := strings.Repeat("y", 5000)
		e.commit(s, d, large)
		e.wantCommitted(d, append(want, large)...)
	})
}

func TestUnknownTopic(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("out", 2, nil)
		s := e.session("a")
		missing := e.name("missing")
		for _, bad := range []Record{{Topic: missing, Key: []byte("k")}, {Topic: d.Name(), Partition: 2, Key: []byte("k")}} {
			_, err := s.Commit(e.ctx, append(to(d, "x"), bad))
			re := (*RecordError)(nil)
			if !errors.As(err, &re) || !errors.Is(err, ErrUnknownTopic) || re.Index != 1 || re.Topic != bad.Topic {
				e.Errorf("commit to %s-%d: %v, want a RecordError that names it", bad.Topic, bad.Partition, err)
			}
		}
		e.commit(s, d, "y")
		e.wantCommitted(d, "y")
	})
}

func TestUnauthorized(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dev(t, func(e *env) {
			d := e.topic("out", 1, nil)
			s := e.session("a")
			const topicAuthorizationFailed = 29
			remove := e.dev.Fail(devFault(keyProduce, topicAuthorizationFailed))
			_, err := s.Commit(e.ctx, to(d, "x"))
			remove()
			if re := (*RecordError)(nil); !errors.As(err, &re) || !errors.Is(err, ErrUnauthorized) {
				e.Errorf("commit: %v, want a RecordError that is ErrUnauthorized", err)
			}
			e.commit(s, d, "y")
			e.wantCommitted(d, "y")
		})
	})
}

// A cluster that is gone ends neither Commit nor Close by itself: ctx does.
func TestCommitIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dev(t, func(e *env) {
			d := e.topic("out", 1, nil)
			home := e.cluster
			e.cluster = e.dev.Host("far")
			s := e.session("a")
			e.commit(s, d, "1")
			for name, fault := range map[string]func(string){"cut": e.dev.Cut, "freeze": e.dev.Freeze} {
				fault("far")
				ctx, cancel := context.WithTimeout(e.ctx, time.Second)
				start := time.Now()
				_, err := s.Commit(ctx, to(d, "2"))
				cancel()
				if !errors.Is(err, ErrUnknownOutcome) && !errors.Is(err, context.DeadlineExceeded) {
					e.Errorf("%s: commit: %v, want ErrUnknownOutcome", name, err)
				}
				s.Close()
				if took := time.Since(start); took > 5*time.Second {
					e.Errorf("%s: Commit and Close took %v", name, took)
				}
				e.dev.Heal("far")
				e.dev.Thaw("far")
				s = e.session("a")
			}
			e.cluster = home
			e.wantCommitted(d, "1")
		})
	})
}

// Close ends a commit that waits for a cluster that does not answer.
func TestCloseEndsCommit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dev(t, func(e *env) {
			d := e.topic("out", 1, nil)
			for _, key := range []int16{keyProduce, keyEndTxn} {
				s := e.session("a")
				e.commit(s, d, "warm")
				seen := make(chan struct{}, 10)
				release := e.dev.Hold(devbroker.Fault{Key: key, Times: -1})
				e.dev.OnRequest(func(_ string, k int16) {
					if k == key {
						select {
						case seen <- struct{}{}:
						default:
						}
					}
				})
				result := make(chan error)
				go func() {
					_, err := s.Commit(e.ctx, to(d, "x"))
					result <- err
				}()
				<-seen
				start := time.Now()
				s.Close()
				if err := <-result; !errors.Is(err, ErrUnknownOutcome) {
					e.Errorf("commit of a session closed at its %s: %v, want ErrUnknownOutcome", kmsg.NameForKey(key), err)
				}
				if took := time.Since(start); took > time.Second {
					e.Errorf("Close took %v", took)
				}
				release()
			}
		})
	})
}

func TestFenceWaitsForCluster(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dev(t, func(e *env) {
			e.dev.Cut("far")
			e.cluster = e.dev.Host("far")
			s, err := NewSession(e.config(), SessionConfig{TransactionalID: "a"})
			if err != nil {
				e.Fatal(err)
			}
			defer s.Close()
			ctx, cancel := context.WithTimeout(e.ctx, 500*time.Millisecond)
			defer cancel()
			if _, err := s.Fence(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no route to host") {
				e.Errorf("fence without a network: %v, want the context's error and why", err)
			}
			if _, err := s.Commit(e.ctx, to(topic.Bytes("x").Description, "x")); err == nil {
				e.Error("a session that has fenced nobody commits")
			}
			time.AfterFunc(300*time.Millisecond, func() { e.dev.Heal("far") })
			if _, err := s.Fence(e.ctx); err != nil {
				e.Errorf("fence once the network is back: %v", err)
			}
		})
	})
}

func BenchmarkCommit(b *testing.B) {
	benchmark(b, func(e *env, d *topic.Description) {
		s := e.session("a")
		const n = 10000
		recs := make([]Record, n)
		for i := range recs {
			recs[i] = Record{Topic: d.Name(), Partition: -1, Key: fmt.Append(nil, i), Value: make([]byte, 100)}
		}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Commit(e.ctx, recs); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/record")
	})
}
