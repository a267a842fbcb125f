package messaging_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/messaging"
)

// recorder is a TracerProvider that keeps the spans that have ended.
type recorder struct {
	embedded.TracerProvider
	mu    sync.Mutex
	next  uint64
	spans []*span
}

type tracer struct {
	embedded.Tracer
	r *recorder
}

type span struct {
	noop.Span
	r      *recorder
	name   string
	self   trace.SpanContext
	parent trace.SpanContext
	cfg    trace.SpanConfig
	failed bool
}

func (r *recorder) Tracer(string, ...trace.TracerOption) trace.Tracer { return tracer{r: r} }

func (t tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	t.r.next++
	s := &span{r: t.r, name: name, parent: trace.SpanContextFromContext(ctx), cfg: trace.NewSpanStartConfig(opts...)}
	var id trace.SpanID
	binary.BigEndian.PutUint64(id[:], t.r.next)
	tid := s.parent.TraceID()
	if !tid.IsValid() {
		binary.BigEndian.PutUint64(tid[:], t.r.next)
	}
	s.self = trace.NewSpanContext(trace.SpanContextConfig{TraceID: tid, SpanID: id, TraceFlags: trace.FlagsSampled})
	return trace.ContextWithSpan(ctx, s), s
}

func (s *span) SpanContext() trace.SpanContext   { return s.self }
func (s *span) SetStatus(c codes.Code, _ string) { s.failed = c == codes.Error }
func (s *span) End(...trace.SpanEndOption) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.r.spans = append(s.r.spans, s)
}

func (s *span) attribute(key string) attribute.Value {
	for _, kv := range s.cfg.Attributes() {
		if string(kv.Key) == key {
			return kv.Value
		}
	}
	return attribute.Value{}
}

func (r *recorder) ended(name string) []*span {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*span
	for _, s := range r.spans {
		if s.name == name {
			out = append(out, s)
		}
	}
	return out
}

// A message that is published in a span, retried in place and in a tier, and
// given on in the end, makes one trace of it all.
func TestSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		rec := new(recorder)
		client, err := messaging.NewClient(messaging.ClientConfig{
			Clusters:       map[string]cluster.Cluster{"main": b.Host("client")},
			Applications:   map[string]messaging.Application{"test": {Topic: "work", Cluster: "main"}},
			TracerProvider: rec,
		})
		if err != nil {
			t.Fatal(err)
		}
		p, err := client.NewProducer("test")
		if err != nil {
			t.Fatal(err)
		}
		defer p.(messaging.CloseableProducer).Close()
		retry := messaging.Retry{InPlace: 2, Tiers: []time.Duration{10 * time.Second}}
		b.work("p1", messaging.Config{TracerProvider: rec, Retry: retry, HandlerTimeout: time.Minute}, func(ctx context.Context, d messaging.Delivery) error {
			if trace.SpanFromContext(ctx) != trace.SpanFromContext(d.Context()) {
				t.Error("the handler and its delivery are in two spans")
			}
			switch {
			case string(d.Value()) == "given on":
				return nil
			case d.Attempt() < 3:
				return errors.New("no")
			}
			return p.Publish(ctx, "given on")
		})
		if err := p.Publish(context.Background(), "first"); err != nil {
			t.Fatal(err)
		}
		b.running(1, "p1")
		b.Advance(time.Minute)
		b.idle("p1")
		sent, handled := rec.ended("send work"), rec.ended("process work")
		if len(sent) != 2 || len(handled) != 4 {
			t.Fatalf("%d spans of publishing and %d of handling, want 2 and 4", len(sent), len(handled))
		}
		// What was given on may be handled before who gave it on has returned.
		slices.SortFunc(handled, func(a, b *span) int {
			return cmp.Compare(a.attribute("messaging.kafka.offset").AsInt64()*10+a.attribute("pawl.attempt").AsInt64(), b.attribute("messaging.kafka.offset").AsInt64()*10+b.attribute("pawl.attempt").AsInt64())
		})
		first := sent[0]
		for i, s := range handled[:3] {
			if !s.parent.Equal(first.self.WithRemote(true)) {
				t.Errorf("attempt %d is in %v, want %v", i+1, s.parent, first.self)
			}
			if got := s.attribute("pawl.attempt").AsInt64(); got != int64(i+1) {
				t.Errorf("the attempt of span %d is %d", i, got)
			}
			if got, want := s.failed, i < 2; got != want {
				t.Errorf("span %d failed: %v, want %v", i, got, want)
			}
			if s.cfg.SpanKind() != trace.SpanKindConsumer || s.attribute("messaging.system").AsString() != "kafka" {
				t.Errorf("span %d is of kind %v with %v", i, s.cfg.SpanKind(), s.cfg.Attributes())
			}
		}
		if sent[1].parent.SpanID() != handled[2].self.SpanID() || handled[3].parent.SpanID() != sent[1].self.SpanID() {
			t.Error("what was given on is not in the span of who gave it on")
		}
		for _, s := range slices.Concat(sent, handled) {
			if s.self.TraceID() != first.self.TraceID() {
				t.Errorf("%s is of another trace", s.name)
			}
		}
	})
}

// A batch has one span, with a link to that of each message which has one.
func TestBatchSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		rec := new(recorder)
		client, err := messaging.NewClient(messaging.ClientConfig{
			Clusters: map[string]cluster.Cluster{"main": b.Host("client")}, Applications: map[string]messaging.Application{"test": {Topic: "work", Cluster: "main"}}})
		if err != nil {
			t.Fatal(err)
		}
		p, err := client.NewProducer("test")
		if err != nil {
			t.Fatal(err)
		}
		defer p.(messaging.CloseableProducer).Close()
		for i := range 3 {
			ctx := context.Background()
			if i > 0 {
				ctx, _ = rec.Tracer("").Start(ctx, fmt.Sprint("outside ", i))
			}
			if err := p.Publish(ctx, "m"); err != nil {
				t.Fatal(err)
			}
		}
		b.batch("p1", messaging.Config{TracerProvider: rec, Order: messaging.Unordered}, func(context.Context, []messaging.Delivery) []error { return nil })
		b.running(1, "p1")
		b.idle("p1")
		links := 0
		for _, s := range rec.ended("process work") {
			links += len(s.cfg.Links())
		}
		if links != 2 {
			t.Errorf("%d links to spans of messages, want 2", links)
		}
	})
}
