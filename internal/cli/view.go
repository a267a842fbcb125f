package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// view shows how a run goes. On a terminal it keeps a few lines up to date,
// below what has happened; anywhere else it writes a line now and then.
type view struct {
	out    io.Writer
	live   bool // a terminal, whose lines can be drawn again
	colour bool
	began  time.Time
	broken func() // called when nobody reads any more; may be nil

	mu struct {
		sync.Mutex
		drawn int // lines of the live part that are on the screen
		last  time.Time
		done  int64
		rate  float64
		plain time.Time // when a line was last written
		err   error     // of the writer: nothing more is written
	}
}

func newView(out io.Writer, getenv func(string) string) *view {
	v := &view{out: out, began: time.Now(), live: isTerminal(out, getenv)}
	v.colour = v.live && getenv("NO_COLOR") == ""
	return v
}

// snapshot is what there is to show.
type snapshot struct {
	phase          string
	total          int64 // events
	fed            int64
	done           int64 // through both consumers
	progress       int64
	duplicated     int64
	added, deleted int64 // by path, so far
	kills, planned int
	middle         int // kills in the middle of a transaction
	takeovers      int
	brokerKills    int
	processes      []processView
	shards         [][]string // rows of owners, by partition; empty for none yet
	rows           []string   // what the rows are
}

type processView struct {
	name  string
	state processState
	pid   int
}

// Intervals between two pictures: of the live part, and of single lines.
const (
	liveInterval  = 100 * time.Millisecond
	plainInterval = 2 * time.Second
)

// say writes a line about something that has happened.
func (v *view) say(format string, args ...any) {
	v.write(func(b *strings.Builder) {
		v.eraseLocked(b)
		fmt.Fprintf(b, "%6.1fs  %s\n", time.Since(v.began).Seconds(), fmt.Sprintf(format, args...))
	})
}

// picture is a snapshot that can be drawn.
type picture interface {
	counted() int64 // of what the rate is
	line(rate float64) string
	lines(rate float64, passed time.Duration, colour bool) []string
}

func (s snapshot) counted() int64 { return s.done }

// draw shows the snapshot.
func (v *view) draw(s picture) {
	v.write(func(b *strings.Builder) {
		now := time.Now()
		if passed := now.Sub(v.mu.last); v.mu.last.IsZero() {
			v.mu.last, v.mu.done = now, s.counted()
		} else if passed >= time.Second/2 {
			v.mu.rate = float64(s.counted()-v.mu.done) / passed.Seconds()
			v.mu.last, v.mu.done = now, s.counted()
		}
		if !v.live {
			if now.Sub(v.mu.plain) >= plainInterval {
				v.mu.plain = now
				fmt.Fprintf(b, "%6.1fs  %s\n", now.Sub(v.began).Seconds(), s.line(v.mu.rate))
			}
			return
		}
		v.eraseLocked(b)
		lines := s.lines(v.mu.rate, now.Sub(v.began), v.colour)
		for _, l := range lines {
			b.WriteString(l + "\n")
		}
		v.mu.drawn = len(lines)
	})
}

// end removes the live part.
func (v *view) end() { v.write(v.eraseLocked) }

// write writes what build, which is called with the lock held, puts together.
// The lock is held while it is written, too: that is what keeps lines whole.
func (v *view) write(build func(*strings.Builder)) {
	v.mu.Lock()
	var b strings.Builder
	build(&b)
	failed := false
	if v.mu.err == nil && b.Len() > 0 {
		if _, err := io.WriteString(v.out, b.String()); err != nil {
			v.mu.err = fmt.Errorf("write progress: %w", err)
			failed = true
		}
	}
	v.mu.Unlock()
	if failed && v.broken != nil {
		v.broken()
	}
}

// failed is the writer's error, if it had one.
func (v *view) failed() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.err
}

// eraseLocked goes back to where the live part begins, and clears it.
func (v *view) eraseLocked(b *strings.Builder) {
	if v.mu.drawn > 0 {
		fmt.Fprintf(b, "\x1b[%dA\x1b[J", v.mu.drawn)
		v.mu.drawn = 0
	}
}

