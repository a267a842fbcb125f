package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
)

// bearer returns the mechanism OAUTHBEARER. It is asked for a token by every
// connection, and by one whose token runs out.
func bearer(s cluster.SASL) sasl.Mechanism {
	source := tokens{s: s, now: time.Now, client: &http.Client{Timeout: dialTimeout, CheckRedirect: noRedirect}, busy: make(chan struct{}, 1)}
	return oauth.Oauth(func(ctx context.Context) (oauth.Auth, error) {
		token, err := source.token(ctx)
		if err != nil {
			return oauth.Auth{}, &tokenError{err}
		}
		return oauth.Auth{Token: token}, nil
	})
}

// tokenError says that there is no token to log in with.
type tokenError struct{ err error }

func (e *tokenError) Error() string { return fmt.Sprintf("get a token: %v", e.err) }
func (e *tokenError) Unwrap() error { return e.err }

// noRedirect keeps the client's secret from going where a redirect says.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// tokens is where tokens come from. Safe for concurrent use.
type tokens struct {
	s      cluster.SASL
	now    func() time.Time
	client *http.Client

	busy   chan struct{} // held by the one that asks, and guards what follows
	last   string        // the token endpoint's last
	useful time.Time     // until when it is used
}

// token returns a token to log in with.
func (t *tokens) token(ctx context.Context) (string, error) {
	switch {
	case t.s.Token != "":
		return string(t.s.Token), nil
	case t.s.TokenFile != "":
		return readToken(t.s.TokenFile)
	}
	select {
	case t.busy <- struct{}{}:
		defer func() { <-t.busy }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if t.last != "" && t.now().Before(t.useful) {
		return t.last, nil
	}
	asked := t.now()
	token, lives, err := t.ask(ctx)
	if err != nil {
		return "", err
	}
	// A token is given up when a fifth of its life is left: who logs in with
	// it has some time to come.
	t.last, t.useful = token, asked.Add(lives-lives/5)
	return token, nil
}

// tokenMax is the size of the longest answer, or file, that a token is in.
const tokenMax = 64 << 10

func readToken(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, tokenMax+1))
	if err != nil {
		return "", err
	}
	return checkToken(strings.TrimSpace(string(text)), file)
}

// checkToken returns a token that can be sent. Its error does not show it.
func checkToken(token, from string) (string, error) {
	switch {
	case token == "":
		return "", fmt.Errorf("%s holds none", from)
	case len(token) > tokenMax:
		return "", fmt.Errorf("what %s holds is longer than %d bytes", from, tokenMax)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return "", fmt.Errorf("what %s holds is no token", from)
	}
	return token, nil
}

// ask asks the token endpoint, by the client credentials grant of RFC 6749.
// Its errors hold nothing of what was sent.
func (t *tokens) ask(ctx context.Context) (token string, lives time.Duration, err error) {
	form := url.Values{"grant_type": {"client_credentials"}}
	if t.s.Scope != "" {
		form.Set("scope", t.s.Scope)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.s.TokenURL, strings.NewReader(form.Encode()))
	if err != nil {
		return "", 0, errors.New("the URL of the token endpoint is none")
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	req.SetBasicAuth(url.QueryEscape(t.s.Username), url.QueryEscape(string(t.s.Password)))
	resp, err := t.client.Do(req)
	if err != nil {
		return "", 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, tokenMax+1))
	if err != nil {
		return "", 0, fmt.Errorf("read the answer of %s: %w", t.s.TokenURL, err)
	}
	var answer struct {
		AccessToken string  `json:"access_token"`
		ExpiresIn   float64 `json:"expires_in"`
		Error       string  `json:"error"` // one of a few words: RFC 6749, section 5.2
	}
	err = json.Unmarshal(body, &answer)
	switch {
	case resp.StatusCode != http.StatusOK && err == nil && answer.Error != "":
		return "", 0, fmt.Errorf("%s refuses with status %d: %.60q", t.s.TokenURL, resp.StatusCode, answer.Error)
	case resp.StatusCode != http.StatusOK:
		return "", 0, fmt.Errorf("%s answers with status %d", t.s.TokenURL, resp.StatusCode)
	case err != nil:
		return "", 0, fmt.Errorf("the answer of %s is not the JSON of a token endpoint", t.s.TokenURL)
	}
	if token, err = checkToken(answer.AccessToken, "the answer of "+t.s.TokenURL); err != nil {
		return "", 0, err
	}
	// Where nothing is said of its life, the token is for one connection.
	return token, time.Duration(max(0, min(answer.ExpiresIn, 86_400)) * float64(time.Second)), nil
}
