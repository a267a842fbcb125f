package admin

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// whole is a source that has everything.
func whole() Source {
	s := source(nil)
	s.Broker = func() any { return map[string]int{"topics": 3} }
	s.Backup = func(string) error { return nil }
	s.Secret = "secret"
	level := new(slog.LevelVar)
	s.Application = &Application{
		Topology: func() Topology {
			return Topology{Sets: []Set{{Name: "orders", Topics: []string{"orders"}, Changelog: "orders.orders.changelog", Outputs: []string{"totals"}}}}
		},
		State: func(q StateQuery) (StatePage, error) {
			if q.Shard != "orders-003" || q.Table != "counts" {
				return StatePage{}, Errorf(http.StatusNotFound, "no such table")
			}
			page := StatePage{Shard: q.Shard, Table: q.Table, Position: Position{Changelog: 7, Offsets: []Offset{{"orders", 3, 100}}}, Entries: []StateEntry{}}
			if q.Key == nil || *q.Key == "a/b c" {
				page.Entries = append(page.Entries, StateEntry{"a/b c", json.RawMessage(`"a/b c"`), json.RawMessage(`{"n":1}`)})
			}
			return page, nil
		},
		Tables: func(shard string) ([]string, error) {
			if shard != "orders-003" {
				return nil, Errorf(http.StatusNotFound, "no such shard")
			}
			return []string{"counts"}, nil
		},
		Pause: func(shard string, _ bool) error {
			if shard != "" && shard != "orders-003" {
				return Errorf(http.StatusNotFound, "no such shard")
			}
			return nil
		},
		Level: level,
	}
	return s
}

// working is a source of a program that works on a queue.
func working() Source {
	s := source(nil)
	s.Status = func() Status {
		return Status{Application: "shop", Shards: []Shard{}, Queue: &Queue{Consumer: "mailer", Topic: "orders", Group: "shop.mailer", DeadLetters: map[string]int64{"failed": 2},
			Breaker: "open", BreakerOpen: time.Unix(1700000000, 0), BreakerError: "no route",
			Partitions: []QueuePartition{{Partition: 3, Phase: "running", Lag: 5, Oldest: &Oldest{Offset: 7, Key: []byte("k"), Attempt: 2, Since: time.Unix(1700000000, 0)}}}}}
	}
	s.Application = &Application{Topology: func() Topology { return Topology{Sets: []Set{}} }, Pause: func(string, bool) error { return nil }, Level: new(slog.LevelVar)}
	return s
}

// fill puts values that there are into a path of the document.
func fill(pattern string) string {
	return strings.NewReplacer("{shard}", "orders-003", "{table}", "counts").Replace(pattern)
}

func documentOf(t *testing.T, h http.Handler) (doc object) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost"+documentPath, nil))
	if w.Code != 200 || json.Unmarshal(w.Body.Bytes(), &doc) != nil {
		t.Fatalf("the document is %d %s", w.Code, w.Body)
	}
	return doc
}

// Every path of the document is served by each method that it names, with an
// answer that is as it says; and by no other. Every path that is served is in
// the document.
func TestDocumentIsWhatIsServed(t *testing.T) {
	for name, s := range map[string]Source{"all": whole(), "no application": source(nil), "a queue": working(), "a broker": func() Source { s := whole(); s.Status, s.Application = nil, nil; return s }()} {
		t.Run(name, func(t *testing.T) {
			h := Handler(s)
			doc := documentOf(t, h)
			paths := doc["paths"].(object)
			schemas := doc["components"].(object)["schemas"].(object)
			bodies := map[string]string{"/v1/log-level": `{"level": "debug"}`, backupPath: `{"dir": "/tmp/x"}`}
			for pattern, item := range paths {
				for _, method := range []string{"get", "post", "put", "delete", "patch"} {
					r := httptest.NewRequest(strings.ToUpper(method), "http://localhost"+fill(pattern), strings.NewReader(bodies[pattern]))
					r.Header.Set("Authorization", "Bearer secret")
					w := httptest.NewRecorder()
					h.ServeHTTP(w, r)
					op, ok := item.(object)[method].(object)
					if !ok {
						if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") == "" {
							t.Errorf("%s %s, which the document does not have: status %d, Allow %q", method, pattern, w.Code, w.Header().Get("Allow"))
						}
						continue
					}
					if w.Code != http.StatusOK {
						t.Errorf("%s %s: status %d: %s", method, pattern, w.Code, w.Body)
						continue
					}
					content := op["responses"].(object)["200"].(object)["content"].(object)
					for kind, c := range content {
						if got := w.Header().Get("Content-Type"); !strings.HasPrefix(got, kind) {
							t.Errorf("%s %s: Content-Type %q, want %q", method, pattern, got, kind)
						}
						if kind != "application/json" {
							continue
						}
						var got any
						if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
							t.Errorf("%s %s: %v", method, pattern, err)
						}
						for _, why := range invalid(got, c.(object)["schema"].(object), schemas, "answer") {
							t.Errorf("%s %s: %s", method, pattern, why)
						}
					}
				}
			}
			// The list at the root is made where routes are added.
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/", nil))
			listed := strings.Fields(w.Body.String())
			if s.Backup != nil {
				listed = append(listed, backupPath)
			}
			listed = append(listed, "/")
			slices.Sort(listed)
			if documented := slices.Sorted(maps.Keys(paths)); !slices.Equal(listed, documented) {
				t.Errorf("listed at / are\n%q, and in the document\n%q", listed, documented)
			}
		})
	}
}

