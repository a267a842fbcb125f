package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"
)

// A KeyCodec turns a table's keys into bytes and back. The order of the bytes
// is the order in which the table is scanned, so it should be the keys' own.
// Two keys that aren't equal must not have the same bytes, unless DecodeKey
// turns both into the same key.
type KeyCodec[K any] interface {
	// AppendKey appends the bytes of k to dst. It must not keep what k points to,
	// if it has pointers; strings it may keep.
	AppendKey(dst []byte, k K) []byte
	// DecodeKey is the inverse. It must not keep src.
	DecodeKey(src []byte) (K, error)
}

// A ValueCodec turns a table's values into bytes and back.
type ValueCodec[V any] interface {
	// Append appends the bytes of v to dst.
	Append(dst []byte, v V) ([]byte, error)
	// Decode is the inverse. It must not keep src.
	Decode(src []byte) (V, error)
}

// The codecs that need no parameters. Those of Go's ordered types are for keys
// and values, Bytes is for values.
var (
	String  StringCodec
	Int64   Int64Codec
	Uint64  Uint64Codec
	Float64 Float64Codec
	Bool    BoolCodec
	Time    TimeCodec
	Bytes   BytesCodec
)

// StringCodec stores a string as its bytes.
type StringCodec struct{}

func (StringCodec) AppendKey(dst []byte, k string) []byte       { return append(dst, k...) }
func (StringCodec) DecodeKey(src []byte) (string, error)        { return string(src), nil }
func (StringCodec) Append(dst []byte, v string) ([]byte, error) { return append(dst, v...), nil }
func (StringCodec) Decode(src []byte) (string, error)           { return string(src), nil }

// Int64Codec stores a key in eight bytes that sort as numbers do, a value as a
// signed varint.
type Int64Codec struct{}

func (Int64Codec) AppendKey(dst []byte, k int64) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(k)^1<<63)
}

func (Int64Codec) DecodeKey(src []byte) (int64, error) {
	u, err := Uint64Codec{}.DecodeKey(src)
	return int64(u ^ 1<<63), err
}

func (Int64Codec) Append(dst []byte, v int64) ([]byte, error) {
	return binary.AppendVarint(dst, v), nil
}

func (Int64Codec) Decode(src []byte) (int64, error) {
	v, w := binary.Varint(src)
	if w <= 0 || w != len(src) {
		return 0, fmt.Errorf("int64 %x: not one varint", clip(src))
	}
	return v, nil
}

// Uint64Codec stores a key in eight big-endian bytes, a value as a varint.
type Uint64Codec struct{}

func (Uint64Codec) AppendKey(dst []byte, k uint64) []byte {
	return binary.BigEndian.AppendUint64(dst, k)
}

func (Uint64Codec) DecodeKey(src []byte) (uint64, error) {
	if len(src) != 8 {
		return 0, fmt.Errorf("key %x: %d bytes, want 8", clip(src), len(src))
	}
	return binary.BigEndian.Uint64(src), nil
}

func (Uint64Codec) Append(dst []byte, v uint64) ([]byte, error) {
	return binary.AppendUvarint(dst, v), nil
}

func (Uint64Codec) Decode(src []byte) (uint64, error) {
	v, w := binary.Uvarint(src)
	if w <= 0 || w != len(src) {
		return 0, fmt.Errorf("uint64 %x: not one varint", clip(src))
	}
	return v, nil
}

// Float64Codec stores eight bytes; a key's sort as numbers do. NaN is refused
// as a key, and −0 is the key 0.
type Float64Codec struct{}

func (Float64Codec) AppendKey(dst []byte, k float64) []byte {
	if k == 0 {
		k = 0 // −0 and 0 are one key
	}
	u := math.Float64bits(k)
	if u>>63 == 1 {
		u = ^u
	} else {
		u |= 1 << 63
	}
	return binary.BigEndian.AppendUint64(dst, u)
}

func (Float64Codec) DecodeKey(src []byte) (float64, error) {
	u, err := Uint64Codec{}.DecodeKey(src)
	if u>>63 == 1 {
		u &^= 1 << 63
	} else {
		u = ^u
	}
	return math.Float64frombits(u), err
}

func (Float64Codec) Append(dst []byte, v float64) ([]byte, error) {
	return binary.BigEndian.AppendUint64(dst, math.Float64bits(v)), nil
}

func (Float64Codec) Decode(src []byte) (float64, error) {
	if len(src) != 8 {
		return 0, fmt.Errorf("float64 %x: %d bytes, want 8", clip(src), len(src))
	}
	return math.Float64frombits(binary.BigEndian.Uint64(src)), nil
}

// BoolCodec stores one byte, 0 or 1.
type BoolCodec struct{}

func (BoolCodec) AppendKey(dst []byte, k bool) []byte {
	if k {
		return append(dst, 1)
	}
	return append(dst, 0)
}

func (BoolCodec) DecodeKey(src []byte) (bool, error) {
	if len(src) != 1 || src[0] > 1 {
		return false, fmt.Errorf("bool %x: want 00 or 01", clip(src))
	}
	return src[0] == 1, nil
}

