package topic

import (
	"errors"
	"fmt"
	"time"
)

// Out is a message on its way out. Its slices are the receiver's to keep and
// nobody writes to them again.
type Out struct {
	Topic     *Description
	Partition int32     // -1: as the key says
	Key       []byte    // nil for a null key
	Value     []byte    // nil for a null value: a tombstone
	Headers   []Header  // in order; names may repeat
	Timestamp time.Time // zero: the time of sending
}

// Publisher publishes messages. One that Consume, Flush or Fire is given is
// valid until that call returns; what is published through it becomes visible
// when the transaction commits, or never. It is not safe for concurrent use.
type Publisher struct {
	sink  func(Out) error
	chunk []byte // the rest of the chunk that copies are carved out of
}

// NewPublisher returns a publisher that gives each message to sink, and
// sink's error to whoever publishes. It makes a fake for a test easy.
func NewPublisher(sink func(Out) error) *Publisher { return &Publisher{sink: sink} }

// Publish encodes msg, a message of the type of the topic to, and publishes
// it. The message is copied. An error of the codec, a message of another type
// or a publisher used outside its call is answered with an error.
// [Of.Publish] does the same with the type checked by the compiler.
func (p *Publisher) Publish(msg any, to *Description, opts ...PublishOption) error {
	if to == nil || to.encode == nil {
		return errors.New("publish: no topic is given; one is made by New, JSON, String or Bytes")
	}
	if msg == nil {
		return errors.New("publish to " + to.name + ": a nil message; PublishTombstone publishes a null value")
	}
	out := Out{Topic: to, Partition: -1}
	key, keyed, err := to.key(p.reserve(), msg)
	if err != nil {
		return &EncodeError{Topic: to.name, Err: err}
	}
	if keyed {
		out.Key = p.keep(key)
	}
	val, err := to.encode(p.reserve(), msg)
	if err != nil {
		return &EncodeError{Topic: to.name, Err: err}
	}
	out.Value = p.keep(val)
	return p.send(out, opts)
}

// publish is Publish for a message whose type is known.
func publish[T any](p *Publisher, o Of[T], msg T, opts []PublishOption) error {
	out := Out{Topic: o.Description, Partition: -1}
	if o.key != nil {
		out.Key = p.keep(append(p.reserve(), o.key(msg)...))
	}
	val, err := o.codec.Append(p.reserve(), msg)
	if err != nil {
		return &EncodeError{Topic: o.name, Err: err}
	}
	out.Value = p.keep(val)
	return p.send(out, opts)
}

func (p *Publisher) send(out Out, opts []PublishOption) error {
	if len(opts) > 0 {
		out = changed(out, opts)
	}
	if out.Partition < -1 {
		return fmt.Errorf("publish to %s: there is no partition %d", out.Topic.name, out.Partition)
	}
	return p.sink(out)
}

// changed is apart from send because what options point at is allocated, and
// most messages have none.
func changed(out Out, opts []PublishOption) Out {
	for _, opt := range opts {
		opt(&out)
	}
	return out
}

// chunkSize is how much memory is taken at once for encoded messages. A
// message of a few hundred bytes then costs no allocation of its own.
const chunkSize = 64 << 10

// reserve returns an empty slice to append an encoding to. keep makes what
// was appended permanent; without it the room is used again.
func (p *Publisher) reserve() []byte {
	if cap(p.chunk) < 512 {
		p.chunk = make([]byte, 0, chunkSize)
	}
	return p.chunk[:0]
}

// keep returns b, which was appended to a reserved slice, as a slice that
// nothing else shares. It is never nil, whatever a codec returned: a null
// value deletes its key, and is published by PublishTombstone alone.
func (p *Publisher) keep(b []byte) []byte {
	switch {
	case b == nil:
		return []byte{}
	case cap(b) == cap(p.chunk): // still in the chunk: carve it off
		p.chunk = p.chunk[len(b):cap(p.chunk)][:0]
	case len(b) < chunkSize/4:
		// It outgrew what is left of the chunk, and the next one of its size
		// would again.
		p.chunk = nil
	}
	return b[:len(b):len(b)]
}

func (p *Publisher) copy(b []byte) []byte { return p.keep(append(p.reserve(), b...)) }

// A PublishOption changes one message that is being published.
type PublishOption func(*Out)

// Key sets the message's key, in place of the one that [KeyedBy] gives. A nil
// key is a null key.
func Key(key []byte) PublishOption {
	return func(o *Out) { o.Key = nilAs(key, append([]byte{}, key...)) }
}

// Headers appends headers to the message, in order.
func Headers(hs ...Header) PublishOption {
	return func(o *Out) {
		for _, h := range hs {
			o.Headers = append(o.Headers, Header{Key: h.Key, Value: nilAs(h.Value, append([]byte{}, h.Value...))})
		}
	}
}

// Timestamp sets the message's timestamp, to the millisecond, in place of the
// time of sending.
func Timestamp(t time.Time) PublishOption { return func(o *Out) { o.Timestamp = t } }

// ToPartition sends the message to that partition, whatever its key.
func ToPartition(n int32) PublishOption { return func(o *Out) { o.Partition = n } }

// nilAs returns b, as a nil slice if like is nil and as a non-nil one if not.
func nilAs(like, b []byte) []byte {
	if like == nil {
		return nil
	}
	if b == nil {
		return []byte{}
	}
	return b
}

// EncodeError says to which topic a message could not be published, and why.
type EncodeError struct {
	Topic string
	Err   error
}

func (e *EncodeError) Error() string {
	return "encode message for topic " + e.Topic + ": " + e.Err.Error()
}
func (e *EncodeError) Unwrap() error { return e.Err }
