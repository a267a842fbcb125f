package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/topic"
)

func newClient(t *testing.T, b *bench, o messaging.Config) messaging.Client {
	t.Helper()
	c, err := messaging.NewClient(messaging.ClientConfig{
		Clusters: map[string]cluster.Cluster{"main": b.Host("client")},
		Applications: map[string]messaging.Application{
			"test": {Topic: "work", Cluster: "main", Codec: topic.JSON("x", topic.KeyedBy(func(o order) string { return o.ID })).Description, Options: o},
		},
		Logger: slog.New(slog.NewTextHandler(testWriter{t}, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

type order struct{ ID string }

// A consumer gives messages by its channel; they are acked and nacked, come
// again on the same channel, and become dead letters.
func TestChannelConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		client := newClient(t, b, messaging.Config{Retry: messaging.Retry{InPlace: 1, Tiers: []time.Duration{time.Second}}})
		c, err := client.NewConsumer("test", "worker")
		if err != nil {
			t.Fatal(err)
		}
		c.Stop() // before Start: nothing
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); !errors.Is(err, messaging.ErrStarted) {
			t.Errorf("a second start: %v, want %v", err, messaging.ErrStarted)
		}
		b.Publish(work, numbers("m", 50)...)
		times := make(map[string]int)
		attempts := make(map[string][]int)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for m := range c.Messages() {
				d := m.(messaging.Delivery)
				v := string(m.Value())
				times[v]++
				attempts[v] = append(attempts[v], d.Attempt())
				if v == "m7" {
					if err := m.Nack(); err != nil {
						t.Errorf("nack: %v", err)
					}
					continue
				}
				if err := m.Ack(); err != nil {
					t.Errorf("ack: %v", err)
				}
			}
		}()
		b.Advance(10 * time.Second)
		c.Stop()
		<-done // Stop has closed the channel
		c.Stop()
		if err := c.Start(); !errors.Is(err, messaging.ErrStarted) && !errors.Is(err, messaging.ErrClosed) {
			t.Errorf("a start after the stop: %v", err)
		}
		for v, n := range times {
			if want := map[bool]int{true: 2, false: 1}[v == "m7"]; n != want {
				t.Errorf("%s came %d times, want %d", v, n, want)
			}
		}
		if got := fmt.Sprint(attempts["m7"]); got != "[1 2]" {
			t.Errorf("attempts of the nacked message: %s, want [1 2]", got)
		}
		if all := consumertest.CommittedEnvelopes(b.Cluster, letters); len(all) != 1 || string(all[0].Value) != "m7" {
			t.Errorf("dead letters: %v, want m7", all)
		}
		ends := consumertest.EndOffsets(b.Cluster, work)
		for n, o := range b.committed() {
			if o != ends[n] {
				t.Errorf("partition %d is committed to %d, want %d", n, o, ends[n])
			}
		}
	})
}

