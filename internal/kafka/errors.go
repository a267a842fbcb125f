package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	// ErrFenced says that the session's transactional ID is held by another
	// incarnation, or that the coordinator ended the session's transaction and
	// raised its epoch. The session is finished; nothing of the transaction
	// that met it is or becomes visible.
	ErrFenced = errors.New("fenced: the transactional ID has a newer epoch")

	// ErrUnknownOutcome says that nobody can tell from here whether the
	// transaction was committed. The session is finished: fence with a new
	// one, which resolves the transaction, and read what was committed.
	ErrUnknownOutcome = errors.New("outcome of the transaction unknown")

	// ErrUnknownTopic says that a topic, or a partition of it, does not exist.
	ErrUnknownTopic = errors.New("unknown topic or partition")

	// ErrUnauthorized says that the cluster does not let this user do it.
	ErrUnauthorized = errors.New("not authorized")

	// ErrOldBroker says that the cluster is older than Apache Kafka 4.0 or
	// has not finalized transaction.version 2.
	ErrOldBroker = errors.New("the cluster is too old: want Apache Kafka 4.0 or later with transaction.version 2")

	// ErrInstanceFenced says that another process joined the group with the
	// same group instance ID.
	ErrInstanceFenced = errors.New("another process has joined the group as this instance")

	// ErrRebalancing says that the coordinator knows the member and waits for
	// it to join again.
	ErrRebalancing = errors.New("the group is rebalancing")

	// ErrNotMember says that the coordinator does not count this process, or
	// not with this generation, among the members of the group.
	ErrNotMember = errors.New("not a member of the group's current generation")

	// ErrClock says that the broker refuses the time at which a record was
	// written: the clock of this machine, or the broker's, is wrong by more than
	// the topic allows.
	ErrClock = errors.New("the broker refuses this machine's time: one of the two clocks is wrong")

	// ErrClosed says that the session, member or client was closed.
	ErrClosed = errors.New("closed")
)

// RecordError says which record of a transaction was refused and why. The
// transaction has been aborted.
type RecordError struct {
	Index     int // in the slice that was given to Commit or Publish
	Topic     string
	Partition int32
	Key       []byte
	Size      int   // of the record on its own, in bytes on the wire
	Limit     int   // the topic's largest batch, when Err is about size; else 0
	Err       error // matches ErrTooLarge, ErrUnknownTopic or ErrUnauthorized where it is one
}

// ErrTooLarge is matched by a RecordError about size.
var ErrTooLarge = errors.New("message too large")

func (e *RecordError) Error() string {
	to := e.Topic
	if e.Partition >= 0 { // else it was refused before it had one
		to = fmt.Sprintf("%s-%d", e.Topic, e.Partition)
	}
	s := fmt.Sprintf("write message to %s with key %.60q", to, e.Key)
	if e.Limit > 0 {
		return fmt.Sprintf("%s: %d bytes, and the topic takes %d (max.message.bytes): %v", s, e.Size, e.Limit, e.Err)
	}
	return fmt.Sprintf("%s: %v", s, e.Err)
}

func (e *RecordError) Unwrap() error { return e.Err }

// OffsetRangeError says that a partition does not hold the offset that was to
// be read: below Earliest it was deleted, above End it was never written.
type OffsetRangeError struct {
	Partition     topic.Partition
	Offset        int64
	Earliest, End int64
}

func (e *OffsetRangeError) Error() string {
	return fmt.Sprintf("read %s at offset %d: out of range, the partition holds %d to %d", e.Partition, e.Offset, e.Earliest, e.End)
}

// PartitionError says which partition could not be read and why.
type PartitionError struct {
	Partition topic.Partition
	Err       error
}

func (e *PartitionError) Error() string { return fmt.Sprintf("read %s: %v", e.Partition, e.Err) }
func (e *PartitionError) Unwrap() error { return e.Err }

// ConnectError says which broker could not be reached, how it was tried and
// what is likely wrong. It holds no secret.
type ConnectError struct {
	Broker string // the address that was tried
	Tried  string // how: plain or TLS, and which SASL mechanism
	Likely string // what is likely wrong, in words
	Err    error

	kind ConnectKind
}

// ConnectKind is what is likely wrong with a connection, where it is one of a
// few things.
type ConnectKind int

// What may be wrong with a connection.
const (
	Unreached      ConnectKind = iota // or something else
	PlainPort                         // TLS was tried
	TLSPort                           // and TLS was not tried
	BadCertificate                    // one side does not accept the other's
	NoSASL                            // SASL was tried
	WantsSASL                         // and SASL was not tried
	BadMechanism
	BadLogin
)

// Kind returns what is likely wrong.
func (e *ConnectError) Kind() ConnectKind { return e.kind }

func (e *ConnectError) Error() string {
	return fmt.Sprintf("connect to broker %s (%s): %s: %v", e.Broker, e.Tried, e.Likely, e.Err)
}

func (e *ConnectError) Unwrap() error { return e.Err }

// Transient says whether the same call may succeed later with nothing changed
// by anyone: a broker that can't be reached or is busy, a leader that moved, a
// deadline; for an unknown outcome, the same call on a new session. A fenced
// session, an unknown topic, a refused record or a refused user are not.
func Transient(err error) bool {
	switch {
	case err == nil, errors.Is(err, ErrFenced), errors.Is(err, ErrUnknownTopic), errors.Is(err, ErrUnauthorized),
		errors.Is(err, ErrOldBroker), errors.Is(err, ErrInstanceFenced), errors.Is(err, ErrClosed), errors.Is(err, context.Canceled):
		return false
	case errors.Is(err, ErrRebalancing), errors.Is(err, ErrUnknownOutcome), errors.Is(err, context.DeadlineExceeded):
		return true
	}
	if re := (*RecordError)(nil); errors.As(err, &re) {
		return false
	}
	if ke := (*kerr.Error)(nil); errors.As(err, &ke) {
		return ke.Retriable || ke == kerr.UnknownServerError
	}
	if ne := net.Error(nil); errors.As(err, &ne) {
		return true
	}
	return errors.Is(err, kgo.ErrRecordTimeout) || errors.Is(err, kgo.ErrRecordRetries) || isConnectionLoss(err)
}