func (c BoolCodec) Append(dst []byte, v bool) ([]byte, error) { return c.AppendKey(dst, v), nil }
func (c BoolCodec) Decode(src []byte) (bool, error)           { return c.DecodeKey(src) }

// TimeCodec stores seconds and nanoseconds and gives times back in UTC: the
// zone is not kept. Keys sort by instant.
type TimeCodec struct{}

func (TimeCodec) AppendKey(dst []byte, k time.Time) []byte {
	dst = Int64Codec{}.AppendKey(dst, k.Unix())
	return binary.BigEndian.AppendUint32(dst, uint32(k.Nanosecond()))
}

func (TimeCodec) DecodeKey(src []byte) (time.Time, error) {
	if len(src) != 12 {
		return time.Time{}, fmt.Errorf("time %x: %d bytes, want 12", clip(src), len(src))
	}
	sec, err := Int64Codec{}.DecodeKey(src[:8])
	nsec := binary.BigEndian.Uint32(src[8:])
	if nsec >= 1e9 {
		return time.Time{}, fmt.Errorf("time %x: %d nanoseconds in a second", src, nsec)
	}
	return time.Unix(sec, int64(nsec)).UTC(), err
}

func (c TimeCodec) Append(dst []byte, v time.Time) ([]byte, error) { return c.AppendKey(dst, v), nil }
func (c TimeCodec) Decode(src []byte) (time.Time, error)           { return c.DecodeKey(src) }

// BytesCodec stores bytes as they are.
type BytesCodec struct{}

func (BytesCodec) Append(dst []byte, v []byte) ([]byte, error) { return append(dst, v...), nil }
func (BytesCodec) Decode(src []byte) ([]byte, error)           { return append([]byte{}, src...), nil }

// JSON stores values of any type as encoding/json does.
func JSON[V any]() JSONCodec[V] { return JSONCodec[V]{} }

// JSONCodec is what JSON returns.
type JSONCodec[V any] struct{}

func (JSONCodec[V]) Append(dst []byte, v V) ([]byte, error) {
	b, err := json.Marshal(v)
	return append(dst, b...), err
}

func (JSONCodec[V]) Decode(src []byte) (v V, err error) {
	err = json.Unmarshal(src, &v)
	return v, err
}

// A Pair is a key of two parts, sorted by First, then by Second.
type Pair[A, B comparable] struct {
	First  A
	Second B
}

// PairOf makes the key codec of a pair out of those of its parts.
func PairOf[A, B comparable](first KeyCodec[A], second KeyCodec[B]) PairCodec[A, B] {
	return PairCodec[A, B]{first, second}
}

// PairCodec is what PairOf returns. The first part's bytes are escaped (00
// becomes 00 ff) and ended with 00 01, so that neither part's order is lost
// and a first part that begins another sorts before it; the second part
// follows as it is.
type PairCodec[A, B comparable] struct {
	first  KeyCodec[A]
	second KeyCodec[B]
}

func (c PairCodec[A, B]) parts() (pair, first, second any) { return c, c.first, c.second }

const (
	pairEscape = 0xff
	pairEnd    = 0x01
)

func (c PairCodec[A, B]) AppendKey(dst []byte, k Pair[A, B]) []byte {
	start := len(dst)
	dst = c.first.AppendKey(dst, k.First)
	zeros := 0
	for _, b := range dst[start:] {
		if b == 0 {
			zeros++
		}
	}
	if zeros > 0 {
		// Each byte moves up by the number of zeros before it, from the end, so
		// that none is overwritten before it has moved.
		from := len(dst) - 1
		dst = append(dst, make([]byte, zeros)...)
		for to := len(dst) - 1; to > from; from-- {
			if dst[from] == 0 {
				dst[to] = pairEscape
				to--
			}
			dst[to] = dst[from]
			to--
		}
	}
	dst = append(dst, 0, pairEnd)
	return c.second.AppendKey(dst, k.Second)
}

func (c PairCodec[A, B]) DecodeKey(src []byte) (k Pair[A, B], err error) {
	first, second, err := splitPair(src)
	if err != nil {
		return k, err
	}
	if k.First, err = c.first.DecodeKey(first); err != nil {
		return k, err
	}
	k.Second, err = c.second.DecodeKey(second)
	return k, err
}

// splitPair undoes the escapes of a pair's first part and returns both.
func splitPair(src []byte) (first, second []byte, err error) {
	for i := 0; i < len(src); i++ {
		if src[i] != 0 {
			first = append(first, src[i])
			continue
		}
		if i+1 == len(src) {
			break
		}
		i++
		switch src[i] {
		case pairEscape:
			first = append(first, 0)
		case pairEnd:
			return first, src[i+1:], nil
		default:
			return nil, nil, fmt.Errorf("pair %x: 00 %02x in its first part", clip(src), src[i])
		}
	}
	return nil, nil, errors.New("pair: first part has no end")
}
