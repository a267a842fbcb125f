package kafka

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlstream/pawl/internal/devbroker"
	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// errRefusal stands for a *RecordError in the tables.
var errRefusal = errors.New("a record is refused")

// Each answer of a broker has its class: taken in the end, refused and aborted
// for certain, fenced, or unknown.
func TestOutcomes(t *testing.T) {
	for _, tc := range []struct {
		key  kmsg.Key
		err  *kerr.Error
		want error // nil: committed
	}{
		{kmsg.Produce, kerr.NotLeaderForPartition, nil},
		{kmsg.Produce, kerr.LeaderNotAvailable, nil},
		{kmsg.Produce, kerr.FencedLeaderEpoch, nil},
		{kmsg.Produce, kerr.RequestTimedOut, nil},
		{kmsg.Produce, kerr.NetworkException, nil},
		{kmsg.Produce, kerr.NotEnoughReplicas, nil},
		{kmsg.Produce, kerr.NotEnoughReplicasAfterAppend, nil},
		{kmsg.Produce, kerr.KafkaStorageError, nil},
		{kmsg.Produce, kerr.CoordinatorLoadInProgress, nil},
		{kmsg.Produce, kerr.ConcurrentTransactions, nil},
		{kmsg.Produce, kerr.UnknownTopicOrPartition, nil}, // the cluster knows it
		{kmsg.Produce, kerr.UnknownTopicID, nil},

		{kmsg.Produce, kerr.TopicAuthorizationFailed, errRefusal},
		{kmsg.Produce, kerr.MessageTooLarge, errRefusal},
		{kmsg.Produce, kerr.RecordListTooLarge, errRefusal},
		{kmsg.Produce, kerr.InvalidRecord, errRefusal},
		{kmsg.Produce, kerr.InvalidTimestamp, ErrClock},
		{kmsg.Produce, kerr.InvalidTopicException, errRefusal},
		{kmsg.Produce, kerr.PolicyViolation, errRefusal},

		{kmsg.Produce, kerr.InvalidProducerEpoch, ErrFenced},
		{kmsg.Produce, kerr.ProducerFenced, ErrFenced},
		{kmsg.Produce, kerr.InvalidTxnState, ErrFenced},
		{kmsg.Produce, kerr.InvalidProducerIDMapping, ErrFenced},

		{kmsg.Produce, kerr.OutOfOrderSequenceNumber, ErrUnknownOutcome},
		{kmsg.Produce, kerr.DuplicateSequenceNumber, ErrUnknownOutcome},
		{kmsg.Produce, kerr.UnknownProducerID, ErrUnknownOutcome},
		{kmsg.Produce, kerr.UnknownServerError, ErrUnknownOutcome},
		{kmsg.Produce, kerr.InvalidRequiredAcks, ErrUnknownOutcome},

		{kmsg.EndTxn, kerr.ConcurrentTransactions, nil},
		{kmsg.EndTxn, kerr.NotCoordinator, nil},
		{kmsg.EndTxn, kerr.CoordinatorNotAvailable, nil},
		{kmsg.EndTxn, kerr.CoordinatorLoadInProgress, nil},

		{kmsg.EndTxn, kerr.InvalidProducerEpoch, ErrFenced},
		{kmsg.EndTxn, kerr.ProducerFenced, ErrFenced},
		{kmsg.EndTxn, kerr.InvalidTxnState, ErrFenced},
		{kmsg.EndTxn, kerr.InvalidProducerIDMapping, ErrFenced},

		{kmsg.EndTxn, kerr.UnknownServerError, ErrUnknownOutcome},
		{kmsg.EndTxn, kerr.TransactionalIDAuthorizationFailed, ErrUnknownOutcome},

		{kmsg.FindCoordinator, kerr.CoordinatorNotAvailable, nil},
	} {
		t.Run(fmt.Sprintf("%s/%s", tc.key.Name(), tc.err.Message), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				dev(t, func(e *env) {
					d := e.topic("out", 2, nil)
					s := e.session("a")
					e.commit(s, d, "before")
					s.forgetCoordinator()
					times := 2
					if tc.want != nil {
						times = 1 // the abort that follows is answered
					}
					remove := e.dev.Fail(devbroker.Fault{Key: int16(tc.key), Code: tc.err.Code, Times: times})
					begun := time.Now()
					_, err := s.Commit(e.ctx, to(d, "x"))
					took := time.Since(begun)
					remove()
					var re *RecordError
					want := []string{"before", "after"}
					switch {
					case tc.want == nil:
						want = []string{"before", "x", "after"}
						if err != nil {
							t.Errorf("commit: %v", err)
						}
						if limit := time.Second; virtual && took > limit {
							t.Errorf("it took %v, want less than %v", took, limit)
						}
					case tc.want == errRefusal:
						if !errors.As(err, &re) || re.Topic != d.Name() || re.Index != 0 || !errors.Is(err, tc.err) {
							t.Errorf("commit: %v, want a RecordError with %v", err, tc.err)
						}
					case tc.want == ErrClock: // aborted, and no record is guilty
						if errors.As(err, &re) || !errors.Is(err, ErrClock) || !errors.Is(err, tc.err) {
							t.Errorf("commit: %v, want %v with %v", err, tc.want, tc.err)
						}
					default:
						if !errors.Is(err, tc.want) || !errors.Is(err, tc.err) {
							t.Errorf("commit: %v, want %v with %v", err, tc.want, tc.err)
						}
						if _, again := s.Commit(e.ctx, to(d, "y")); !errors.Is(again, tc.want) {
							t.Errorf("the next commit of the session: %v, want %v", again, tc.want)
						}
						s = e.session("a")
					}
					e.commit(s, d, "after")
					e.wantCommitted(d, want...)
				})
			})
		})
	}
}

