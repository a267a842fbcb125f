package messaging_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/internal/devbroker"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/topic"
)

var once = messaging.Config{Order: messaging.Unordered, Retry: messaging.Retry{InPlace: 1, Tiers: []time.Duration{}}, Breaker: messaging.Breaker{Failures: -1}}

// deadLetters makes n dead letters and stops the worker.
func deadLetters(t *testing.T, b *bench, n int) {
	t.Helper()
	b.work("p1", once, failing(b, "bad", 99))
	b.Publish(work, numbers("bad", n)...)
	b.idle("p1")
	if err := b.Stop("p1"); err != nil {
		t.Fatal(err)
	}
	b.forget()
}

func count(t *testing.T, l *messaging.Letters, q messaging.Query) (n int) {
	t.Helper()
	for _, err := range l.List(context.Background(), q) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

// C34: a redrive while the cause still exists ends, though everything it sends
// comes back as a dead letter; the counts tell what happened.
func TestRedriveEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		deadLetters(t, b, 100)
		b.work("p1", once, failing(b, "bad", 99))
		l := openLetters(t, b)
		var last messaging.Progress
		res, err := l.Redrive(context.Background(), messaging.Query{}, messaging.Options{Rate: 20, Progress: func(p messaging.Progress) { last = p }})
		if err != nil || res.Moved != 100 || res.Failed != 0 {
			t.Errorf("redrive: %+v, %v; want 100 moved", res, err)
		}
		if last.Looked != 100 || last.Moved != 100 {
			t.Errorf("the last progress is %+v", last)
		}
		b.Advance(10 * time.Second)
		b.idle("p1")
		if got := count(t, l, messaging.Query{}); got != 100 {
			t.Errorf("%d dead letters are open after they came back, want 100", got)
		}
		if got := count(t, l, messaging.Query{Settled: true}); got != 200 {
			t.Errorf("%d dead letters in all, want 200", got)
		}
	})
}

// C34: with the target refusing writes nothing is moved, all fail, that is an
// error, and nothing is marked.
func TestRedriveRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		deadLetters(t, b, 100)
		l := openLetters(t, b)
		remove := b.Fail("letters", "Produce", "TOPIC_AUTHORIZATION_FAILED", -1)
		res, err := l.Redrive(context.Background(), messaging.Query{}, messaging.Options{})
		if err == nil || !errors.Is(err, messaging.ErrUnauthorized) || res.Moved != 0 || res.Failed != 100 {
			t.Errorf("redrive: %+v, %v; want 100 failed and an error that says why", res, err)
		}
		remove()
		if got := count(t, l, messaging.Query{}); got != 100 {
			t.Errorf("%d dead letters are open, want all 100", got)
		}
		// Then the same again works.
		if res, err := l.Redrive(context.Background(), messaging.Query{}, messaging.Options{}); err != nil || res.Moved != 100 {
			t.Errorf("redrive: %+v, %v; want 100 moved", res, err)
		}
	})
}

