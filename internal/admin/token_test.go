package admin

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// With a token only who knows it sees anything but whether the process lives
// and is ready.
func TestToken(t *testing.T) {
	backups := 0
	s := Source{
		Ready: func() error { return nil }, Gatherer: prometheus.NewRegistry(), Broker: func() any { return "open sesame's treasure" },
		Backup: func(string) error { backups++; return nil }, Secret: "own", Token: "open sesame",
	}
	h := Handler(s)
	for _, tt := range []struct {
		method, path, authorization string
		want                        int
	}{
		{"GET", "/healthz", "", 200},
		{"GET", "/readyz", "", 200},
		{"GET", "/metrics", "", 401},
		{"GET", "/v1/broker", "", 401},
		{"GET", "/v1/broker", "Bearer open", 401},
		{"GET", "/v1/broker", "open sesame", 401},
		{"GET", "/v1/broker", "Bearer own", 401},
		{"GET", "/v1/broker", "Bearer ", 401},
		{"GET", "/v1/nothing", "", 401},
		{"GET", "/v1/../healthz/../v1/broker", "", 401},
		{"GET", "/v1/broker", "Bearer open sesame", 200},
		{"GET", "/metrics", "Bearer open sesame", 200},
		{"POST", "/v1/backup", "", 403},
		{"POST", "/v1/backup", "Bearer wrong", 403},
		{"POST", "/v1/backup", "Bearer own", 200},
		{"POST", "/v1/backup", "Bearer open sesame", 200},
	} {
		r := httptest.NewRequest(tt.method, "http://localhost"+tt.path, strings.NewReader(`{"dir":"/to"}`))
		if tt.authorization != "" {
			r.Header.Set("Authorization", tt.authorization)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != tt.want && !(tt.want == 200 && w.Code == http.StatusNoContent) {
			t.Errorf("%s %s with %q: %d %s, want %d", tt.method, tt.path, tt.authorization, w.Code, w.Body, tt.want)
		}
		if tt.want > 400 && strings.Contains(w.Body.String(), "sesame") {
			t.Errorf("%s %s shows the token or what it guards: %s", tt.method, tt.path, w.Body)
		}
	}
	if backups != 2 {
		t.Errorf("%d backups, want 2", backups)
	}
}
