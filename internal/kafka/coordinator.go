package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// coordinator finds the broker that coordinates the session's transactions.
func (s *Session) coordinator(ctx context.Context) (*kgo.Broker, error) {
	if s.coordinates < 0 {
		req := kmsg.NewPtrFindCoordinatorRequest()
		req.CoordinatorType = 1 // of transactions
		req.CoordinatorKey = s.id
		req.CoordinatorKeys = []string{s.id}
		resp, err := req.RequestWith(ctx, s.cl)
		if err != nil {
			return nil, fmt.Errorf("find the coordinator: %w", err)
		}
		node, code := resp.NodeID, resp.ErrorCode
		if len(resp.Coordinators) > 0 {
			node, code = resp.Coordinators[0].NodeID, resp.Coordinators[0].ErrorCode
		}
		if err := kerr.ErrorForCode(code); err != nil {
			return nil, fmt.Errorf("find the coordinator: %w", err)
		}
		s.coordinates = node
	}
	return s.cl.Broker(int(s.coordinates)), nil
}

// forgetCoordinator makes the next request look for the coordinator anew.
func (s *Session) forgetCoordinator() { s.coordinates = -1 }

// hasMoved says whether an answer means that another broker coordinates, or
// will.
func hasMoved(err error) bool {
	for _, e := range []error{kerr.NotCoordinator, kerr.CoordinatorNotAvailable, kerr.CoordinatorLoadInProgress} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// initProducer asks the coordinator, once, for an identity.
func (s *Session) initProducer(ctx context.Context) (ProducerIdentity, error) {
	var none ProducerIdentity
	co, err := s.coordinator(ctx)
	if err != nil {
		return none, err
	}
	if err := s.learnProtocol(ctx, co); err != nil {
		s.forgetCoordinator()
		return none, err
	}
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID = &s.id
	req.TransactionTimeoutMillis = int32(s.timeout.Milliseconds())
	req.ProducerID, req.ProducerEpoch = -1, -1
	kresp, err := co.Request(ctx, req)
	if err != nil {
		s.forgetCoordinator()
		return none, err
	}
	resp := kresp.(*kmsg.InitProducerIDResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		if hasMoved(err) {
			s.forgetCoordinator()
		}
		return none, err
	}
	return ProducerIdentity{ID: resp.ProducerID, Epoch: resp.ProducerEpoch}, nil
}

// learnProtocol finds out whether the cluster speaks the second version of the
// transaction protocol: a produce request adds its partitions to the
// transaction, and each end raises the epoch, so that nothing late can join
// the next transaction.
func (s *Session) learnProtocol(ctx context.Context, co *kgo.Broker) error {
	if s.learned {
		return nil
	}
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "pawl", "1"
	kresp, err := co.Request(ctx, req)
	if err != nil {
		return err
	}
	resp := kresp.(*kmsg.ApiVersionsResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return err
	}
	var level, endTxn, produce int16
	for _, f := range resp.FinalizedFeatures {
		if f.Name == "transaction.version" {
			level = f.MaxVersionLevel
		}
	}
	for _, k := range resp.ApiKeys {
		switch kmsg.Key(k.ApiKey) {
		case kmsg.EndTxn:
			endTxn = k.MaxVersion
		case kmsg.Produce:
			produce = k.MaxVersion
		}
	}
	s.implicit = level >= 2 && endTxn >= endTxnVersion && produce >= produceByName
	s.learned = true
	return nil
}

// addPartitions adds the partitions that are written to to the transaction, as
// the first version of the protocol wants it.
func (s *Session) addPartitions(ctx context.Context) ([]refusedBatch, error) {
	req := &addPartitionsRequest{kmsg.NewAddPartitionsToTxnRequest()}
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = s.id, s.identity.ID, s.identity.Epoch
	at := make(map[string]int)
	for _, t := range s.out.targets {
		i, ok := at[t.route.name]
		if !ok {
			i = len(req.Topics)
			at[t.route.name] = i
			rt := kmsg.NewAddPartitionsToTxnRequestTopic()
			rt.Topic = t.route.name
			req.Topics = append(req.Topics, rt)
		}
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, t.number)
	}
	begun := time.Now()
	for {
		failed, err := s.add(ctx, req)
		switch {
		case err == nil:
			return failed, nil
		case isFence(err):
			return nil, s.lost("begin", err, true)
		case ctx.Err() != nil || s.life.Err() != nil || !Transient(err) && !errors.Is(err, kerr.ConcurrentTransactions), time.Since(begun) > s.timeout:
			return nil, s.lost("begin", err, false)
		}
		if hasMoved(err) {
			s.forgetCoordinator()
		}
		if err := pause(ctx, s.life.Done(), retryPauseMin); err != nil {
			return nil, s.lost("begin", err, false)
		}
	}
}

// addPartitionsRequest is one of clients: later versions are for brokers.
type addPartitionsRequest struct{ kmsg.AddPartitionsToTxnRequest }

func (*addPartitionsRequest) MaxVersion() int16 { return 3 }

