package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pawlstream/pawl"
	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

const shards = 4

// sameGC gives every measured process the garbage collector that pawl.Main
// gives a program, for the default memory budget.
func sameGC() { pawl.TuneGC(512 << 20) }

func (b bench) profiled() (stop func(), err error) {
	if b.profile == "" {
		return func() {}, nil
	}
	f, err := os.Create(b.profile)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, err
	}
	return func() { pprof.StopCPUProfile(); f.Close() }, nil
}

func inputTopic(keys, messages int) string { return fmt.Sprintf("bench-in-%d-%d", keys, messages) }

// fill makes the input topic, if an earlier run has not: 100-byte messages
// with 10-byte keys, uniformly distributed.
func (b bench) fill(keys int) error {
	ctx := context.Background()
	name := inputTopic(keys, b.messages)
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.broker), kgo.MaxBufferedRecords(200_000), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(5*time.Millisecond))
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	if _, err := adm.CreateTopic(ctx, shards, 1, nil, name); err != nil {
		ends, err := adm.ListEndOffsets(ctx, name)
		if err != nil {
			return err
		}
		total := int64(0)
		ends.Each(func(o kadm.ListedOffset) { total += o.Offset })
		if total == int64(b.messages) {
			return nil
		}
		return fmt.Errorf("topic %s holds %d messages, want %d: delete it", name, total, b.messages)
	}
	value := make([]byte, 90)
	seed := uint64(1)
	failed := make(chan error, 1)
	for range b.messages {
		seed = seed*6364136223846793005 + 1442695040888963407
		key := fmt.Appendf(nil, "k%09d", (seed>>33)%uint64(keys))
		cl.Produce(ctx, &kgo.Record{Topic: name, Key: key, Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
	}
	if err := cl.Flush(ctx); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// poll reads the input and does nothing with it.
func (b bench) poll(keys int) error {
	sameGC()
	stop, err := b.profiled()
	if err != nil {
		return err
	}
	begun := time.Now()
	parts := make(map[int32]kgo.Offset)
	for p := range int32(shards) {
		parts[p] = kgo.NewOffset().AtStart()
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.broker), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{inputTopic(keys, b.messages): parts}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return err
	}
	n := 0
	for n < b.messages {
		fetches := cl.PollRecords(context.Background(), 10_000)
		if err := fetches.Err(); err != nil {
			return err
		}
		n += fetches.NumRecords()
	}
	f := figures{Messages: n, Seconds: time.Since(begun).Seconds()}
	f.usage()
	stop()
	return f.print()
}

// counted is an output: a key and how often it has come.
type counted struct {
	key string
	n   int64
}

type countedCodec struct{}

func (countedCodec) Append(dst []byte, c counted) ([]byte, error) {
	return binary.BigEndian.AppendUint64(dst, uint64(c.n)), nil
}

func (countedCodec) Decode(src []byte) (counted, error) {
	if len(src) != 8 {
		return counted{}, errors.New("want 8 bytes")
	}
	return counted{n: int64(binary.BigEndian.Uint64(src))}, nil
}

var counts = store.NewTable("counts", store.String, store.Int64)

// counter counts the messages of each key, and publishes the counts that
// changed.
type counter struct {
	input  topic.Of[[]byte]
	output topic.Of[counted]
}

func newCounter(input, output string, partitions int) *counter {
	return &counter{input: topic.Bytes(input), output: topic.New(output, countedCodec{}, topic.KeyedBy(func(c counted) string { return c.key })).With(topic.Partitions(partitions))}
}

func (c *counter) Topics() []*topic.Description  { return []*topic.Description{c.input.Description} }
func (c *counter) Outputs() []*topic.Description { return []*topic.Description{c.output.Description} }

func (c *counter) Consume(e topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
	_, err := counts.Update(s.Transaction(), string(e.Key), func(n int64) int64 { return n + 1 })
	return err
}

func (c *counter) Flush(s consumer.Shard, p *topic.Publisher) error {
	for key, change := range counts.Changes(s.Transaction()) {
		if err := c.output.Publish(p, counted{key, change.New}); err != nil {
			return err
		}
	}
	return nil
}

// runCounter runs a counter until done says so, and returns what its
// registry has counted.
func (b bench) runCounter(application string, c consumer.Consumer, done func(consumer.Status) bool) (messages, commits float64, err error) {
	dir, err := os.MkdirTemp("", "pawl-bench-")
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(dir)
	registry := prometheus.NewRegistry()
	app, err := consumer.New(consumer.Config{
		Application: application, Cluster: cluster.Cluster{Brokers: []string{b.broker}}, StateDir: dir, Instance: application,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Registerer: registry,
	}, c)
	if err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- app.Run(ctx) }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-result:
			return 0, 0, fmt.Errorf("stopped early: %w", err)
		case <-tick.C:
			if !done(app.Status()) {
				continue
			}
			families, err := registry.Gather()
			if err != nil {
				return 0, 0, err
			}
			for _, f := range families {
				switch f.GetName() {
				case "pawl_messages_total":
					messages = f.GetMetric()[0].GetCounter().GetValue()
				case "pawl_commits_total":
					commits = f.GetMetric()[0].GetCounter().GetValue()
				}
			}
			cancel()
			return messages, commits, <-result
		}
	}
}

