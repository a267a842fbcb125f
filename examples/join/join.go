// Package join enriches a stream with a table: each order goes out with its
// customer, as the customer was when the order came.
//
//	customers (by customer) ─┐
//	                         ├─► Joiner ──► enriched (by customer)
//	orders (by customer) ────┘   customers, orders that wait
//
// Both topics are in one co-partitioned set, so that a customer and their orders
// come to the same shard, whose state holds both sides. An order that comes
// before its customer waits for them, ten minutes at most: a timer then sends it out
// without. Its program is in cmd:
//
//	go run ./examples/join/cmd --listen 127.0.0.1:9092
package join

import (
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// Customer is who orders.
type Customer struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Order is what they order.
type Order struct {
	ID       string `json:"id"`
	Customer string `json:"customer"` // their ID
	Cents    int64  `json:"cents"`
}

// Enriched is an order with its customer.
type Enriched struct {
	Order
	Name string `json:"name,omitempty"` // empty if the customer did not become known in time
}

var (
	customers = topic.JSON("customers", topic.KeyedBy(func(c Customer) string { return c.ID })).With(topic.Set("shop"), topic.Compacted())
	orders    = topic.JSON("orders", topic.KeyedBy(func(o Order) string { return o.Customer })).With(topic.Set("shop"))
	enriched  = topic.JSON("enriched", topic.KeyedBy(func(e Enriched) string { return e.Customer }))

	known   = store.NewTable("customers", store.String, store.JSON[Customer]())
	waiting = store.NewTable("waiting", store.String, store.JSON[Order]()) // by customer and order
)

// patience is how long an order waits for its customer.
const patience = 10 * time.Minute

// Joiner is the consumer.
type Joiner struct{}

// Topics returns the topics to join.
func (Joiner) Topics() []*topic.Description {
	return []*topic.Description{customers.Description, orders.Description}
}

// Outputs returns the topic to publish to.
func (Joiner) Outputs() []*topic.Description { return []*topic.Description{enriched.Description} }

// Consume takes a message of either side.
func (j Joiner) Consume(e topic.Envelope, s consumer.Shard, p *topic.Publisher) error {
	if e.TopicName() == customers.Name() {
		return j.customer(e, s, p)
	}
	return j.order(e, s, p)
}

// customer keeps a customer, and sends out the orders that have waited for them.
func (Joiner) customer(e topic.Envelope, s consumer.Shard, p *topic.Publisher) error {
	tx := s.Transaction()
	c, ok, err := customers.Message(e)
	if err != nil {
		return err
	}
	if !ok { // a tombstone: the customer is gone
		return known.Delete(tx, string(e.Key))
	}
	if err := known.Put(tx, c.ID, c); err != nil {
		return err
	}
	var come []Order
	for _, o := range waiting.Range(tx, c.ID+"/", c.ID+"0") { // 0 comes after /
		come = append(come, o)
	}
	for _, o := range come {
		if err := waiting.Delete(tx, place(o)); err != nil {
			return err
		}
		if err := tx.CancelTimer([]byte(place(o))); err != nil {
			return err
		}
		if err := enriched.Publish(p, Enriched{o, c.Name}); err != nil {
			return err
		}
	}
	return tx.Err()
}

// order sends an order out, or has it wait.
func (Joiner) order(e topic.Envelope, s consumer.Shard, p *topic.Publisher) error {
	tx := s.Transaction()
	o, ok, err := orders.Message(e)
	if err != nil || !ok {
		return err
	}
	c, ok, err := known.Get(tx, o.Customer)
	if err != nil {
		return err
	}
	if ok {
		return enriched.Publish(p, Enriched{o, c.Name})
	}
	if err := waiting.Put(tx, place(o), o); err != nil {
		return err
	}
	return tx.SetTimer([]byte(place(o)), e.Timestamp.Add(patience))
}

// Fire sends out an order that has waited for too long.
func (Joiner) Fire(key []byte, _ time.Time, s consumer.Shard, p *topic.Publisher) error {
	o, ok, err := waiting.Get(s.Transaction(), string(key))
	if err != nil || !ok {
		return err
	}
	if err := waiting.Delete(s.Transaction(), string(key)); err != nil {
		return err
	}
	return enriched.Publish(p, Enriched{Order: o})
}

// Flush has nothing to add.
func (Joiner) Flush(consumer.Shard, *topic.Publisher) error { return nil }

// place is where an order waits: those of one customer together.
func place(o Order) string { return o.Customer + "/" + o.ID }