// What is refused for ever, in a way that may pass, is waited for as long as
// the transaction may take.
func TestWriteEndsWithTheTransactionsTimeout(t *testing.T) {
	if !virtual { // it takes ten seconds
		return
	}
	bubble(t, func(t *testing.T) {
		dev(t, func(e *env) {
			d := e.topic("out", 1, nil)
			for _, code := range []int16{kerr.NotEnoughReplicas.Code, kerr.ConcurrentTransactions.Code} {
				s := e.session("a")
				remove := e.dev.Fail(devFault(keyProduce, code))
				begun := time.Now()
				_, err := s.Commit(e.ctx, to(d, "x"))
				remove()
				if took := time.Since(begun); !errors.Is(err, ErrUnknownOutcome) || took < 10*time.Second || took > 11*time.Second {
					t.Errorf("commit: %v after %v, want ErrUnknownOutcome after 10 s", err, took)
				}
			}
			e.commit(e.session("a"), d, "after")
			e.wantCommitted(d, "after")
		})
	})
}

// A coordinator that has moved is found, and what it then says is no proof if
// the first may have acted.
func TestI3RefusedAfterTheCoordinatorMoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dev(t, func(e *env) {
			d := e.topic("out", 1, nil)
			s := e.session("a")
			e.commit(s, d, "before")
			defer e.dev.Fail(devbroker.Fault{Key: keyEndTxn, Code: kerr.NotCoordinator.Code})()
			defer e.dev.Fail(devbroker.Fault{Key: keyEndTxn, Nth: 2, Code: kerr.ProducerFenced.Code})()
			if _, err := s.Commit(e.ctx, to(d, "x")); !errors.Is(err, ErrUnknownOutcome) || errors.Is(err, ErrFenced) {
				t.Errorf("commit: %v, want ErrUnknownOutcome alone", err)
			}
		})
	})
}

// An answer that is lost is asked for again: the transaction is committed once
// and known to be, and the session goes on.
func TestI3LostAnswersAreAskedForAgain(t *testing.T) {
	for _, key := range []int16{keyProduce, keyEndTxn} {
		for _, f := range []fate{loseReply, breakOff} {
			t.Run(fmt.Sprint(kmsg.NameForKey(key), f), func(t *testing.T) {
				brokers(t, func(e *env) {
					d := e.topic("out", 1, nil)
					var armed atomic.Bool
					s := e.tapped("a", func(k int16) fate {
						if k == key && armed.CompareAndSwap(true, false) {
							return f
						}
						return pass
					})
					for i := range 3 {
						armed.Store(true)
						e.commit(s, d, fmt.Sprint(i))
					}
					e.decided(topic.Partition{Topic: d.Name()})
					e.wantCommitted(d, "0", "1", "2")
				})
			})
		}
	}
}

// decided waits until no transaction is open on a partition: Kafka says that one
// is committed before its markers are written.
func (e *env) decided(p topic.Partition) {
	e.Helper()
	a := e.admin()
	for {
		end, err := a.Offsets(e.ctx, End, p)
		if err != nil {
			e.Fatal(err)
		}
		stable, err := a.Offsets(e.ctx, StableEnd, p)
		if err != nil {
			e.Fatal(err)
		}
		if stable[p] >= end[p] {
			return
		}
	}
}