// count counts the input by key, and validates the result.
func (b bench) count(keys int) error {
	sameGC()
	stop, err := b.profiled()
	if err != nil {
		return err
	}
	begun := time.Now()
	application := fmt.Sprintf("bench-%d", time.Now().UnixNano())
	c := newCounter(inputTopic(keys, b.messages), application+".out", shards)
	f := figures{Messages: b.messages}
	_, f.Commits, err = b.runCounter(application, c, func(st consumer.Status) bool {
		total := int64(0)
		for _, s := range st.Shards {
			for _, next := range s.Offsets {
				total += next
			}
			if s.Phase == consumer.Failed {
				fmt.Fprintln(os.Stderr, "bench:", s.ID, s.Reason)
			}
		}
		if total < int64(b.messages) || f.Seconds > 0 {
			return total >= int64(b.messages)
		}
		f.Seconds = time.Since(begun).Seconds()
		f.usage()
		stop()
		return true
	})
	if err != nil {
		return err
	}
	if err := b.validate(c.output.Name(), int64(b.messages)); err != nil {
		return err
	}
	if err := b.remove(application); err != nil {
		return err
	}
	return f.print()
}

// validate reads the output read committed, to its end: the last counts of all
// keys add up to the input, and each count of a key is more than the one before.
func (b bench) validate(output string, want int64) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.broker), kgo.ConsumeTopics(output), kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords()) // by whose offsets the end is known
	if err != nil {
		return err
	}
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, output)
	if err != nil {
		return err
	}
	if err := ends.Error(); err != nil {
		return err
	}
	left := make(map[int32]int64) // by partition, its end
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	last := make(map[string]int64)
	sum := int64(0)
	var wrong error
	for len(left) > 0 {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("the counts add up to %d, want %d, with %d partitions not read to their ends: %w", sum, want, len(left), err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if end, ok := left[r.Partition]; ok && r.Offset >= end-1 {
				delete(left, r.Partition)
			}
			if r.Attrs.IsControl() {
				return
			}
			n := int64(binary.BigEndian.Uint64(r.Value))
			if before := last[string(r.Key)]; n <= before {
				wrong = fmt.Errorf("key %s: count %d comes after %d", r.Key, n, before)
			}
			sum += n - last[string(r.Key)]
			last[string(r.Key)] = n
		})
	}
	if wrong == nil && sum != want {
		wrong = fmt.Errorf("the counts add up to %d, want %d", sum, want)
	}
	return wrong
}

// remove deletes what an application has left on the broker.
func (b bench) remove(application string) error {
	ctx := context.Background()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.broker))
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	names, err := adm.ListTopics(ctx)
	if err != nil {
		return err
	}
	var mine []string
	for _, name := range names.Names() {
		if strings.HasPrefix(name, application+".") || name == application {
			mine = append(mine, name)
		}
	}
	_, err = adm.DeleteTopics(ctx, mine...)
	return err
}
