package topic_test

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/pawlstream/pawl/topic"
)

type Total struct {
	Word  string `json:"word"`
	Count int64  `json:"count"`
}

// printer is a publisher for examples: it prints what is published.
var printer = topic.NewPublisher(func(o topic.Out) error {
	if o.Value == nil {
		fmt.Printf("%s: %s deleted\n", o.Topic, o.Key)
		return nil
	}
	fmt.Printf("%s: %s = %s\n", o.Topic, o.Key, o.Value)
	return nil
})

func ExampleJSON() {
	totals := topic.JSON("totals", topic.KeyedBy(func(t Total) string { return t.Word }))

	if err := totals.Publish(printer, Total{Word: "pawl", Count: 3}); err != nil {
		fmt.Println(err)
	}
	if err := totals.PublishTombstone(printer, "pawl"); err != nil {
		fmt.Println(err)
	}
	// Output:
	// totals: pawl = {"word":"pawl","count":3}
	// totals: pawl deleted
}

func ExampleString() {
	words := topic.String("words")
	fmt.Println(words.Publish(printer, "pawl", topic.Key([]byte("k"))))
	// Output:
	// words: k = pawl
	// <nil>
}

func ExampleBytes() {
	images := topic.Bytes("images").With(topic.Partitions(3), topic.Configured("max.message.bytes", "10000000"))
	fmt.Println(images, images.Partitions(), images.Settings())
	// Output: images 3 map[max.message.bytes:10000000]
}

// bigEndian is a codec of numbers of eight bytes.
type bigEndian struct{}

func (bigEndian) Append(dst []byte, n int64) ([]byte, error) {
	return binary.BigEndian.AppendUint64(dst, uint64(n)), nil
}

func (bigEndian) Decode(src []byte) (int64, error) {
	if len(src) != 8 {
		return 0, fmt.Errorf("%d bytes, want 8", len(src))
	}
	return int64(binary.BigEndian.Uint64(src)), nil
}

func ExampleNew() {
	// bigEndian has the methods of Codec[int64].
	levels := topic.New[int64]("levels", bigEndian{})

	e := topic.Envelope{Topic: levels.Description, Partition: 2, Offset: 17, Value: []byte{0, 0, 0, 0, 0, 0, 0, 9}}
	fmt.Println(levels.Message(e))

	e.Value = e.Value[:3]
	_, _, err := levels.Message(e)
	fmt.Println(err)
	// Output:
	// 9 true <nil>
	// decode message levels-2 at offset 17: 3 bytes, want 8
}

func ExampleOf_With() {
	// Messages of two topics with one key meet in one shard.
	orders := topic.JSON[Total]("orders").With(topic.Partitions(8), topic.Set("shop"))
	payments := topic.JSON[Total]("payments").With(topic.Partitions(8), topic.Set("shop"), topic.Compacted())

	fmt.Println(orders.Set() == payments.Set(), payments.Settings())
	// Output: true map[cleanup.policy:compact]
}

func ExampleOf_Message() {
	totals := topic.JSON[Total]("totals")

	t, ok, err := totals.Message(topic.Envelope{Value: []byte(`{"word":"pawl","count":3}`)})
	fmt.Println(t, ok, err)

	_, ok, err = totals.Message(topic.Envelope{Value: nil}) // a tombstone
	fmt.Println(ok, err)
	// Output:
	// {pawl 3} true <nil>
	// false <nil>
}

func ExampleEnvelope_Message() {
	totals := topic.JSON[Total]("totals")
	e := topic.Envelope{Topic: totals.Description, Value: []byte(`{"word":"pawl","count":3}`)}

	msg, ok, err := e.Message()
	fmt.Printf("%T %v %v %v\n", msg, msg, ok, err)
	// Output: topic_test.Total {pawl 3} true <nil>
}

func ExampleNewPublisher() {
	var published []string
	fake := topic.NewPublisher(func(o topic.Out) error {
		published = append(published, string(o.Value))
		return nil
	})
	words := topic.String("words")
	for _, w := range []string{"a", "b"} {
		if err := words.Publish(fake, w); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(published)
	// Output: [a b]
}

func ExamplePublisher_Publish() {
	words := topic.String("words")
	fmt.Println(printer.Publish("pawl", words.Description))
	fmt.Println(printer.Publish(7, words.Description))
	// Output:
	// words:  = pawl
	// <nil>
	// encode message for topic words: it takes messages of type string, not int
}

func ExampleHeaders() {
	p := topic.NewPublisher(func(o topic.Out) error {
		for _, h := range o.Headers {
			fmt.Printf("%s=%s ", h.Key, h.Value)
		}
		fmt.Println(o.Partition, o.Timestamp.UTC().Format(time.RFC3339))
		return nil
	})
	err := topic.String("words").Publish(p, "pawl",
		topic.Headers(topic.Header{Key: "trace", Value: []byte("7f")}, topic.Header{Key: "trace", Value: []byte("80")}),
		topic.ToPartition(1),
		topic.Timestamp(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)))
	fmt.Println(err)
	// Output:
	// trace=7f trace=80 1 2026-01-02T03:04:05Z
	// <nil>
}

func ExamplePartitionFor() {
	fmt.Println(topic.PartitionFor([]byte("foobar"), 12))
	// Output: 6
}

func ExampleCheckName() {
	fmt.Println(topic.CheckName("orders.eu"))
	fmt.Println(topic.CheckName("orders/eu"))
	// Output:
	// <nil>
	// topic name "orders/eu" holds '/', and Kafka takes only letters, digits, '.', '_' and '-'
}

func ExamplePartition() {
	fmt.Println(topic.Partition{Topic: "words", Number: 7})
	// Output: words-7
}