// line is the snapshot in one line.
func (s snapshot) line(rate float64) string {
	var processes []string
	for _, p := range s.processes {
		n := 0
		for _, row := range s.shards {
			for _, owner := range row {
				if owner == p.name {
					n++
				}
			}
		}
		processes = append(processes, fmt.Sprintf("%s %s, %d shards", p.name, p.state.orStarting(), n))
	}
	return fmt.Sprintf("%s: %s fed, %s through (%d%%), %s/s; %d of %d kills%s; duplicated %d; %s", s.phase,
		thousands(s.fed), thousands(s.done), s.percent(), thousands(int64(rate)), s.kills, s.planned, ofBroker(s.brokerKills), s.duplicated, strings.Join(processes, "; "))
}

// ofBroker adds the kills of the broker to those of processes.
func ofBroker(kills int) string {
	if kills == 0 {
		return ""
	}
	return fmt.Sprintf(", broker %d", kills)
}

func (p processState) orStarting() string {
	if p == notStarted {
		return "starting"
	}
	return string(p)
}

func (s snapshot) percent() int64 {
	if s.total == 0 {
		return 0
	}
	return s.progress * 100 / s.total
}

const barWidth = 40

// lines are the snapshot as it is kept up to date on a terminal. None is wider
// than 78 columns, so that none wraps and is then not erased.
func (s snapshot) lines(rate float64, passed time.Duration, colour bool) []string {
	paint := func(code, text string) string {
		if !colour {
			return text
		}
		return "\x1b[" + code + "m" + text + "\x1b[0m"
	}
	const bold, dim, red, green, first, second = "1", "2", "31", "32", "36", "35"
	hue := func(name string) string {
		for i, p := range s.processes {
			if p.name == name && i%2 == 1 {
				return second
			}
		}
		return first
	}
	filled := int(min(max(s.percent(), 0), 100)) * barWidth / 100
	lines := []string{
		"",
		fmt.Sprintf("  %-10.10s %s%s %3d%%  %02d:%02d", s.phase, paint(green, strings.Repeat("█", filled)), paint(dim, strings.Repeat("░", barWidth-filled)),
			s.percent(), int(passed.Minutes()), int(passed.Seconds())%60),
		fmt.Sprintf("  %-10s %s fed, %s through both, %s a second", "events", thousands(s.fed), thousands(s.done), thousands(int64(rate))),
		fmt.Sprintf("  %-10s %s added, %s deleted", "lines", thousands(s.added), thousands(s.deleted)),
	}
	for i, row := range s.shards {
		marks := make([]string, len(row))
		for p, owner := range row {
			marks[p] = paint(dim, "·")
			if owner != "" {
				marks[p] = paint(hue(owner), owner)
			}
		}
		name := ""
		if i == 0 {
			name = "shards"
		}
		lines = append(lines, fmt.Sprintf("  %-10s %s  %s", name, strings.Join(marks, " "), s.rows[i]))
	}
	var processes []string
	for _, p := range s.processes {
		state := p.state.orStarting()
		switch p.state {
		case killed:
			state = paint(red, state)
		case running:
			state = fmt.Sprintf("%s, pid %d", paint(green, state), p.pid)
		}
		processes = append(processes, fmt.Sprintf("%s %s", paint(hue(p.name), p.name), state))
	}
	duplicated := strconv.FormatInt(s.duplicated, 10)
	if s.duplicated > 0 {
		duplicated = paint(red, duplicated)
	}
	return append(lines,
		fmt.Sprintf("  %-10s %s", "processes", strings.Join(processes, "   ")),
		fmt.Sprintf("  %-10s %s of %d%s, %d mid-transaction; takeovers %d; duplicated %s", "kill -9", paint(bold, strconv.Itoa(s.kills)), s.planned, ofBroker(s.brokerKills), s.middle, s.takeovers, duplicated))
}

// thousands writes a number with commas.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}
