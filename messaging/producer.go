package messaging

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// closeTimeout bounds Close.
const closeTimeout = 10 * time.Second

// producer publishes to one topic.
type producer struct {
	topic string
	codec *topic.Description
	p     *kafka.Producer

	tracer trace.Tracer // nil: there are no spans

	mu struct {
		sync.Mutex
		closed  bool
		running int
		idle    chan struct{} // closed when it is closed and nothing runs
	}
}

func newProducer(c cluster.Cluster, name string, codec *topic.Description, app string, log *slog.Logger, tp trace.TracerProvider) (*producer, error) {
	p, err := kafka.NewProducer(kafka.Config{Cluster: c, ClientID: app, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("messaging: application %s: %w", app, err)
	}
	out := &producer{topic: name, codec: codec, p: p, tracer: newTracer(tp)}
	out.mu.idle = make(chan struct{})
	return out, nil
}

// Publish implements Producer.
func (p *producer) Publish(ctx context.Context, message any) (err error) {
	if p.tracer != nil {
		var span trace.Span
		ctx, span = p.tracer.Start(ctx, "send "+p.topic, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
			attribute.String("messaging.system", "kafka"),
			attribute.String("messaging.operation.name", "send"),
			attribute.String("messaging.operation.type", "send"),
			attribute.String("messaging.destination.name", p.topic),
		))
		defer func() { endSpan(span, err) }()
	}
	rec, err := p.record(message)
	if err != nil {
		return fmt.Errorf("publish to %s: %w", p.topic, err)
	}
	rec.Headers = traced(ctx, rec.Headers)
	p.mu.Lock()
	if p.mu.closed {
		p.mu.Unlock()
		return fmt.Errorf("publish to %s: %w", p.topic, ErrClosed)
	}
	p.mu.running++
	p.mu.Unlock()
	defer p.done()
	if err := p.p.Publish(ctx, rec); err != nil {
		if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		if errors.Is(err, kafka.ErrClosed) {
			err = fmt.Errorf("%w: %w", ErrClosed, err)
		}
		return err
	}
	return nil
}

func (p *producer) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.running--
	if p.mu.closed && p.mu.running == 0 {
		close(p.mu.idle)
	}
}

// record returns a message as it goes to the topic.
func (p *producer) record(message any) (kafka.Record, error) {
	rec := kafka.Record{Topic: p.topic, Partition: -1}
	switch m := message.(type) {
	case nil:
		return rec, errors.New("a nil message; an envelope with a nil value is a tombstone")
	case *topic.Envelope:
		if m == nil {
			return rec, errors.New("a nil envelope")
		}
		rec.Key, rec.Value, rec.Headers = m.Key, m.Value, own(m.Headers)
		return rec, nil
	case *delivery:
		rec.Key, rec.Value, rec.Headers = m.key, m.Value(), own(m.headers)
		return rec, nil
	case Delivery:
		rec.Key, rec.Value, rec.Headers = m.Key(), m.Value(), m.Headers()
		return rec, nil
	case Message:
		rec.Value = m.Value()
		return rec, nil
	}
	if p.codec != nil {
		var out topic.Out
		sink := topic.NewPublisher(func(o topic.Out) error {
			out = o
			return nil
		})
		err := sink.Publish(message, p.codec)
		if err == nil {
			rec.Key, rec.Value, rec.Headers = out.Key, out.Value, out.Headers
			return rec, nil
		}
		switch message.(type) {
		case []byte, string: // which are taken as they are
		default:
			return rec, err
		}
	}
	switch m := message.(type) {
	case []byte:
		rec.Value = m
	case string:
		rec.Value = []byte(m)
	default:
		return rec, fmt.Errorf("a message of type %T, and the application has no codec for it", message)
	}
	return rec, nil
}

// Close implements CloseableProducer.
func (p *producer) Close() error {
	p.mu.Lock()
	if p.mu.closed {
		p.mu.Unlock()
		return nil
	}
	p.mu.closed = true
	if p.mu.running == 0 {
		close(p.mu.idle)
	}
	p.mu.Unlock()
	defer p.p.Close()
	select {
	case <-p.mu.idle:
		return nil
	case <-time.After(closeTimeout):
		return fmt.Errorf("close the producer to %s: calls of Publish still run after %v", p.topic, closeTimeout)
	}
}

var _ CloseableProducer = (*producer)(nil)
