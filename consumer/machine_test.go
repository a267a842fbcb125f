package consumer_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/topic"
)

// misbehave makes every access to the disk call fn first, and fail with the error
// that it returns, until end is called.
func misbehave(t *testing.T, fn func(op, path string) error) (end func()) {
	t.Helper()
	if !invariants.Enabled {
		t.Skip("a disk that misbehaves needs the build tag invariants: go test -tags invariants") // without it no fault is compiled in; make test sets it
	}
	end = invariants.Misbehave(fn)
	t.Cleanup(end)
	return end
}

// failing returns a fault: these accesses to files whose name has the ending fail
// with the error.
func failing(err error, ending string, ops ...string) func(op, path string) error {
	return func(op, path string) error {
		for _, o := range ops {
			if o == op && strings.HasSuffix(path, ending) {
				return &os.PathError{Op: op, Path: path, Err: err}
			}
		}
		return nil
	}
}

// only returns the status of the only shard of a process.
func only(t *testing.T, c *consumertest.Cluster, name string) consumer.ShardStatus {
	t.Helper()
	st := c.Status(name)
	if !st.Joined {
		t.Errorf("process %s is not a member of the group", name)
	}
	if len(st.Shards) != 1 {
		t.Fatalf("process %s has %d shards, want 1", name, len(st.Shards))
	}
	return st.Shards[0]
}

// A state that can't be read is no fault of the message that wanted it: whatever
// the policy for messages that fail, none is skipped. The shard fails, says why,
// and goes on by itself.
func TestReadErrorSkipsNoMessage(t *testing.T) {
	for _, policy := range []consumer.OnFailure{consumer.Skip, consumer.DeadLetter, consumer.StopShard} {
		t.Run(string(policy), func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				c := consumertest.Start(t, &program{}, consumer.Config{OnFailure: policy})
				var keys []string // more than are read at once
				for i := range 200 {
					keys = append(keys, fmt.Sprintf("%03d%s", i, strings.Repeat("x", 2000)))
				}
				send(c, keys...)
				c.Settle()
				if err := c.Stop("p1"); err != nil { // which writes the database
					t.Fatal(err)
				}
				c.Restart("p1")
				c.Settle()
				var failed atomic.Int64
				end := misbehave(t, func(op, path string) error {
					if !strings.HasSuffix(path, ".sst") {
						return nil
					}
					failed.Add(1)
					return &os.PathError{Op: op, Path: path, Err: syscall.EIO}
				})
				send(c, keys...)
				c.Advance(3 * time.Second)
				if st := only(t, c, "p1"); failed.Load() == 0 || !strings.Contains(st.Reason, "input/output error") {
					t.Errorf("the shard is %s: %q after %d errors, want what the disk says", st.Phase, st.Reason, failed.Load())
				}
				end()
				c.Settle()
				checkExact(t, c, countOf(append(keys, keys...)))
				if st := only(t, c, "p1"); st.Phase != consumer.Running || st.Reason != "" {
					t.Errorf("the shard is %s: %q, want running", st.Phase, st.Reason)
				}
			})
		})
	}
}

// What the machine is short of is waited for, at the start, in the middle of a
// restore, when the database is written and when the shard is drained: the shard
// says so, the membership goes on, and so does the shard when there is some again.
func TestShortOf(t *testing.T) {
	for what, short := range map[string]struct {
		err  error
		ops  []string
		says string
	}{
		"space":            {syscall.ENOSPC, []string{"create", "write"}, "disk full: "},
		"quota":            {syscall.EDQUOT, []string{"create", "write"}, "disk full: "},
		"file descriptors": {syscall.EMFILE, []string{"create", "open"}, "out of file descriptors: "},
		"a writable disk":  {syscall.EROFS, []string{"create", "write"}, "read-only file system: "},
	} {
		for when, point := range map[string]string{"start": "fence-before", "restore": "restore-batch", "flush": "database-flush-before", "drain": "drain-before"} {
			t.Run(what+" at "+when, func(t *testing.T) {
				virtually(t, func(t *testing.T) { runShort(t, failing(short.err, "", short.ops...), short.says, when, point) })
			})
		}
	}
}