// Each broker tells the repeated end of a transaction from every other end.
func TestI3RepeatedEndTxn(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("out", 1, nil)
		ask := func(s *Session, id ProducerIdentity) (ProducerIdentity, error) {
			req := &endTxnRequest{EndTxnRequest: kmsg.NewEndTxnRequest(), max: endTxnVersion}
			req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = s.id, id.ID, id.Epoch, true
			for {
				resp, err := s.endOnce(e.ctx, req)
				if errors.Is(err, kerr.ConcurrentTransactions) { // the markers are being written
					if err := pause(e.ctx, nil, retryPauseMin); err != nil {
						return id, err
					}
					continue
				}
				if err != nil {
					return id, err
				}
				return ProducerIdentity{resp.ProducerID, resp.ProducerEpoch}, nil
			}
		}
		s := e.session("a")
		first := s.identity
		e.commit(s, d, "1")
		if id, err := ask(s, first); err != nil || id != s.identity {
			e.Errorf("the end of a committed transaction again: %v, %v, want %v", id, err, s.identity)
		}
		second := s.identity
		e.commit(s, d, "2") // the repetition has changed nothing
		if _, err := ask(s, first); err == nil {
			e.Error("the end of the transaction before the last is answered with a success")
		}
		third := s.identity
		e.aborted(s, d, "3")
		if _, err := ask(s, third); err == nil {
			e.Error("the commit of an aborted transaction is answered with a success")
		}
		// A transaction that another's fence has aborted, after one that was
		// committed.
		e.commit(s, d, "4")
		fourth := s.identity
		if err := s.encode(e.ctx, to(d, "5")); err != nil {
			e.Fatal(err)
		}
		if failed, err := s.write(e.ctx); err != nil || len(failed) > 0 {
			e.Fatal(failed, err)
		}
		next := e.session("a")
		if _, err := ask(s, fourth); err == nil {
			e.Error("the commit of a transaction that a fence has aborted is answered with a success")
		}
		e.commit(next, d, "6")
		for _, id := range []ProducerIdentity{second, fourth} {
			if _, err := ask(s, id); err == nil {
				e.Errorf("the end of an old transaction, of %v, is answered with a success", id)
			}
		}
		e.wantCommitted(d, "1", "2", "4", "6")
	})
}

// A transaction of many batches keeps the order within each partition, and
// holds each record once, also when answers are lost on the way.
func TestManyBatches(t *testing.T) {
	brokers(t, func(e *env) {
		d, log := e.topic("out", 3, nil), e.topic("log", 1, nil)
		var produced atomic.Int32
		s := e.tapped("a", func(k int16) fate {
			if k == keyProduce {
				switch produced.Add(1) % 4 {
				case 2:
					return loseReply
				case 3:
					return breakOff
				}
			}
			return pass
		})
		value := make([]byte, 100<<10)
		want := make(map[int32][]string)
		var recs []Record
		for i := range 60 {
			key := fmt.Sprint("key", i)
			p := topic.PartitionFor([]byte(key), 3)
			want[p] = append(want[p], key)
			recs = append(recs, Record{Topic: d.Name(), Partition: -1, Key: []byte(key), Value: value}, Record{Topic: log.Name(), Key: fmt.Append(nil, i)})
		}
		res, err := s.Commit(e.ctx, recs)
		if err != nil {
			e.Fatal(err)
		}
		for p := range int32(3) {
			var got []string
			for _, m := range e.read(d, p) {
				got = append(got, string(m.Key))
			}
			if !slices.Equal(got, want[p]) {
				e.Errorf("partition %d holds %q, want %q", p, got, want[p])
			}
			if next := res.Next[topic.Partition{Topic: d.Name(), Number: p}]; next != int64(len(want[p])) {
				e.Errorf("partition %d is reached up to %d, want %d", p, next, len(want[p]))
			}
		}
		if got := len(e.read(log, 0)); got != 60 {
			e.Errorf("the log holds %d records, want 60", got)
		}
	})
}

