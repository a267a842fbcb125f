package topic_test

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pawlstream/pawl/topic"
)

// record returns a publisher and the messages that have come out of it.
func record() (*topic.Publisher, *[]topic.Out) {
	var outs []topic.Out
	return topic.NewPublisher(func(o topic.Out) error {
		outs = append(outs, o)
		return nil
	}), &outs
}

var (
	totals = topic.JSON("totals", topic.KeyedBy(func(t total) string { return t.Word }))
	words  = topic.String("words")
	raw    = topic.Bytes("raw")
)

func TestPublish(t *testing.T) {
	at := time.UnixMilli(1700000000123)
	for _, tt := range []struct {
		name    string
		publish func(*topic.Publisher) error
		want    topic.Out
	}{
		{
			"keyed by the message",
			func(p *topic.Publisher) error { return totals.Publish(p, total{"a", 1}) },
			topic.Out{Topic: totals.Description, Partition: -1, Key: []byte("a"), Value: []byte(`{"Word":"a","N":1}`)},
		},
		{
			"keyed by the message, with the empty key",
			func(p *topic.Publisher) error { return totals.Publish(p, total{}) },
			topic.Out{Topic: totals.Description, Partition: -1, Key: []byte{}, Value: []byte(`{"Word":"","N":0}`)},
		},
		{
			"without a key",
			func(p *topic.Publisher) error { return words.Publish(p, "a") },
			topic.Out{Topic: words.Description, Partition: -1, Value: []byte("a")},
		},
		{
			"an empty value is not null",
			func(p *topic.Publisher) error { return words.Publish(p, "") },
			topic.Out{Topic: words.Description, Partition: -1, Value: []byte{}},
		},
		{
			"nil bytes are an empty value",
			func(p *topic.Publisher) error { return raw.Publish(p, nil) },
			topic.Out{Topic: raw.Description, Partition: -1, Value: []byte{}},
		},
		{
			"a key in place of the message's",
			func(p *topic.Publisher) error { return totals.Publish(p, total{"a", 1}, topic.Key([]byte("b"))) },
			topic.Out{Topic: totals.Description, Partition: -1, Key: []byte("b"), Value: []byte(`{"Word":"a","N":1}`)},
		},
		{
			"a null key in place of the message's",
			func(p *topic.Publisher) error { return totals.Publish(p, total{"a", 1}, topic.Key(nil)) },
			topic.Out{Topic: totals.Description, Partition: -1, Value: []byte(`{"Word":"a","N":1}`)},
		},
		{
			"an empty key",
			func(p *topic.Publisher) error { return words.Publish(p, "a", topic.Key([]byte{})) },
			topic.Out{Topic: words.Description, Partition: -1, Key: []byte{}, Value: []byte("a")},
		},
		{
			"headers in order, repeated, null and empty",
			func(p *topic.Publisher) error {
				return words.Publish(p, "a",
					topic.Headers(topic.Header{Key: "h", Value: []byte("1")}, topic.Header{Key: "h"}),
					topic.Headers(topic.Header{Key: "", Value: []byte{}}))
			},
			topic.Out{Topic: words.Description, Partition: -1, Value: []byte("a"),
				Headers: []topic.Header{{Key: "h", Value: []byte("1")}, {Key: "h"}, {Key: "", Value: []byte{}}}},
		},
		{
			"partition and timestamp",
			func(p *topic.Publisher) error {
				return words.Publish(p, "a", topic.ToPartition(0), topic.Timestamp(at))
			},
			topic.Out{Topic: words.Description, Partition: 0, Value: []byte("a"), Timestamp: at},
		},
		{
			"the last option wins",
			func(p *topic.Publisher) error {
				return words.Publish(p, "a", topic.ToPartition(4), topic.ToPartition(-1), topic.Key([]byte("x")), topic.Key(nil))
			},
			topic.Out{Topic: words.Description, Partition: -1, Value: []byte("a")},
		},
		{
			"tombstone",
			func(p *topic.Publisher) error { return totals.PublishTombstone(p, "a") },
			topic.Out{Topic: totals.Description, Partition: -1, Key: []byte("a")},
		},
		{
			"tombstone of the empty key",
			func(p *topic.Publisher) error { return totals.PublishTombstone(p, "", topic.ToPartition(2)) },
			topic.Out{Topic: totals.Description, Partition: 2, Key: []byte{}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, outs := record()
			if err := tt.publish(p); err != nil {
				t.Fatal(err)
			}
			// DeepEqual tells nil from empty.
			if want := []topic.Out{tt.want}; !reflect.DeepEqual(*outs, want) {
				t.Errorf("published %#v, want %#v", *outs, want)
			}
		})
	}
}

