package messaging

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/pawlstream/pawl/topic"
)

// Handler handles one message. Returning nil acks it. An error has it retried,
// by Config.Retry, and set aside as a dead letter when its attempts are used
// up; [RetryAfter] and [DeadLetter] say otherwise. [Later] leaves it to be
// settled from any goroutine.
//
// A panic is an error. An error that is returned after ctx was ended, because
// the partition was revoked or the consumer stops, fails nothing: the message
// is left as it is.
type Handler func(ctx context.Context, d Delivery) error

// BatchHandler handles several messages at once, none of which has to wait for
// another of them. It returns a result for each, in their order, as a Handler
// would, or nil if all are acked. A result less or more is an error of all.
type BatchHandler func(ctx context.Context, ds []Delivery) []error

// retryAfter is the error that RetryAfter returns.
type retryAfter struct {
	delay time.Duration
	err   error
}

func (e *retryAfter) Error() string { return fmt.Sprintf("retry after %v: %v", e.delay, e.err) }
func (e *retryAfter) Unwrap() error { return e.err }

// RetryAfter returns an error that has the message handled again no earlier
// than d from now, in place of the delay that the policy has for it. It is a
// failed attempt like any other. A delay longer than the longest back-off goes
// to the first tier that is no shorter, or the last one, and may come late by
// as much as that tier's delay.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		err = errors.New("asked for a retry")
	}
	return &retryAfter{max(d, 0), err}
}

// deadLetter is the error that DeadLetter returns.
type deadLetter struct {
	reason string
	err    error
}

func (e *deadLetter) Error() string { return fmt.Sprintf("dead letter: %v", e.err) }
func (e *deadLetter) Unwrap() error { return e.err }

// DeadLetter returns an error that sets the message aside at once.
func DeadLetter(err error) error {
	if err == nil {
		err = errors.New("rejected")
	}
	return &deadLetter{ReasonRejected, err}
}

// JSON returns a handler that decodes each value as JSON. What can't be
// decoded becomes a dead letter, whole, with the reason "decode". So does a
// null value, unless T has a nil: then the handler gets that.
func JSON[T any](handle func(ctx context.Context, msg T, d Delivery) error) Handler {
	return func(ctx context.Context, d Delivery) error {
		msg, err := decodeJSON[T](original(d))
		if err != nil {
			err = fmt.Errorf("decode message %s-%d at offset %d: %w", d.Topic(), d.Partition(), d.Offset(), err)
			return &deadLetter{ReasonDecode, err}
		}
		return handle(ctx, msg, d)
	}
}

func decodeJSON[T any](value []byte) (msg T, err error) {
	null := value == nil
	if !null {
		if err := json.Unmarshal(value, &msg); err != nil {
			var zero T
			return zero, err
		}
		null = string(value) == "null"
	}
	if null && !hasNil[T]() {
		return msg, fmt.Errorf("a null value, and %v has no nil", reflect.TypeFor[T]())
	}
	return msg, nil
}

func hasNil[T any]() bool {
	switch reflect.TypeFor[T]().Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
		return true
	}
	return false
}

// Of returns a handler that decodes each value with the codec of a topic. What
// can't be decoded becomes a dead letter, whole, with the reason "decode". For
// a null value ok is false.
func Of[T any](t topic.Of[T], handle func(ctx context.Context, msg T, ok bool, d Delivery) error) Handler {
	return func(ctx context.Context, d Delivery) error {
		msg, ok, err := t.Message(topic.Envelope{Partition: d.Partition(), Offset: d.Offset(), Value: original(d)})
		if err != nil {
			return &deadLetter{ReasonDecode, err}
		}
		return handle(ctx, msg, ok, d)
	}
}

// original returns the value as it was read, which must not be written to.
func original(d Delivery) []byte {
	if own, ok := d.(*delivery); ok {
		return own.value
	}
	return d.Value()
}
