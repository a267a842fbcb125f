package topic

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"strings"
)

// Description says what a topic is: its name, how its messages are encoded,
// how they give their key, and, for the case that Pawl creates it, its number
// of partitions and its settings. It is made once, for the whole program, by
// [JSON], [String], [Bytes] or [New], and does not change after.
type Description struct {
	name       string
	set        string
	partitions int
	settings   map[string]string

	// The codec and the key function, without their type parameter. Each
	// answers with an error for a message of another type.
	encode func(dst []byte, msg any) ([]byte, error)
	decode func(src []byte) (any, error)
	key    func(dst []byte, msg any) (key []byte, keyed bool, err error)
}

// Name returns the topic's name on the broker.
func (d *Description) Name() string { return d.name }

// Describe returns the description. [Of] has it too, whatever the type of its
// messages, so that code for topics of any type can take either.
func (d *Description) Describe() *Description { return d }

// Set returns the name of the co-partitioned set that the topic belongs to,
// which is the topic's own name unless [Set] declared one. Topics of one set
// share a shard per partition.
func (d *Description) Set() string {
	if d.set != "" {
		return d.set
	}
	return d.name
}

// Partitions returns the number of partitions that Pawl creates the topic
// with, or 0 where nothing says so. What happens to such a topic that is missing
// is for whoever creates it: see consumer.Config.CreateTopics.
func (d *Description) Partitions() int { return d.partitions }

// Settings returns a copy of the topic settings, by the broker's own names,
// that Pawl creates the topic with.
func (d *Description) Settings() map[string]string { return maps.Clone(d.settings) }

// String returns the topic's name.
func (d *Description) String() string { return d.name }

// A Setting is a property of a topic that does not depend on the type of its
// messages: [Partitions], [Compacted], [Set], [Configured].
type Setting func(*Description)

// Partitions sets how many partitions the topic is created with.
func Partitions(n int) Setting {
	if n < 1 {
		panic(fmt.Sprintf("pawl: a topic can't have %d partitions", n))
	}
	return func(d *Description) { d.partitions = n }
}

// Compacted makes the topic, when Pawl creates it, keep the last message of
// each key for ever, and any other only until it is compacted away.
func Compacted() Setting { return Configured("cleanup.policy", "compact") }

// Configured sets a topic setting by the broker's own name, for example
// retention.ms, for the case that Pawl creates the topic.
func Configured(name, value string) Setting {
	return func(d *Description) {
		d.settings = maps.Clone(d.settings) // descriptions copied by With share nothing
		if d.settings == nil {
			d.settings = make(map[string]string)
		}
		d.settings[name] = value
	}
}

// Set declares that the topic belongs to the named co-partitioned set. Topics
// of one set have equal numbers of partitions, and partition n of each is
// consumed by the same shard, which is how messages of several topics meet.
// The set's name becomes part of the names of topics, and must be fit for it.
func Set(name string) Setting {
	if err := CheckName(name); err != nil {
		panic("pawl: co-partitioned set: " + err.Error())
	}
	return func(d *Description) { d.set = name }
}

// An Option is what [New] and [JSON] take: [KeyedBy]. Settings, which do not
// depend on the type of the messages, are given by [Of.With].
type Option[T any] interface {
	apply(*Of[T])
	of(T)
}

type keyedBy[T any] func(T) string

func (k keyedBy[T]) apply(o *Of[T]) { o.key = k }
func (k keyedBy[T]) of(T)           {}

// KeyedBy makes each message's key out of the message. Messages of one key go
// to one partition, the one that every Kafka client chooses for that key.
func KeyedBy[T any](key func(T) string) Option[T] { return keyedBy[T](key) }

// Of is a topic whose messages have the type T. It is a plain value, to be
// kept in a variable of the program.
type Of[T any] struct {
	*Description
	codec Codec[T]
	key   func(T) string
}

// New returns the topic of the given name, with messages in the given codec.
// A program whose topic has a name that no broker takes panics here, at start.
func New[T any](name string, codec Codec[T], opts ...Option[T]) Of[T] {
	if err := CheckName(name); err != nil {
		panic("pawl: " + err.Error())
	}
	if codec == nil {
		panic("pawl: topic " + name + " has no codec")
	}
	o := Of[T]{Description: &Description{name: name}, codec: codec}
	for _, opt := range opts {
		opt.apply(&o)
	}
	o.erase()
	return o
}

