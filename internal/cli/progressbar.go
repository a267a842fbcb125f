package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/pawlstream/pawl/messaging"
)

// isTerminal says whether a stream is a terminal on which lines can be drawn
// again.
func isTerminal(stream any, getenv func(string) string) bool {
	f, ok := stream.(*os.File)
	if !ok || getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	// The device that stands for nothing is a character device, too.
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}

// progressBar is one line that shows on a terminal how far a redrive or a
// discard is. Anywhere else nothing is drawn. What is written to it goes above
// the line. Safe for concurrent use.
type progressBar struct {
	out    io.Writer
	live   bool
	action string

	mu struct {
		sync.Mutex
		drawn bool
		at    time.Time
	}
}

func newProgressBar(out io.Writer, getenv func(string) string, action string) *progressBar {
	return &progressBar{out: out, live: isTerminal(out, getenv), action: action}
}

const clearLine = "\r\x1b[K"

// draw shows the progress, unless it did a moment ago.
func (b *progressBar) draw(p messaging.Progress) {
	if !b.live {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.mu.drawn && now.Sub(b.mu.at) < liveInterval {
		return
	}
	b.mu.drawn, b.mu.at = true, now
	// A terminal that is gone is met by what is written at the end.
	_, _ = io.WriteString(b.out, clearLine+barLine(p, b.action))
}

// barLine is no wider than 78 columns.
func barLine(p messaging.Progress, action string) string {
	const width = 24
	part := int64(0)
	if p.Of > 0 {
		part = min(p.Looked, p.Of) * 100 / p.Of
	}
	filled := int(part) * width / 100
	return cut(fmt.Sprintf("%s%s %3d%%  %s %s, %s failed, %s left", strings.Repeat("█", filled), strings.Repeat("░", width-filled), part,
		thousands(int64(p.Moved)), action, thousands(int64(p.Failed)), thousands(int64(p.Capped))), 78)
}

// erase removes the line.
func (b *progressBar) erase() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.eraseLocked()
}

func (b *progressBar) eraseLocked() {
	if b.mu.drawn {
		b.mu.drawn = false
		_, _ = io.WriteString(b.out, clearLine)
	}
}

// Write writes a line of the log.
func (b *progressBar) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.eraseLocked()
	return b.out.Write(p)
}
