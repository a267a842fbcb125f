package admin

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// The bounds of a page of state.
const (
	pageDefault = 100
	pageMax     = 10_000
)

// StateQuery asks for a part of a table in a shard's committed state. Keys are
// named by text: a key that is a string by itself, and another by its JSON.
type StateQuery struct {
	Shard, Table string
	Key          *string // only this one
	From         string  // from this one on
	To           string  // below this one
	Prefix       string  // those that begin with it; of a table whose keys are strings
	Limit        int
}

// StatePage is a part of a table, all of it as of one position.
type StatePage struct {
	Shard    string       `json:"shard"`
	Table    string       `json:"table"`
	Position Position     `json:"position"`
	Entries  []StateEntry `json:"entries"`
	Next     string       `json:"next,omitempty"` // ask from here for the rest; empty: there is none
	More     bool         `json:"more"`           // there is a rest
}

// Position says which commits a state has in it: all up to it, and no others.
type Position struct {
	Changelog int64    `json:"changelog"` // in the changelog: what comes next
	Offsets   []Offset `json:"offsets"`   // of the input: what comes next
}

// StateEntry is a key and its value, decoded.
type StateEntry struct {
	Text  string          `json:"text"` // names the key
	Key   json.RawMessage `json:"key"`
	Value json.RawMessage `json:"value"`
}

// values returns the query as a URL has it.
func (q StateQuery) values() url.Values {
	v := make(url.Values)
	if q.Key != nil {
		v.Set("key", *q.Key)
	}
	for name, text := range map[string]string{"from": q.From, "to": q.To, "prefix": q.Prefix} {
		if text != "" {
			v.Set(name, text)
		}
	}
	if q.Limit > 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	return v
}

// parseQuery reads what a request asks for. What it does not know it refuses: a
// filter that is misspelt would else be one that is not there.
func parseQuery(r *http.Request) (StateQuery, error) {
	q := StateQuery{Shard: r.PathValue("shard"), Table: r.PathValue("table"), Limit: pageDefault}
	given, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return q, Errorf(http.StatusBadRequest, "read the query: %v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		values := given[name]
		if len(values) != 1 {
			return q, Errorf(http.StatusBadRequest, "%s is given %d times", name, len(values))
		}
		v := values[0]
		switch name {
		case "key":
			q.Key = &v
		case "from":
			q.From = v
		case "to":
			q.To = v
		case "prefix":
			q.Prefix = v
		case "limit":
			n, err := strconv.Atoi(v)
			if err != nil || n < 1 || n > pageMax {
				return q, Errorf(http.StatusBadRequest, "limit %q: want 1 to %d", v, pageMax)
			}
			q.Limit = n
		default:
			return q, Errorf(http.StatusBadRequest, "unknown parameter %.40q: want key, from, to, prefix or limit", name)
		}
	}
	if q.Key != nil && len(given) > 1 {
		return q, Errorf(http.StatusBadRequest, "key names one entry: nothing else goes with it")
	}
	return q, nil
}

func (s Source) state(r *http.Request) (any, error) {
	q, err := parseQuery(r)
	if err != nil {
		return nil, err
	}
	page, err := s.Application.State(q)
	if err != nil {
		return nil, err
	}
	if q.Key != nil && len(page.Entries) == 0 {
		return nil, Errorf(http.StatusNotFound, "table %s of shard %s has no key %.60q, as of position %d of its changelog", q.Table, q.Shard, *q.Key, page.Position.Changelog)
	}
	return page, nil
}

func (s Source) tables(r *http.Request) (any, error) {
	id := r.PathValue("shard")
	names, err := s.Application.Tables(id)
	if err != nil {
		return nil, err
	}
	if names == nil {
		names = []string{}
	}
	return Tables{id, names}, nil
}

// path returns the path of something in the API, with what stands in its
// braces put in.
func path(pattern string, parts ...string) string {
	for _, p := range parts {
		open, shut := strings.IndexByte(pattern, '{'), strings.IndexByte(pattern, '}')
		pattern = pattern[:open] + url.PathEscape(p) + pattern[shut+1:]
	}
	return pattern
}
