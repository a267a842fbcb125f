package webhook_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/examples/webhook"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/topic"
)

var (
	webhooks = topic.String(webhook.Topic)
	letters  = topic.Bytes("hooks.sender.dlq")
)

// service is a web service that is slow, and fails for each event as often as
// its path says: /busy/2 is busy twice.
type service struct {
	mu struct {
		sync.Mutex
		calls map[string]int // by idempotency key
		times map[string][]time.Time
		got   []string // bodies that were taken, in order
	}
}

func newService() *service {
	s := &service{}
	s.mu.calls, s.mu.times = make(map[string]int), make(map[string][]time.Time)
	return s
}

const slow = 300 * time.Millisecond

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var kind string
	var times int
	if _, err := fmt.Sscanf(strings.ReplaceAll(r.URL.Path, "/", " "), "%s %d", &kind, &times); err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	key := r.Header.Get("Idempotency-Key")
	s.mu.Lock()
	s.mu.calls[key]++
	call := s.mu.calls[key]
	s.mu.times[string(body)] = append(s.mu.times[string(body)], time.Now())
	s.mu.Unlock()
	switch {
	case kind == "slow":
		select {
		case <-time.After(slow):
		case <-r.Context().Done():
			return
		}
	case call <= times && kind == "down":
		w.WriteHeader(http.StatusInternalServerError)
		return
	case call <= times && kind == "busy":
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case kind == "gone":
		w.WriteHeader(http.StatusGone)
		return
	}
	s.mu.Lock()
	s.mu.got = append(s.mu.got, string(body))
	s.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

// taken returns the bodies that the service has taken, in order.
func (s *service) taken() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mu.got)
}

// at returns when an event was tried.
func (s *service) at(body string) []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mu.times[body])
}

// RoundTrip is the service without a network between: in virtual time there is
// none.
func (s *service) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	resp := w.Result()
	resp.Request = r
	return resp, nil
}

func event(path, body string) string {
	return fmt.Sprintf(`{"url":"http://service.example%s","body":%q}`, path, body)
}

// Events reach a service that is slow and fails at times: each customer's in
// order, none lost, and what can't be delivered is set aside.
func TestWebhook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		c := consumertest.NewCluster(t)
		c.CreateTopic(webhooks, 1)
		c.Run("p1", func(ctx context.Context, cl cluster.Cluster, _ string) error {
			return messaging.Run(ctx, messaging.Config{
				Cluster: cl, Topic: webhook.Topic, Application: "hooks", Consumer: "sender", Logger: slog.New(slog.DiscardHandler),
			}, webhook.Handler(&http.Client{Transport: s}))
		})
		for _, e := range []struct{ customer, value string }{
			{"ann", event("/down/1", "a1")}, // tried again at once
			{"ann", event("/slow/0", "a2")},
			{"bob", event("/busy/1", "b1")}, // tried again when it says
			{"bob", event("/slow/0", "b2")}, // waits for it
			{"cec", event("/gone/0", "c1")}, // set aside
			{"cec", event("/slow/0", "c2")},
			{"dan", `{"url":"ftp://service.example"}`},
			{"dan", `{"url":`},
			{"dan", event("/slow/0", "d1")},
		} {
			c.PublishRecord(topic.Out{Topic: webhooks.Description, Partition: 0, Key: []byte(e.customer), Value: []byte(e.value)})
		}
		c.Until("every event to be delivered or set aside", func() bool {
			return len(s.taken()) == 6 && len(consumertest.CommittedEnvelopes(c, letters)) == 3
		})
		c.SettleGroup("hooks.sender", webhooks)

		of := make(map[string][]string) // by customer
		for _, body := range s.taken() {
			of[body[1:2]] = append(of[body[1:2]], strings.Trim(body, `"`))
		}
		want := map[string][]string{"a": {"a1", "a2"}, "b": {"b1", "b2"}, "c": {"c2"}, "d": {"d1"}}
		if !maps.EqualFunc(of, want, slices.Equal[[]string]) {
			t.Errorf("taken %v, want %v", of, want)
		}
		if at := s.at(`"b1"`); len(at) != 2 || at[1].Sub(at[0]) < 30*time.Second {
			t.Errorf("an event was tried at %v, want twice, with the 30 s between that the service asked for", at)
		}
		if first, last := s.at(`"b1"`), s.at(`"a2"`); len(last) != 1 || last[0].After(first[1]) {
			t.Errorf("one customer's event was tried at %v, and another's waited until %v", last, first)
		}
		reasons := make(map[string]int)
		for _, l := range consumertest.CommittedEnvelopes(c, letters) {
			for _, h := range l.Headers {
				if h.Key == "pawl-reason" {
					reasons[string(h.Value)]++
				}
			}
		}
		if want := map[string]int{"rejected": 2, "decode": 1}; !maps.Equal(reasons, want) {
			t.Errorf("dead letters by reason: %v, want %v", reasons, want)
		}
	})
}

// delivery is a message as a handler gets it.
type delivery struct {
	messaging.Delivery // what is not below is not called
	value              string
}

func (d delivery) Topic() string    { return webhook.Topic }
func (d delivery) Partition() int32 { return 3 }
func (d delivery) Offset() int64    { return 17 }
func (d delivery) Value() []byte    { return []byte(d.value) }

// Over a network: the service gets the body and a key by which it can tell a
// repetition, and one that never answers is given up when the context ends.
func TestOverNetwork(t *testing.T) {
	type call struct{ key, contentType, body string }
	calls := make(chan call, 1)
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		calls <- call{r.Header.Get("Idempotency-Key"), r.Header.Get("Content-Type"), string(body)}
		if r.URL.Path == "/silent" {
			<-release
		}
	}))
	defer server.Close()
	defer close(release)
	handle := webhook.Handler(server.Client())
	d := delivery{value: fmt.Sprintf(`{"url":"%s/","body":{"n":1}}`, server.URL)}
	if err := handle(t.Context(), d); err != nil {
		t.Errorf("an event that is taken: %v", err)
	}
	if got, want := <-calls, (call{"webhooks-3-17", "application/json", `{"n":1}`}); got != want {
		t.Errorf("the service got %+v, want %+v", got, want)
	}

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- handle(ctx, delivery{value: fmt.Sprintf(`{"url":"%s/silent"}`, server.URL)}) }()
	<-calls
	cancel()
	if err := <-ended; err == nil {
		t.Error("an event that is not answered: no error, want one")
	}
}
