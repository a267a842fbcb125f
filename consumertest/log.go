package consumertest

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pawlstream/pawl/consumer"
)

// logger returns a logger to the test's log, which shows when the test fails,
// and with -v.
func logger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// processLog is the log of one life of a process. Once it has crashed nobody
// reads it. Of a warning that comes again and again, as that of a broker that
// can't be reached, it shows the first ones, and then every doubling.
type processLog struct {
	slog.Handler
	silent *atomic.Bool
	seen   *warnings
}

type warnings struct {
	sync.Mutex
	n map[string]int
}

func newProcessLog(h slog.Handler) (_ *slog.Logger, silence func()) {
	silent := new(atomic.Bool)
	l := processLog{Handler: h, silent: silent, seen: &warnings{n: make(map[string]int)}}
	return slog.New(l), func() { silent.Store(true) }
}

func (l processLog) Enabled(ctx context.Context, level slog.Level) bool {
	return !l.silent.Load() && l.Handler.Enabled(ctx, level)
}

func (l processLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		if n := l.seen.add(r.Message); n > 4 {
			if n&(n-1) != 0 {
				return nil
			}
			r = r.Clone()
			r.AddAttrs(slog.Int("times", n))
		}
	}
	return l.Handler.Handle(ctx, r)
}

func (l processLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	l.Handler = l.Handler.WithAttrs(attrs)
	return l
}

func (l processLog) WithGroup(name string) slog.Handler {
	l.Handler = l.Handler.WithGroup(name)
	return l
}

func (w *warnings) add(msg string) int {
	w.Lock()
	defer w.Unlock()
	w.n[msg]++
	return w.n[msg]
}

// stack returns the stack of a panic of user code, on lines of its own.
func stack(err error) string {
	var p *consumer.PanicError
	if errors.As(err, &p) {
		return "\n" + string(p.Stack)
	}
	return ""
}