// runShort lets the machine be short of something from the time that a process
// passes a point, or from its start on.
func runShort(t *testing.T, fault func(op, path string) error, says, when, point string) {
	const drain = 10 * time.Second
	big := strings.Repeat("x", 1000)
	if when == "restore" {
		big = strings.Repeat("x", 25_000) // so that it is several batches
	}
	p := &program{after: func(e topic.Envelope, s consumer.Shard) error {
		return named.Put(s.Transaction(), string(e.Key), big)
	}}
	c := consumertest.Start(t, p, consumer.Config{DrainTimeout: drain, Memory: 64 << 20})
	var keys []string
	for i := range 400 {
		keys = append(keys, fmt.Sprint("key", i))
	}
	send(c, keys...)
	c.Settle()

	var short, passed atomic.Bool
	misbehave(t, func(op, path string) error {
		if !short.Load() {
			return nil
		}
		return fault(op, path)
	})
	begin := func() { // at the point
		t.Cleanup(invariants.Arm(point, func() {
			if passed.CompareAndSwap(false, true) {
				short.Store(true)
			}
		}))
	}
	name := "p2"
	switch when {
	case "start", "restore":
		if err := c.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		if when == "restore" {
			begin()
		} else {
			passed.Store(true)
			short.Store(true)
		}
		c.StartProcess(name)
	case "flush":
		name = "p1"
		send(c, keys...)
		begin()
		c.Advance(2 * time.Minute)
	case "drain":
		begin()
		send(c, keys...)
		c.Advance(time.Second)
		begun := time.Now()
		err := c.Stop("p1")
		if err != nil {
			t.Errorf("stop: %v", err)
		}
		if took := time.Since(begun); took > drain+time.Second {
			t.Errorf("the stop took %v, with a deadline of %v", took, drain)
		}
		short.Store(false)
		c.Restart("p1")
		name = "p1"
	}
	if when != "drain" {
		c.Advance(time.Minute) // many sessions
		if st := only(t, c, name); !strings.Contains(st.Reason, says) || st.Phase != consumer.Failed {
			t.Errorf("the shard is %s: %q, want failed: %s…", st.Phase, st.Reason, says)
		}
		short.Store(false)
	}
	if !passed.Load() {
		t.Errorf("the process has not passed %s", point)
	}
	c.Settle()
	send(c, keys...)
	c.Settle()
	want := append(keys, keys...)
	if when == "flush" || when == "drain" {
		want = append(want, keys...)
	}
	checkExact(t, c, countOf(want))
	if st := only(t, c, name); st.Phase != consumer.Running || st.Reason != "" {
		t.Errorf("the shard is %s: %q, want running", st.Phase, st.Reason)
	}
	if n := c.Metric(name, "pawl_state_discarded_total"); n != 0 {
		t.Errorf("%v databases were discarded, which only had to wait", n)
	}
}

// A disk on which every access takes up to 2 s costs the shard neither its
// membership nor a message. The status and the log say what takes so long, and
// a stop ends in its time.
func TestSlowDisk(t *testing.T) {
	virtually(t, func(t *testing.T) {
		const drain = 10 * time.Second
		c := consumertest.Start(t, &program{}, consumer.Config{DrainTimeout: drain, FlushInterval: 20 * time.Second})
		send(c, "a", "b")
		c.Settle()
		var accesses atomic.Int64
		end := misbehave(t, func(op, path string) error {
			n := accesses.Add(1)
			time.Sleep(200*time.Millisecond + time.Duration(n*7919%1800)*time.Millisecond) // virtual time
			return nil
		})
		told := false
		for range 30 {
			send(c, "a", "b", "c")
			for range 4 {
				c.Advance(time.Second)
				st := only(t, c, "p1")
				told = told || strings.Contains(st.Reason, "the disk is slow")
				if st.Phase != consumer.Running {
					t.Errorf("the shard is %s: %q, want running", st.Phase, st.Reason)
				}
			}
		}
		if !told || accesses.Load() == 0 {
			t.Errorf("after %d slow accesses the status has said nothing of the disk", accesses.Load())
		}
		if n := c.Metric("p1", "pawl_shard_failures_total"); n != 0 {
			t.Errorf("the shard has failed %v times", n)
		}
		begun := time.Now()
		if err := c.Stop("p1"); err != nil {
			t.Errorf("stop: %v", err)
		}
		if took := time.Since(begun); took > drain+3*time.Second { // an access that has begun is waited for
			t.Errorf("the stop took %v, with a deadline of %v", took, drain)
		}
		end() // opening holds a lock over its accesses, which virtual time does not pass
		c.Restart("p1")
		c.Settle()
		checkExact(t, c, map[string]int{"a": 31, "b": 31, "c": 30})
	})
}

// A directory that a later version has written is left alone: its shard fails by
// name, and runs once the directory is out of the way, from the changelog.
func TestNewerDatabaseIsLeftAlone(t *testing.T) {
	virtually(t, func(t *testing.T) {
		root := t.TempDir()
		cfg := consumer.Config{StateDir: root}
		c := consumertest.NewCluster(t)
		c.CreateTopic(words, 1)
		c.CreateTopic(lines, 1)
		c.StartApp("p1", cfg, &program{})
		send(c, "a", "b")
		c.Settle()
		if err := c.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(root, "test", "words-000")
		// The files of a database say in a name which version has written them.
		markers, err := filepath.Glob(filepath.Join(dir, "marker.format-version.*"))
		if err != nil || len(markers) != 1 {
			t.Fatalf("markers of the version: %v, %v", markers, err)
		}
		if err := os.Rename(markers[0], filepath.Join(dir, "marker.format-version.000099.999")); err != nil {
			t.Fatal(err)
		}
		before, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		c.Restart("p1")
		send(c, "a")
		c.Advance(10 * time.Second)
		if st := only(t, c, "p1"); st.Phase == consumer.Running || !strings.Contains(st.Reason, "newer format") || !strings.Contains(st.Reason, dir) {
			t.Errorf("the shard is %s: %q, want it to name %s and its format", st.Phase, st.Reason, dir)
		}
		after, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || !slices.Equal(before, after) {
			t.Errorf("the directory holds %v, %v; want %v", after, err, before)
		}
		if err := os.Rename(dir, filepath.Join(root, "aside")); err != nil {
			t.Fatal(err)
		}
		c.Settle()
		checkExact(t, c, map[string]int{"a": 2, "b": 1})
	})
}
