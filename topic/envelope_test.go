package topic_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/pawlstream/pawl/topic"
)

type total struct {
	Word string
	N    int
}

// A null value says that its key is deleted. It is no error and no zero
// message, in any codec; an empty value is a value.
func TestTombstone(t *testing.T) {
	check(t, topic.JSON[total]("totals"), nil, "unexpected end of JSON input")
	check(t, topic.String("words"), "", "")
	check(t, topic.Bytes("raw"), []byte{}, "")
}

// check decodes a null and an empty value of the topic, with its type and
// without. The empty value decodes to empty, or fails with wantErr.
func check[T any](t *testing.T, of topic.Of[T], empty any, wantErr string) {
	t.Helper()
	var zero T

	e := topic.Envelope{Topic: of.Description, Partition: 3, Offset: 42}
	if msg, ok, err := of.Message(e); ok || err != nil || !reflect.DeepEqual(msg, zero) {
		t.Errorf("%s: a null value gives %#v, %t, %v; want a zero value, false and no error", of, msg, ok, err)
	}
	if msg, ok, err := e.Message(); ok || err != nil || msg != nil {
		t.Errorf("%s: a null value gives %#v, %t, %v without the type; want nil, false and no error", of, msg, ok, err)
	}

	e.Value = []byte{}
	typed, ok, err := of.Message(e)
	untyped, ok2, err2 := e.Message()
	if wantErr != "" {
		want := "decode message " + of.Name() + "-3 at offset 42: " + wantErr
		for _, err := range []error{err, err2} {
			if err == nil || err.Error() != want {
				t.Errorf("%s: an empty value gives the error %v, want %s", of, err, want)
			}
		}
		if ok || ok2 {
			t.Errorf("%s: ok beside an error", of)
		}
		return
	}
	if !ok || err != nil || !reflect.DeepEqual(any(typed), empty) {
		t.Errorf("%s: an empty value gives %#v, %t, %v; want %#v", of, typed, ok, err, empty)
	}
	if !ok2 || err2 != nil || !reflect.DeepEqual(untyped, empty) {
		t.Errorf("%s: an empty value gives %#v, %t, %v without the type; want %#v", of, untyped, ok2, err2, empty)
	}
}

func TestDecodeError(t *testing.T) {
	totals := topic.JSON[total]("totals")
	e := topic.Envelope{Topic: totals.Description, Partition: 7, Offset: 1 << 40, Value: []byte("{")}
	_, _, err := totals.Message(e)

	var de *topic.DecodeError
	if !errors.As(err, &de) {
		t.Fatalf("error %v, want a DecodeError", err)
	}
	if de.Topic != "totals" || de.Partition != 7 || de.Offset != 1<<40 {
		t.Errorf("it names %s, %d, %d; want totals, 7, %d", de.Topic, de.Partition, de.Offset, int64(1<<40))
	}
	if errors.Unwrap(err) != de.Err || de.Err == nil {
		t.Errorf("it wraps %v, want the decoder's error", de.Err)
	}
	if got, want := err.Error(), "decode message totals-7 at offset 1099511627776: unexpected end of JSON input"; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
}

// {"Word":"a"} of another topic would decode into a total.
func TestMessageOfAnotherTopic(t *testing.T) {
	totals, others := topic.JSON[total]("totals"), topic.JSON[total]("others")
	e := topic.Envelope{Topic: others.Description, Partition: 1, Offset: 2, Value: []byte(`{"Word":"a"}`)}
	msg, ok, err := totals.Message(e)
	if want := "decode message others-1 at offset 2: it is not a message of topic totals"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if ok || msg != (total{}) {
		t.Errorf("message %v, %t", msg, ok)
	}

	// With the same name it is the same topic, and a test's envelope may name none.
	for _, d := range []*topic.Description{totals.With(topic.Compacted()).Description, nil} {
		e.Topic = d
		if msg, ok, err := totals.Message(e); !ok || err != nil || msg.Word != "a" {
			t.Errorf("of %v: %v, %t, %v", d, msg, ok, err)
		}
	}
}

func TestMessageWithoutTopic(t *testing.T) {
	e := topic.Envelope{Partition: 1, Offset: 2, Value: []byte("a")}
	if got, want := e.TopicName(), ""; got != want {
		t.Errorf("TopicName() = %q, want %q", got, want)
	}
	if _, ok, err := e.Message(); err == nil || ok {
		t.Errorf("ok %t, error %v; want an error", ok, err)
	}
	e.Topic = new(topic.Description)
	if _, ok, err := e.Message(); err == nil || ok {
		t.Errorf("of an empty description: ok %t, error %v; want an error", ok, err)
	}
}

// A decoded message outlives the bytes it came from.
func TestMessageIsACopy(t *testing.T) {
	raw, words := topic.Bytes("raw"), topic.String("words")
	value := []byte("abc")
	b, _, err := raw.Message(topic.Envelope{Value: value})
	if err != nil {
		t.Fatal(err)
	}
	s, _, err := words.Message(topic.Envelope{Value: value})
	if err != nil {
		t.Fatal(err)
	}
	copy(value, "xyz")
	if string(b) != "abc" || s != "abc" {
		t.Errorf("messages are %q and %q after the value was overwritten, want abc", b, s)
	}
}