func (s *Session) add(ctx context.Context, req *addPartitionsRequest) (failed []refusedBatch, err error) {
	co, err := s.coordinator(ctx)
	if err != nil {
		return nil, err
	}
	kresp, err := co.Request(ctx, req)
	if err != nil {
		s.forgetCoordinator()
		return nil, err
	}
	for _, rt := range kresp.(*kmsg.AddPartitionsToTxnResponse).Topics {
		for _, rp := range rt.Partitions {
			switch e := kerr.ErrorForCode(rp.ErrorCode); {
			case e == nil, errors.Is(e, kerr.OperationNotAttempted): // for another's error
			case isRefusal(e):
				for _, t := range s.out.targets {
					if t.route.name == rt.Topic && t.number == rp.Partition {
						failed = append(failed, refusedBatch{target: t, err: e})
					}
				}
			default:
				err = e
			}
		}
	}
	if err != nil {
		return nil, err
	}
	s.added = s.added || len(failed) == 0 // all of them or none
	return failed, nil
}

// endTxnRequest is one of no later version than max.
type endTxnRequest struct {
	kmsg.EndTxnRequest
	max int16
}

func (r *endTxnRequest) MaxVersion() int16 { return r.max }

// endTxnVersion is the first version of EndTxn that raises the epoch, since
// Apache Kafka 4.0. It is only for clusters that speak the second version of the
// transaction protocol.
const endTxnVersion = 5

// end ends the transaction: as it was told to if it returns nil, and otherwise
// nobody knows, or, where the error matches ErrFenced, it is aborted.
//
// An answer that is lost is asked for again, where the epoch is raised by every
// end: a coordinator that has committed the transaction of this epoch says so,
// and one that has aborted it, or given the ID to somebody else, refuses,
// since in each case the epoch says what was last. But a refusal after a lost
// answer is no proof: others may have gone on since the commit.
func (s *Session) end(ctx context.Context, commit bool) error {
	step := "end"
	if !commit {
		step = "abort"
	}
	req := &endTxnRequest{EndTxnRequest: kmsg.NewEndTxnRequest(), max: endTxnVersion}
	if !s.implicit {
		req.max = endTxnVersion - 1
	}
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = s.id, s.identity.ID, s.identity.Epoch, commit
	doubtful := false // an earlier request may have been acted upon
	wait := retryPauseMin
	for {
		s.wire.ending(commit)
		resp, err := s.endOnce(ctx, req)
		sent := s.wire.ended()
		switch {
		case err == nil:
			s.renew(resp)
			return nil
		case errors.Is(err, kerr.ConcurrentTransactions):
			// Nothing was done, or it is being done.
		case hasMoved(err):
			// What the old coordinator wrote, the new one may know.
			doubtful = doubtful || sent
			s.forgetCoordinator()
		case isBroker(err):
			return s.lost(step, err, isFence(err) && !doubtful)
		case sent && !s.implicit:
			return s.lost(step, err, false)
		default:
			doubtful = doubtful || sent
			s.forgetCoordinator()
		}
		if ctx.Err() != nil || s.life.Err() != nil || isUnauthorized(err) {
			return s.lost(step, err, false)
		}
		if err := pause(ctx, s.life.Done(), wait); err != nil {
			return s.lost(step, err, false)
		}
		wait = min(2*wait, retryPauseMax)
	}
}

func (s *Session) endOnce(ctx context.Context, req *endTxnRequest) (*kmsg.EndTxnResponse, error) {
	co, err := s.coordinator(ctx)
	if err != nil {
		return nil, err
	}
	kresp, err := co.Request(ctx, req)
	if err != nil {
		return nil, err
	}
	resp := kresp.(*kmsg.EndTxnResponse)
	return resp, kerr.ErrorForCode(resp.ErrorCode)
}

// isBroker says whether an error is a broker's answer.
func isBroker(err error) bool {
	var answer *kerr.Error
	return errors.As(err, &answer)
}

// renew takes the identity that the end of a transaction gave. The transaction
// is over whatever comes of it.
func (s *Session) renew(resp *kmsg.EndTxnResponse) {
	switch {
	case !s.implicit:
	case resp.ProducerID < 0:
		s.finish(fmt.Errorf("%w: the end of the transaction gave no identity for the next", ErrUnknownOutcome))
	default:
		s.identity = ProducerIdentity{ID: resp.ProducerID, Epoch: resp.ProducerEpoch}
	}
}

// wire watches what the library sends to end a transaction, since its errors do
// not say whether anything was sent, and whether it gets through at all.
type wire struct {
	committing atomic.Bool
	sent       atomic.Bool // a request to end the transaction, or a part of one

	unreached atomic.Pointer[error] // why the last try to connect failed, if it did
}

// ending tells that a request to end the transaction comes.
func (w *wire) ending(commit bool) {
	w.sent.Store(false)
	w.committing.Store(commit)
}

// ended tells that it is over, and says whether any of it was sent.
func (w *wire) ended() (sent bool) {
	w.committing.Store(false)
	return w.sent.Load()
}

// OnBrokerConnect is called by the library after each try to connect.
func (w *wire) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err == nil {
		w.unreached.Store(nil)
		return
	}
	w.unreached.Store(&err)
}

// OnBrokerWrite is called by the library after each write of a request.
func (w *wire) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, n int, _, _ time.Duration, err error) {
	if kmsg.Key(key) != kmsg.EndTxn {
		return
	}
	if n > 0 || err == nil {
		w.sent.Store(true)
	}
	if err == nil && w.committing.Load() {
		invariants.Crash("endtxn-sent")
	}
}

var (
	_ kgo.HookBrokerConnect = (*wire)(nil)
	_ kgo.HookBrokerWrite   = (*wire)(nil)
)
