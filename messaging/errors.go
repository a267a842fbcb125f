package messaging

import (
	"errors"
	"fmt"

	"github.com/pawlstream/pawl/internal/kafka"
)

var (
	// ErrFenced is what a delivery answers once its partition was revoked or
	// its consumer has stopped: the message belongs to whoever has the
	// partition now. A producer answers it when another one has taken over.
	ErrFenced = kafka.ErrFenced

	// ErrSettled says that a delivery was settled before. The first settlement
	// holds.
	ErrSettled = errors.New("the message is settled already")

	// ErrWindowFull says that a window holds as many items as it may.
	ErrWindowFull = errors.New("the window is full")

	// ErrNotAbove says that an item is not above those that were read before.
	ErrNotAbove = errors.New("the item is not above the read level")

	// ErrClosed says that the consumer or producer is closed.
	ErrClosed = errors.New("closed")

	// ErrStarted says that the consumer was started before.
	ErrStarted = errors.New("started already")

	// ErrTooLarge, ErrUnknownTopic and ErrUnauthorized are classes of errors
	// of a Publish.
	ErrTooLarge     = kafka.ErrTooLarge
	ErrUnknownTopic = kafka.ErrUnknownTopic
	ErrUnauthorized = kafka.ErrUnauthorized

	// ErrRevoked and ErrStopping are the causes with which a handler's context
	// ends.
	ErrRevoked  = errors.New("the partition was revoked")
	ErrStopping = errors.New("the consumer stops")
)

// Later is what a handler returns that will settle its delivery by Ack or Nack,
// from any goroutine. It settles nothing.
var Later error = later{}

type later struct{}

func (later) Error() string { return "settled later" }

// Reasons for which a message becomes a dead letter, as its header pawl-reason
// says.
const (
	ReasonFailed   = "failed"   // its attempts are used up
	ReasonRejected = "rejected" // the handler returned DeadLetter
	ReasonDecode   = "decode"   // its value is not what the handler takes
	ReasonCrash    = "crash"    // the process ended, again and again, while it was handled
)

// PanicError is the error of a message whose handler panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }
