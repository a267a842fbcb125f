package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// SessionConfig says what a session is for. Zero fields mean the defaults
// named beside them.
type SessionConfig struct {
	TransactionalID    string
	TransactionTimeout time.Duration // 10 s

	// Topics are those that will be consumed. A topic that is not named is looked
	// up when Consume is called for it, which may take a second more.
	Topics []string

	FetchMaxBytes          int // of one fetch: 16 MiB
	FetchMaxPartitionBytes int // of one partition in a fetch: 1 MiB
	MaxBatchBytes          int // of one record batch: what the topic takes
}

// ProducerIdentity is what the coordinator gave a fenced session.
type ProducerIdentity struct {
	ID    int64
	Epoch int16
}

// CommitResult says where the records of a transaction went.
type CommitResult struct {
	Next map[topic.Partition]int64 // per partition that was written: the offset after its last record
}

// Session is the producer and reader of one shard, for one incarnation:
//
//	NewSession ── Fence ── Commit … Commit ── Close
//	                 └───── Consume, Poll ──────┘
//
// Fence and Commit are called by one goroutine at a time, and so is Poll; the
// two may run beside each other. An error that matches ErrFenced or
// ErrUnknownOutcome finishes the session: every later Commit answers it again.
type Session struct {
	reading
	id     string // transactional ID
	cancel context.CancelFunc
	limits limits
	astray sync.Map // see byHand
	slab   slab
	ends   endTxns

	reached  map[topic.Partition]int64 // the offset after the last record of ours
	identity ProducerIdentity
	fenced   bool
	finished error
}

// NewSession returns a session that holds nothing yet. It connects to no
// broker.
func NewSession(cfg Config, sc SessionConfig) (*Session, error) {
	cfg = cfg.withDefaults()
	if sc.TransactionalID == "" {
		return nil, errors.New("session: no transactional ID")
	}
	if sc.TransactionTimeout == 0 {
		sc.TransactionTimeout = 10 * time.Second
	}
	s := &Session{id: sc.TransactionalID, reached: make(map[topic.Partition]int64)}
	s.limits.most = sc.MaxBatchBytes
	s.limits.mu.topics = make(map[string]int)
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	opts := append(readOptions(sc.Topics, sc.FetchMaxBytes, sc.FetchMaxPartitionBytes),
		kgo.WithPools(&fetchedRecords),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.TransactionalID(sc.TransactionalID),
		kgo.TransactionTimeout(sc.TransactionTimeout),
		kgo.WithHooks(&s.ends),
	)
	cl, err := cfg.newClient(ctx, append(opts, produceOptions(&s.limits, &s.astray)...)...)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("session %s: %w", sc.TransactionalID, err)
	}
	s.reading.init(cl)
	return s, nil
}

func produceOptions(l *limits, astray *sync.Map) []kgo.Opt {
	return []kgo.Opt{
		kgo.RecordPartitioner(byHand{astray}),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerBatchMaxBytesFn(l.batch),
		// Producing never waits: the caller bounds what a transaction holds.
		kgo.MaxBufferedRecords(1 << 30),
		// Full batches leave at once, the others at Flush.
		kgo.ProducerLinger(10 * time.Millisecond),
	}
}

// fenceBackoff is the pause between two tries to fence while the cluster
// can't be reached.
const fenceBackoff = 100 * time.Millisecond

