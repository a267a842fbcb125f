package topic

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"unicode/utf8"
)

// Codec turns messages of the type T into bytes and back. Its methods are
// called from many goroutines at once.
type Codec[T any] interface {
	// Append appends the encoding of msg to dst and returns the whole, which
	// may not share memory with msg.
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

// Decode refuses a JSON null for a type that has no nil. The decoder would
// leave the message as it was: a zero struct that nobody published.
func (jsonCodec[T]) Decode(src []byte) (msg T, err error) {
	if bytes.Equal(bytes.TrimSpace(src), []byte("null")) && !takesNull[T]() {
		return msg, fmt.Errorf("a JSON null, and %v has no nil", reflect.TypeFor[T]())
	}
	if err := json.Unmarshal(src, &msg); err != nil {
		var zero T
		return zero, err
	}
	return msg, nil
}

// takesNull says whether JSON's null is a value of T: whether T has a nil or
// decodes itself.
func takesNull[T any]() bool {
	switch reflect.TypeFor[T]().Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
		return true
	}
	_, ok := any(new(T)).(json.Unmarshaler)
	return ok
}

type stringCodec struct{}

var errNotUTF8 = errors.New("not valid UTF-8 (topic.Bytes takes any bytes)")

// Append refuses what Decode would: who publishes it learns of it, rather
// than all who consume it.
func (stringCodec) Append(dst []byte, msg string) ([]byte, error) {
	if !utf8.ValidString(msg) {
		return dst, errNotUTF8
	}
	return append(dst, msg...), nil
}

func (stringCodec) Decode(src []byte) (string, error) {
	if !utf8.Valid(src) {
		return "", errNotUTF8
	}
	return string(src), nil
}

type bytesCodec struct{}

func (bytesCodec) Append(dst []byte, msg []byte) ([]byte, error) { return append(dst, msg...), nil }
func (bytesCodec) Decode(src []byte) ([]byte, error)             { return append([]byte{}, src...), nil }
