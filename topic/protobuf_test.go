package topic_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	"github.com/pawlstream/pawl/topic"
)

var rows = topic.Protobuf("rows", topic.KeyedBy(func(s *structpb.Struct) string { return s.GetFields()["id"].GetStringValue() }))

func row(fields map[string]any) *structpb.Struct {
	s, err := structpb.NewStruct(fields)
	if err != nil {
		panic(err)
	}
	return s
}

func TestProtobufRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fields := map[string]any{"id": rapid.String().Draw(t, "id")}
		for k, v := range rapid.MapOf(rapid.String(), rapid.Float64()).Draw(t, "fields") {
			if k != "id" {
				fields[k] = v
			}
		}
		want := row(fields)
		p, outs := record()
		for range 2 {
			if err := rows.Publish(p, want); err != nil {
				t.Fatal(err)
			}
		}
		o := (*outs)[0]
		if !bytes.Equal(o.Value, (*outs)[1].Value) {
			t.Errorf("one message in two encodings, %x and %x", o.Value, (*outs)[1].Value)
		}
		if string(o.Key) != fields["id"] {
			t.Errorf("key %q, want %q", o.Key, fields["id"])
		}
		got, ok, err := rows.Message(topic.Envelope{Topic: o.Topic, Value: o.Value})
		for i := range o.Value {
			o.Value[i] = 0xee
		}
		if !ok || err != nil || !proto.Equal(got, want) {
			t.Errorf("%v came back as %v, %t, %v", want, got, ok, err)
		}
	})
}

// Nothing set, no value and a wrong value are three things.
func TestProtobufEmpty(t *testing.T) {
	numbers := topic.Protobuf[*wrapperspb.Int64Value]("numbers")
	p, outs := record()
	if err := numbers.Publish(p, wrapperspb.Int64(0)); err != nil {
		t.Fatal(err)
	}
	if v := (*outs)[0].Value; v == nil || len(v) != 0 {
		t.Errorf("a message with nothing set is %#v, want an empty value", v)
	}
	msg, ok, err := numbers.Message(topic.Envelope{Value: []byte{}})
	if msg == nil || msg.Value != 0 || !ok || err != nil {
		t.Errorf("an empty value is %v, %t, %v; want a message with nothing set", msg, ok, err)
	}
	msg, ok, err = numbers.Message(topic.Envelope{})
	if msg != nil || ok || err != nil {
		t.Errorf("a null value is %v, %t, %v; want nil, false and no error", msg, ok, err)
	}
	msg, ok, err = numbers.Message(topic.Envelope{Topic: numbers.Description, Value: []byte{0x08}})
	if msg != nil || ok || err == nil || !strings.HasPrefix(err.Error(), "decode message numbers-0 at offset 0: ") {
		t.Errorf("half a field is %v, %t, %v; want an error", msg, ok, err)
	}
}

func TestProtobufErrors(t *testing.T) {
	p, outs := record()
	for name, err := range map[string]error{
		"typed":   topic.Protobuf[*wrapperspb.StringValue]("s").Publish(p, nil),
		"untyped": p.Publish((*wrapperspb.StringValue)(nil), topic.Protobuf[*wrapperspb.StringValue]("s").Description),
	} {
		if want := "encode message for topic s: a nil message; PublishTombstone publishes a null value"; err == nil || err.Error() != want {
			t.Errorf("%s: error %v, want %s", name, err, want)
		}
	}
	if err := topic.Protobuf[*wrapperspb.StringValue]("s").Publish(p, wrapperspb.String("\xff")); err == nil {
		t.Error("text that is not UTF-8 was published")
	}
	if len(*outs) != 0 {
		t.Errorf("published %#v all the same", *outs)
	}

	defer func() {
		if got, want := recover(), "pawl: topic any: Protobuf takes a pointer to a generated type, not an interface"; got != want {
			t.Errorf("panic %v, want %s", got, want)
		}
	}()
	topic.Protobuf[proto.Message]("any")
}

// Whatever decodes can be published again, and is then the same message.
func FuzzProtobufDecode(f *testing.F) {
	for _, s := range []string{"", "\x0a", "\x0a\x05\x0a\x01a\x12\x00", "\x08\x01", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "\x0b\x0c"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		msg, ok, err := rows.Message(topic.Envelope{Value: append([]byte{}, src...)})
		if err != nil {
			return
		}
		if !ok {
			t.Fatalf("%x is a tombstone", src)
		}
		p, outs := record()
		if err := rows.Publish(p, msg); err != nil {
			t.Fatalf("%x decodes to %v, which does not encode: %v", src, msg, err)
		}
		again, _, err := rows.Message(topic.Envelope{Value: (*outs)[0].Value})
		if err != nil {
			t.Fatalf("%x, encoded again as %x: %v", src, (*outs)[0].Value, err)
		}
		p, outs2 := record()
		if err := rows.Publish(p, again); err != nil || !bytes.Equal((*outs)[0].Value, (*outs2)[0].Value) {
			t.Errorf("%x, then %x (%v)", (*outs)[0].Value, (*outs2)[0].Value, err)
		}
	})
}

func ExampleProtobuf() {
	names := topic.Protobuf("names", topic.KeyedBy(func(n *wrapperspb.StringValue) string { return n.GetValue() }))

	p := topic.NewPublisher(func(o topic.Out) error {
		fmt.Printf("%s: %s = %x\n", o.Topic, o.Key, o.Value)
		return nil
	})
	if err := names.Publish(p, wrapperspb.String("pawl")); err != nil {
		fmt.Println(err)
	}
	// Output: names: pawl = 0a047061776c
}
