package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Producer publishes without transactions: idempotent, and acknowledged by
// all replicas in sync. Safe for concurrent use.
type Producer struct {
	cl     *kgo.Client
	cancel context.CancelFunc
	limits limits
	astray sync.Map
}

// NewProducer returns a producer. It connects to no broker.
func NewProducer(cfg Config) (*Producer, error) {
	cfg = cfg.withDefaults()
	p := &Producer{}
	p.limits.mu.topics = make(map[string]int)
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	cl, err := cfg.newClient(ctx, append(produceOptions(&p.limits, &p.astray), kgo.AlwaysRetryEOF())...)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("producer: %w", err)
	}
	p.cl = cl
	return p, nil
}

// Publish writes the records and returns once every one is acknowledged. When
// it returns an error, some may have been written; the error is a *RecordError
// with the first that was refused, if one was.
func (p *Producer) Publish(ctx context.Context, recs ...Record) error {
	if len(recs) == 0 {
		return nil
	}
	if err := p.limits.learn(ctx, p.cl, p.limits.unknown(recs)...); err != nil {
		return classed(err)
	}
	var s slab
	s.fill(recs)
	promise := s.promise
	for i := range s.recs {
		p.cl.Produce(ctx, &s.recs[i], promise)
	}
	if err := p.cl.Flush(ctx); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	select {
	case <-s.done:
	case <-ctx.Done():
		return fmt.Errorf("publish: %w", ctx.Err())
	}
	at, first := -1, failure{}
	for _, f := range s.failures() {
		if _, ok := p.astray.LoadAndDelete(f.rec); ok {
			f.err = fmt.Errorf("%w: %w", ErrUnknownTopic, errNoSuchPartition)
		}
		if i := s.index(f.rec); at < 0 || i < at {
			at, first = i, f
		}
	}
	switch {
	case at < 0:
		return nil
	case errors.Is(first.err, kgo.ErrClientClosed):
		return fmt.Errorf("publish: %w", ErrClosed)
	case !isRefusal(first.err):
		return fmt.Errorf("publish to %s: %w", first.rec.Topic, first.err)
	}
	r := &recs[at]
	e := &RecordError{Index: at, Topic: r.Topic, Partition: first.rec.Partition, Key: r.Key, Size: wireSize(r), Err: classed(first.err)}
	if isTooLarge(first.err) {
		e.Limit = int(p.limits.batch(r.Topic)) - 4
	}
	return e
}

// Close ends the producer. Publish calls that still run return.
func (p *Producer) Close() {
	p.cancel()
	p.cl.Close()
}

func produceOptions(l *limits, astray *sync.Map) []kgo.Opt {
	return []kgo.Opt{
		kgo.RecordPartitioner(byHand{astray}),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerBatchMaxBytesFn(l.batch),
		// Producing never waits: the caller bounds what a transaction holds.
		kgo.MaxBufferedRecords(1 << 30),
		// Full batches leave at once, the others at Flush.
		kgo.ProducerLinger(10 * time.Millisecond),
	}
}