// invalid says in what a value is not as a schema wants it.
func invalid(v any, schema, schemas object, at string) (why []string) {
	if ref, ok := schema["$ref"].(string); ok {
		schema = schemas[strings.TrimPrefix(ref, "#/components/schemas/")].(object)
	}
	bad := func(want string) []string { return []string{fmt.Sprintf("%s is %v, want %s", at, v, want)} }
	switch schema["type"] {
	case "string":
		s, ok := v.(string)
		if !ok {
			return bad("a string")
		}
		if schema["format"] == "date-time" {
			if _, err := time.Parse(time.RFC3339, s); err != nil {
				return bad("a time")
			}
		}
	case "boolean":
		if _, ok := v.(bool); !ok {
			return bad("true or false")
		}
	case "number", "integer":
		if n, ok := v.(float64); !ok || schema["type"] == "integer" && n != float64(int64(n)) {
			return bad("a number")
		}
	case "array":
		list, ok := v.([]any)
		if !ok {
			return bad("an array")
		}
		for i, item := range list {
			why = append(why, invalid(item, schema["items"].(object), schemas, fmt.Sprintf("%s[%d]", at, i))...)
		}
	case "object":
		members, ok := v.(object)
		if !ok {
			return bad("an object")
		}
		required, _ := schema["required"].([]any)
		for _, name := range required {
			if _, ok := members[name.(string)]; !ok {
				why = append(why, fmt.Sprintf("%s has no %s", at, name))
			}
		}
		properties, _ := schema["properties"].(object)
		for name, member := range members {
			p, ok := properties[name].(object)
			if !ok {
				if p, ok = schema["additionalProperties"].(object); !ok {
					why = append(why, fmt.Sprintf("%s has %s, which the document does not know", at, name))
					continue
				}
			}
			why = append(why, invalid(member, p, schemas, at+"."+name)...)
		}
	}
	return why
}

// The checker of answers can fail.
func TestInvalid(t *testing.T) {
	schemas := make(object)
	s := whole()
	for _, rt := range s.appRoutes() {
		rt.operation(schemas, false)
	}
	b, err := json.Marshal(schemas)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &schemas); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		`1`, `{}`, `{"level": 1}`, `{"level": "x", "more": 1}`,
	} {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		if len(invalid(v, object{"$ref": "#/components/schemas/Level"}, schemas, "level")) == 0 {
			t.Errorf("%s passes for a level", text)
		}
	}
}

// patterns returns the routes of the document, as "METHOD /path", in order.
func patterns(doc object) []string {
	var all []string
	for p, item := range doc["paths"].(object) {
		for _, method := range slices.Collect(maps.Keys(item.(object))) {
			all = append(all, strings.ToUpper(method)+" "+p)
		}
	}
	slices.Sort(all)
	return all
}

// With a token the document says so, and hides it.
func TestDocumentWithToken(t *testing.T) {
	s := whole()
	s.Token = "s3cr3t-token"
	r := httptest.NewRequest("GET", "http://localhost"+documentPath, nil)
	r.Header.Set("Authorization", "Bearer s3cr3t-token")
	w := httptest.NewRecorder()
	Handler(s).ServeHTTP(w, r)
	if w.Code != 200 || !strings.Contains(w.Body.String(), `"bearer"`) || strings.Contains(w.Body.String(), s.Token) || strings.Contains(w.Body.String(), `"secret"`) {
		t.Errorf("the document is %d %s", w.Code, w.Body)
	}
	for _, p := range patterns(s.document()) {
		method, path, _ := strings.Cut(p, " ")
		w := httptest.NewRecorder()
		Handler(s).ServeHTTP(w, httptest.NewRequest(method, "http://localhost"+fill(path), nil))
		if open := path == "/healthz" || path == "/readyz"; open != (w.Code == 200) {
			t.Errorf("%s without the token: status %d", p, w.Code)
		}
	}
}