// The two ways to publish differ in who checks the type, and in nothing else.
func TestPublishTypedAndUntyped(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		msg := total{rapid.String().Draw(t, "word"), rapid.Int().Draw(t, "n")}
		var opts []topic.PublishOption
		if rapid.Bool().Draw(t, "with a key") {
			opts = append(opts, topic.Key(nilOrBytes(t, "key")))
		}
		if rapid.Bool().Draw(t, "with a header") {
			opts = append(opts, topic.Headers(topic.Header{Key: "h", Value: nilOrBytes(t, "header")}))
		}
		if rapid.Bool().Draw(t, "with a partition") {
			opts = append(opts, topic.ToPartition(rapid.Int32Range(-1, 1<<31-1).Draw(t, "partition")))
		}
		p, outs := record()
		if err := totals.Publish(p, msg, opts...); err != nil {
			t.Fatal(err)
		}
		if err := p.Publish(msg, totals.Description, opts...); err != nil {
			t.Fatal(err)
		}
		if typed, untyped := (*outs)[0], (*outs)[1]; !reflect.DeepEqual(typed, untyped) {
			t.Errorf("typed %#v, untyped %#v", typed, untyped)
		}
	})
}

func nilOrBytes(t *rapid.T, label string) []byte {
	if rapid.Bool().Draw(t, label+" is nil") {
		return nil
	}
	return append([]byte{}, rapid.SliceOf(rapid.Byte()).Draw(t, label)...)
}

func TestPublishErrors(t *testing.T) {
	refused := errors.New("refused by the codec")
	for _, tt := range []struct {
		name    string
		publish func(*topic.Publisher) error
		want    string
	}{
		{"another type", func(p *topic.Publisher) error { return p.Publish(7, words.Description) },
			"encode message for topic words: it takes messages of type string, not int"},
		{"another type, for the key", func(p *topic.Publisher) error { return p.Publish("a", totals.Description) },
			"encode message for topic totals: it takes messages of type topic_test.total, not string"},
		{"a pointer to the type", func(p *topic.Publisher) error { return p.Publish(&total{}, totals.Description) },
			"encode message for topic totals: it takes messages of type topic_test.total, not *topic_test.total"},
		{"an interface for a type", func(p *topic.Publisher) error {
			return p.Publish(7, topic.New("errors", topic.Codec[error](codec[error]{})).Description)
		}, "encode message for topic errors: it takes messages of type error, not int"},
		{"nil", func(p *topic.Publisher) error { return p.Publish(nil, words.Description) },
			"publish to words: a nil message; PublishTombstone publishes a null value"},
		{"no topic", func(p *topic.Publisher) error { return p.Publish("a", nil) },
			"publish: no topic is given; one is made by New, JSON, String or Bytes"},
		{"an empty description", func(p *topic.Publisher) error { return p.Publish("a", new(topic.Description)) },
			"publish: no topic is given; one is made by New, JSON, String or Bytes"},
		{"not UTF-8", func(p *topic.Publisher) error { return words.Publish(p, "caf\xe9") },
			"encode message for topic words: not valid UTF-8 (topic.Bytes takes any bytes)"},
		{"the codec's error", func(p *topic.Publisher) error {
			return topic.New("t", topic.Codec[int](codec[int]{err: refused})).Publish(p, 1)
		}, "encode message for topic t: refused by the codec"},
		{"no such partition", func(p *topic.Publisher) error { return words.Publish(p, "a", topic.ToPartition(-2)) },
			"publish to words: there is no partition -2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, outs := record()
			err := tt.publish(p)
			if err == nil || err.Error() != tt.want {
				t.Errorf("error %v, want %s", err, tt.want)
			}
			if len(*outs) != 0 {
				t.Errorf("it published %#v all the same", *outs)
			}
			if strings.HasPrefix(tt.want, "encode") {
				var ee *topic.EncodeError
				if !errors.As(err, &ee) || ee.Err == nil {
					t.Errorf("error %T, want an EncodeError", err)
				}
			}
		})
	}
	err := topic.New("t", topic.Codec[int](codec[int]{err: refused})).Publish(topic.NewPublisher(nil), 1)
	if !errors.Is(err, refused) {
		t.Errorf("error %v does not wrap the codec's", err)
	}
}

// codec answers every encoding with enc and err.
type codec[T any] struct {
	enc []byte
	err error
}

func (c codec[T]) Append([]byte, T) ([]byte, error) { return c.enc, c.err }
func (c codec[T]) Decode([]byte) (msg T, err error) { return msg, c.err }

// The sink's error goes to whoever publishes.
func TestPublishSinkError(t *testing.T) {
	full := errors.New("full")
	p := topic.NewPublisher(func(topic.Out) error { return full })
	for name, err := range map[string]error{
		"typed":     words.Publish(p, "a"),
		"untyped":   p.Publish("a", words.Description),
		"tombstone": words.PublishTombstone(p, "a"),
	} {
		if !errors.Is(err, full) {
			t.Errorf("%s: error %v, want the sink's", name, err)
		}
	}
}

