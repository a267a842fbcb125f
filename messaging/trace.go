package messaging

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/pawlstream/pawl/topic"
)

// Traces are those of OpenTelemetry. A message carries the trace that it belongs
// to in the headers of W3C, and keeps them through retries, dead letters and
// redrives. So each attempt at a message is a part of the trace that it was
// published in, however late it comes.
//
//	publish ──► handler, attempt 1 ── Publish ──► …
//	   └──────► handler, attempt 2

// traces reads and writes these headers.
var traces propagation.TraceContext

const headerTraceParent = "traceparent"

// tracerName is who has made a span, as OpenTelemetry wants it: this package.
const tracerName = "github.com/pawlstream/pawl/messaging"

// newTracer returns nil where there is no provider.
func newTracer(from trace.TracerProvider) trace.Tracer {
	if from == nil {
		return nil
	}
	return from.Tracer(tracerName)
}

// traceHeaders is a message's headers, as OpenTelemetry looks at them.
type traceHeaders struct{ hs []topic.Header }

func (h *traceHeaders) Get(key string) string {
	for i := range h.hs {
		if h.hs[i].Key == key {
			return string(h.hs[i].Value)
		}
	}
	return ""
}

func (h *traceHeaders) Set(key, value string) {
	h.hs = append(h.hs[:len(h.hs):len(h.hs)], topic.Header{Key: key, Value: []byte(value)})
}

func (h *traceHeaders) Keys() (keys []string) {
	for i := range h.hs {
		keys = append(keys, h.hs[i].Key)
	}
	return keys
}

func hasTrace(hs []topic.Header) bool {
	for i := range hs {
		if hs[i].Key == headerTraceParent {
			return true
		}
	}
	return false
}

// withTrace returns a context with the span that a message was published in, as
// a remote one, if its headers name one.
func withTrace(ctx context.Context, hs []topic.Header) context.Context {
	if !hasTrace(hs) {
		return ctx
	}
	return traces.Extract(ctx, &traceHeaders{hs})
}

// traced adds the headers that name the span of ctx, unless the message has such
// of its own.
func traced(ctx context.Context, hs []topic.Header) []topic.Header {
	if !trace.SpanContextFromContext(ctx).IsValid() || hasTrace(hs) {
		return hs
	}
	out := &traceHeaders{hs}
	traces.Inject(ctx, out)
	return out.hs
}

// Attributes of spans, by OpenTelemetry's conventions for messaging.
func (w *Worker) spanAttributes() []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("messaging.system", "kafka"),
		attribute.String("messaging.operation.name", "process"),
		attribute.String("messaging.operation.type", "process"),
		attribute.String("messaging.destination.name", w.cfg.Topic),
		attribute.String("messaging.consumer.group.name", w.group),
	}
}

// startSpan starts the span of a call of the handler. It ends when the call
// does, also if the message is settled later.
func (w *Worker) startSpan(ctx context.Context, d *delivery) (context.Context, trace.Span) {
	return w.tracer.Start(ctx, "process "+w.cfg.Topic, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(w.spanAttributes()...), trace.WithAttributes(
		attribute.Int("messaging.destination.partition.id", int(d.Partition())),
		attribute.Int64("messaging.kafka.offset", d.origin()),
		attribute.Int("pawl.attempt", int(d.attempt)),
	))
}

// startBatchSpan starts the span of a call of a batch handler, with a link to
// the span that each message was published in.
func (w *Worker) startBatchSpan(ctx context.Context, hs []handout) (context.Context, trace.Span) {
	var links []trace.Link
	for i := range hs {
		if from := trace.SpanContextFromContext(hs[i].d.Context()); from.IsValid() {
			links = append(links, trace.Link{SpanContext: from})
		}
	}
	return w.tracer.Start(ctx, "process "+w.cfg.Topic, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(links...),
		trace.WithAttributes(w.spanAttributes()...), trace.WithAttributes(attribute.Int("messaging.batch.message_count", len(hs))))
}

// endSpan ends a span with what came of the call.
func endSpan(span trace.Span, err error) {
	if err != nil && !errors.Is(err, Later) {
		span.RecordError(err)
		span.SetStatus(codes.Error, clean(err.Error(), historyErrorMax))
	}
	span.End()
}
