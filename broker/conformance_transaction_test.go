package broker_test

import (
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// txn is a transactional producer of which each request is sent by hand.
type txn struct {
	s     *suite
	w     *wire
	id    string
	pid   int64
	epoch int16
	seq   map[string]int32
}

func (s *suite) txn(id string) *txn {
	s.Helper()
	x := &txn{s: s, w: s.dial(), id: s.prefix + id, seq: make(map[string]int32)}
	x.init(60_000)
	return x
}

func (x *txn) init(timeout int32) {
	x.s.Helper()
	resp := x.s.initProducer(x.w, x.id, -1, -1, timeout)
	x.s.want("init", resp.ErrorCode, nil)
	x.pid, x.epoch = resp.ProducerID, resp.ProducerEpoch
	clear(x.seq)
}

// zombie is the producer as it is now, whatever the other one does after.
func (x *txn) zombie() *txn {
	z := *x
	z.w = x.s.dial()
	z.seq = make(map[string]int32)
	for k, v := range x.seq {
		z.seq[k] = v
	}
	return &z
}

// produce writes one value in the version of the protocol: from 12 on, the
// broker adds the partition to the transaction by itself.
func (x *txn) produce(version int16, topic string, value string) int16 {
	x.s.Helper()
	var code int16
	_ = again(x.s, func() int16 { // the caller looks at it
		code = x.s.produce(x.w, version, x.id, topic, [16]byte{}, 0, sent{pid: x.pid, epoch: x.epoch, seq: x.seq[topic], transactional: true, values: []string{value}}).ErrorCode
		return code
	})
	if code == 0 {
		x.seq[topic]++
	}
	return code
}

func (x *txn) add(topic string) int16 {
	x.s.Helper()
	var code int16
	_ = again(x.s, func() int16 {
		req := kmsg.NewPtrAddPartitionsToTxnRequest()
		req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch = 3, x.id, x.pid, x.epoch
		t := kmsg.NewAddPartitionsToTxnRequestTopic()
		t.Topic, t.Partitions = topic, []int32{0}
		req.Topics = append(req.Topics, t)
		code = query[*kmsg.AddPartitionsToTxnResponse](x.w, req).Topics[0].Partitions[0].ErrorCode
		return code
	})
	return code
}

func (x *txn) addGroup(group string) int16 {
	x.s.Helper()
	var code int16
	_ = again(x.s, func() int16 {
		req := kmsg.NewPtrAddOffsetsToTxnRequest()
		req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group = 3, x.id, x.pid, x.epoch, group
		code = query[*kmsg.AddOffsetsToTxnResponse](x.w, req).ErrorCode
		return code
	})
	return code
}

func (x *txn) commitOffset(version int16, group, topic string, offset int64) int16 {
	x.s.Helper()
	var code int16
	_ = again(x.s, func() int16 {
		req := kmsg.NewPtrTxnOffsetCommitRequest()
		req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group, req.Generation = version, x.id, x.pid, x.epoch, group, -1
		t := kmsg.NewTxnOffsetCommitRequestTopic()
		t.Topic = topic
		p := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		p.Offset = offset
		t.Partitions = append(t.Partitions, p)
		req.Topics = append(req.Topics, t)
		code = query[*kmsg.TxnOffsetCommitResponse](x.w, req).Topics[0].Partitions[0].ErrorCode
		return code
	})
	return code
}

// end ends the transaction in the version of the protocol: from 5 on, every end
// gives a new epoch, which the producer takes if it is told to.
func (x *txn) end(version int16, commit, take bool) int16 {
	x.s.Helper()
	var resp *kmsg.EndTxnResponse
	_ = again(x.s, func() int16 {
		req := kmsg.NewPtrEndTxnRequest()
		req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = version, x.id, x.pid, x.epoch, commit
		resp = query[*kmsg.EndTxnResponse](x.w, req)
		return resp.ErrorCode
	})
	if resp.ErrorCode == 0 && take && version >= 5 {
		x.pid, x.epoch = resp.ProducerID, resp.ProducerEpoch
		clear(x.seq)
	}
	return resp.ErrorCode
}

// settled waits until a reader of committed messages sees up to the end: Kafka
// writes the markers after it has answered.
func (s *suite) settled(topic string) {
	s.Helper()
	w := s.dial()
	for range 500 {
		if s.listOffsetAt(w, topic, 0, -1, 7, 1).Offset == s.listOffset(w, topic, 0, -1, 7).Offset {
			return
		}
		pause(s.ctx, 10_000_000)
	}
	s.Fatalf("%s has a transaction open", topic)
}

func (s *suite) wantRead(topic string, want ...string) {
	s.Helper()
	s.settled(topic)
	if got := s.read(topic, 0, 1); !slices.Equal(got, want) {
		s.Errorf("committed %q, want %q", got, want)
	}
}

func TestConformTransactionsV2(t *testing.T) {
	conform(t, func(s *suite) {
		name, _ := s.topic(1)
		x := s.txn("x")
		s.want("produce", x.produce(12, name, "a"), nil)
		w := s.dial()
		if got := s.listOffsetAt(w, name, 0, -1, 7, 1).Offset; got != 0 {
			s.Errorf("last stable offset %d with a transaction open, want 0", got)
		}
		if got := s.listOffset(w, name, 0, -1, 7).Offset; got != 1 {
			s.Errorf("high watermark %d, want 1", got)
		}
		old := x.zombie()
		s.want("commit", x.end(5, true, true), nil)
		if x.epoch != old.epoch+1 {
			s.Errorf("epoch %d after %d", x.epoch, old.epoch)
		}
		s.want("commit again", old.end(5, true, false), nil)
		s.want("the opposite", old.end(5, false, false), kerr.InvalidTxnState)
		s.want("produce of the old epoch", old.produce(12, name, "zombie"), kerr.InvalidProducerEpoch)
		s.want("commit of nothing", x.end(5, true, false), kerr.InvalidTxnState)
		s.want("produce", x.produce(12, name, "b"), nil)
		old = x.zombie()
		s.want("abort", x.end(5, false, true), nil)
		s.want("abort again", old.end(5, false, false), nil)
		s.want("the opposite", old.end(5, true, false), kerr.InvalidTxnState)
		s.want("abort of nothing", x.end(5, false, true), nil)
		s.want("produce", x.produce(12, name, "c"), nil)
		s.want("commit", x.end(5, true, true), nil)
		s.wantRead(name, "a", "c")
	})
}

func TestConformTransactionsV1(t *testing.T) {
	conform(t, func(s *suite) {
		name, _ := s.topic(1)
		x := s.txn("x")
		s.want("produce to a partition that is not in the transaction", x.produce(10, name, "a"), kerr.InvalidTxnState)
		s.want("add", x.add(name), nil)
		s.want("add again", x.add(name), nil)
		s.want("produce", x.produce(10, name, "a"), nil)
		s.want("commit", x.end(4, true, false), nil)
		s.want("commit again", x.end(4, true, false), nil)
		s.want("the opposite", x.end(4, false, false), kerr.InvalidTxnState)
		s.want("produce after the end", x.produce(10, name, "b"), kerr.InvalidTxnState)
		s.want("add", x.add(name), nil)
		s.want("produce", x.produce(10, name, "b"), nil)
		s.want("abort", x.end(4, false, false), nil)
		s.want("abort again", x.end(4, false, false), nil)
		s.want("the opposite", x.end(4, true, false), kerr.InvalidTxnState)
		s.wantRead(name, "a")
	})
}

func TestConformEmptyTransactionV1(t *testing.T) {
	conform(t, func(s *suite) {
		x := s.txn("x")
		s.want("commit of nothing", x.end(4, true, false), kerr.InvalidTxnState)
		s.want("abort of nothing", x.end(4, false, false), kerr.InvalidTxnState)
		x.pid += 1_000_000
		s.want("another producer", x.end(4, true, false), kerr.InvalidProducerIDMapping)
		x.id += "unknown"
		s.want("an unknown ID", x.end(4, true, false), kerr.InvalidProducerIDMapping)
	})
}

func TestConformFencing(t *testing.T) {
	conform(t, func(s *suite) {
		name, _ := s.topic(1)
		other, _ := s.topic(1)
		x := s.txn("x")
		s.want("produce", x.produce(12, name, "a"), nil)
		z := x.zombie()
		x.init(60_000) // aborts
		s.wantRead(name)
		s.want("a zombie's produce", z.produce(12, name, "z"), kerr.InvalidProducerEpoch)
		s.want("a zombie's produce to a partition that it never wrote to", z.produce(12, other, "z"), kerr.InvalidProducerEpoch)
		s.want("a zombie's add", z.add(other), kerr.ProducerFenced)
		s.want("a zombie's add of a group", z.addGroup(s.prefix+"g"), kerr.ProducerFenced)
		s.want("a zombie's commit", z.end(5, true, false), kerr.ProducerFenced)
		s.want("a zombie's abort", z.end(5, false, false), kerr.ProducerFenced)
		s.want("a zombie's commit, first version", z.end(4, true, false), kerr.ProducerFenced)
		s.want("a zombie's init", s.initProducer(s.dial(), z.id, z.pid, z.epoch, 60_000).ErrorCode, kerr.ProducerFenced)
		s.want("produce", x.produce(12, name, "b"), nil)
		s.want("commit", x.end(5, true, true), nil)
		s.wantRead(name, "b")
		s.wantRead(other)
	})
}

func TestConformInitProducer(t *testing.T) {
	conform(t, func(s *suite) {
		w := s.dial()
		s.want("a timeout that is too long", s.initProducer(w, s.prefix+"x", -1, -1, 1<<30).ErrorCode, kerr.InvalidTransactionTimeout)
		s.want("no timeout", s.initProducer(w, s.prefix+"x", -1, -1, 0).ErrorCode, kerr.InvalidTransactionTimeout)
		x := s.txn("y")
		resp := s.initProducer(w, x.id, x.pid, x.epoch, 60_000)
		s.want("a producer that goes on", resp.ErrorCode, nil)
		if resp.ProducerID != x.pid || resp.ProducerEpoch != x.epoch+1 {
			s.Errorf("producer %d epoch %d after %d, %d", resp.ProducerID, resp.ProducerEpoch, x.pid, x.epoch)
		}
		again := s.initProducer(w, x.id, x.pid, x.epoch, 60_000)
		s.want("the same again", again.ErrorCode, nil)
		if again.ProducerEpoch != resp.ProducerEpoch {
			s.Errorf("epoch %d after %d for the same request again", again.ProducerEpoch, resp.ProducerEpoch)
		}
	})
}

func (s *suite) offset(w *wire, group, topic string, stable bool) (offset int64, code int16) {
	s.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version, req.RequireStable = 8, stable
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = group
	t := kmsg.NewOffsetFetchRequestGroupTopic()
	t.Topic, t.Partitions = topic, []int32{0}
	g.Topics = append(g.Topics, t)
	req.Groups = append(req.Groups, g)
	_ = again(s, func() int16 {
		resp := query[*kmsg.OffsetFetchResponse](w, req)
		if code = resp.Groups[0].ErrorCode; code != 0 {
			return code
		}
		p := resp.Groups[0].Topics[0].Partitions[0]
		offset, code = p.Offset, p.ErrorCode
		return 0
	})
	return offset, code
}

func TestConformTransactionOffsets(t *testing.T) {
	conform(t, func(s *suite) {
		name, _ := s.topic(1)
		group := s.prefix + "g"
		w := s.dial()
		x := s.txn("x")
		wantOffset := func(what string, stable bool, want int64, wantErr error) {
			s.Helper()
			var got int64
			var code int16
			for range 500 { // Kafka settles after it has answered
				got, code = s.offset(w, group, name, stable)
				if code == 0 && got == want || wantErr != nil && kerr.ErrorForCode(code) == wantErr {
					return
				}
				pause(s.ctx, 10_000_000)
			}
			s.Errorf("%s: offset %d, %v, want %d, %v", what, got, kerr.ErrorForCode(code), want, wantErr)
		}
		s.want("offset", x.commitOffset(5, group, name, 5), nil)
		wantOffset("before the commit", false, -1, nil)
		wantOffset("before the commit, stable", true, -1, kerr.UnstableOffsetCommit)
		s.want("commit", x.end(5, true, true), nil)
		wantOffset("after the commit", true, 5, nil)
		s.want("offset", x.commitOffset(5, group, name, 9), nil)
		s.want("abort", x.end(5, false, true), nil)
		wantOffset("after the abort", true, 5, nil)
		z := x.zombie()
		s.want("add group", x.addGroup(group), nil)
		s.want("offset, first version", x.commitOffset(3, group, name, 7), nil)
		s.want("commit", x.end(5, true, true), nil)
		wantOffset("after the commit", true, 7, nil)
		s.want("a zombie's offset", z.commitOffset(5, group, name, 1), kerr.InvalidProducerEpoch)
	})
}

// Two transactions on one partition: the first one that is open holds back what
// the other has committed.
func TestConformConcurrentTransactions(t *testing.T) {
	conform(t, func(s *suite) {
		name, _ := s.topic(1)
		x, y := s.txn("x"), s.txn("y")
		s.want("produce", x.produce(12, name, "x1"), nil)
		s.want("produce", y.produce(12, name, "y1"), nil)
		s.want("commit", y.end(5, true, true), nil)
		w := s.dial()
		if got := s.listOffsetAt(w, name, 0, -1, 7, 1).Offset; got != 0 {
			s.Errorf("last stable offset %d, want 0", got)
		}
		s.want("produce", y.produce(12, name, "y2"), nil)
		s.want("abort", x.end(5, false, true), nil)
		s.want("commit", y.end(5, true, true), nil)
		s.wantRead(name, "y1", "y2")
	})
}

func TestConformTransactionTimeout(t *testing.T) {
	conform(t, func(s *suite) {
		name, _ := s.topic(1)
		x := s.txn("x")
		x.init(1000)
		s.want("produce", x.produce(12, name, "a"), nil)
		w := s.dial()
		for s.listOffsetAt(w, name, 0, -1, 7, 1).Offset == 0 {
			pause(s.ctx, 100_000_000) // Kafka looks every ten seconds
			if s.ctx.Err() != nil {
				s.Fatal("it never times out")
			}
		}
		s.wantRead(name)
		z := x.zombie()
		s.want("a late produce", z.produce(12, name, "b"), kerr.InvalidProducerEpoch)
		// Kafka 4.4 answers INVALID_TXN_STATE, which clients hold for fatal
		// though nothing is lost: KAFKA-20785. This broker does not.
		if err := kerr.ErrorForCode(z.end(5, true, false)); err != kerr.ProducerFenced && !(s.target != "broker" && err == kerr.InvalidTxnState) {
			s.Errorf("a late commit: %v, want PRODUCER_FENCED", err)
		}
		x.init(60_000)
		s.want("produce", x.produce(12, name, "c"), nil)
		s.want("commit", x.end(5, true, true), nil)
		s.wantRead(name, "c")
	})
}
