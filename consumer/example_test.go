package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os/signal"
	"syscall"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// orderTotal is what customers have ordered so far.
type orderTotal struct {
	Customer string
	Cents    int64
}

type order struct {
	Customer string
	Cents    int64
}

var (
	orders      = topic.JSON("orders", topic.KeyedBy(func(o order) string { return o.Customer }))
	orderTotals = topic.JSON("order-totals", topic.KeyedBy(func(t orderTotal) string { return t.Customer }))
	spent       = store.NewTable("spent", store.String, store.Int64)
)

// totaling adds up the orders of each customer.
type totaling struct{}

func (totaling) Topics() []*topic.Description  { return []*topic.Description{orders.Description} }
func (totaling) Outputs() []*topic.Description { return []*topic.Description{orderTotals.Description} }

func (totaling) Consume(e topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
	o, ok, err := orders.Message(e)
	if err != nil || !ok {
		return err // a message that can't be decoded fails; a tombstone is passed
	}
	_, err = spent.Update(s.Transaction(), o.Customer, func(cents int64) int64 { return cents + o.Cents })
	return err
}

// Flush runs once per transaction, so that a customer with many orders in it
// has one output.
func (totaling) Flush(s consumer.Shard, p *topic.Publisher) error {
	for customer, c := range spent.Changes(s.Transaction()) {
		if err := orderTotals.Publish(p, orderTotal{customer, c.New}); err != nil {
			return err
		}
	}
	return nil
}

// A program of its own calls Run with a configuration; package pawl makes a
// configuration of flags and variables.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := consumer.Run(ctx, consumer.Config{
		Application: "billing",
		Cluster:     cluster.Cluster{Brokers: []string{"kafka-1:9092", "kafka-2:9092"}},
		StateDir:    "/var/lib/billing",
		OnFailure:   consumer.DeadLetter,
	}, totaling{})
	if err != nil {
		log.Fatal(err)
	}
}

// New says everything that is wrong with a configuration.
func ExampleNew() {
	_, err := consumer.New(consumer.Config{Application: "Billing", StateDir: "state", OnFailure: "ignore"}, totaling{})
	fmt.Println(err)
	// Output:
	// configure application Billing: application name "Billing": want lower-case letters, digits and hyphens
	// no brokers are named
	// failure policy "ignore": want stop, retry, dead-letter, skip
}

// An error of a service that may come back is retried, whatever the policy
// for failures is.
func ExampleTransient() {
	err := fmt.Errorf("charge the card: %w", consumer.Transient(errors.New("no answer")))
	fmt.Println(err, consumer.IsTransient(err))
	// Output: charge the card: no answer true
}

func ExampleParseStart() {
	for _, s := range []string{"earliest", "latest", "2026-01-02T15:04:05Z", "yesterday"} {
		start, err := consumer.ParseStart(s)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(start)
	}
	// Output:
	// earliest
	// latest
	// 2026-01-02T15:04:05Z
	// start "yesterday": want earliest, latest or a time such as 2006-01-02T15:04:05Z
}

func ExampleChangelogTopic() {
	fmt.Println(consumer.ChangelogTopic("billing", "orders"))
	fmt.Println(consumer.DeadLetterTopic("billing", "orders"))
	fmt.Println(consumer.TransactionalID("billing", "orders-007"))
	// Output:
	// billing.orders.changelog
	// billing.orders.dlq
	// billing.orders-007
}
