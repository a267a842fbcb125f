package admin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

var full = Status{
	Application: "orders", Instance: "host:/var/lib/orders", Version: "v0.1.0",
	Unready: []string{"shard orders-003 is failed: disk full"},
	Joined:  true, Generation: 7, LastHeartbeat: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	Shards: []Shard{{
		ID: "orders-003", Topic: "orders", Partition: 3, Phase: "failed", Reason: "disk full", Since: time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC),
		Lag: 12, Offsets: []Offset{{"orders", 3, 100}}, Changelog: 55, Restore: &Restore{Next: 5, End: 10}, Commits: 2, LastCommit: time.Date(2026, 1, 2, 3, 3, 0, 0, time.UTC),
		Busy: &Call{"Consume", time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC), `orders-3@100 "k"`, "goroutine 1"},
	}},
}

func source(ready error) Source {
	registry := prometheus.NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "pawl_test_total", Help: "A counter."})
	c.Add(3)
	registry.MustRegister(c)
	return Source{Ready: func() error { return ready }, Status: func() Status { return full }, Gatherer: registry, Logger: slog.New(slog.DiscardHandler)}
}

func TestHandler(t *testing.T) {
	down := errors.Join(errors.New("shard a-000 is restoring (5 of 10)"), errors.New("shard a-001 is failed: disk full"))
	for _, tt := range []struct {
		method, path string
		ready        error
		status       int
		body         string // the beginning
		contentType  string
	}{
		{"GET", "/healthz", nil, 200, "alive\n", "text/plain; charset=utf-8"},
		{"GET", "/healthz", down, 200, "alive\n", "text/plain; charset=utf-8"},
		{"HEAD", "/healthz", nil, 200, "", "text/plain; charset=utf-8"},
		{"GET", "/readyz", nil, 200, "ready\n", "text/plain; charset=utf-8"},
		{"GET", "/readyz", down, 503, "shard a-000 is restoring (5 of 10)\nshard a-001 is failed: disk full\n", "text/plain; charset=utf-8"},
		{"GET", "/v1/status", nil, 200, "{\n", "application/json"},
		{"GET", "/metrics", nil, 200, "# HELP pawl_test_total A counter.\n# TYPE pawl_test_total counter\npawl_test_total 3\n", "text/plain; version=0.0.4"},
		{"GET", "/", nil, 200, "/healthz\n/readyz\n", "text/plain; charset=utf-8"},
		{"GET", "/nosuch", nil, 404, "", ""},
		{"POST", "/readyz", nil, 405, "", ""},
		{"DELETE", "/v1/status", nil, 405, "", ""},
		{"POST", "/metrics", nil, 405, "", ""},
	} {
		w := httptest.NewRecorder()
		Handler(source(tt.ready)).ServeHTTP(w, httptest.NewRequest(tt.method, "http://localhost"+tt.path, nil))
		if w.Code != tt.status {
			t.Errorf("%s %s: status %d, want %d", tt.method, tt.path, w.Code, tt.status)
		}
		if !strings.HasPrefix(w.Body.String(), tt.body) {
			t.Errorf("%s %s: body %q, want one that begins with %q", tt.method, tt.path, w.Body, tt.body)
		}
		if got := w.Header().Get("Content-Type"); !strings.HasPrefix(got, tt.contentType) {
			t.Errorf("%s %s: Content-Type %q, want %q", tt.method, tt.path, got, tt.contentType)
		}
	}
}

// What is wrong with a program that goes on is said whether it is ready or not.
func TestReadyWarnings(t *testing.T) {
	for _, tt := range []struct {
		ready error
		want  string
	}{
		{nil, "ready\npartition a-0 can't be read\n"},
		{errors.New("shard a-001 is failed"), "shard a-001 is failed\npartition a-0 can't be read\n"},
	} {
		s := source(tt.ready)
		s.Warnings = func() []string { return []string{"partition a-0 can't be read"} }
		w := httptest.NewRecorder()
		Handler(s).ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/readyz", nil))
		if got := w.Body.String(); got != tt.want {
			t.Errorf("ready %v: body %q, want %q", tt.ready, got, tt.want)
		}
	}
}

// What the server writes, a client reads; the names in JSON are a contract.
func TestStatusJSON(t *testing.T) {
	w := httptest.NewRecorder()
	Handler(source(nil)).ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/v1/status", nil))
	var got Status
	d := json.NewDecoder(w.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(full, got); diff != "" {
		t.Errorf("status: got + want -\n%s", diff)
	}
	b, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"application":"orders","instance":"host:/var/lib/orders","version":"v0.1.0","ready":false,"unready":["shard orders-003 is failed: disk full"],` +
		`"joined":true,"generation":7,"last_heartbeat":"2026-01-02T03:04:05Z","shards":[{"id":"orders-003","topic":"orders","partition":3,"phase":"failed",` +
		`"reason":"disk full","since":"2026-01-02T03:04:00Z","lag":12,"lag_seconds":0,"offsets":[{"topic":"orders","partition":3,"next":100}],"changelog":55,"state_bytes":0,` +
		`"restore":{"next":5,"end":10},"commits":2,"last_commit":"2026-01-02T03:03:00Z","busy":{"name":"Consume","since":"2026-01-02T03:00:00Z",` +
		`"message":"orders-3@100 \"k\"","stack":"goroutine 1"}}]}`
	if string(b) != want {
		t.Errorf("status:\ngot  %s\nwant %s", b, want)
	}
	if b, err := json.Marshal(Status{Shards: []Shard{}}); err != nil || !strings.HasSuffix(string(b), `"shards":[]}`) || strings.Contains(string(b), "0001-01-01") {
		t.Errorf("empty status: %s, %v, want no shards as a list, and no zero times", b, err)
	}
}

// The answer to metrics that can't be gathered says so.
func TestMetricsError(t *testing.T) {
	s := source(nil)
	var log bytes.Buffer
	s.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s.Gatherer = prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return nil, errors.New("out of order") })
	w := httptest.NewRecorder()
	Handler(s).ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/metrics", nil))
	if w.Code != http.StatusInternalServerError || !strings.Contains(log.String(), "out of order") {
		t.Errorf("status %d, log %q, want 500 and the error in the log", w.Code, log.String())
	}
}

// Serve answers until its context ends, and then lets go of the port and of
// those who keep a connection open.
func TestServe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, l, source(nil)) }()

	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "alive\n" {
		t.Errorf("GET /healthz: %q, %v", body, err)
	}
	half, err := net.Dial("tcp", l.Addr().String()) // never says what it wants
	if err != nil {
		t.Fatal(err)
	}
	defer half.Close()
	fmt.Fprintf(half, "GET /heal")

	cancel()
	if err := <-served; err != nil {
		t.Errorf("Serve: %v, want nil when it is told to end", err)
	}
	if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
		c.Close()
		t.Error("the port is still open after Serve")
	}
	for _, c := range []net.Conn{conn, half} {
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("%d bytes read after Serve, want a closed connection", n)
		}
	}
}

// A listener that breaks is an error.
func TestServeError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := Serve(t.Context(), l, source(nil)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve on a closed listener: %v, want %v", err, net.ErrClosed)
	}
}
