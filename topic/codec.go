package topic

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// Codec turns messages of the type T into bytes and back. Its methods are
// called from many goroutines at once.
type Codec[T any] interface {
	// Append appends the encoding of msg to dst and returns the whole.
	Append(dst []byte, msg T) ([]byte, error)

	// Decode returns the message that src holds. It is not called for a null
	// value. The message must not share memory with src.
	Decode(src []byte) (T, error)
}

type jsonCodec[T any] struct{}

func (jsonCodec[T]) Append(dst []byte, msg T) ([]byte, error) {
	b, err := json.Marshal(msg)
	if err != nil {
		return dst, err
	}
	return append(dst, b...), nil
}

func (jsonCodec[T]) Decode(src []byte) (msg T, err error) {
	if err := json.Unmarshal(src, &msg); err != nil {
		var zero T
		return zero, err
	}
	return msg, nil
}

type stringCodec struct{}

func (stringCodec) Append(dst []byte, msg string) ([]byte, error) { return append(dst, msg...), nil }

func (stringCodec) Decode(src []byte) (string, error) {
	if !utf8.Valid(src) {
		return "", fmt.Errorf("not valid UTF-8 (topic.Bytes takes any bytes)")
	}
	return string(src), nil
}

type bytesCodec struct{}

func (bytesCodec) Append(dst []byte, msg []byte) ([]byte, error) { return append(dst, msg...), nil }
func (bytesCodec) Decode(src []byte) ([]byte, error)             { return append([]byte{}, src...), nil }
