package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/pawlstream/pawl/topic"
)

// anyBytes draws null, empty, text, or bytes.
func anyBytes() *rapid.Generator[[]byte] {
	return rapid.OneOf(
		rapid.Just[[]byte](nil), rapid.Just([]byte{}), rapid.SliceOfN(rapid.Byte(), 1, 40),
		rapid.Map(anyText(), func(s string) []byte { return []byte(s) }),
		rapid.SampledFrom([][]byte{[]byte(`{"data":1}`), []byte("\n\r\x00"), {0xff, 0xfe}, []byte("null"), []byte("/w==")}),
	)
}

func anyMessage(name string, partitions int) *rapid.Generator[topic.Envelope] {
	return rapid.Custom(func(t *rapid.T) topic.Envelope {
		e := topic.Envelope{
			Topic: topic.Bytes(name).Description, Partition: rapid.Int32Range(0, int32(partitions-1)).Draw(t, "partition"),
			Key: anyBytes().Draw(t, "key"), Value: anyBytes().Draw(t, "value"),
			Timestamp: time.UnixMilli(rapid.OneOf(rapid.Int64Range(-1, time.Now().UnixMilli()), rapid.SampledFrom([]int64{-1, 0, 1, 1 << 40})).Draw(t, "ms")),
		}
		for range rapid.IntRange(0, 4).Draw(t, "headers") {
			e.Headers = append(e.Headers, topic.Header{Key: string(rapid.OneOf(rapid.Just([]byte("h")), anyBytes()).Draw(t, "name")), Value: anyBytes().Draw(t, "header")})
		}
		return e
	})
}

var sameTime = cmp.Comparer(func(x, y time.Time) bool { return x.UnixMilli() == y.UnixMilli() })

// What is printed of a message says all of it, on one line that a terminal can
// show.
func TestMessageForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := anyMessage("orders", 3).Draw(t, "message")
		var b bytes.Buffer
		p := newMessagePrinter(&b, asJSON, false)
		if err := p.print(want); err != nil {
			t.Fatal(err)
		}
		if err := p.flush(); err != nil {
			t.Fatal(err)
		}
		line := strings.TrimSuffix(b.String(), "\n")
		if i := strings.IndexFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
			t.Fatalf("%q holds %q", line, line[i:])
		}
		m, err := parseMessage([]byte(line))
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		got, err := m.envelope()
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		got.Topic = want.Topic
		if diff := cmp.Diff(want, got, sameTime, cmp.AllowUnexported(topic.Description{}), cmp.Comparer(func(x, y *topic.Description) bool { return x == y })); diff != "" {
			t.Fatalf("%s says something else (-want +got):\n%s", line, diff)
		}
	})
}

// A message that is not clear is refused, and never half understood.
func TestRefusedMessages(t *testing.T) {
	for _, tt := range []struct{ line, want string }{
		{`{"vlaue":"x"}`, `unknown member "vlaue": did you mean value?`},
		{`{"Value":"x"}`, `unknown member "Value"`},
		{`{"key":"a"}`, `no "value"`},
		{`{"value":"a","value":"b"}`, `member "value" is there twice`},
		{`{"value":1}`, "value is a JSON number: want a string"},
		{`{"value":{"data":1}}`, "value is a JSON object: want a string"},
		{`{"value":"x","value_encoding":"hex"}`, `encoding "hex": want utf-8 or base64`},
		{`{"value":"?","value_encoding":"base64"}`, "not base64"},
		{`{"value":null,"value_encoding":"base64"}`, "null has no encoding"},
		{`{"value":"x","headers":{"a":"b"}}`, "headers are not a list"},
		{`{"value":"x","headers":[{"nam":"a"}]}`, `unknown member "nam"`},
		{`{"value":"x","headers":[{"name":"a","name":"b"}]}`, `member "name" is there twice`},
		{`{"value":"x"} {"value":"y"}`, "something follows"},
		{`{"value":"x"`, "cut short"},
		{`hello`, "invalid character"},
		{`[1]`, "not a JSON object"},
		{`"x"`, "not a JSON object"},
		{`{"value":"x","partition":-1}`, "partition -1"},
		{`{"value":"x","partition":4294967296}`, "partition is a JSON number"},
		{`{"value":"x","timestamp_ms":1755933141855875000}`, "is it in milliseconds?"},
	} {
		m, err := parseMessage([]byte(tt.line))
		if err == nil {
			_, err = m.envelope()
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.line, err, tt.want)
		}
	}
}

func FuzzMessage(f *testing.F) {
	f.Add([]byte(`{"key":"a","value":null,"headers":[{"name":"h","value":""}],"timestamp_ms":-1,"partition":1}`))
	f.Add([]byte(`{"value":"/w==","value_encoding":"base64"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := parseMessage(line)
		if err != nil {
			return
		}
		e, err := m.envelope()
		if err != nil {
			return
		}
		e.Partition = max(e.Partition, 0)
		if e.Timestamp.IsZero() { // that of its writing
			e.Timestamp = time.UnixMilli(0)
		}
		again, err := newMessage(e).envelope()
		if err != nil {
			t.Fatalf("%s: printed as what can't be read: %v", line, err)
		}
		if diff := cmp.Diff(e, again, sameTime); diff != "" {
			t.Fatalf("%s: printed as something else (-read +again):\n%s", line, diff)
		}
	})
}
