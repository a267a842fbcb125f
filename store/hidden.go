package store

import (
	"reflect"
	"strings"
	"unsafe"
)

// hidden returns its argument, and hides from the compiler that it does. A key
// like string(e.Key), made for one call, then stays where the caller has it: it
// would be allocated for every message if the compiler had to think that it is
// kept, since a codec might.
//
// Ours keep nothing. Any other is given a copy: see ownKey.
func hidden[K any](k *K) (same *K) {
	*(*uintptr)(unsafe.Pointer(&same)) = *(*uintptr)(unsafe.Pointer(&k))
	return same
}

// ownKey returns a hidden key for whoever may keep it. Its strings are copied,
// unless the table's codec is one that keeps nothing.
func (t *Table[K, V]) ownKey(k *K) K {
	own := *k
	for _, at := range t.keyStrings {
		s := (*string)(unsafe.Add(unsafe.Pointer(&own), at))
		*s = strings.Clone(*s)
	}
	return own
}

// keepsNothing reports whether a key codec is known to keep nothing of a key.
func keepsNothing(codec any) bool {
	switch c := codec.(type) {
	case StringCodec, Int64Codec, Uint64Codec, Float64Codec, BoolCodec, TimeCodec:
		return true
	case interface {
		parts() (pair, first, second any)
	}:
		pair, first, second := c.parts()
		// What embeds a pair's codec is another one.
		return reflect.TypeOf(pair) == reflect.TypeOf(codec) && keepsNothing(first) && keepsNothing(second)
	default:
		return false
	}
}

// stringsIn appends where, within a value of a type that lies at an offset, there
// are strings.
func stringsIn(out []uintptr, t reflect.Type, at uintptr) []uintptr {
	switch t.Kind() {
	case reflect.String:
		out = append(out, at)
	case reflect.Array:
		for i := range uintptr(t.Len()) {
			out = stringsIn(out, t.Elem(), at+i*t.Elem().Size())
		}
	case reflect.Struct:
		for i := range t.NumField() {
			out = stringsIn(out, t.Field(i).Type, at+t.Field(i).Offset)
		}
	}
	return out
}
