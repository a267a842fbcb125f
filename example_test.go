package pawl_test

import (
	"context"
	"errors"

	"github.com/pawlstream/pawl"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// Total says how often a word has come.
type Total struct {
	Word  string
	Count int64
}

var (
	words  = topic.String("words")
	totals = topic.JSON("totals", topic.KeyedBy(func(t Total) string { return t.Word }))
	counts = store.NewTable("counts", store.String, store.Int64)
)

type counter struct{}

func (counter) Topics() []*topic.Description { return []*topic.Description{words.Description} }

func (counter) Consume(e topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
	_, err := counts.Update(s.Transaction(), string(e.Key), func(n int64) int64 { return n + 1 })
	return err
}

func (counter) Flush(s consumer.Shard, p *topic.Publisher) error {
	for word, c := range counts.Changes(s.Transaction()) {
		if err := totals.Publish(p, Total{word, c.New}); err != nil {
			return err
		}
	}
	return nil
}

// A whole program that counts words, exactly once each.
func Example() {
	pawl.Main(counter{}) // does not return
}

// Order is a message of the topic orders.
type Order struct{ ID, Customer string }

// A whole program that works on a queue: each order is mailed, tried again
// when that fails, and set aside when it never will succeed.
func ExampleWork() {
	send := func(ctx context.Context, o Order, _ messaging.Delivery) error {
		if o.Customer == "" {
			return messaging.DeadLetter(errors.New("nobody to send it to"))
		}
		return mail(ctx, o) // an error has it tried again
	}
	pawl.Work("orders", messaging.JSON(send)) // does not return
}

func mail(context.Context, Order) error { return nil }