// Fence takes the transactional ID over. It returns once whoever had it can
// write no more and their last transaction is wholly committed or aborted.
// While the cluster can't be reached it tries again, until ctx ends.
func (s *Session) Fence(ctx context.Context) (ProducerIdentity, error) {
	if s.finished != nil {
		return ProducerIdentity{}, s.finished
	}
	if s.fenced {
		return s.identity, nil
	}
	for {
		id, epoch, err := s.cl.ProducerID(ctx)
		switch {
		case err == nil:
			s.identity, s.fenced = ProducerIdentity{ID: id, Epoch: epoch}, true
			return s.identity, nil
		case ctx.Err() != nil:
			if !errors.Is(err, ctx.Err()) {
				err = fmt.Errorf("%w (last: %w)", ctx.Err(), err)
			}
			if last := s.ends.unreached.Load(); last != nil {
				err = fmt.Errorf("%w (%w)", err, *last)
			}
			return ProducerIdentity{}, fmt.Errorf("fence %s: %w", s.id, err)
		case errors.Is(err, kgo.ErrClientClosed):
			return ProducerIdentity{}, fmt.Errorf("fence %s: %w", s.id, ErrClosed)
		case !Transient(err):
			return ProducerIdentity{}, s.finish(fmt.Errorf("fence %s: %w", s.id, classed(err)))
		}
		select {
		case <-ctx.Done():
		case <-time.After(fenceBackoff):
		}
	}
}

// errStaleLimit says that records were refused for a limit that no longer
// holds, none of them being too large by itself.
var errStaleLimit = errors.New("the topic's limit has changed")

// Commit writes the records as one transaction. They are committed, all of
// them, if and only if it returns nil.
//
//   - *RecordError: a record was refused. The transaction is aborted, and the
//     session may commit something else. A topic that was deleted and created
//     again is an unknown one to the session: it is another topic.
//   - ErrFenced: another incarnation holds the transactional ID, or the
//     coordinator ended the transaction by itself. Nothing of it is visible.
//   - ErrUnknownOutcome: anything else that happened after the first byte. To
//     find out, fence with a new session and read.
//
// Any other error means that nothing was sent. The records' slices must not
// change until Commit returns, and after an error not until Close returns.
func (s *Session) Commit(ctx context.Context, recs []Record) (CommitResult, error) {
	switch {
	case s.finished != nil:
		return CommitResult{}, s.finished
	case !s.fenced:
		return CommitResult{}, fmt.Errorf("commit %s: not fenced yet", s.id)
	case len(recs) == 0:
		// The library reports the commit of nothing as a success without
		// telling anyone, which would prove nothing.
		return CommitResult{}, fmt.Errorf("commit %s: no records", s.id)
	}
	res, err := s.attempt(ctx, recs)
	if errors.Is(err, errStaleLimit) {
		res, err = s.attempt(ctx, recs)
	}
	if err != nil {
		err = fmt.Errorf("commit %s: %w", s.id, err)
	}
	return res, err
}

func (s *Session) attempt(ctx context.Context, recs []Record) (CommitResult, error) {
	if err := s.limits.learn(ctx, s.cl, s.limits.unknown(recs)...); err != nil {
		return CommitResult{}, classed(err)
	}
	invariants.Crash("produce-before")
	if err := s.cl.BeginTransaction(); err != nil {
		return CommitResult{}, s.lost("begin", err, isFence(err))
	}
	s.ends.start()
	s.slab.fill(recs)
	promise := s.slab.promise
	for i := range s.slab.recs {
		s.cl.Produce(ctx, &s.slab.recs[i], promise)
	}
	if err := s.cl.Flush(ctx); err != nil {
		return CommitResult{}, s.lost("write", err, false)
	}
	select {
	case <-s.slab.done:
	case <-ctx.Done():
		return CommitResult{}, s.lost("write", ctx.Err(), false)
	}
	invariants.Crash("produce-after")
	if failed := s.slab.failures(); len(failed) > 0 {
		return CommitResult{}, s.refused(ctx, recs, failed)
	}

	res, err := s.reach()
	if err != nil {
		return CommitResult{}, s.lost("write", err, false)
	}

	// The library may take a new identity by itself, which aborts what was
	// written under the old one and would commit only the rest.
	id, epoch, err := s.cl.ProducerID(ctx)
	if err != nil || id != s.identity.ID || epoch != s.identity.Epoch {
		if err == nil {
			err = fmt.Errorf("the producer became %d/%d from %d/%d within the transaction", id, epoch, s.identity.ID, s.identity.Epoch)
		}
		return CommitResult{}, s.lost("write", err, isFence(err))
	}

	s.ends.committing.Store(true)
	err = s.cl.EndTransaction(ctx, kgo.TryCommit)
	s.ends.committing.Store(false)
	if err != nil {
		return CommitResult{}, s.lost("end", err, isFence(err) && s.ends.allRefused())
	}
	if s.ends.answered.Load() == 0 {
		return CommitResult{}, s.lost("end", errors.New("nobody was asked to end the transaction"), false)
	}
	invariants.Crash("endtxn-replied")
	s.slab.drop()
	s.renew(ctx)
	return res, nil
}

