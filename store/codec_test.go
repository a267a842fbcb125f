package store

import (
	"bytes"
	"cmp"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// checkKeys checks that a codec gives every key back and keeps their order.
func checkKeys[K comparable](t *testing.T, name string, c KeyCodec[K], gen *rapid.Generator[K], compare func(a, b K) int) {
	t.Run(name, func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			a, b := gen.Draw(t, "a"), gen.Draw(t, "b")
			prefix := []byte("p")
			ab, bb := c.AppendKey(prefix, a), c.AppendKey(nil, b)
			if !bytes.HasPrefix(ab, prefix) {
				t.Fatalf("AppendKey(%q, %v) = %x doesn't begin with what was there", prefix, a, ab)
			}
			ab = ab[1:]
			got, err := c.DecodeKey(ab)
			if err != nil || compare(got, a) != 0 {
				t.Fatalf("DecodeKey(%x) = %v, %v, want %v", ab, got, err, a)
			}
			if got, want := bytes.Compare(ab, bb), compare(a, b); got != want {
				t.Fatalf("%v is %x, %v is %x: compare %d, want %d", a, ab, b, bb, got, want)
			}
		})
	})
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// Stored keys sort as the keys do, and come back.
func TestKeyCodecs(t *testing.T) {
	// Few letters, among them those that escapes are made of.
	strs := rapid.StringOfN(rapid.SampledFrom([]rune("\x00\x01a\u00ff")), 0, 5, -1)
	floats := rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{0, math.Inf(1), math.Inf(-1), math.MaxFloat64, -math.SmallestNonzeroFloat64}))
	times := rapid.Custom(func(t *rapid.T) time.Time {
		return time.Unix(rapid.Int64Range(-1e10, 1e10).Draw(t, "sec"), rapid.Int64Range(0, 1e9-1).Draw(t, "nsec")).UTC()
	})
	checkKeys(t, "string", String, strs, strings.Compare)
	checkKeys(t, "int64", Int64, rapid.Int64(), cmp.Compare[int64])
	checkKeys(t, "uint64", Uint64, rapid.Uint64(), cmp.Compare[uint64])
	checkKeys(t, "float64", Float64, floats, cmp.Compare[float64])
	checkKeys(t, "bool", Bool, rapid.Bool(), compareBools)
	checkKeys(t, "time", Time, times, time.Time.Compare)
	pairs := rapid.Custom(func(t *rapid.T) Pair[string, string] {
		return Pair[string, string]{strs.Draw(t, "first"), strs.Draw(t, "second")}
	})
	comparePair := func(a, b Pair[string, string]) int {
		return cmp.Or(strings.Compare(a.First, b.First), strings.Compare(a.Second, b.Second))
	}
	checkKeys(t, "pair", PairOf(String, String), pairs, comparePair)
	nested := rapid.Custom(func(t *rapid.T) Pair[Pair[string, string], int64] {
		return Pair[Pair[string, string], int64]{pairs.Draw(t, "first"), rapid.Int64Range(-2, 2).Draw(t, "second")}
	})
	checkKeys(t, "pair of a pair", PairOf(PairOf(String, String), Int64), nested, func(a, b Pair[Pair[string, string], int64]) int {
		return cmp.Or(comparePair(a.First, b.First), cmp.Compare(a.Second, b.Second))
	})
}

func checkValues[V any](t *testing.T, name string, c ValueCodec[V], gen *rapid.Generator[V], equal func(a, b V) bool) {
	t.Run(name, func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			v := gen.Draw(t, "v")
			b, err := c.Append([]byte("p"), v)
			if err != nil || b[0] != 'p' {
				t.Fatalf("Append(p, %v) = %x, %v", v, b, err)
			}
			got, err := c.Decode(b[1:])
			if err != nil || !equal(got, v) {
				t.Fatalf("Decode(%x) = %v, %v, want %v", b[1:], got, err, v)
			}
			clear(b) // Decode doesn't keep what it was given
			if !equal(got, v) {
				t.Fatalf("%v became %v when its bytes were reused", v, got)
			}
		})
	})
}

func equal[V comparable](a, b V) bool { return a == b }

func TestValueCodecs(t *testing.T) {
	checkValues(t, "string", String, rapid.String(), equal)
	checkValues(t, "int64", Int64, rapid.Int64(), equal)
	checkValues(t, "uint64", Uint64, rapid.Uint64(), equal)
	checkValues(t, "float64", Float64, rapid.Float64(), equal)
	checkValues(t, "bool", Bool, rapid.Bool(), equal)
	checkValues(t, "bytes", Bytes, rapid.SliceOf(rapid.Byte()), bytes.Equal)
	type thing struct {
		A string
		B int64
	}
	checkValues(t, "json", JSON[thing](), rapid.Custom(func(t *rapid.T) thing {
		return thing{rapid.StringMatching("[a-z<>&]*").Draw(t, "a"), rapid.Int64().Draw(t, "b")}
	}), equal)
}

// Bytes that no codec wrote are errors, and never a panic: what decodes is what
// would be written again.
func FuzzCodecs(f *testing.F) {
	pair := PairOf(String, Int64)
	f.Add([]byte(nil))
	f.Add([]byte{0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Add(pair.AppendKey(nil, Pair[string, int64]{"a\x00b", 7}))
	f.Add(Time.AppendKey(nil, time.Unix(1, 2)))
	f.Add([]byte{'a', 0, 2, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		again := func(name string, err error, encoded []byte) {
			if err == nil && !bytes.Equal(encoded, b) {
				t.Errorf("%s: %x decodes to what is written as %x", name, b, encoded)
			}
		}
		s, err := String.DecodeKey(b)
		again("string", err, String.AppendKey(nil, s))
		i, err := Int64.DecodeKey(b)
		again("int64", err, Int64.AppendKey(nil, i))
		u, err := Uint64.DecodeKey(b)
		again("uint64", err, Uint64.AppendKey(nil, u))
		o, err := Bool.DecodeKey(b)
		again("bool", err, Bool.AppendKey(nil, o))
		at, err := Time.DecodeKey(b)
		again("time", err, Time.AppendKey(nil, at))
		p, err := pair.DecodeKey(b)
		again("pair", err, pair.AppendKey(nil, p))
		// Values may have more than one form (a longer varint, a float's NaN);
		// it is enough that they end in a value or an error.
		for name, decode := range map[string]func() error{
			"int64":   func() error { _, err := Int64.Decode(b); return err },
			"uint64":  func() error { _, err := Uint64.Decode(b); return err },
			"float64": func() error { _, err := Float64.Decode(b); return err },
			"json":    func() error { _, err := JSON[map[string][]int]().Decode(b); return err },
		} {
			if err := decode(); err != nil && err.Error() == "" {
				t.Errorf("%s: %x: an error without a text", name, b)
			}
		}
	})
}
