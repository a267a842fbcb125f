package messaging

import (
	"context"

	"github.com/pawlstream/pawl/topic"
)

// The headers of W3C trace context, as OpenTelemetry writes them.
const (
	headerTraceParent = "traceparent"
	headerTraceState  = "tracestate"
)

type traceKey struct{}

// Trace is a trace context as W3C has it, which OpenTelemetry's propagator
// reads and writes: the texts of the headers traceparent and tracestate.
type Trace struct {
	Parent, State string
}

// TraceContext returns the trace context that came with the message whose
// handler ctx is given to. ok is false if none did. A retry, a dead letter and
// a redriven message keep it. Hand it to a tracer's propagator to go on with
// the trace.
func TraceContext(ctx context.Context) (t Trace, ok bool) {
	t, ok = ctx.Value(traceKey{}).(Trace)
	return t, ok
}

// WithTraceContext returns a context with which Publish sends the trace
// context along, in place of the one that the message came with.
func WithTraceContext(ctx context.Context, t Trace) context.Context {
	return context.WithValue(ctx, traceKey{}, t)
}

// withTrace returns a context with the trace context of a message, if it has
// one.
func withTrace(ctx context.Context, hs []topic.Header) context.Context {
	var t Trace
	for i := range hs {
		switch hs[i].Key {
		case headerTraceParent:
			t.Parent = string(hs[i].Value)
		case headerTraceState:
			t.State = string(hs[i].Value)
		}
	}
	if !validParent(t.Parent) {
		return ctx
	}
	return WithTraceContext(ctx, t)
}

// validParent says whether text has the form of a traceparent, of any version:
// version, trace ID, parent ID and flags, in hexadecimal.
func validParent(s string) bool {
	if len(s) < 55 || s[2] != '-' || s[35] != '-' || s[52] != '-' || s[:2] == "ff" || len(s) > 55 && (s[:2] == "00" || s[55] != '-') {
		return false
	}
	zero := func(s string) bool {
		for i := range len(s) {
			if s[i] != '0' {
				return false
			}
		}
		return true
	}
	for i := range 55 {
		if c := s[i]; i != 2 && i != 35 && i != 52 && !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return false
		}
	}
	return !zero(s[3:35]) && !zero(s[36:52])
}

// traced adds the headers of the trace context of ctx, unless the message has
// one of its own.
func traced(ctx context.Context, hs []topic.Header) []topic.Header {
	t, ok := TraceContext(ctx)
	if !ok {
		return hs
	}
	for i := range hs {
		if hs[i].Key == headerTraceParent {
			return hs
		}
	}
	out := append(hs[:len(hs):len(hs)], topic.Header{Key: headerTraceParent, Value: []byte(t.Parent)})
	if t.State != "" {
		out = append(out, topic.Header{Key: headerTraceState, Value: []byte(t.State)})
	}
	return out
}
