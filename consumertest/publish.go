package consumertest

import (
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// Publish publishes messages of a topic of text, as the function [Publish] does
// for any.
func (c *Cluster) Publish(to topic.Of[string], msgs ...string) {
	c.t.Helper()
	Publish(c, to, msgs...)
}

// Publish publishes messages, and returns once the broker has all of them. They
// have the key that the topic's [topic.KeyedBy] says. Without one they are
// spread: the first goes to partition 0, the next to 1.
func Publish[T any](c *Cluster, to topic.Of[T], msgs ...T) {
	c.t.Helper()
	publish(c, to, msgs)
}

// PublishKeyed publishes messages that all have the key.
func PublishKeyed[T any](c *Cluster, to topic.Of[T], key string, msgs ...T) {
	c.t.Helper()
	publish(c, to, msgs, topic.Key([]byte(key)))
}

// PublishWith publishes one message with options: its key, headers, partition
// or timestamp.
func PublishWith[T any](c *Cluster, to topic.Of[T], msg T, opts ...topic.PublishOption) {
	c.t.Helper()
	publish(c, to, []T{msg}, opts...)
}

func publish[T any](c *Cluster, to topic.Of[T], msgs []T, opts ...topic.PublishOption) {
	c.t.Helper()
	outs := make([]topic.Out, 0, len(msgs))
	p := topic.NewPublisher(func(o topic.Out) error {
		outs = append(outs, o)
		return nil
	})
	for _, m := range msgs {
		if err := to.Publish(p, m, opts...); err != nil {
			c.t.Fatal(err)
		}
	}
	c.PublishRecord(outs...)
}

// PublishTombstone publishes a null value for the key.
func (c *Cluster) PublishTombstone(to Topic, key string) {
	c.t.Helper()
	c.PublishRecord(topic.Out{Topic: to.Describe(), Partition: -1, Key: []byte(key)})
}

// PublishRecord publishes messages as they are, for bytes that no codec makes.
// One with partition -1 goes where its key says.
func (c *Cluster) PublishRecord(outs ...topic.Out) {
	c.t.Helper()
	recs := make([]kafka.Record, len(outs))
	counts := make(map[string]int)
	for i, o := range outs {
		r := kafka.Record{Topic: o.Topic.Name(), Partition: o.Partition, Key: o.Key, Value: o.Value, Headers: o.Headers, Timestamp: o.Timestamp}
		if r.Partition < 0 && r.Key == nil {
			if counts[r.Topic] == 0 {
				counts[r.Topic] = len(c.partitions(r.Topic))
			}
			r.Partition = int32(c.spread[r.Topic] % counts[r.Topic])
			c.spread[r.Topic]++
		}
		recs[i] = r
	}
	ctx, cancel := c.context()
	defer cancel()
	if c.producer == nil {
		p, err := kafka.NewProducer(c.kafka())
		if err != nil {
			c.t.Fatal(err)
		}
		c.producer = p
	}
	if err := c.producer.Publish(ctx, recs...); err != nil {
		c.t.Fatal(err)
	}
}

func (c *Cluster) closeProducer() {
	if c.producer != nil {
		c.producer.Close()
		c.producer = nil
	}
}
