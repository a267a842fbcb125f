package consumertest

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestProcessLog(t *testing.T) {
	var b bytes.Buffer
	log, silence := newProcessLog(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelInfo}))
	for range 40 {
		log.With("a", 1).Warn("no broker")
		log.Error("failed")
	}
	silence()
	log.Error("too late")
	out := b.String()
	for _, tt := range []struct {
		line string
		want int
	}{
		{"no broker", 4 + 3}, // and at 8, 16, 32
		{"times=32", 1},
		{"msg=failed", 40},
		{"too late", 0},
	} {
		if got := strings.Count(out, tt.line); got != tt.want {
			t.Errorf("%q is logged %d times, want %d", tt.line, got, tt.want)
		}
	}
}