// Where a cluster speaks only the first version of the transaction protocol,
// partitions are added to each transaction and the epoch stays.
func TestFirstProtocol(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("out", 2, nil)
		s := e.session("a")
		s.implicit = false
		first := s.identity
		for i := range 3 {
			e.commit(s, d, fmt.Sprint("a", i), fmt.Sprint("b", i))
		}
		if s.identity != first {
			e.Errorf("identity %v, want %v still", s.identity, first)
		}
		if e.dev != nil {
			remove := e.dev.Fail(devbroker.Fault{Key: keyProduce, Code: kerr.TopicAuthorizationFailed.Code})
			_, err := s.Commit(e.ctx, to(d, "x"))
			remove()
			if re := (*RecordError)(nil); !errors.As(err, &re) {
				e.Errorf("commit that is refused: %v, want a RecordError", err)
			}
			remove = e.dev.Fail(devbroker.Fault{Key: int16(kmsg.AddPartitionsToTxn), Code: kerr.ConcurrentTransactions.Code, Times: 2})
			e.commit(s, d, "c")
			remove()
		} else {
			e.commit(s, d, "c")
		}
		e.session("a")
		if _, err := s.Commit(e.ctx, to(d, "y")); !errors.Is(err, ErrFenced) {
			e.Errorf("commit after a fence: %v, want ErrFenced", err)
		}
		e.wantCommitted(d, "a0", "b0", "a1", "b1", "a2", "b2", "c")
	})
}

// Where the epoch stays, a batch whose answer was lost must not give its
// sequence to the next transaction's, which would be taken for it: whatever
// else refuses the transaction finishes the session.
func TestFirstProtocolRefusedInDoubt(t *testing.T) {
	for _, why := range []string{"gone", "refused later"} {
		t.Run(why, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				dev(t, func(e *env) {
					d, other := e.topic("out", 1, nil), e.topic("other", 1, nil)
					a := e.admin()
					produced := 0
					armed := false
					s := e.tapped("a", func(k int16) fate {
						if k != keyProduce || !armed {
							return pass
						}
						produced++
						if produced > 1 {
							return pass
						}
						if why == "gone" {
							if err := a.DeleteTopics(e.ctx, other.Name()); err != nil {
								t.Error(err)
							}
						} else {
							e.dev.Fail(devbroker.Fault{Key: keyProduce, Nth: 2, Code: kerr.TopicAuthorizationFailed.Code})
						}
						return loseReply
					})
					s.implicit = false
					e.commit(s, d, "before")
					e.commit(s, other, "before")
					armed = true
					if _, err := s.Commit(e.ctx, append(to(d, "lost"), to(other, "lost")...)); !errors.Is(err, ErrUnknownOutcome) {
						t.Errorf("commit: %v, want ErrUnknownOutcome", err)
						if _, err := s.Commit(e.ctx, to(d, "acknowledged")); err == nil {
							e.wantCommitted(d, "before", "acknowledged")
						}
						return
					}
					e.commit(e.session("a"), d, "after")
					e.wantCommitted(d, "before", "after")
				})
			})
		})
	}
}

// A topic that was deleted and created again is another one.
func TestRecreatedTopic(t *testing.T) {
	brokers(t, func(e *env) {
		d, other := e.topic("out", 1, nil), e.topic("other", 1, nil)
		s := e.session("a")
		e.commit(s, d, "before")
		a := e.admin()
		if err := a.DeleteTopics(e.ctx, d.Name()); err != nil {
			e.Fatal(err)
		}
		if err := a.agree(e.ctx, func() (bool, error) {
			created, err := a.CreateTopic(e.ctx, TopicSpec{Name: d.Name(), Partitions: 1})
			return created, err
		}); err != nil {
			e.Fatal(err)
		}
		for range 2 {
			_, err := s.Commit(e.ctx, to(d, "x"))
			if re := (*RecordError)(nil); !errors.As(err, &re) || !errors.Is(err, ErrUnknownTopic) {
				e.Errorf("commit to the topic created again: %v, want a RecordError about an unknown topic", err)
			}
		}
		e.commit(s, other, "y")
		e.wantCommitted(d)
		e.commit(e.session("a"), d, "after")
		e.wantCommitted(d, "after")
	})
}

// A topic that grows is written to where its new partitions say.
func TestTopicGrows(t *testing.T) {
	if !virtual { // it takes half a minute
		return
	}
	bubble(t, func(t *testing.T) {
		dev(t, func(e *env) {
			d := e.topic("out", 1, nil)
			s := e.session("a")
			e.commit(s, d, "before")
			if err := e.admin().CreatePartitions(e.ctx, d.Name(), 5); err != nil {
				t.Fatal(err)
			}
			time.Sleep(metadataMaxAge) // virtual time
			key := []byte("k")
			p := topic.PartitionFor(key, 5)
			if p == 0 {
				t.Fatal("the key does not move")
			}
			if _, err := s.Commit(e.ctx, []Record{{Topic: d.Name(), Partition: -1, Key: key, Value: []byte("after")}}); err != nil {
				t.Fatal(err)
			}
			if got := e.committed(d, p); !slices.Equal(got, []string{"after"}) {
				t.Errorf("partition %d holds %q, want what was written after it was added", p, got)
			}
		})
	})
}
