package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// SessionConfig says what a session is for. Zero fields mean the defaults
// named beside them.
type SessionConfig struct {
	TransactionalID    string
	TransactionTimeout time.Duration // 10 s

	// Topics are those that will be consumed. They are looked up together, when
	// Consume is called for the first of them.
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
//
// The library keeps the connections. What is said to whom is this package's own:
// about a transaction all in outgoing.go (what is written), write.go (to the
// partitions' leaders) and coordinator.go (begin and end), and for reading in
// leaders.go and fetcher.go.
type Session struct {
	reading
	id      string // transactional ID
	timeout time.Duration
	life    context.Context // ends with Close
	cancel  context.CancelFunc
	wire    wire

	limits limits
	routes routes
	out    outgoing

	coordinates int32 // the coordinator; -1: to be found
	learned     bool  // what follows is
	implicit    bool  // the cluster speaks the second version of the transaction protocol
	added       bool  // otherwise: partitions were added to the open transaction

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
	s := &Session{id: sc.TransactionalID, timeout: sc.TransactionTimeout, coordinates: -1}
	s.limits.most = sc.MaxBatchBytes
	s.limits.mu.topics = make(map[string]int)
	s.routes.topics = make(map[string]*route)
	s.life, s.cancel = context.WithCancel(context.Background())
	cl, err := cfg.newClient(s.life, kgo.AlwaysRetryEOF(), kgo.WithHooks(&s.wire))
	if err != nil {
		s.cancel()
		return nil, fmt.Errorf("session %s: %w", sc.TransactionalID, err)
	}
	s.reading.init(s.life, cl, fetchConfig{committed: true, maxBytes: sc.FetchMaxBytes, maxPartitionBytes: sc.FetchMaxPartitionBytes, log: cfg.Logger}, sc.Topics)
	return s, nil
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
	for wait := concurrentPause; ; {
		id, err := s.initProducer(ctx)
		switch {
		case err == nil:
			s.identity, s.fenced = id, true
			return s.identity, nil
		case ctx.Err() != nil:
			if !errors.Is(err, ctx.Err()) {
				err = fmt.Errorf("%w (last: %w)", ctx.Err(), err)
			}
			if last := s.wire.unreached.Load(); last != nil {
				err = fmt.Errorf("%w (%w)", err, *last)
			}
			return ProducerIdentity{}, fmt.Errorf("fence %s: %w", s.id, err)
		case errors.Is(err, kgo.ErrClientClosed):
			return ProducerIdentity{}, fmt.Errorf("fence %s: %w", s.id, ErrClosed)
		case errors.Is(err, kerr.ConcurrentTransactions):
			// The last owner's transaction is being ended.
			wait = min(2*wait, fenceBackoff)
		case !Transient(err):
			return ProducerIdentity{}, s.finish(fmt.Errorf("fence %s: %w", s.id, classed(err)))
		default:
			wait = fenceBackoff
		}
		if err := pause(ctx, s.life.Done(), wait); errors.Is(err, ErrClosed) {
			return ProducerIdentity{}, fmt.Errorf("fence %s: %w", s.id, err)
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
//   - ErrClock: the broker refuses the time of records that were given none. The
//     transaction is aborted, and the session may commit something else.
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
		// A transaction that holds nothing is none to the coordinator, and its
		// commit would prove nothing.
		return CommitResult{}, fmt.Errorf("commit %s: no records", s.id)
	}
	res, err := s.attempt(ctx, recs)
	if errors.Is(err, errStaleLimit) {
		res, err = s.attempt(ctx, recs)
	}
	s.out.clear()
	if err != nil {
		err = fmt.Errorf("commit %s: %w", s.id, err)
	}
	return res, err
}

func (s *Session) attempt(ctx context.Context, recs []Record) (CommitResult, error) {
	if err := s.encode(ctx, recs); err != nil {
		return CommitResult{}, err
	}
	invariants.Crash("produce-before")
	s.added = false
	failed, err := s.write(ctx)
	if err != nil {
		return CommitResult{}, err
	}
	invariants.Crash("produce-after")
	if len(failed) > 0 {
		return CommitResult{}, s.refused(ctx, recs, failed)
	}
	if err := s.end(ctx, true); err != nil {
		return CommitResult{}, err
	}
	invariants.Crash("endtxn-replied")
	return CommitResult{Next: s.out.reached()}, nil
}

// encode makes the records ready to be sent. Nothing is sent yet.
func (s *Session) encode(ctx context.Context, recs []Record) error {
	err := errNotReady
	if !s.routes.old() {
		err = s.out.build(recs, &s.routes, false)
	}
	if errors.Is(err, errNotReady) {
		if err := s.routes.prepare(ctx, s.cl, &s.limits, recs); err != nil {
			return classed(err)
		}
		err = s.out.build(recs, &s.routes, true)
	}
	refusal := (*RecordError)(nil)
	if !errors.As(err, &refusal) || !errors.Is(err, ErrTooLarge) {
		return err
	}
	// The topic may have changed its mind since it was asked.
	if err := s.routes.measure(ctx, s.cl, &s.limits, refusal.Topic); err != nil {
		return fmt.Errorf("%w (%w)", refusal, err)
	}
	return s.out.build(recs, &s.routes, true)
}

// refused ends a transaction of which batches were refused.
func (s *Session) refused(ctx context.Context, recs []Record, failed []refusedBatch) error {
	if s.implicit || s.added {
		if err := s.end(ctx, false); err != nil {
			return err
		}
	}
	if s.finished != nil {
		return s.finished
	}
	return s.blame(ctx, recs, failed)
}

// blame names the record that a transaction was refused for.
func (s *Session) blame(ctx context.Context, recs []Record, failed []refusedBatch) error {
	at, guilty := -1, refusedBatch{}
	for _, f := range failed {
		if i := s.out.index(f.target, f.batch, f.record); at < 0 || i < at {
			at, guilty = i, f
		}
	}
	r := &recs[at]
	e := &RecordError{Index: at, Topic: r.Topic, Partition: guilty.target.number, Key: r.Key, Size: wireSize(r), Err: classed(guilty.err)}
	if errors.Is(guilty.err, kerr.InvalidTimestamp) && r.Timestamp.IsZero() {
		return fmt.Errorf("%w: %w: its timestamp is this machine's time of day, %s; see the topic's message.timestamp.after.max.ms", ErrClock, e.Err, time.Now().UTC().Format(time.RFC3339)) // no record is guilty
	}
	if !isTooLarge(guilty.err) {
		return e
	}

	// A batch is refused as a whole, and the topic has changed its mind since
	// it was asked: only a record that is too large by itself is guilty.
	name, old := r.Topic, s.limits.of(r.Topic)
	if err := s.routes.measure(ctx, s.cl, &s.limits, name); err != nil {
		e.Err = fmt.Errorf("%w (%w)", e.Err, err)
		return e
	}
	e.Limit = s.limits.largest(name)
	for i := range recs {
		r := &recs[i]
		if size := wireSize(r); r.Topic == name && size > e.Limit {
			e.Index, e.Partition, e.Key, e.Size = i, s.out.targets[s.out.order[i]].number, r.Key, size
			return e
		}
	}
	if s.limits.of(name) != old {
		return errStaleLimit
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
	s.shut()
}