// C38, 8: a producer routes keys as every client does, takes what it says it
// takes, and gives errors their class.
func TestProducer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 10)
		client := newClient(t, b, messaging.Config{})
		p, err := client.NewProducer("test")
		if err != nil {
			t.Fatal(err)
		}
		ctx := trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: trace.TraceID{0x0a, 0xf7, 1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled}))
		for _, m := range []any{
			order{"wu"},
			[]byte("raw"),
			"text",
			&topic.Envelope{Key: []byte("wu"), Value: nil, Headers: []topic.Header{{Key: "h", Value: nil}}},
			&topic.Envelope{Key: []byte{}, Value: []byte{}},
		} {
			if err := p.Publish(ctx, m); err != nil {
				t.Fatalf("publish %T: %v", m, err)
			}
		}
		if err := p.Publish(ctx, 3.5); err == nil {
			t.Error("a message of a type without a codec was taken")
		}
		if err := p.Publish(ctx, nil); err == nil {
			t.Error("nil was taken")
		}
		n := 0
		for _, e := range consumertest.CommittedEnvelopes(b.Cluster, work) {
			n++
			if string(e.Key) == "wu" && e.Partition != 0 {
				t.Errorf("key wu went to partition %d of 10, want 0", e.Partition)
			}
			if got := header(e, "traceparent"); !strings.HasPrefix(got, "00-0af70100000000000000000000000000-0100000000000000-01") {
				t.Errorf("traceparent is %q", got)
			}
		}
		if n != 5 {
			t.Errorf("%d messages, want 5", n)
		}
		if err := p.Publish(ctx, make([]byte, 2<<20)); !errors.Is(err, messaging.ErrTooLarge) {
			t.Errorf("2 MiB: %v, want %v", err, messaging.ErrTooLarge)
		}
		b.Freeze("client")
		short, cancel := context.WithTimeout(ctx, time.Second)
		start := time.Now()
		if err := p.Publish(short, "x"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 1100*time.Millisecond {
			t.Errorf("with the broker gone: %v after %v, want the deadline after 1 s", err, time.Since(start))
		}
		cancel()
		b.Thaw("client")
		if err := p.(messaging.CloseableProducer).Close(); err != nil {
			t.Error(err)
		}
		if err := p.Publish(ctx, "x"); !errors.Is(err, messaging.ErrClosed) {
			t.Errorf("after close: %v, want %v", err, messaging.ErrClosed)
		}
	})
}

