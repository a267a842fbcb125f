package messaging_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/topic"
)

// A message of other bytes than any test would think of.
func oddRecords(t *testing.T) (outs []topic.Out) {
	t.Helper()
	outs = []topic.Out{
		{Topic: work.Description, Key: nil, Value: []byte("null key")},
		{Topic: work.Description, Key: []byte{}, Value: []byte("empty key")},
		{Topic: work.Description, Key: []byte("null value"), Value: nil},
		{Topic: work.Description, Key: []byte("empty value"), Value: []byte{}},
		{Topic: work.Description, Key: []byte("k\x00\xff"), Value: []byte("v\n\r\x00\xfe"), Headers: []topic.Header{
			{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte("1")}, {Key: "b", Value: nil}, {Key: "c", Value: []byte{}}, {Key: "", Value: []byte{0xff}},
			{Key: "traceparent", Value: []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")},
		}},
	}
	if file, err := os.ReadFile("../internal/kafka/testdata/batches.tsv"); err == nil {
		for line := range strings.Lines(string(file)) {
			outs = append(outs, topic.Out{Topic: work.Description, Key: []byte("line"), Value: []byte(line)})
		}
	}
	return outs
}

func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

// sameMessage compares a message with what was published, but for Pawl's own
// headers.
func sameMessage(e topic.Envelope, o topic.Out) error {
	var own []topic.Header
	for _, h := range e.Headers {
		if !strings.HasPrefix(h.Key, "pawl-") {
			own = append(own, h)
		}
	}
	if !same(e.Key, o.Key) || !same(e.Value, o.Value) || len(own) != len(o.Headers) {
		return fmt.Errorf("key %q, value %.40q, %d headers; want key %q, value %.40q, %d headers", e.Key, e.Value, len(own), o.Key, o.Value, len(o.Headers))
	}
	for i := range own {
		if own[i].Key != o.Headers[i].Key || !same(own[i].Value, o.Headers[i].Value) {
			return fmt.Errorf("header %d is %q=%q, want %q=%q", i, own[i].Key, own[i].Value, o.Headers[i].Key, o.Headers[i].Value)
		}
	}
	return nil
}

// C29: a large message goes round through tiers, dead letters and redrives with
// an error text of 1 MB, and its headers stay small.
func TestHeadersStayBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		cfg := messaging.Config{Retry: messaging.Retry{InPlace: 1, Tiers: []time.Duration{time.Second}}, Breaker: messaging.Breaker{Failures: -1}}
		text := errors.New(strings.Repeat("bad \xff\xfe\n\x00 bytes ", 80_000))
		b.work("p1", cfg, func(context.Context, messaging.Delivery) error { return text })
		value := bytes.Repeat([]byte("0123456789"), 99_000)
		out := topic.Out{Topic: work.Description, Key: []byte("k"), Value: value, Headers: []topic.Header{{Key: "mine", Value: []byte("1")}}}
		b.PublishRecord(out)
		l := openLetters(t, b)
		const rounds = 20
		for round := range rounds {
			b.Advance(10 * time.Second)
			b.idle("p1")
			all := consumertest.CommittedEnvelopes(b.Cluster, letters)
			if len(all) != round+1 {
				t.Fatalf("round %d: %d dead letters, want %d", round, len(all), round+1)
			}
			e := all[round]
			if err := sameMessage(e, out); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			size := 0
			for _, h := range e.Headers {
				size += len(h.Key) + len(h.Value) + 10
			}
			if size > 16<<10 {
				t.Fatalf("round %d: the headers have %d bytes, want fewer than 16 kB", round, size)
			}
			if got, want := header(e, "pawl-redrives"), fmt.Sprint(round); round > 0 && got != want {
				t.Fatalf("round %d: pawl-redrives is %q", round, got)
			}
			if res, err := l.Redrive(context.Background(), messaging.Query{}, messaging.Options{MaxRedrives: rounds}); err != nil || res.Moved != 1 {
				t.Fatalf("round %d: %+v, %v", round, res, err)
			}
		}
		b.Advance(10 * time.Second)
		b.idle("p1")
		if res, err := l.Redrive(context.Background(), messaging.Query{}, messaging.Options{MaxRedrives: rounds}); err != nil || res.Moved != 0 || res.Capped != 1 {
			t.Errorf("after %d rounds: %+v, %v; want it capped", rounds, res, err)
		}
	})
}

// Timestamps of any kind are delivered as they are (C44).
func TestAbsurdTimestamps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.work("p1", messaging.Config{Retry: messaging.Retry{InPlace: 1, Tiers: []time.Duration{}}}, func(_ context.Context, d messaging.Delivery) error { return errNo })
		var outs []topic.Out
		for _, ms := range []int64{0, 1, time.Now().AddDate(10, 0, 0).UnixMilli(), 1755933141855875, -1, -1755933141855875, math.MaxInt64, math.MinInt64} {
			outs = append(outs, topic.Out{Topic: work.Description, Key: []byte("k"), Value: []byte("v"), Timestamp: time.UnixMilli(ms)})
			b.PublishRecord(outs[len(outs)-1])
		}
		b.idle("p1")
		l := openLetters(t, b)
		stamps := make(map[int64]time.Time) // as the topic has them
		for _, e := range consumertest.CommittedEnvelopes(b.Cluster, work) {
			stamps[e.Offset] = e.Timestamp
		}
		n := 0
		for letter, err := range l.List(context.Background(), messaging.Query{}) {
			if err != nil {
				t.Fatal(err)
			}
			if want := stamps[letter.TopicOffset]; !letter.TopicTimestamp.Equal(want) {
				t.Errorf("timestamp %v, want %v", letter.TopicTimestamp, want)
			}
			if _, err := letter.MarshalJSON(); err != nil {
				t.Error(err)
			}
			n++
		}
		if n != len(outs) {
			t.Errorf("%d dead letters, want %d", n, len(outs))
		}
	})
}
