// Package admin is the HTTP API of a program's admin port: its types and its
// server.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Source is what the API shows. Its functions are called at any time, also
// several at once.
type Source struct {
	Ready    func() error    // nil when the program is ready
	Warnings func() []string // what is wrong although it is ready, a line each; may be nil
	Status   func() Status   // nil for a process without an application
	Broker   func() any      // what the broker in this process holds; nil for a process without one
	Gatherer prometheus.Gatherer

	Application *Application // nil for a process without one
	Logger      *slog.Logger // slog.Default() if nil

	// Backup copies the broker's data to a directory, for who knows Secret. Nil
	// where that isn't offered.
	Backup func(dir string) error
	Secret string

	// Token, unless it is empty, is what whoever asks must know.
	Token string
}

// The server's limits. Whoever reaches the port can neither hold a connection
// for ever nor make the process remember much.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	writeTimeout  = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	headerMax     = 16 << 10
	bodyMax       = 64 << 10
	stopTimeout   = time.Second // for answers that are under way at the end
)

// Handler returns the API:
//
//	GET /healthz     200 while the process lives
//	GET /readyz      200 when it is ready, else 503 and why it is not, a line each,
//	                 and in both cases what is wrong beside that
//	GET /metrics     for Prometheus
//	GET /v1/status   Status as JSON, of a process with an application
//	GET /v1/broker   as JSON, what the broker in the process holds
//	POST /v1/backup  copies the broker's data to a directory: see RequestBackup
//
// and what the document at /v1/openapi.json says of a process with an application.
func Handler(s Source) http.Handler {
	log := s.logger()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "alive") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.Ready(); err != nil {
			text(w, http.StatusServiceUnavailable, s.warned(err.Error()))
			return
		}
		text(w, http.StatusOK, s.warned("ready"))
	})
	paths := "/healthz\n/readyz\n/metrics"
	show := func(path, what string, get func() any) {
		paths += "\n" + path
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			b, err := json.MarshalIndent(get(), "", "  ")
			if err != nil {
				log.Error("encode "+what, "error", err)
				text(w, http.StatusInternalServerError, "encode "+what+": "+err.Error())
				return
			}
			header(w, "application/json")
			w.Write(append(b, '\n')) // an error means that nobody listens any more
		})
	}
	if s.Status != nil {
		show("/v1/status", "status", func() any { return s.Status() })
	}
	if s.Broker != nil {
		show("/v1/broker", "the broker's state", s.Broker)
	}
	if s.Backup != nil {
		mux.HandleFunc("POST "+backupPath, s.backup)
	}
	for _, p := range s.serveRoutes(mux) {
		paths += "\n" + p
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.Gatherer, promhttp.HandlerOpts{
		ErrorLog:            errorLog{log},
		MaxRequestsInFlight: 4,
	}))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		text(w, http.StatusOK, paths)
	})
	return http.NewCrossOriginProtection().Handler(s.guard(http.MaxBytesHandler(mux, bodyMax)))
}

// warned adds to a text what is wrong with a program that goes on.
func (s Source) warned(text string) string {
	if s.Warnings == nil {
		return text
	}
	return strings.Join(append([]string{text}, s.Warnings()...), "\n")
}

func (s Source) logger() *slog.Logger {
	if s.Logger == nil {
		return slog.Default()
	}
	return s.Logger
}

func header(w http.ResponseWriter, contentType string) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}

func text(w http.ResponseWriter, status int, body string) {
	header(w, "text/plain; charset=utf-8")
	w.WriteHeader(status)
	io.WriteString(w, body+"\n") // an error means that nobody listens any more
}

// errorLog takes what goes wrong while metrics are gathered.
type errorLog struct{ *slog.Logger }

func (l errorLog) Println(v ...any) { l.Error("gather metrics", "error", fmt.Sprint(v...)) }

// Serve serves the API on a listener, which it closes, until ctx ends.
func Serve(ctx context.Context, l net.Listener, s Source) error {
	server := &http.Server{
		Handler:           Handler(s),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    headerMax,
		ErrorLog:          slog.NewLogLogger(s.logger().Handler(), slog.LevelDebug), // clients' mistakes
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	err := server.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		err = server.Close() // answers that take longer are cut off
	}
	<-served
	return err
}
