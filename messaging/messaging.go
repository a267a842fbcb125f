package messaging

import (
	"context"
	"time"

	"github.com/pawlstream/pawl/topic"
)

// Client makes consumers and producers of the applications that it was
// configured with. See [NewClient].
type Client interface {
	// NewConsumer returns a consumer that has not started, of the
	// application's topic. Its group is <appName>.<consumerName>.
	NewConsumer(appName, consumerName string) (Consumer, error)

	// NewProducer returns a producer to the application's topic. It is also a
	// CloseableProducer.
	NewProducer(appName string) (Producer, error)
}

// Consumer gives messages through a channel. Each is to be acked or nacked,
// from any goroutine and in any order.
type Consumer interface {
	// Start starts the consumer. A second call is an error, and so is one
	// after Stop.
	Start() error

	// Stop closes Messages, waits a bounded time until the messages that are
	// out are settled, commits, and leaves the group. What was not read from
	// the channel stays unsettled, and comes again elsewhere. A second call,
	// and one before Start, do nothing.
	Stop()

	// Messages returns the channel, always the same.
	Messages() <-chan Message
}

// Inspector says how a consumer is, and pauses it. Each *Worker is one, and each
// Consumer of a Client that NewClient has made:
//
//	if err := consumer.(messaging.Inspector).Health(); err != nil {
//
// Its methods may be called at any time, also before the start and after the end.
type Inspector interface {
	// Stats returns how the consumer is in this process.
	Stats() Stats

	// Health returns nil when the consumer does what it is there for, and
	// otherwise an error that says everything that keeps it from it: see
	// [Worker.Health].
	Health() error

	// Pause keeps messages from being given to handlers, or to the channel, until
	// Resume. Those that are out are settled as before, and partitions stay with
	// this process.
	Pause()
	Resume()
}

// Message is one message, to be settled once. Those of this package are also a
// [Delivery].
type Message interface {
	// Value returns the value, the same slice at each call. It may be written
	// to: a retry and a dead letter carry the bytes as they were read. It is
	// nil for a null value.
	Value() []byte

	Partition() int32
	Offset() int64

	// Ack settles the message. It returns once the window has it; the commit
	// follows within Config.CommitInterval. It returns ErrFenced after the
	// partition was revoked, and ErrSettled if the message was settled before.
	Ack() error

	// Nack has the message retried, or set aside once its attempts are used
	// up. It returns once that is confirmed written, or with an error, upon
	// which the message is unsettled; writing is then tried again until it
	// succeeds or the partition is revoked. Calling Nack again waits for that.
	Nack() error
}

// Delivery is a message on its way through a handler, with all that came with
// it. A retried message has the topic, partition, offset and timestamp of the
// first time.
type Delivery interface {
	Message

	Topic() string
	Key() []byte             // nil for a null key, which is not the same as an empty one
	Headers() []topic.Header // the message's own, in order; Pawl's are not among them
	Timestamp() time.Time    // as the producer or the broker stamped it; may be absurd

	// Attempt is 1 when the message is handled for the first time, and one
	// more after each failure. An attempt that ended with the process, the
	// partition's revocation or a stop is not one that failed. Failures in place
	// are counted by the process that they happen in, and end with it: what comes
	// again elsewhere has the attempt with which it came here.
	Attempt() int

	// Context ends when the partition is revoked or the consumer stops. With
	// OpenTelemetry's API it names the span that the message was published in,
	// as a remote one; or, where Config.TracerProvider is set, the one that was
	// started for this call of the handler, which is its child.
	Context() context.Context
}

// Producer publishes to an application's topic.
type Producer interface {
	// Publish publishes a message and returns once every replica in sync has
	// it. It takes a value of the type of the application's codec, []byte,
	// string, a *topic.Envelope, or a Message, which are passed on whole: key,
	// value and headers. The span of ctx goes along in the headers of W3C trace
	// context, unless the message has such. Errors have a class: ErrTooLarge, ErrUnknownTopic,
	// ErrUnauthorized, ErrFenced, or that of the context: a broker that can't be
	// reached is waited for until ctx ends, whose deadline is thus what bounds the
	// call, and whether the message was written is unknown then.
	Publish(ctx context.Context, message any) error
}

// CloseableProducer is a producer to be closed at the end.
type CloseableProducer interface {
	Producer

	// Close waits, for a bounded time, for calls of Publish that still run,
	// and ends the producer.
	Close() error
}

// AckManager turns acks in any order into the movement of one level, up to
// which every item is settled. Ids are read in rising order and may have gaps
// of any size. It is safe for concurrent use.
//
// Before the first read both levels are −1. The first read of id n sets the ack
// level to n−1, unless SetAckLevel has set a higher one.
type AckManager interface {
	// ReadItem takes note of an item that was read. It returns ErrNotAbove,
	// and changes nothing, for an id at or below the read level, and
	// ErrWindowFull when as many items are unsettled, or settled above one
	// that is not, as the window holds.
	ReadItem(id int64) error

	GetReadLevel() int64

	// SetReadLevel raises the read level. One that is lower is refused: the
	// level is unchanged.
	SetReadLevel(readLevel int64)

	// AckItem settles an item and returns the ack level: the highest id up to
	// which every item that was read is settled. An id that was not read, or
	// is settled already, changes nothing.
	AckItem(id int64) (ackLevel int64)

	GetAckLevel() int64

	// SetAckLevel settles everything up to ackLevel, and raises the read level
	// to it where that is lower. One below the ack level is refused.
	SetAckLevel(ackLevel int64)

	// GetBacklogCount is how many items were read and are not settled.
	GetBacklogCount() int64
}
