package consumertest

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/pawlstream/pawl/consumer"
)

// logger returns a logger to the test's log, which shows when the test fails,
// and with -v.
func logger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// stack returns the stack of a panic of user code, on lines of its own.
func stack(err error) string {
	var p *consumer.PanicError
	if errors.As(err, &p) {
		return "\n" + string(p.Stack)
	}
	return ""
}