// A message is passed on whole, with its trace.
func TestPassOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		out := topic.String("out")
		b.CreateTopic(out, 1)
		client, err := messaging.NewClient(messaging.ClientConfig{
			Clusters:     map[string]cluster.Cluster{"main": b.Host("client")},
			Applications: map[string]messaging.Application{"out": {Topic: "out", Cluster: "main"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		p, err := client.NewProducer("out")
		if err != nil {
			t.Fatal(err)
		}
		b.work("p1", messaging.Config{}, func(ctx context.Context, d messaging.Delivery) error {
			span := trace.SpanContextFromContext(ctx)
			if span.IsRemote() != (string(d.Key()) == "traced") || span.IsRemote() && (span.TraceState().Get("s") != "1" || span.TraceID().String() != "0af7651916cd43dd8448eb211c80319c") {
				t.Errorf("the message with key %q is in the span %+v", d.Key(), span)
			}
			if got := trace.SpanContextFromContext(d.Context()); !got.Equal(span) {
				t.Errorf("Context is in the span %+v, the handler in %+v", got, span)
			}
			return p.Publish(ctx, d)
		})
		outs := []topic.Out{
			{Topic: work.Description, Key: []byte("traced"), Value: []byte("v"), Headers: []topic.Header{{Key: "traceparent", Value: []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")}, {Key: "tracestate", Value: []byte("s=1")}}},
			{Topic: work.Description, Key: []byte("bad"), Value: []byte("v"), Headers: []topic.Header{{Key: "traceparent", Value: []byte("00-zz")}, {Key: "a", Value: nil}, {Key: "a", Value: []byte{}}}},
			{Topic: work.Description, Key: nil, Value: nil},
		}
		b.PublishRecord(outs...)
		b.idle("p1")
		all := consumertest.CommittedEnvelopes(b.Cluster, out)
		if len(all) != len(outs) {
			t.Fatalf("%d messages passed on, want %d", len(all), len(outs))
		}
		for _, e := range all {
			for _, o := range outs {
				if same(o.Key, e.Key) {
					if err := sameMessage(e, o); err != nil {
						t.Error(err)
					}
				}
			}
		}
		if err := p.(messaging.CloseableProducer).Close(); err != nil {
			t.Error(err)
		}
	})
}

// What a broker answers has its class, and what it might answer otherwise a moment
// later is waited for until the context ends.
func TestPublishErrorsHaveAClass(t *testing.T) {
	for code, want := range map[string]error{
		"PRODUCER_FENCED":              messaging.ErrFenced,
		"TOPIC_AUTHORIZATION_FAILED":   messaging.ErrUnauthorized,
		"CLUSTER_AUTHORIZATION_FAILED": messaging.ErrUnauthorized,
		"MESSAGE_TOO_LARGE":            messaging.ErrTooLarge,
		"REQUEST_TIMED_OUT":            context.DeadlineExceeded,
		"NOT_LEADER_OR_FOLLOWER":       context.DeadlineExceeded,
	} {
		t.Run(code, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1)
				p, err := newClient(t, b, messaging.Config{}).NewProducer("test")
				if err != nil {
					t.Fatal(err)
				}
				if err := p.Publish(t.Context(), "x"); err != nil {
					t.Fatal(err)
				}
				b.Fail("client", "Produce", code, -1)
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				if err := p.Publish(ctx, "x"); !errors.Is(err, want) {
					t.Errorf("the error is %v, want one that matches %v", err, want)
				}
				if err := p.(messaging.CloseableProducer).Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A configuration error lists all that is wrong, and never panics.
func TestClientConfigErrors(t *testing.T) {
	_, err := messaging.NewClient(messaging.ClientConfig{
		Clusters: map[string]cluster.Cluster{"a": {Brokers: []string{"nowhere"}}, "b": {Brokers: []string{"h:1"}, SASL: cluster.SASL{Mechanism: "X"}}},
		Applications: map[string]messaging.Application{
			"Bad Name": {Topic: "t", Cluster: "b"},
			"lost":     {Topic: "o/dd", Cluster: "c", DeadLetterCluster: "d", Options: messaging.Config{Concurrency: -1}},
			"nowhere":  {Topic: "t", Cluster: "a", DeadLetterCluster: "a"},
			"odd":      {Topic: "sp ace", Cluster: "b", Options: messaging.Config{Retry: messaging.Retry{Tiers: []time.Duration{time.Minute, time.Second}}, CommitInterval: -1, HandlerTimeout: 20}},
		},
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"nowhere", `"X"`, "Bad Name", `cluster "c"`, `cluster of the dead letters "d"`, "sp ace", "rising order", "commit interval", "handler timeout is 20ns",
		`"o/dd"`, "concurrency is -1"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %q:\n%v", want, err)
		}
	}
	if n := strings.Count(err.Error(), `"nowhere"`); n != 1 {
		t.Errorf("a broker that is wrong is named %d times:\n%v", n, err)
	}
	if _, err := messaging.NewClient(messaging.ClientConfig{}); err == nil {
		t.Error("an empty configuration was taken")
	}
	if _, err := messaging.New(messaging.Config{}, nil); err == nil {
		t.Error("a worker without anything was taken")
	} else if !strings.Contains(err.Error(), "no handler") || !strings.Contains(err.Error(), "no topic") {
		t.Errorf("the error of a worker without anything does not name all that is missing:\n%v", err)
	}
}

// A delay topic that would lose what waits in it is refused at start.
func TestTiersRefused(t *testing.T) {
	for setting, value := range map[string]string{"cleanup.policy": "compact", "retention.ms": "60000"} {
		t.Run(setting, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1)
				b.CreateTopic(topic.Bytes("test.worker.retry.3").With(topic.Configured(setting, value)), 1)
				b.work("p1", messaging.Config{}, nil)
				if err := b.Wait("p1"); err == nil || !strings.Contains(err.Error(), "test.worker.retry.3") || !strings.Contains(err.Error(), setting) {
					t.Errorf("the start: %v, want an error that names the topic and %s", err, setting)
				}
			})
		})
	}
}

// An input that is not there is an error at start.
func TestUnknownTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.DeleteTopic("work")
		b.work("p1", messaging.Config{}, nil)
		if err := b.Wait("p1"); !errors.Is(err, messaging.ErrUnknownTopic) {
			t.Errorf("the start: %v, want %v", err, messaging.ErrUnknownTopic)
		}
	})
}
