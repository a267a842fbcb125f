package consumer_test

import (
	"context"
	"log"
	"os/signal"
	"syscall"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

var (
	visits  = topic.String("visits")
	visited = store.NewTable("visited", store.String, store.Int64)
)

// visitors counts visits, of more visitors than memory has room for.
type visitors struct{}

func (visitors) Topics() []*topic.Description { return []*topic.Description{visits.Description} }

// Prefetch says which keys the messages are about to use.
func (visitors) Prefetch(es []topic.Envelope, s consumer.Shard) error {
	keys := make([]string, len(es))
	for i, e := range es {
		keys[i] = string(e.Key)
	}
	return visited.Prefetch(s.Transaction(), keys)
}

func (visitors) Consume(e topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
	_, err := visited.Update(s.Transaction(), string(e.Key), func(n int64) int64 { return n + 1 })
	return err
}

func (visitors) Flush(consumer.Shard, *topic.Publisher) error { return nil }

// A consumer whose table holds more keys than memory does lets them be read ahead,
// in key order.
func ExamplePrefetcher() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := consumer.Run(ctx, consumer.Config{
		Application: "visitors",
		Cluster:     cluster.Cluster{Brokers: []string{"kafka-1:9092"}},
		StateDir:    "/var/lib/visitors",
	}, visitors{})
	if err != nil {
		log.Fatal(err)
	}
}
