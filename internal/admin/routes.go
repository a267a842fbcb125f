package admin

import (
	"encoding/json"
	"errors"
	"net/http"
)

// route is one request of the API: how it is answered, and what the document
// says of it.
type route struct {
	method, pattern string
	summary         string
	does            func(*http.Request) (any, error)
	query           []parameter
	body, answer    any   // of which types they are, by example; nil: none
	statuses        []int // that it may fail with, besides those that every request may
}

type parameter struct {
	name, what string
	kind       string // of JSON schema
}

// appRoutes are those of a process with an application.
func (s Source) appRoutes() []route {
	if s.Application == nil || s.Status == nil {
		return nil
	}
	stateQuery := []parameter{
		{"key", "only the entry of the key with this text", "string"},
		{"from", "from the key with this text on", "string"},
		{"to", "below the key with this text", "string"},
		{"prefix", "only keys that begin with this, of a table whose keys are strings", "string"},
		{"limit", "at most so many entries: 1 to 10000", "integer"},
	}
	both := []route{
		{"GET", "/v1/app", "What the application is made of, and how it is in this process", s.app, nil, nil, App{}, nil},
		{"GET", "/v1/log-level", "The least level that is logged", s.level, nil, nil, Level{}, nil},
		{"PUT", "/v1/log-level", "Set the least level that is logged", s.setLevel, nil, Level{}, Level{}, []int{400, 413}},
	}
	if s.Application.State == nil {
		return append(both, []route{
			{"GET", "/v1/queue", "How the queue is in this process, partition by partition", s.queue, nil, nil, Queue{}, nil},
			{"POST", "/v1/app/pause", "Give handlers of this process nothing more, also of partitions that come to it", s.pause(true), nil, nil, Done{}, nil},
			{"POST", "/v1/app/resume", "Let handlers of this process go on", s.pause(false), nil, nil, Done{}, nil},
		}...)
	}
	return append(both, []route{
		{"POST", "/v1/app/pause", "Pause all shards of this process, also those that come to it", s.pause(true), nil, nil, Done{}, nil},
		{"POST", "/v1/app/resume", "Resume all shards of this process", s.pause(false), nil, nil, Done{}, nil},
		{"GET", "/v1/shards", "The shards that are in this process", s.shards, nil, nil, Shards{}, nil},
		{"GET", "/v1/shards/{shard}", "How one shard is", s.shard, nil, nil, Shard{}, []int{404}},
		{"POST", "/v1/shards/{shard}/pause", "Pause a shard", s.pause(true), nil, nil, Done{}, []int{404}},
		{"POST", "/v1/shards/{shard}/resume", "Resume a shard", s.pause(false), nil, nil, Done{}, []int{404, 409}},
		{"GET", "/v1/state/{shard}", "The tables that the shard's state has", s.tables, nil, nil, Tables{}, []int{404}},
		{"GET", "/v1/state/{shard}/{table}", "Entries of a table, committed ones only, decoded, and as of which position", s.state, stateQuery, nil, StatePage{}, []int{400, 404}},
	}...)
}

// serveRoutes adds the routes of an application, and the document of all.
func (s Source) serveRoutes(mux *http.ServeMux) (paths []string) {
	routes := s.appRoutes()
	seen := make(map[string]bool)
	for _, rt := range routes {
		mux.HandleFunc(rt.method+" "+rt.pattern, s.answer(rt.does))
		if !seen[rt.pattern] {
			seen[rt.pattern] = true
			paths = append(paths, rt.pattern)
		}
	}
	doc := s.document()
	mux.HandleFunc("GET "+documentPath, s.answer(func(*http.Request) (any, error) { return doc, nil }))
	return append(paths, documentPath)
}

// answer makes a handler of what answers with JSON.
func (s Source) answer(does func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusOK
		what, err := does(r)
		if err != nil {
			status = http.StatusInternalServerError
			var known *Error
			if errors.As(err, &known) {
				status = known.Status
			} else {
				s.logger().Error("answer a request", "path", r.URL.Path, "error", err)
			}
			what = Failure{err.Error()}
		}
		b, err := json.MarshalIndent(what, "", "  ")
		if err != nil {
			s.logger().Error("encode an answer", "path", r.URL.Path, "error", err)
			text(w, http.StatusInternalServerError, "encode the answer: "+err.Error())
			return
		}
		header(w, "application/json")
		w.WriteHeader(status)
		w.Write(append(b, '\n')) // an error means that nobody listens any more
	}
}
