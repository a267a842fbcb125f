package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"
)

// Application is what a process with an application lets be seen and done,
// beside its status. Its functions are called at any time, also several at once.
//
// A program that works on a queue has no state, and nothing but the whole of it
// can be paused: State and Tables are nil there.
type Application struct {
	Topology func() Topology
	State    func(StateQuery) (StatePage, error)  // an *Error says what status it has
	Tables   func(shard string) ([]string, error) // likewise: the tables that the shard's state has
	Pause    func(shard string, pause bool) error // likewise; an empty shard is all of them
	Level    *slog.LevelVar                       // of the log
}

// App says what an application is made of, and how it is in one process.
type App struct {
	Application   string    `json:"application"`
	Instance      string    `json:"instance"`
	Version       string    `json:"version"`
	Ready         bool      `json:"ready"`
	Unready       []string  `json:"unready,omitempty"` // why it is not ready
	Paused        bool      `json:"paused"`            // all shards in this process are
	Joined        bool      `json:"joined"`            // the group has given this process an assignment
	Generation    int32     `json:"generation"`
	LastHeartbeat time.Time `json:"last_heartbeat,omitzero"`
	Sets          []Set     `json:"sets"`
	Shards        []string  `json:"shards"`          // that are in this process
	Queue         *Queue    `json:"queue,omitempty"` // of a program that works on one
}

// Topology is what an application is made of.
type Topology struct {
	Paused bool
	Sets   []Set
}

// Set is a co-partitioned set of consumed topics: one shard for each partition.
type Set struct {
	Name        string   `json:"name"`
	Topics      []string `json:"topics"`
	Changelog   string   `json:"changelog"`
	DeadLetters string   `json:"dead_letters,omitempty"`
	Outputs     []string `json:"outputs"`
}

// Shards are those that are in one process.
type Shards struct {
	Shards []Shard `json:"shards"`
}

// Tables are those that the state of a shard has.
type Tables struct {
	Shard  string   `json:"shard"`
	Tables []string `json:"tables"`
}

// Level is the least level that is logged: debug, info, warn or error.
type Level struct {
	Level string `json:"level"`
}

// Failure is the answer to a request that failed.
type Failure struct {
	Error string `json:"error"`
}

// Done is the answer to a request that has nothing else to say.
type Done struct {
	OK bool `json:"ok"`
}

// Error is an error with the status that a request is answered with.
type Error struct {
	Status  int
	Message string
}

func (e *Error) Error() string { return e.Message }

// Errorf returns an error with a status.
func Errorf(status int, format string, args ...any) error {
	return &Error{status, fmt.Sprintf(format, args...)}
}

// app answers GET /v1/app.
func (s Source) app(*http.Request) (any, error) {
	st, top := s.Status(), s.Application.Topology()
	a := App{
		Application: st.Application, Instance: st.Instance, Version: st.Version,
		Ready: st.Ready, Unready: st.Unready, Paused: top.Paused,
		Joined: st.Joined, Generation: st.Generation, LastHeartbeat: st.LastHeartbeat,
		Sets: top.Sets, Shards: make([]string, len(st.Shards)), Queue: st.Queue,
	}
	for i, sh := range st.Shards {
		a.Shards[i] = sh.ID
	}
	return a, nil
}

func (s Source) shards(*http.Request) (any, error) {
	st := s.Status()
	if st.Shards == nil {
		st.Shards = []Shard{}
	}
	return Shards{st.Shards}, nil
}

func (s Source) shard(r *http.Request) (any, error) {
	id := r.PathValue("shard")
	for _, sh := range s.Status().Shards {
		if sh.ID == id {
			return sh, nil
		}
	}
	return nil, Errorf(http.StatusNotFound, "shard %q is not in this process", id)
}

// queue answers GET /v1/queue.
func (s Source) queue(*http.Request) (any, error) {
	q := s.Status().Queue
	if q == nil {
		return nil, Errorf(http.StatusNotFound, "the program works on no queue")
	}
	return *q, nil
}

func (s Source) pause(pause bool) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		if err := s.Application.Pause(r.PathValue("shard"), pause); err != nil {
			return nil, err
		}
		return Done{true}, nil
	}
}

func (s Source) level(*http.Request) (any, error) {
	return Level{levelName(s.Application.Level.Level())}, nil
}

// The levels of the log, by name.
var levels = map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}

func levelName(l slog.Level) string {
	for name, level := range levels {
		if level == l {
			return name
		}
	}
	return l.String()
}

func (s Source) setLevel(r *http.Request) (any, error) {
	var want Level
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&want); err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return nil, Errorf(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", large.Limit)
		}
		return nil, Errorf(http.StatusBadRequest, `read the body: want {"level": "debug"}: %v`, err)
	}
	level, ok := levels[want.Level]
	if !ok {
		return nil, Errorf(http.StatusBadRequest, "level %q: want debug, info, warn or error", want.Level)
	}
	s.Application.Level.Set(level)
	s.logger().Log(r.Context(), max(level, slog.LevelInfo), "the log level is set", "level", want.Level)
	return want, nil
}
