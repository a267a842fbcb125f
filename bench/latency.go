package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/topic"
)

// stamper counts the messages of each key, and publishes for each when it was
// due, which its value says.
type stamper struct {
	input  topic.Of[[]byte]
	output topic.Of[[]byte]
}

func (s *stamper) Topics() []*topic.Description  { return []*topic.Description{s.input.Description} }
func (s *stamper) Outputs() []*topic.Description { return []*topic.Description{s.output.Description} }

func (s *stamper) Consume(e topic.Envelope, sh consumer.Shard, p *topic.Publisher) error {
	if _, err := counts.Update(sh.Transaction(), string(e.Key), func(n int64) int64 { return n + 1 }); err != nil {
		return err
	}
	return s.output.Publish(p, e.Value)
}

func (s *stamper) Flush(consumer.Shard, *topic.Publisher) error { return nil }

// latency sends messages at a rate, through a counter that passes each on, and
// receives them read committed.
func (b bench) latency(rate, partitions int) error {
	sameGC()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	application := fmt.Sprintf("bench-%d", time.Now().UnixNano())
	input, output := application+".in", application+".out"
	s := &stamper{input: topic.Bytes(input), output: topic.Bytes(output).With(topic.Partitions(partitions))}

	setup, err := kgo.NewClient(kgo.SeedBrokers(b.broker))
	if err != nil {
		return err
	}
	defer setup.Close()
	adm := kadm.NewClient(setup)
	if _, err := adm.CreateTopics(ctx, int32(partitions), 1, nil, input, output); err != nil {
		return err
	}
	for { // a broker knows a topic a moment after it was created
		known, err := adm.ListTopics(ctx, input, output)
		if err != nil {
			return err
		}
		if known.Error() == nil {
			break
		}
		time.Sleep(10 * time.Millisecond) // real time: nothing tells but asking
	}
	producer, err := kgo.NewClient(kgo.SeedBrokers(b.broker), kgo.ProducerLinger(0), kgo.MaxBufferedRecords(1_000_000))
	if err != nil {
		return err
	}
	defer producer.Close()
	receiver, err := kgo.NewClient(kgo.SeedBrokers(b.broker), kgo.ConsumeTopics(output), kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return err
	}
	defer receiver.Close()

	const warmUp = 3 * time.Second
	var started atomic.Bool
	var measured []float64
	total := rate * b.seconds
	received := make(chan error, 1)
	go func() {
		for len(measured) < total {
			fetches := receiver.PollFetches(ctx)
			if err := fetches.Err(); err != nil {
				received <- err
				return
			}
			now := time.Now()
			fetches.EachRecord(func(r *kgo.Record) {
				if sent := int64(binary.BigEndian.Uint64(r.Value)); sent > 0 { // not of the warm-up
					measured = append(measured, float64(now.UnixNano()-sent)/1e6)
				}
			})
		}
		received <- nil
	}()
	send := func() {
		begun := time.Now()
		warm := int(float64(rate) * warmUp.Seconds())
		for i := range warm + total {
			// Open loop: sent when it is due, whatever came back. A sender that
			// lags is part of what a message waits for.
			due := begun.Add(time.Duration(i) * time.Second / time.Duration(rate))
			time.Sleep(time.Until(due)) // real time: open loop, a message is sent when it is due
			value := make([]byte, 90)
			if i >= warm {
				binary.BigEndian.PutUint64(value, uint64(due.UnixNano()))
			}
			producer.Produce(ctx, &kgo.Record{Topic: input, Key: fmt.Appendf(nil, "k%09d", i*7919%100_000), Value: value}, nil)
		}
	}
	f := figures{Messages: total}
	var before figures
	begun := time.Now()
	var receiveErr error
	got := false
	_, _, err = b.runCounter(application, s, func(st consumer.Status) bool {
		if len(st.Shards) < partitions {
			return false
		}
		for _, sh := range st.Shards {
			if sh.Phase != consumer.Running {
				return false
			}
		}
		if started.CompareAndSwap(false, true) {
			before.usage()
			begun = time.Now()
			go send()
		}
		select {
		case receiveErr = <-received:
			got = true
		default:
		}
		return got
	})
	if err == nil {
		err = receiveErr
	}
	if err != nil {
		return err
	}
	f.Seconds = time.Since(begun).Seconds()
	f.usage()
	f.CPU -= before.CPU
	slices.Sort(measured)
	f.P50, f.P99 = measured[len(measured)/2], measured[len(measured)*99/100]
	if err := b.remove(application); err != nil {
		return err
	}
	return f.print()
}
