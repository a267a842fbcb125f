package admin

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// What the client asks is answered, and names in paths and queries may hold
// anything.
func TestClient(t *testing.T) {
	s := whole()
	s.Token = "t0ken"
	server := httptest.NewServer(Handler(s))
	defer server.Close()
	c := Client{Address: strings.TrimPrefix(server.URL, "http://"), Token: "t0ken"}
	ctx := t.Context()

	if app, err := c.App(ctx); err != nil || app.Application != "orders" || len(app.Sets) != 1 || len(app.Shards) != 1 {
		t.Errorf("app: %+v, %v", app, err)
	}
	if shards, err := c.Shards(ctx); err != nil || len(shards) != 1 || shards[0].ID != "orders-003" {
		t.Errorf("shards: %+v, %v", shards, err)
	}
	if shard, err := c.Shard(ctx, "orders-003"); err != nil || shard.Lag != 12 {
		t.Errorf("shard: %+v, %v", shard, err)
	}
	var failed *Error
	if _, err := c.Shard(ctx, "no/such?x#"); !errors.As(err, &failed) || failed.Status != 404 || !strings.Contains(err.Error(), `"no/such?x#"`) {
		t.Errorf("no such shard: %v", err)
	}
	if tables, err := c.Tables(ctx, "orders-003"); err != nil || fmt.Sprint(tables) != "[counts]" {
		t.Errorf("tables: %v, %v", tables, err)
	}
	key := "a/b c"
	if page, err := c.State(ctx, StateQuery{Shard: "orders-003", Table: "counts", Key: &key}); err != nil || len(page.Entries) != 1 || page.Position.Changelog != 7 {
		t.Errorf("state: %+v, %v", page, err)
	}
	key = "x"
	if _, err := c.State(ctx, StateQuery{Shard: "orders-003", Table: "counts", Key: &key}); !errors.As(err, &failed) || failed.Status != 404 {
		t.Errorf("a key that is not there: %v", err)
	}
	for _, shard := range []string{"", "orders-003"} {
		for _, pause := range []bool{true, false} {
			if err := c.Pause(ctx, shard, pause); err != nil {
				t.Errorf("pause %q %v: %v", shard, pause, err)
			}
		}
	}
	if err := c.Pause(ctx, "nosuch", true); !errors.As(err, &failed) || failed.Status != 404 {
		t.Errorf("pause of no shard: %v", err)
	}
	if err := c.SetLevel(ctx, "debug"); err != nil || s.Application.Level.Level() != slog.LevelDebug {
		t.Errorf("the level is %v, %v", s.Application.Level.Level(), err)
	}
	if err := c.SetLevel(ctx, "loud"); !errors.As(err, &failed) || failed.Status != 400 || !strings.Contains(err.Error(), "want debug, info, warn or error") {
		t.Errorf("a level that there is not: %v", err)
	}
	c.Token = "wr0ng"
	if _, err := c.App(ctx); !errors.As(err, &failed) || failed.Status != 401 || strings.Contains(err.Error(), "wr0ng") {
		t.Errorf("a wrong token: %v", err)
	}
	if text := fmt.Sprintf("%v %+v %#v", c, c, c); strings.Contains(text, "wr0ng") {
		t.Errorf("the token is in %s", text)
	}
	c.Address = "127.0.0.1:1"
	if _, err := c.App(ctx); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("nobody there: %v", err)
	}
}

