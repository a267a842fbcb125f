package consumer_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// echo sets a timer for each message, batch by batch, and says so when it fires.
type echo struct {
	in, out topic.Of[string]
}

func (e echo) Topics() []*topic.Description  { return []*topic.Description{e.in.Description} }
func (e echo) Outputs() []*topic.Description { return []*topic.Description{e.out.Description} }

func (echo) Consume(topic.Envelope, consumer.Shard, *topic.Publisher) error { panic("not in a batch") }

func (echo) ConsumeBatch(es []topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
	for _, m := range es {
		after, err := time.ParseDuration(string(m.Value))
		if err != nil {
			return err
		}
		if err := s.Transaction().SetTimer(m.Key, m.Timestamp.Add(after)); err != nil {
			return err
		}
	}
	return nil
}

func (e echo) Fire(key []byte, at time.Time, _ consumer.Shard, p *topic.Publisher) error {
	if early := time.Until(at); early > 0 {
		return fmt.Errorf("fired %v early", early)
	}
	return e.out.Publish(p, "fired", topic.Key(key))
}

func (echo) Flush(consumer.Shard, *topic.Publisher) error { return nil }

// In real time, and on a real Kafka: timers that are due over some seconds fire
// once each, while the shards move from process to process, one after the other
// with a state directory of its own.
func TestTimersMoveWithTheirShards(t *testing.T) {
	onBrokers(t, func(t *testing.T, brokers string) {
		id := fmt.Sprintf("e%d", time.Now().UnixNano())
		e := echo{topic.String(id + "-in"), topic.String(id + "-out")}
		cfg := kafka.Config{Cluster: cluster.Cluster{Brokers: []string{brokers}}, Logger: slog.New(slog.DiscardHandler)}
		admin, err := kafka.NewAdmin(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer admin.Close()
		for _, name := range []string{e.in.Name(), e.out.Name()} {
			if _, err := admin.CreateTopic(t.Context(), kafka.TopicSpec{Name: name, Partitions: 2}); err != nil {
				t.Fatal(err)
			}
		}
		const n = 300
		var recs []kafka.Record
		for i := range n {
			recs = append(recs, kafka.Record{Topic: e.in.Name(), Partition: -1, Key: fmt.Appendf(nil, "k%03d", i), Value: fmt.Appendf(nil, "%dms", i*15)})
		}
		p, err := kafka.NewProducer(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if err := p.Publish(t.Context(), recs...); err != nil {
			t.Fatal(err)
		}
		r, err := kafka.NewReader(cfg, kafka.ReaderConfig{Committed: true, Topics: []string{e.out.Name()}})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for part := range int32(2) {
			r.Consume(e.out.Description, part, 0)
		}
		fired := make(map[string]int)
		until := func(count int) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for len(fired) < count {
				var b kafka.Batch
				if err := r.Poll(ctx, 1000, &b); err != nil {
					t.Fatalf("with %d of %d timers fired: %v", len(fired), count, err)
				}
				for _, m := range b.Envelopes {
					fired[string(m.Key)]++
				}
			}
		}
		dir := t.TempDir()
		for i, share := range []int{n / 4, n / 2, 3 * n / 4, n} {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- consumer.Run(ctx, consumer.Config{
					Application: id, Cluster: cfg.Cluster, StateDir: filepath.Join(dir, fmt.Sprint(i%3)), Instance: fmt.Sprint(i % 3),
					Logger: cfg.Logger,
				}, e)
			}()
			until(share)
			cancel()
			if err := <-ended; err != nil {
				t.Fatalf("process %d: %v", i, err)
			}
		}
		for key, times := range fired {
			if times != 1 {
				t.Errorf("the timer of %s has fired %d times", key, times)
			}
		}
	})
}
