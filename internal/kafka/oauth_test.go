package kafka

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/cluster"
)

// A token endpoint is asked by the client credentials grant, and again when a
// fifth of the token's life is left.
func TestTokenEndpoint(t *testing.T) {
	var asked []url.Values
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if user != "an+id%3A" || password != "a+secret%26" || r.Method != http.MethodPost {
			t.Errorf("%s by %q with %q, want POST by the escaped ID and secret", r.Method, user, password)
		}
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		asked = append(asked, r.PostForm)
		_, _ = io.WriteString(w, `{"access_token":"token-`+strings.Repeat("i", len(asked))+`","token_type":"Bearer","expires_in":100}`)
	}))
	defer s.Close()
	source := tokens{
		s:   cluster.SASL{Mechanism: cluster.OAuthBearer, TokenURL: s.URL, Username: "an id:", Password: "a secret&", Scope: "kafka read"},
		now: func() time.Time { return now }, client: s.Client(), busy: make(chan struct{}, 1),
	}
	for _, tt := range []struct {
		after time.Duration
		want  string
	}{{0, "token-i"}, {79 * time.Second, "token-i"}, {time.Second, "token-ii"}, {100 * time.Second, "token-iii"}} {
		now = now.Add(tt.after)
		got, err := source.token(t.Context())
		if err != nil || got != tt.want {
			t.Errorf("%v later: %q, %v, want %q", tt.after, got, err, tt.want)
		}
	}
	for _, form := range asked {
		if got, want := form.Encode(), "grant_type=client_credentials&scope=kafka+read"; got != want {
			t.Errorf("asked with %s, want %s", got, want)
		}
	}
}

// What a token endpoint does wrong is said without what it was given or gave.
func TestTokenEndpointErrors(t *testing.T) {
	for _, tt := range []struct {
		status int
		body   string
		want   string
	}{
		{http.StatusUnauthorized, `{"error":"invalid_client","error_description":"no s3cret"}`, ` refuses with status 401: "invalid_client"`},
		{http.StatusInternalServerError, "s3cret", " answers with status 500"},
		{http.StatusFound, "", " answers with status 302"},
		{http.StatusOK, "<html>s3cret", "is not the JSON of a token endpoint"},
		{http.StatusOK, `{"access_token":""}`, "holds none"},
		{http.StatusOK, `{"access_token":"s3cret x"}`, "is no token"},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(tt.status)
			_, _ = io.WriteString(w, tt.body)
		}))
		m := bearer(cluster.SASL{Mechanism: cluster.OAuthBearer, TokenURL: s.URL, Username: "id", Password: "s3cret"})
		_, _, err := m.Authenticate(t.Context(), "broker")
		var token *tokenError
		if !errors.As(err, &token) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("status %d %s: %v, want %q and no secret", tt.status, tt.body, err, tt.want)
		}
		s.Close()
	}
}

// silent answers nothing.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// One that waits for a token endpoint that does not answer gives up with its
// context, also while another asks.
func TestTokenEndpointSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := tokens{
			s:      cluster.SASL{Mechanism: cluster.OAuthBearer, TokenURL: "http://127.0.0.1/", Username: "id", Password: "x"},
			now:    time.Now,
			busy:   make(chan struct{}, 1),
			client: &http.Client{Transport: silent{}},
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		done := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := source.token(ctx)
				done <- err
			}()
		}
		for range 2 {
			if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("token: %v, want that the deadline has passed", err)
			}
		}
	})
}

// A file is read anew for each connection.
func TestTokenFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	m := bearer(cluster.SASL{Mechanism: cluster.OAuthBearer, TokenFile: file})
	if _, _, err := m.Authenticate(t.Context(), "broker"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: %v, want that it is not there", err)
	}
	for _, token := range []string{"first", "second"} {
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, sent, err := m.Authenticate(t.Context(), "broker")
		if want := "n,,\x01auth=Bearer " + token + "\x01\x01"; err != nil || string(sent) != want {
			t.Errorf("with %s in the file: %q, %v, want %q", token, sent, err, want)
		}
	}
}