// Requests that make no sense, or mean no good, get a clear answer, and change
// nothing.
func TestHostileRequests(t *testing.T) {
	s := whole()
	h := Handler(s)
	for _, tt := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"PUT", "/v1/log-level", "", 400, "read the body"},
		{"PUT", "/v1/log-level", `{"level": "debug", "x": 1}`, 400, "unknown field"},
		{"PUT", "/v1/log-level", `[]`, 400, "read the body"},
		{"PUT", "/v1/log-level", `{"level": "` + strings.Repeat("a", 1<<20) + `"}`, 413, "larger than"},
		{"GET", "/v1/state/orders-003/counts?limit=0", "", 400, "1 to 10000"},
		{"GET", "/v1/state/orders-003/counts?limit=99999999999999999999", "", 400, "1 to 10000"},
		{"GET", "/v1/state/orders-003/counts?limit=1&limit=2", "", 400, "2 times"},
		{"GET", "/v1/state/orders-003/counts?form=x", "", 400, `unknown parameter "form"`},
		{"GET", "/v1/state/orders-003/counts?key=a&from=b", "", 400, "nothing else"},
		{"GET", "/v1/state/orders-003/counts?%zz", "", 400, "read the query"},
		{"GET", "/v1/state/" + strings.Repeat("x", 5000) + "/counts", "", 404, ""},
		{"GET", "/v1/shards/..%2f..%2fetc", "", 404, "is not in this process"},
		{"POST", "/v1/shards/nosuch/pause", "", 404, "no such shard"},
		{"DELETE", "/v1/app", "", 405, ""},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(tt.method, "http://localhost"+tt.path, strings.NewReader(tt.body)))
		if w.Code != tt.status || !strings.Contains(strings.ReplaceAll(w.Body.String(), `\"`, `"`), tt.want) {
			t.Errorf("%s %.80s: status %d and %.300q, want %d and %q", tt.method, tt.path, w.Code, w.Body, tt.status, tt.want)
		}
	}
	if got := s.Application.Level.Level(); got != slog.LevelInfo {
		t.Errorf("the level has become %v", got)
	}
}

// A page in a browser can read nothing here, and must not be able to do anything
// either.
func TestOtherPagesAreRefused(t *testing.T) {
	paused := false
	s := whole()
	s.Application.Pause = func(string, bool) error { paused = true; return nil }
	for name, set := range map[string]func(http.Header){
		"another site":   func(h http.Header) { h.Set("Sec-Fetch-Site", "cross-site") },
		"another origin": func(h http.Header) { h.Set("Origin", "http://evil.example") },
	} {
		r := httptest.NewRequest("POST", "http://localhost/v1/app/pause", nil)
		set(r.Header)
		w := httptest.NewRecorder()
		Handler(s).ServeHTTP(w, r)
		if w.Code != http.StatusForbidden || paused {
			t.Errorf("%s: status %d, paused %v", name, w.Code, paused)
		}
	}
}

// A site whose name was made to lead to this machine is not this machine, to
// browsers and so to us, unless a token says who asks.
func TestOtherHostsAreRefused(t *testing.T) {
	for _, c := range []struct {
		host, path, token string
		want              int
	}{
		{"evil.example", "/v1/status", "", http.StatusMisdirectedRequest},
		{"evil.example:8080", "/metrics", "", http.StatusMisdirectedRequest},
		{"localhost.evil.example", "/v1/status", "", http.StatusMisdirectedRequest},
		{"evil.example", "/readyz", "", http.StatusOK}, // which tells nothing, and probes ask by name
		{"evil.example", "/v1/status", "x", http.StatusOK},
		{"localhost:8080", "/v1/status", "", http.StatusOK},
		{"127.0.0.1:8080", "/v1/status", "", http.StatusOK},
		{"[::1]:8080", "/v1/status", "", http.StatusOK},
		{"", "/v1/status", "", http.StatusOK},
	} {
		s := whole()
		s.Token = c.token
		r := httptest.NewRequest("GET", c.path, nil)
		r.Host = c.host
		r.Header.Set("Authorization", "Bearer "+c.token)
		w := httptest.NewRecorder()
		Handler(s).ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%s for %q with token %q: status %d, want %d: %s", c.path, c.host, c.token, w.Code, c.want, w.Body)
		}
	}
}

func FuzzRequests(f *testing.F) {
	f.Add("GET", "/v1/state/orders-003/counts?from=a&limit=5", "", "Bearer x")
	f.Add("PUT", "/v1/log-level", `{"level": "info"}`, "")
	f.Add("POST", "/v1/shards/orders-003/pause", "", "")
	f.Add("GET", "/v1/shards/%00", "\x00", "\xff")
	h := Handler(whole())
	f.Fuzz(func(t *testing.T, method, target, body, authorization string) {
		r, err := http.NewRequest(method, "http://localhost"+target, io.NopCloser(strings.NewReader(body)))
		if err != nil {
			return // no client can send it
		}
		r.RequestURI = target
		r.Header.Set("Authorization", authorization)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code == 0 || w.Code >= 500 && w.Code != http.StatusNotImplemented {
			t.Errorf("%s %q: status %d: %s", method, target, w.Code, w.Body)
		}
	})
}