// Letters are chosen by what they are; discarded ones say so.
func TestLetterQueries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.work("p1", once, func(_ context.Context, d messaging.Delivery) error {
			if string(d.Value()) == "rejected" {
				return messaging.DeadLetter(errors.New("never"))
			}
			return errors.New("timeout after 3 s")
		})
		b.PublishRecord(topic.Out{Topic: work.Description, Key: []byte("a"), Value: []byte("1"), Headers: []topic.Header{{Key: "tenant", Value: []byte("x")}}})
		b.idle("p1")
		b.Advance(time.Minute)
		middle := time.Now()
		b.publish(0, "b", "rejected", "2")
		b.idle("p1")
		l := openLetters(t, b)
		zero := int32(0)
		for name, tt := range map[string]struct {
			q    messaging.Query
			want int
		}{
			"all":        {messaging.Query{}, 3},
			"reason":     {messaging.Query{Reason: "rejected"}, 1},
			"error":      {messaging.Query{Error: "timeout"}, 2},
			"key":        {messaging.Query{Key: []byte("b")}, 2},
			"header":     {messaging.Query{Header: "tenant"}, 1},
			"value":      {messaging.Query{Header: "tenant", HeaderValue: "y"}, 0},
			"since":      {messaging.Query{Since: middle}, 2},
			"until":      {messaging.Query{Until: middle}, 1},
			"range":      {messaging.Query{Partition: &zero, From: 1, To: 2}, 1},
			"everything": {messaging.Query{Key: []byte("b"), Error: "timeout", Since: middle}, 1},
		} {
			if got := count(t, l, tt.q); got != tt.want {
				t.Errorf("%s: %d letters, want %d", name, got, tt.want)
			}
		}
		if res, err := l.Discard(context.Background(), messaging.Query{Reason: "rejected"}, messaging.Options{DryRun: true}); err != nil || res.Moved != 1 || count(t, l, messaging.Query{}) != 3 {
			t.Errorf("a dry run: %+v, %v, %d letters left; want 1 and all 3", res, err, count(t, l, messaging.Query{}))
		}
		if res, err := l.Discard(context.Background(), messaging.Query{Reason: "rejected"}, messaging.Options{Why: "spam"}); err != nil || res.Moved != 1 {
			t.Fatalf("discard: %+v, %v; want 1", res, err)
		}
		letter, err := l.Show(context.Background(), 0, 1)
		if err != nil || letter.Outcome == nil || letter.Outcome.Action != messaging.Discarded || letter.Outcome.Why != "spam" {
			t.Errorf("the discarded letter is %+v, %v", letter.Outcome, err)
		}
		if _, err := l.Show(context.Background(), 0, 99); !errors.Is(err, messaging.ErrNoLetter) {
			t.Errorf("a letter that is not there: %v, want %v", err, messaging.ErrNoLetter)
		}
		var out bytes.Buffer
		if n, err := l.Export(context.Background(), messaging.Query{}, &out); err != nil || n != 2 {
			t.Fatalf("export: %d, %v; want 2", n, err)
		}
		for line := range strings.Lines(out.String()) {
			var got struct {
				Key       []byte `json:"key"`
				ValueText string `json:"value_text"`
				Error     string `json:"error"`
				Topic     string `json:"topic"`
			}
			if err := json.Unmarshal([]byte(line), &got); err != nil || got.Topic != "work" || got.Error != "timeout after 3 s" || got.Key == nil || got.ValueText == "" {
				t.Errorf("exported %s: %+v, %v", line, got, err)
			}
		}
	})
}

// C37 b: there is no cap on how many dead letters can be seen.
func TestManyLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 50_000
		b := newBench(t, 3)
		b.CreateTopic(letters, 3)
		outs := make([]topic.Out, n)
		for i := range outs {
			outs[i] = topic.Out{Topic: letters.Description, Partition: int32(i % 3), Value: []byte("v"), Headers: []topic.Header{{Key: "pawl-group", Value: []byte("test.worker")}}}
		}
		b.PublishRecord(outs...)
		l := openLetters(t, b)
		if got := count(t, l, messaging.Query{}); got != n {
			t.Errorf("%d letters, want %d", got, n)
		}
	})
}

// A dead-letter topic on another cluster: letters go there and come back from
// there.
func TestLettersOnAnotherCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		other, err := devbroker.Start(devbroker.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(other.Close)
		oc := other.Host("p1")
		cfg := once
		cfg.DeadLetters.Cluster = &oc
		healed := false
		k := newKeep()
		b.work("p1", cfg, func(context.Context, messaging.Delivery) error {
			k.mu.Lock()
			defer k.mu.Unlock()
			if healed {
				return nil
			}
			return errNo
		})
		b.Publish(work, numbers("bad", 20)...)
		b.idle("p1")
		l, err := messaging.OpenLetters(messaging.LettersConfig{Cluster: other.Host("letters"), Application: "test", Consumer: "worker"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.Close)
		if got := count(t, l, messaging.Query{}); got != 20 {
			t.Fatalf("%d letters on the other cluster, want 20", got)
		}
		k.mu.Lock()
		healed = true
		k.mu.Unlock()
		b.forget()
		to := b.Host("letters")
		if res, err := l.Redrive(context.Background(), messaging.Query{}, messaging.Options{ToCluster: &to}); err != nil || res.Moved != 20 {
			t.Fatalf("redrive: %+v, %v; want 20 moved", res, err)
		}
		b.Advance(10 * time.Second)
		b.idle("p1")
		if got := len(b.values()); got != 20 {
			t.Errorf("%d messages came back, want 20", got)
		}
		if got := count(t, l, messaging.Query{}); got != 0 {
			t.Errorf("%d letters are open, want none", got)
		}
	})
}
