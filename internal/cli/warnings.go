package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
)

// warnings is the log of a command: what it goes on in spite of, a line each, as
// its errors are. What the client library says over and over is said once.
func warnings(to io.Writer) *slog.Logger {
	return slog.New(&warningPrinter{printed: new(printed), to: to})
}

// warningPrinter prints warnings, and what is worse.
type warningPrinter struct {
	*printed
	to    io.Writer
	attrs []slog.Attr // of all records
	group string      // that the names of attributes begin with
}

// printed is what printers of one log have in common.
type printed struct {
	mu   sync.Mutex
	last string // the last line
}

func (w *warningPrinter) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

func (w *warningPrinter) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	var details []string
	add := func(a slog.Attr) bool {
		switch value := fmt.Sprint(a.Value.Resolve().Any()); {
		case a.Equal(slog.Attr{}):
		case a.Key == "err" || a.Key == "error":
			line += ": " + value
		default:
			details = append(details, w.group+a.Key+" "+value)
		}
		return true
	}
	for _, a := range w.attrs {
		add(a)
	}
	r.Attrs(add)
	if len(details) > 0 {
		line += " (" + strings.Join(details, ", ") + ")"
	}
	line = "pawl: " + visible(line) + "\n"
	w.mu.Lock()
	defer w.mu.Unlock()
	if line == w.last {
		return nil
	}
	w.last = line
	_, err := io.WriteString(w.to, line)
	return err
}

func (w *warningPrinter) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *w
	with.attrs = append(with.attrs[:len(with.attrs):len(with.attrs)], attrs...)
	return &with
}

func (w *warningPrinter) WithGroup(name string) slog.Handler {
	with := *w
	if name != "" {
		with.group += name + "."
	}
	return &with
}
