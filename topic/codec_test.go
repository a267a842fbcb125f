package topic

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

type order struct {
	ID    string            `json:"id"`
	Cents int64             `json:"cents"`
	Tags  []string          `json:"tags,omitempty"`
	Attrs map[string]string `json:"attrs,omitempty"`
}

// flag decodes a JSON null itself.
type flag struct{ set bool }

func (f *flag) UnmarshalJSON(b []byte) error {
	f.set = string(b) != "null"
	return nil
}

// checkRoundTrip checks that the codec appends, that it gives back what it was
// given, and that what it decodes shares nothing with what it read.
func checkRoundTrip[T any](t *rapid.T, c Codec[T], msg T) {
	const before = "before"
	enc, err := c.Append([]byte(before), msg)
	if err != nil {
		t.Fatalf("encode %#v: %v", msg, err)
	}
	if !strings.HasPrefix(string(enc), before) {
		t.Fatalf("%q does not begin with %q", enc, before)
	}
	enc = enc[len(before):]
	got, err := c.Decode(enc)
	if err != nil {
		t.Fatalf("decode %q: %v", enc, err)
	}
	for i := range enc {
		enc[i] = 0xee
	}
	if !reflect.DeepEqual(got, msg) {
		t.Errorf("%#v came back as %#v", msg, got)
	}
}

func TestCodecsRoundTrip(t *testing.T) {
	t.Run("string", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) { checkRoundTrip(t, stringCodec{}, rapid.String().Draw(t, "msg")) })
	})
	t.Run("bytes", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) { checkRoundTrip(t, bytesCodec{}, rapid.SliceOf(rapid.Byte()).Draw(t, "msg")) })
	})
	t.Run("json", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			checkRoundTrip(t, jsonCodec[order]{}, order{
				ID:    rapid.String().Draw(t, "id"),
				Cents: rapid.Int64().Draw(t, "cents"),
			})
		})
	})
}

func TestCodecErrors(t *testing.T) {
	for _, tt := range []struct {
		name, value string
		decode      func([]byte) (any, error)
		want        string // in the error
	}{
		{"json: empty", "", erased(jsonCodec[order]{}), "unexpected end of JSON input"},
		{"json: cut off", `{"id":"a`, erased(jsonCodec[order]{}), "unexpected end of JSON input"},
		{"json: two values", `{"id":"a"}{"id":"b"}`, erased(jsonCodec[order]{}), "after top-level value"},
		{"json: another type", `{"id":7}`, erased(jsonCodec[order]{}), "cannot unmarshal number"},
		{"json: too large a number", `{"cents":1e30}`, erased(jsonCodec[order]{}), "cannot unmarshal number"},
		{"json: null for a struct", " null\n", erased(jsonCodec[order]{}), "a JSON null, and topic.order has no nil"},
		{"json: null for a number", "null", erased(jsonCodec[int]{}), "a JSON null, and int has no nil"},
		{"string: not UTF-8", "caf\xe9", erased(stringCodec{}), "not valid UTF-8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			msg, err := tt.decode([]byte(tt.value))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
			if !reflect.ValueOf(msg).IsZero() {
				t.Errorf("the error came with the message %#v", msg)
			}
		})
	}
}

func erased[T any](c Codec[T]) func([]byte) (any, error) {
	return func(b []byte) (any, error) { return c.Decode(b) }
}

// Types that have a nil, or that decode themselves, take JSON's null.
func TestJSONNull(t *testing.T) {
	null := []byte("null")
	if got, err := (jsonCodec[*order]{}).Decode(null); got != nil || err != nil {
		t.Errorf("*order: %v, %v; want nil", got, err)
	}
	if got, err := (jsonCodec[map[string]int]{}).Decode(null); got != nil || err != nil {
		t.Errorf("map: %v, %v; want nil", got, err)
	}
	if got, err := (jsonCodec[any]{}).Decode(null); got != nil || err != nil {
		t.Errorf("any: %v, %v; want nil", got, err)
	}
	if got, err := (jsonCodec[flag]{}).Decode(null); got.set || err != nil {
		t.Errorf("flag: %v, %v; want an unset one", got, err)
	}
	if got, err := (jsonCodec[json.RawMessage]{}).Decode(null); string(got) != "null" || err != nil {
		t.Errorf("RawMessage: %q, %v; want null", got, err)
	}
}

func TestEncodeErrors(t *testing.T) {
	dst := []byte("kept")
	if got, err := (stringCodec{}).Append(dst, "caf\xe9"); err == nil || string(got) != "kept" {
		t.Errorf("string: %q, %v; want the error that a consumer would get, and nothing appended", got, err)
	}
	if got, err := (jsonCodec[float64]{}).Append(dst, math.NaN()); err == nil || string(got) != "kept" {
		t.Errorf("json: %q, %v; want an error for NaN, and nothing appended", got, err)
	}
}

// What decodes encodes to something that decodes to the same.
func FuzzJSONDecode(f *testing.F) {
	for _, s := range []string{``, `null`, `{}`, `{"id":"a","cents":-1}`, `{"ID":"\ud800"}`, "{\"id\":\"\xff\"}", `{"tags":[],"attrs":{}}`, `[[[[`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		given := bytes.Clone(src)
		msg, err := (jsonCodec[order]{}).Decode(src)
		if !bytes.Equal(src, given) {
			t.Fatalf("decoding %q left %q", given, src)
		}
		if err != nil {
			return
		}
		enc, err := (jsonCodec[order]{}).Append(nil, msg)
		if err != nil {
			t.Fatalf("%q decodes to %#v, which does not encode: %v", src, msg, err)
		}
		again, err := (jsonCodec[order]{}).Decode(enc)
		if err != nil {
			t.Fatalf("%q decodes to %#v, whose encoding %q does not: %v", src, msg, enc, err)
		}
		// An empty list and none are one JSON text here (omitempty).
		enc2, err := (jsonCodec[order]{}).Append(nil, again)
		if err != nil || !bytes.Equal(enc, enc2) {
			t.Errorf("%q, then %q (%v)", enc, enc2, err)
		}
	})
}

func FuzzStringDecode(f *testing.F) {
	f.Add([]byte(""))
	f.Add([]byte("日本語"))
	f.Add([]byte("\xed\xa0\x80"))
	f.Fuzz(func(t *testing.T, src []byte) {
		msg, err := (stringCodec{}).Decode(src)
		if err != nil {
			return
		}
		if enc, err := (stringCodec{}).Append(nil, msg); err != nil || !bytes.Equal(enc, src) {
			t.Errorf("%q came back as %q (%v)", src, enc, err)
		}
	})
}
