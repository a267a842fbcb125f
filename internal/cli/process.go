package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is one of the demo's two, through all the times that it is killed
// and started again.
type process struct {
	child   child
	args    []string     // of what is run
	env     []string     // its environment; nil: this process's
	dir     *tempDir     // that it uses; nil: one that stays
	log     string       // the file that its standard error is appended to
	program string       // what is run
	failed  chan<- error // takes the error of one that ends by itself

	mu struct {
		sync.Mutex
		state   processState
		pid     int
		stdin   io.WriteCloser
		ended   chan struct{} // closed when the running one has ended
		err     error         // how it ended
		command *exec.Cmd
		shards  []string // that run there, as it has said last
	}
}

type processState string

const (
	notStarted processState = ""
	running    processState = "running"
	killed     processState = "killed"
	stopping   processState = "stopping"
	stopped    processState = "stopped"
)

func newProcess(c child, dir string, failed chan<- error) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the program to run: %w", err)
	}
	return &process{child: c, args: c.args(), program: program, log: filepath.Join(dir, c.instance+".log"), failed: failed}, nil
}

// start starts the process, in a process group of its own: a Ctrl-C in the
// terminal is the parent's alone.
func (p *process) start() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start process %s: %w", p.child.instance, err)
	}
	defer log.Close() // the child has its own
	cmd := exec.Command(p.program, p.args...)
	cmd.Stderr, cmd.Env = log, p.env
	if p.dir != nil {
		cmd.ExtraFiles = []*os.File{p.dir.lock} // it has the lock as long as it lives
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("start process %s: %w", p.child.instance, err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start process %s: %w", p.child.instance, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start process %s: %w", p.child.instance, err)
	}
	ended := make(chan struct{})
	p.mu.Lock()
	p.mu.state, p.mu.pid, p.mu.stdin, p.mu.ended, p.mu.err, p.mu.command = running, cmd.Process.Pid, stdin, ended, nil, cmd
	p.mu.Unlock()
	go func() { // which stop and kill wait for
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			p.runs(strings.Fields(lines.Text()))
		}
		err := cmd.Wait()
		p.mu.Lock()
		p.mu.shards = nil
		byItself := p.mu.state == running
		if byItself {
			p.mu.state = stopped
		}
		p.mu.err = err
		p.mu.Unlock()
		close(ended)
		if byItself {
			p.failed <- fmt.Errorf("process %s ended by itself: %w", p.child.instance, p.describe(err))
		}
	}()
	return nil
}

// runs notes which shards run there.
func (p *process) runs(shards []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.shards = shards
}

// shards are those that run there.
func (p *process) shards() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.shards
}

// describe adds to how the process ended what it said last.
func (p *process) describe(err error) error {
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("%w; its log ends with:\n%s", err, p.tail())
}

const tailBytes = 4 << 10

// tail returns the last lines of the log.
func (p *process) tail() string {
	all, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	if len(all) > tailBytes {
		all = all[len(all)-tailBytes:]
		_, all, _ = bytes.Cut(all, []byte("\n"))
	}
	return string(bytes.TrimSpace(all))
}

// signal sends a signal to the process, if it runs.
func (p *process) signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.state != running && p.mu.state != stopping {
		return nil
	}
	if err := p.mu.command.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to process %s: %w", s, p.child.instance, err)
	}
	return nil
}

// kill ends the process as kill -9 does, and returns when it has ended.
func (p *process) kill() error {
	p.mu.Lock()
	if p.mu.state != running && p.mu.state != stopping {
		p.mu.Unlock()
		return nil
	}
	p.mu.state = killed
	cmd, ended := p.mu.command, p.mu.ended
	p.mu.Unlock()
	if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill process %s: %w", p.child.instance, err)
	}
	<-ended
	return nil
}

// stop asks the process to drain, by closing its standard input, and waits for
// its end: for so long, and then kills it.
func (p *process) stop(patience time.Duration) error {
	p.mu.Lock()
	if p.mu.state != running {
		p.mu.Unlock()
		return nil
	}
	p.mu.state = stopping
	stdin, ended := p.mu.stdin, p.mu.ended
	p.mu.Unlock()
	if err := stdin.Close(); err != nil {
		return errors.Join(fmt.Errorf("stop process %s: %w", p.child.instance, err), p.kill())
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-ended:
	case <-t.C:
		return errors.Join(fmt.Errorf("process %s did not end within %v; its log ends with:\n%s", p.child.instance, patience, p.tail()), p.kill())
	}
	p.mu.Lock()
	p.mu.state = stopped
	err := p.mu.err
	p.mu.Unlock()
	if err != nil {
		return fmt.Errorf("process %s drained with an error: %w", p.child.instance, p.describe(err))
	}
	return nil
}

// now says how the process is.
func (p *process) now() (processState, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.state, p.mu.pid
}