// JSON returns a topic of JSON messages, one value a message.
func JSON[T any](name string, opts ...Option[T]) Of[T] { return New(name, jsonCodec[T]{}, opts...) }

// String returns a topic of messages that are text.
func String(name string, opts ...Option[string]) Of[string] {
	return New(name, stringCodec{}, opts...)
}

// Bytes returns a topic of messages that are bytes, passed on as they are.
func Bytes(name string, opts ...Option[[]byte]) Of[[]byte] {
	return New(name, bytesCodec{}, opts...)
}

// With returns the topic with the settings applied. It leaves its receiver as
// it was.
func (o Of[T]) With(settings ...Setting) Of[T] {
	d := *o.Description
	o.Description = &d
	for _, s := range settings {
		s(o.Description)
	}
	return o
}

// erase fills the functions of the description that work without the type.
func (o *Of[T]) erase() {
	codec, keyOf := o.codec, o.key
	cast := func(msg any) (T, error) {
		t, ok := msg.(T)
		if !ok {
			return t, fmt.Errorf("it takes messages of type %v, not %T", reflect.TypeFor[T](), msg)
		}
		return t, nil
	}
	o.Description.encode = func(dst []byte, msg any) ([]byte, error) {
		t, err := cast(msg)
		if err != nil {
			return dst, err
		}
		return codec.Append(dst, t)
	}
	o.Description.decode = func(src []byte) (any, error) { return codec.Decode(src) }
	o.Description.key = func(dst []byte, msg any) ([]byte, bool, error) {
		if keyOf == nil {
			return dst, false, nil
		}
		t, err := cast(msg)
		if err != nil {
			return dst, false, err
		}
		return append(dst, keyOf(t)...), true, nil
	}
}

// Message decodes the value of e, an envelope of this topic. A null value is
// a tombstone, for which ok is false. The message is the caller's to keep. An
// envelope of a topic of another name is an error: in many encodings its value
// would decode, into a message with nothing in it.
func (o Of[T]) Message(e Envelope) (msg T, ok bool, err error) {
	if e.Topic != nil && e.Topic != o.Description && e.Topic.name != o.name {
		return msg, false, e.decodeError(fmt.Errorf("it is not a message of topic %s", o.name))
	}
	if e.Value == nil {
		return msg, false, nil
	}
	msg, err = o.codec.Decode(e.Value)
	if err != nil {
		var zero T
		return zero, false, e.decodeError(err)
	}
	return msg, true, nil
}

// Publish publishes msg to the topic, with the key that [KeyedBy] gives unless
// an option says otherwise.
func (o Of[T]) Publish(p *Publisher, msg T, opts ...PublishOption) error {
	return publish(p, o, msg, opts)
}

// PublishTombstone publishes a null value for the key: the key is deleted. In
// a compacted topic nothing is kept of it.
func (o Of[T]) PublishTombstone(p *Publisher, key string, opts ...PublishOption) error {
	out := Out{Topic: o.Description, Partition: -1, Key: p.copy([]byte(key))}
	return p.send(out, opts)
}

// Partition is one partition of one topic.
type Partition struct {
	Topic  string
	Number int32
}

// String returns the topic's name, a hyphen and the number.
func (p Partition) String() string { return fmt.Sprintf("%s-%d", p.Topic, p.Number) }

// Compare orders partitions by topic, then by number.
func (p Partition) Compare(q Partition) int {
	if c := strings.Compare(p.Topic, q.Topic); c != 0 {
		return c
	}
	return cmp.Compare(p.Number, q.Number)
}

// NameMax is the length in bytes of the longest topic name that Kafka takes.
const NameMax = 249

// CheckName returns an error that says what is wrong with a topic's name, if
// anything is.
func CheckName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("a topic has an empty name")
	case name == "." || name == "..":
		return fmt.Errorf("topic name %q is not allowed", name)
	case len(name) > NameMax:
		return fmt.Errorf("topic name %.40q… has %d bytes, and Kafka takes %d", name, len(name), NameMax)
	}
	for _, c := range name {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return fmt.Errorf("topic name %q holds %q, and Kafka takes only letters, digits, '.', '_' and '-'", name, c)
		}
	}
	return nil
}
