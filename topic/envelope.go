package topic

import (
	"errors"
	"fmt"
	"time"
)

// Header is one header of a message. Names may repeat, and a value may be nil,
// which is not the same as empty.
type Header struct {
	Key   string
	Value []byte
}

// Envelope is a message as it came from a topic, with what came along. The
// key, value and header bytes belong to Pawl and may be overwritten when
// Consume returns: copy what is to be kept. A decoded message is a copy.
type Envelope struct {
	Topic     *Description
	Partition int32
	Offset    int64
	Key       []byte // nil for a null key, which is not the same as an empty one
	Value     []byte // nil for a null value: a tombstone
	Headers   []Header
	Timestamp time.Time // as the producer or the broker stamped it; may be absurd
}

// TopicName returns the name of the envelope's topic.
func (e Envelope) TopicName() string {
	if e.Topic == nil {
		return ""
	}
	return e.Topic.name
}

// Message decodes the value with the topic's codec; [Of.Message] does so with
// its type. ok is false for a tombstone.
func (e Envelope) Message() (msg any, ok bool, err error) {
	if e.Value == nil {
		return nil, false, nil
	}
	if e.Topic == nil || e.Topic.decode == nil {
		return nil, false, e.decodeError(errors.New("the envelope names no topic, and so no codec"))
	}
	msg, err = e.Topic.decode(e.Value)
	if err != nil {
		return nil, false, e.decodeError(err)
	}
	return msg, true, nil
}

func (e Envelope) decodeError(err error) error {
	return &DecodeError{Topic: e.TopicName(), Partition: e.Partition, Offset: e.Offset, Err: err}
}

// DecodeError says which message could not be decoded, and why.
type DecodeError struct {
	Topic     string
	Partition int32
	Offset    int64
	Err       error
}

func (e *DecodeError) Error() string {
	return fmt.Sprintf("decode message %s-%d at offset %d: %v", e.Topic, e.Partition, e.Offset, e.Err)
}

func (e *DecodeError) Unwrap() error { return e.Err }
