package consumertest

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pawlstream/pawl/internal/invariants"
)

// Crash ends a process as kill -9 does: from this instant nothing that it does
// reaches the broker or its files. What it had sent and was on its way is lost
// or arrives, as the network has it. Restart runs it again on its files as they
// are now.
//
// Its code can't be ended in this way. It runs on, against a network that is
// gone, in a directory that nobody looks into any more, until it has stopped.
func (c *Cluster) Crash(name string) {
	c.t.Helper()
	p := c.running(name)
	if p.ended() {
		c.t.Fatalf("crash process %s: it has ended: %v", name, p.err)
	}
	c.rest()
	if err := c.kill(p, c.bubble); err != nil {
		c.t.Fatal(err)
	}
}

// CrashAt crashes a process, which may be one that is not started yet, at the
// nth time from now, counted from 1, that it passes a crash point: one of those
// that are named in the code of Pawl by invariants.Crash. It returns what says
// whether that has happened.
//
// Points don't know whose they are, so it is for clusters in which nothing else
// runs. It needs the build tag invariants, and skips the test without.
func (c *Cluster) CrashAt(name, point string, nth int) (crashed func() bool) {
	c.t.Helper()
	if !invariants.Enabled {
		c.t.Skip("a crash point needs the build tag invariants: go test -tags invariants") // without it no crash point is compiled in
	}
	var passes atomic.Int64
	var happened atomic.Bool
	disarm := invariants.Arm(point, func() {
		if passes.Add(1) != int64(nth) {
			return
		}
		p := c.last(name)
		if p == nil || !p.live() {
			return
		}
		if err := c.kill(p, false); err != nil {
			c.t.Error(err)
		}
		happened.Store(true)
	})
	c.t.Cleanup(disarm)
	return happened.Load
}

// kill makes the world see nothing of the process any more. It is called by
// the test, or by a goroutine of the process. At rest says that nothing moves:
// then the files are taken before the network is cut, since that would move
// something.
func (c *Cluster) kill(p *process, atRest bool) error {
	if !atRest {
		c.broker.Cut(p.host)
	}
	if err := copyStill(c.stateDir(p.name, c.life(p.name)+1), p.dir); err != nil {
		return fmt.Errorf("crash process %s: %w", p.name, err)
	}
	c.broker.Cut(p.host)
	p.silence()
	p.gone.CompareAndSwap(0, time.Now().UnixNano())
	p.crashed.Store(true)
	c.mu.Lock()
	c.mu.lives[p.name]++
	delete(c.mu.broken, p.host)
	c.mu.Unlock()
	p.cancel()
	return nil
}

// copyStill copies a directory as it is at one instant: again, if it changed
// meanwhile, as it may in real time.
func copyStill(to, from string) error {
	const tries = 100
	for range tries {
		before, err := listing(from)
		if err != nil {
			return err
		}
		if err := os.RemoveAll(to); err != nil {
			return err
		}
		copyErr := os.CopyFS(to, os.DirFS(from))
		after, err := listing(from)
		if err != nil {
			return err
		}
		if copyErr == nil && before == after {
			return nil
		}
	}
	return fmt.Errorf("copy %s: it did not come to rest", from)
}

// listing describes the files of a directory: names, sizes, times.
func listing(dir string) (string, error) {
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil // it was there a moment ago
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Fprintln(&b, path, info.Size(), info.ModTime().UnixNano())
		return nil
	})
	return b.String(), err
}

// bury removes from their groups the processes that are gone for longer than
// their session. A broker does so by itself, but not this one where the process
// was about to join when it went: it would count as a member for ever.
func (c *Cluster) bury() {
	c.t.Helper()
	c.mu.Lock()
	processes := slices.Clone(c.mu.processes)
	c.mu.Unlock()
	alive := make(map[[2]string]bool)
	for _, p := range processes {
		if p.app != nil && p.live() {
			alive[[2]string{p.config.cfg.Application, p.instance}] = true
		}
	}
	for _, p := range processes {
		if p.app == nil || p.live() || p.buried {
			continue
		}
		session := cmp.Or(p.config.cfg.SessionTimeout, sessionTimeout)
		if time.Since(time.Unix(0, p.gone.Load())) <= session+time.Second {
			continue
		}
		p.buried = true
		if alive[[2]string{p.config.cfg.Application, p.instance}] {
			continue
		}
		ctx, cancel := c.context()
		err := c.admin.RemoveInstance(ctx, p.config.cfg.Application, p.instance)
		cancel()
		if err != nil {
			c.t.Fatal(err)
		}
	}
}