// reach looks at the offset that each record was given. Each is beyond all that
// the session was given for the partition before: anything else is no proof of
// having been written. (The library takes "duplicate", which comes without an
// offset, for a success.)
func (s *Session) reach() (CommitResult, error) {
	next := make(map[topic.Partition]int64)
	// Records of a topic mostly come together, and its partitions in any order.
	var name string
	var ofTopic []int64 // by partition: the offset after the last record; -1 before the first
	flush := func() {
		for n, o := range ofTopic {
			if o >= 0 {
				next[topic.Partition{Topic: name, Number: int32(n)}] = o
			}
		}
		ofTopic = ofTopic[:0]
	}
	for i := range s.slab.recs {
		r := &s.slab.recs[i]
		if r.Topic != name {
			flush()
			name = r.Topic
		}
		for len(ofTopic) <= int(r.Partition) {
			ofTopic = append(ofTopic, -1)
		}
		least := ofTopic[r.Partition]
		if least < 0 {
			p := topic.Partition{Topic: name, Number: r.Partition}
			least = max(next[p], s.reached[p])
		}
		if r.Offset < least {
			return CommitResult{}, fmt.Errorf("a record to %s-%d was acknowledged with offset %d, and those before reached %d", name, r.Partition, r.Offset, least)
		}
		ofTopic[r.Partition] = r.Offset + 1
	}
	flush()
	maps.Copy(s.reached, next)
	return CommitResult{Next: next}, nil
}

// renew takes note of the epoch that the end of a transaction gave. The
// transaction is over whatever comes of it.
func (s *Session) renew(ctx context.Context) {
	id, epoch, err := s.cl.ProducerID(ctx)
	if err != nil {
		s.finish(fmt.Errorf("%w: identity after the transaction: %w", ErrUnknownOutcome, err))
		return
	}
	s.identity = ProducerIdentity{ID: id, Epoch: epoch}
}

// refused ends a transaction of which records failed, every promise being in.
func (s *Session) refused(ctx context.Context, recs []Record, failed []failure) error {
	for i := range failed {
		if _, ok := s.astray.LoadAndDelete(failed[i].rec); ok {
			failed[i].err = fmt.Errorf("%w: %w", ErrUnknownTopic, errNoSuchPartition)
		}
	}
	for _, f := range failed {
		if isFence(f.err) {
			return s.lost("write", f.err, true)
		}
	}
	for _, f := range failed {
		if !isRefusal(f.err) {
			return s.lost("write", f.err, false)
		}
	}

	before := s.identity
	wrote := s.ends.produced.Load() > 0
	if err := s.cl.EndTransaction(ctx, kgo.TryAbort); err != nil {
		return s.lost("abort", err, isFence(err))
	}
	if wrote && s.ends.answered.Load() == 0 {
		return s.lost("abort", fmt.Errorf("nobody was asked to abort the transaction, after: %w", failed[0].err), false)
	}
	s.renew(ctx)
	if s.finished != nil {
		return s.finished
	}
	return s.blame(ctx, recs, failed, before != s.identity)
}

