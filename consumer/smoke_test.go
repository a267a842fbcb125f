package consumer_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/devbroker"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

var (
	words  = topic.String("words").With(topic.Partitions(4))
	totals = topic.String("totals").With(topic.Partitions(2))
	counts = store.NewTable("counts", store.String, store.Int64)
)

type counter struct{}

func (counter) Topics() []*topic.Description  { return []*topic.Description{words.Description} }
func (counter) Outputs() []*topic.Description { return []*topic.Description{totals.Description} }
func (counter) Consume(e topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
	_, err := counts.Update(s.Transaction(), string(e.Key), func(n int64) int64 { return n + 1 })
	return err
}
func (counter) Flush(s consumer.Shard, p *topic.Publisher) error {
	for w, c := range counts.Changes(s.Transaction()) {
		if err := totals.Publish(p, fmt.Sprintf("%s=%d", w, c.New), topic.Key([]byte(w))); err != nil {
			return err
		}
	}
	return nil
}

func TestSmoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := devbroker.Start(devbroker.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		log := slog.New(slog.NewTextHandler(t.Output(), nil))
		app, err := consumer.New(consumer.Config{Application: "app", Cluster: b.Host("p1"), StateDir: t.TempDir(), Logger: log, Instance: "p1"}, counter{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- app.Run(ctx) }()
		time.Sleep(2 * time.Second)
		p, err := kafka.NewProducer(kafka.Config{Cluster: b.Cluster(), Logger: log})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 1000 {
			k := fmt.Sprintf("k%d", i%37)
			if err := p.Publish(ctx, kafka.Record{Topic: "words", Partition: -1, Key: []byte(k), Value: []byte("x")}); err != nil {
				t.Fatal(err)
			}
		}
		p.Close()
		time.Sleep(2 * time.Second)
		t.Logf("%+v", app.Status())
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