// A codec's mistake must not delete a key.
func TestCodecThatReturnsNil(t *testing.T) {
	p, outs := record()
	if err := topic.New("t", topic.Codec[int](codec[int]{})).Publish(p, 1); err != nil {
		t.Fatal(err)
	}
	if v := (*outs)[0].Value; v == nil || len(v) != 0 {
		t.Errorf("value %#v, want an empty one", v)
	}
}

// Whatever is published, in whatever sizes: each message that comes out has
// memory of its own, which neither the author's later writes nor later messages
// nor the receiver's writes to the other messages change.
func TestPublishCopies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, outs := record()
		size := rapid.OneOf(
			rapid.IntRange(0, 40),
			rapid.IntRange(400, 700),           // about where a chunk is given up
			rapid.IntRange(15<<10, 17<<10),     // about where it is kept for smaller ones
			rapid.IntRange(64<<10-600, 66<<10), // about as large as a chunk
		)
		n := rapid.IntRange(1, 60).Draw(t, "messages")
		type sent struct{ key, value, header []byte }
		var want []sent
		fill := byte(0)
		next := func(n int) []byte { fill++; return bytes.Repeat([]byte{fill}, n) }
		for range n {
			key, value, header := next(size.Draw(t, "key")), next(size.Draw(t, "value")), next(8)
			var err error
			switch rapid.IntRange(0, 3).Draw(t, "how") {
			case 0:
				err = raw.Publish(p, value, topic.Key(key), topic.Headers(topic.Header{Key: "h", Value: header}))
			case 1:
				err = p.Publish(value, raw.Description, topic.Key(key), topic.Headers(topic.Header{Key: "h", Value: header}))
			case 2: // the key out of the message, into the chunk
				keyed := topic.Bytes("keyed", topic.KeyedBy(func([]byte) string { return string(key) }))
				err = keyed.Publish(p, value, topic.Headers(topic.Header{Key: "h", Value: header}))
			case 3: // an error half way must not leave its mark
				if topic.New("t", topic.Codec[int](codec[int]{err: errors.New("no")}), topic.KeyedBy(func(int) string { return string(key) })).Publish(p, 1) == nil {
					t.Fatal("no error")
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, sent{bytes.Clone(key), bytes.Clone(value), bytes.Clone(header)})
			for _, b := range [][]byte{key, value, header} {
				clear(b)
			}
		}
		if len(*outs) != len(want) {
			t.Fatalf("%d messages, want %d", len(*outs), len(want))
		}
		for i, o := range *outs {
			for _, part := range []struct {
				name      string
				got, want []byte
			}{{"key", o.Key, want[i].key}, {"value", o.Value, want[i].value}, {"header", o.Headers[0].Value, want[i].header}} {
				if !bytes.Equal(part.got, part.want) {
					t.Errorf("message %d: %s of %d bytes differs from the %d bytes published", i, part.name, len(part.got), len(part.want))
				}
				// The receiver may do as it likes with what is its own.
				grown := append(part.got, 0xff)
				for j := range grown {
					grown[j] = 0xff
				}
				for j := range part.got {
					part.got[j] = 0xff
				}
			}
		}
	})
}

// Messages that don't fit in what is left of a chunk go into the next one, and
// don't each take memory of their own.
func TestPublishAllocates(t *testing.T) {
	p := topic.NewPublisher(func(topic.Out) error { return nil })
	for _, size := range []int{10, 1000, 10_000} {
		msg := bytes.Repeat([]byte("x"), size)
		got := testing.AllocsPerRun(1000, func() {
			if err := raw.Publish(p, msg); err != nil {
				t.Fatal(err)
			}
		})
		// AllocsPerRun rounds down. Two for a full chunk and what outgrew it, in 6 messages of 10,000 bytes.
		if got > 0 {
			t.Errorf("%v allocations for a message of %d bytes, want less than one", got, size)
		}
	}
}

func BenchmarkPublish(b *testing.B) {
	p := topic.NewPublisher(func(topic.Out) error { return nil })
	value := bytes.Repeat([]byte("x"), 100)
	keyed := topic.Bytes("keyed", topic.KeyedBy(func([]byte) string { return "user-1234" }))
	b.Run("bytes", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := keyed.Publish(p, value); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("untyped", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := p.Publish(value, keyed.Description); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := totals.Publish(p, total{"word", 1234}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkPartitionFor(b *testing.B) {
	key := []byte("user-1234")
	b.ReportAllocs()
	for b.Loop() {
		topic.PartitionFor(key, 50)
	}
}