// blame names the record that a transaction was refused for. bumped says that
// the epoch was raised since, so that sequences may begin anew.
func (s *Session) blame(ctx context.Context, recs []Record, failed []failure, bumped bool) error {
	at, guilty := -1, failure{}
	for _, f := range failed {
		if i := s.slab.index(f.rec); at < 0 || i < at {
			at, guilty = i, f
		}
	}
	e := &RecordError{Index: at, Topic: recs[at].Topic, Partition: guilty.rec.Partition, Key: recs[at].Key, Size: wireSize(&recs[at]), Err: classed(guilty.err)}
	if !isTooLarge(guilty.err) {
		return e
	}

	// A batch is refused as a whole, and the topic may have changed its mind
	// since it was asked: only a record that is too large by itself is guilty.
	old := make(map[string]int)
	for _, f := range failed {
		old[f.rec.Topic] = s.limits.of(f.rec.Topic)
	}
	for name := range old {
		if err := s.limits.learn(ctx, s.cl, name); err != nil {
			e.Err = fmt.Errorf("%w (%w)", e.Err, err)
			return e
		}
	}
	for i := range recs {
		limit, ok := old[recs[i].Topic]
		if ok {
			limit = int(s.limits.batch(recs[i].Topic)) - 4
		}
		if size := wireSize(&recs[i]); ok && size > limit {
			e.Index, e.Topic, e.Partition, e.Key, e.Size, e.Limit = i, recs[i].Topic, s.slab.recs[i].Partition, recs[i].Key, size, limit
			break
		}
	}
	stale := false
	for name, limit := range old {
		if limit != s.limits.of(name) && bumped {
			s.cl.PurgeTopicsFromProducing(name) // so that the new limit is asked for
			stale = true
		}
	}
	if e.Limit == 0 && stale {
		return errStaleLimit
	}
	if e.Limit == 0 {
		e.Limit = int(s.limits.batch(e.Topic)) - 4
	}
	return e
}

// lost finishes the session at a step of a transaction.
func (s *Session) lost(step string, err error, fenced bool) error {
	class := ErrUnknownOutcome
	if fenced {
		class = ErrFenced
	}
	return s.finish(fmt.Errorf("%s: %w: %w", step, class, err))
}

func (s *Session) finish(err error) error {
	if s.finished == nil {
		s.finished = err
	}
	return err
}

// Close ends the session, at once: a transaction that is open is left to
// whoever fences next, or to its timeout. Calls that still run return.
func (s *Session) Close() {
	s.cancel()
	s.cl.Close()
}

// endTxns watches what the library sends to end a transaction, since its
// answer does not say whether it asked anybody, and whether it gets through.
type endTxns struct {
	committing     atomic.Bool
	produced       atomic.Int64 // produce requests written in this transaction
	sent, answered atomic.Int64 // requests to end it, and answers
	moved          atomic.Int64 // searches for the coordinator since the end began

	unreached atomic.Pointer[error] // why the last try to connect failed, if it did
}

// allRefused says whether the last answer, a refusal, holds for every request
// to end the transaction. It does not if one of them got no answer, or one
// after which the library looked for the coordinator anew: either may have
// been acted on. What remains is CONCURRENT_TRANSACTIONS, which is a refusal.
func (e *endTxns) allRefused() bool {
	return e.sent.Load() == e.answered.Load() && e.moved.Load() == 0
}

func (e *endTxns) start() {
	e.produced.Store(0)
	e.sent.Store(0)
	e.answered.Store(0)
	e.moved.Store(0)
}

// OnBrokerConnect is called by the library after each try to connect.
func (e *endTxns) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err == nil {
		e.unreached.Store(nil)
		return
	}
	e.unreached.Store(&err)
}

// OnBrokerWrite is called by the library after each write of a request.
func (e *endTxns) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	switch kmsg.Key(key) {
	case kmsg.Produce:
		e.produced.Add(1)
	case kmsg.FindCoordinator:
		if e.sent.Load() > 0 {
			e.moved.Add(1)
		}
	case kmsg.EndTxn:
		e.sent.Add(1)
		if err == nil && e.committing.Load() {
			invariants.Crash("endtxn-sent")
		}
	}
}

// OnBrokerRead is called by the library after each read of an answer.
func (e *endTxns) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if kmsg.Key(key) == kmsg.EndTxn && err == nil {
		e.answered.Add(1)
	}
}

var (
	_ kgo.HookBrokerConnect = (*endTxns)(nil)
	_ kgo.HookBrokerWrite   = (*endTxns)(nil)
	_ kgo.HookBrokerRead    = (*endTxns)(nil)
)
