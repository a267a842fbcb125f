package consumer

import (
	"errors"
	"fmt"

	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// ErrFenced is what a shard's handles answer once the shard has moved to
// another process, was fenced by it, or has been stopped: nothing that is
// still done with them becomes visible.
var ErrFenced = store.ErrFenced

// ErrOutsideCall is what a publisher answers outside of the call that it was
// given to.
var ErrOutsideCall = errors.New("publisher used after the call that it was given to")

// ErrStateLost says that the group has consumed a shard's input before, and
// the changelog that held the shard's state is empty, trimmed or another one.
// Config.AcceptStateLoss starts such a shard from nothing.
var ErrStateLost = errors.New("the shard's state is lost")

// ErrNotHere says that a shard does not run in this process, or not for
// certain: its last heartbeat is too old.
var ErrNotHere = errors.New("the shard does not run here")

// transientError marks an error that is worth a retry.
type transientError struct{ error }

func (e transientError) Unwrap() error { return e.error }

// Transient marks err, an error of Consume or Flush, as one that may go away
// by itself, such as that of a service that does not answer. A message that
// fails with it is consumed again, after a back-off, whatever the policy for
// failures is.
func Transient(err error) error {
	if err == nil {
		return nil
	}
	return transientError{err}
}

// IsTransient says whether err was marked by [Transient].
func IsTransient(err error) bool {
	var t transientError
	return errors.As(err, &t)
}

// PanicError is the error of a message whose Consume, or of a transaction
// whose Flush, panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// MessageError says which message failed, and with what.
type MessageError struct {
	Shard     ShardID
	Topic     string
	Partition int32
	Offset    int64
	Key       []byte
	Err       error
}

func newMessageError(id ShardID, e topic.Envelope, err error) *MessageError {
	return &MessageError{Shard: id, Topic: e.TopicName(), Partition: e.Partition, Offset: e.Offset, Key: append([]byte(nil), e.Key...), Err: err}
}

func (e *MessageError) Error() string {
	return fmt.Sprintf("consume message %s-%d at offset %d with key %.60q: %v", e.Topic, e.Partition, e.Offset, e.Key, e.Err)
}

func (e *MessageError) Unwrap() error { return e.Err }
