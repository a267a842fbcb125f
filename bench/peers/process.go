package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// process is one side's program while it runs. It is ended by closing its
// standard input.
type process struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr tail
	ended  chan struct{} // closed when it has ended
	err    error         // of its end; read after ended is closed
}

// start starts a program. What it prints goes to stdout.
func start(stdout io.Writer, name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = stdout, &p.stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// grace is how long a program may take to stop.
const grace = 30 * time.Second

// stop ends the program and returns when it has ended, with an error if it
// ended in any way but well.
func (p *process) stop() error {
	if err := p.stdin.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	select {
	case <-p.ended:
	case <-time.After(grace):
		if err := p.cmd.Process.Kill(); err != nil {
			return err
		}
		<-p.ended
		return fmt.Errorf("the process did not stop within %v, and was killed; it said:\n%s", grace, p.stderr.text())
	}
	return p.end()
}

// end says how a program ended that has ended.
func (p *process) end() error {
	if p.err != nil {
		return fmt.Errorf("the process ended with %w; it said:\n%s", p.err, p.stderr.text())
	}
	return nil
}

// usage returns the CPU time of the process so far, and its peak memory.
func (p *process) usage() (usage, error) { return usageOf(strconv.Itoa(p.cmd.Process.Pid)) }

// usage is what the kernel says of a process.
type usage struct {
	cpu  time.Duration // user and system
	peak int64         // bytes resident, at most
}

func usageOf(pid string) (usage, error) {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return usage{}, err
	}
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return usage{}, err
	}
	return parseUsage(string(stat), string(status))
}

// tick is the unit of CPU times in /proc, on every Linux that Go runs on.
const tick = 10 * time.Millisecond

func parseUsage(stat, status string) (usage, error) {
	var u usage
	// The second field is the program's name in brackets, which may hold
	// anything. User and system time are the 14th and the 15th.
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return u, fmt.Errorf("stat %q: want more fields", stat)
	}
	for _, f := range fields[11:13] {
		ticks, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return u, fmt.Errorf("stat %q: %w", stat, err)
		}
		u.cpu += time.Duration(ticks) * tick
	}
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return u, fmt.Errorf("status %q: %w", line, err)
			}
			u.peak = kb << 10
			return u, nil
		}
	}
	return u, errors.New("status has no VmHWM")
}

// machineCPU returns the CPU time that all of the machine has used.
func machineCPU() (time.Duration, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseMachineCPU(string(stat))
}

func parseMachineCPU(stat string) (time.Duration, error) {
	fields := strings.Fields(strings.SplitN(stat, "\n", 2)[0])
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", fields)
	}
	total := time.Duration(0)
	for i, f := range fields[1:9] { // user nice system idle iowait irq softirq steal
		ticks, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat begins with %q: %w", fields, err)
		}
		if i != 3 && i != 4 {
			total += time.Duration(ticks) * tick
		}
	}
	return total, nil
}

// tail keeps the end of what a program says. Safe for concurrent use.
type tail struct {
	mu struct {
		sync.Mutex
		bytes.Buffer
	}
}

const tailBytes = 8 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.Write(p)
	if extra := t.mu.Len() - tailBytes; extra > 0 {
		t.mu.Next(extra)
	}
	return len(p), nil
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.String()
}
