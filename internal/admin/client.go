package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Client asks the admin API of one process.
type Client struct {
	Address string // HOST:PORT
	Token   string // that the process wants; empty: none
}

// clientTimeout bounds a request: a process that does not answer is as good as
// none.
const clientTimeout = 10 * time.Second

// answerMax bounds what an answer may take in memory.
const answerMax = 64 << 20

// String is the address: a token is not to be seen.
func (c Client) String() string { return c.Address }

// GoString likewise.
func (c Client) GoString() string { return "admin.Client{" + c.Address + "}" }

// App returns what the application is made of, and how it is there.
func (c Client) App(ctx context.Context) (a App, err error) {
	return a, c.do(ctx, http.MethodGet, "/v1/app", nil, nil, &a)
}

// Shards returns the shards that are there.
func (c Client) Shards(ctx context.Context) ([]Shard, error) {
	var s Shards
	err := c.do(ctx, http.MethodGet, "/v1/shards", nil, nil, &s)
	return s.Shards, err
}

// Shard returns how one shard is.
func (c Client) Shard(ctx context.Context, id string) (s Shard, err error) {
	return s, c.do(ctx, http.MethodGet, path("/v1/shards/{shard}", id), nil, nil, &s)
}

// Tables returns the tables that a shard's state has.
func (c Client) Tables(ctx context.Context, shard string) ([]string, error) {
	var t Tables
	err := c.do(ctx, http.MethodGet, path("/v1/state/{shard}", shard), nil, nil, &t)
	return t.Tables, err
}

// State returns a part of a table.
func (c Client) State(ctx context.Context, q StateQuery) (p StatePage, err error) {
	return p, c.do(ctx, http.MethodGet, path("/v1/state/{shard}/{table}", q.Shard, q.Table), q.values(), nil, &p)
}

// Pause pauses a shard, or all that are there if none is named, or resumes them.
func (c Client) Pause(ctx context.Context, shard string, pause bool) error {
	verb := "resume"
	if pause {
		verb = "pause"
	}
	at := "/v1/app/" + verb
	if shard != "" {
		at = path("/v1/shards/{shard}/", shard) + verb
	}
	return c.do(ctx, http.MethodPost, at, nil, nil, new(Done))
}

// SetLevel sets the least level that is logged there.
func (c Client) SetLevel(ctx context.Context, level string) error {
	return c.do(ctx, http.MethodPut, "/v1/log-level", nil, Level{level}, new(Level))
}

func (c Client) do(ctx context.Context, method, at string, query url.Values, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, clientTimeout)
	defer cancel()
	what := fmt.Sprintf("ask the process at %s", c.Address)
	var sent io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("%s: encode the request: %w", what, err)
		}
		sent = bytes.NewReader(b)
	}
	u := "http://" + c.Address + at
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u, sent)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) {
			err = failed.Err // what was asked is named already
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err != nil {
		return fmt.Errorf("%s: read the answer: %w", what, err)
	}
	if resp.StatusCode != http.StatusOK {
		var said Failure
		if json.Unmarshal(b, &said) != nil || said.Error == "" {
			said.Error = strings.TrimSpace(string(b[:min(len(b), 500)]))
		}
		return &Error{resp.StatusCode, fmt.Sprintf("%s: %s", what, said.Error)}
	}
	if err := json.Unmarshal(b, answer); err != nil {
		return fmt.Errorf("%s: read the answer: %w", what, err)
	}
	return nil
}
