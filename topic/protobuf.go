package topic

import (
	"errors"

	"google.golang.org/protobuf/proto"
)

// Protobuf returns a topic of Protobuf messages, one a message, without
// framing. T is a pointer to a generated type. A message of which nothing is
// set is an empty value, and an empty value is such a message; a null value is a
// tombstone.
func Protobuf[T proto.Message](name string, opts ...Option[T]) Of[T] {
	var none T
	if any(none) == nil {
		panic("pawl: topic " + name + ": Protobuf takes a pointer to a generated type, not an interface")
	}
	return New(name, protobufCodec[T]{}, opts...)
}

type protobufCodec[T proto.Message] struct{}

// Append is deterministic: equal messages of one program are equal bytes, so
// that what was computed twice can be compared.
func (protobufCodec[T]) Append(dst []byte, msg T) ([]byte, error) {
	if any(msg) == nil || !msg.ProtoReflect().IsValid() {
		return dst, errors.New("a nil message; PublishTombstone publishes a null value")
	}
	b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(dst, msg)
	if err != nil {
		return dst, err
	}
	return b, nil
}

// Decode decodes at once also what is marked lazy: src is gone when it would be
// looked at.
func (protobufCodec[T]) Decode(src []byte) (T, error) {
	var none T
	msg := none.ProtoReflect().New().Interface()
	if err := (proto.UnmarshalOptions{NoLazyDecoding: true}).Unmarshal(src, msg); err != nil {
		return none, err
	}
	return msg.(T), nil
}
