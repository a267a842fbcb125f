package consumer_test

import (
	"context"
	"log"
	"os/signal"
	"syscall"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/topic"
)

// reminder sends each message out again after a day.
type reminder struct{}

func (reminder) Topics() []*topic.Description { return []*topic.Description{words.Description} }

func (reminder) Consume(e topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
	return s.Transaction().SetTimer(e.Key, e.Timestamp.Add(24*time.Hour))
}

func (reminder) Fire(key []byte, _ time.Time, _ consumer.Shard, p *topic.Publisher) error {
	return lines.Publish(p, "remember "+string(key))
}

func (reminder) Flush(consumer.Shard, *topic.Publisher) error { return nil }

// A program whose consumer does something a day later.
func ExampleTimerConsumer() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := consumer.Run(ctx, consumer.Config{
		Application: "reminder",
		Cluster:     cluster.Cluster{Brokers: []string{"kafka-1:9092"}},
		StateDir:    "/var/lib/reminder",
	}, reminder{})
	if err != nil {
		log.Fatal(err)
	}
}
