package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Producer publishes without transactions: idempotent, and acknowledged by
// all replicas in sync. Safe for concurrent use.
type Producer struct {
	cl     *kgo.Client
	cancel context.CancelFunc
	limits limits
	astray sync.Map

	forgets   sync.Mutex
	forgotten atomic.Int64 // how often topics were; changed under forgets
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
	_, refused, err := p.PublishEach(ctx, recs...)
	if err != nil {
		return err
	}
	for _, err := range refused {
		if err != nil {
			return err
		}
	}
	return nil
}

// PublishEach is Publish for whoever has to know of each record whether it was
// written, and where. It returns the offset of each, which is -1 if it is not
// known, and an error for each that was not written, in the records' order, or
// nil if all were. An error beside that says that of none is it known.
func (p *Producer) PublishEach(ctx context.Context, recs ...Record) (at []int64, refused []error, err error) {
	if len(recs) == 0 {
		return nil, nil, nil
	}
	forgotten := p.forgotten.Load()
	if err := p.limits.learn(ctx, p.cl, p.limits.unknown(recs)...); err != nil {
		return nil, nil, classed(err)
	}
	s := newSlab(recs)
	promise := s.promise
	for i := range s.recs {
		if limit := p.limits.of(recs[i].Topic); limit > 0 && wireSize(&recs[i]) > limit {
			// A batch that a broker refuses takes what waits behind it along.
			promise(&s.recs[i], kerr.MessageTooLarge)
			continue
		}
		p.cl.Produce(ctx, &s.recs[i], promise)
	}
	select {
	case <-s.done:
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("publish: %w", ctx.Err())
	}
	at = make([]int64, len(recs))
	for i := range s.recs {
		at[i] = s.recs[i].Offset
	}
	var gone []string // topics
	for _, f := range s.failures() {
		if refused == nil {
			refused = make([]error, len(recs))
		}
		i := s.index(f.rec)
		refused[i] = p.refusal(i, &recs[i], f)
		if errors.Is(f.err, kerr.UnknownTopicID) && !slices.Contains(gone, f.rec.Topic) {
			gone = append(gone, f.rec.Topic)
		}
	}
	if gone != nil {
		p.forget(forgotten, gone)
	}
	return at, refused, nil
}

// forget has the client forget topics that were deleted since it has known them.
// It would refuse all that is published to one of the same name, for as long as it
// lives. What is published from here on goes to the topic that is there then. Times
// is how often something was forgotten before: whoever comes late must not take
// what others publish to the new topic along.
func (p *Producer) forget(times int64, topics []string) {
	p.forgets.Lock()
	defer p.forgets.Unlock()
	if !p.forgotten.CompareAndSwap(times, times+1) {
		return
	}
	p.cl.PurgeTopicsFromProducing(topics...)
	p.limits.forget(topics...)
}

// refusal says why a record was not written.
func (p *Producer) refusal(i int, r *Record, f failure) error {
	if _, ok := p.astray.LoadAndDelete(f.rec); ok {
		f.err = fmt.Errorf("%w: %w", ErrUnknownTopic, errNoSuchPartition)
	}
	switch {
	case errors.Is(f.err, kgo.ErrClientClosed):
		return fmt.Errorf("publish: %w", ErrClosed)
	case !isRefusal(f.err):
		return fmt.Errorf("publish to %s: %w", f.rec.Topic, classed(f.err))
	}
	e := &RecordError{Index: i, Topic: r.Topic, Partition: f.rec.Partition, Key: r.Key, Size: wireSize(r), Err: classed(f.err)}
	if isTooLarge(f.err) {
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
		// Callers wait for what they publish: nothing waits for more to come.
		kgo.ProducerLinger(0),
	}
}
