package consumertest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/store"
)

// letters returns n words, so many different ones.
func letters(n, different int) (ws []string) {
	for i := range n {
		ws = append(ws, fmt.Sprintf("w%02d", i%different))
	}
	return ws
}

// publishWords publishes words to the topic that counter consumes, each with
// itself as its key.
func publishWords(c *consumertest.Cluster, ws ...string) {
	for _, w := range ws {
		consumertest.PublishKeyed(c, words, w, w)
	}
}

// count counts words.
func count(ws []string) map[string]int64 {
	n := make(map[string]int64)
	for _, w := range ws {
		n[w]++
	}
	return n
}

// checkCounts compares the state of all shards, and what was published of it,
// with the words that were published: nothing is lost, and nothing is counted
// twice.
func checkCounts(t *testing.T, c *consumertest.Cluster, shards int, ws []string) {
	t.Helper()
	want := count(ws)
	state := make(map[string]int64)
	for i := range shards {
		c.View(consumer.ShardID(fmt.Sprintf("words-%03d", i)), func(tx *store.Transaction) {
			for w, n := range counts.All(tx) {
				state[w] += n
			}
		})
	}
	if !maps.Equal(state, want) {
		t.Errorf("counts = %v, want %v", state, want)
	}
	// Each commit publishes a word's count, which only grows; the last is all.
	published := make(map[string]int64)
	for _, m := range consumertest.Committed(c, totals) {
		if m.Count <= published[m.Word] {
			t.Errorf("the count of %s went from %d to %d", m.Word, published[m.Word], m.Count)
		}
		published[m.Word] = m.Count
	}
	if !maps.Equal(published, want) {
		t.Errorf("published counts = %v, want %v", published, want)
	}
}

func bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

func TestRestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := consumertest.Start(t, counter{}, consumer.Config{CreateTopics: 2})
		first := letters(100, 7)
		publishWords(c, first...)
		c.Settle()
		if err := c.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		second := letters(50, 11)
		publishWords(c, second...)
		c.Restart("p1")
		c.Settle()
		checkCounts(t, c, 2, append(first, second...))
	})
}

// A crash at any time loses nothing and repeats nothing.
func TestCrash(t *testing.T) {
	for _, after := range []time.Duration{0, 5 * time.Millisecond, 40 * time.Millisecond, 90 * time.Millisecond, 200 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := consumertest.Start(t, counter{}, consumer.Config{CreateTopics: 2})
				first := letters(100, 7)
				publishWords(c, first...)
				c.Advance(after)
				c.Crash("p1")
				second := letters(50, 11)
				publishWords(c, second...)
				c.Restart("p1")
				c.Settle()
				checkCounts(t, c, 2, append(first, second...))
			})
		})
	}
}

// owners returns how many shards run in each process.
func owners(c *consumertest.Cluster, names ...string) (n []int) {
	for _, name := range names {
		n = append(n, len(c.Status(name).Shards))
	}
	return n
}

// Two processes share eight partitions. When one crashes the other takes over
// its shards, and gives half of them back when it returns.
func TestTakeOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := consumertest.Start(t, counter{}, consumer.Config{CreateTopics: 8})
		c.StartProcess("p2")
		all := letters(200, 31)
		publishWords(c, all...)
		c.Settle()
		if got, want := owners(c, "p1", "p2"), []int{4, 4}; !slices.Equal(got, want) {
			t.Errorf("shards of the processes: %v, want %v", got, want)
		}
		checkCounts(t, c, 8, all)

		c.Crash("p2")
		more := letters(100, 17)
		all = append(all, more...)
		publishWords(c, more...)
		begun := time.Now()
		c.Settle()
		if took := time.Since(begun); took < 5*time.Second || took > 15*time.Second {
			t.Errorf("p1 took over after %v, want the session timeout of 10 s", took)
		}
		if got, want := owners(c, "p1"), []int{8}; !slices.Equal(got, want) {
			t.Errorf("shards of the process: %v, want %v", got, want)
		}
		checkCounts(t, c, 8, all)

		c.Restart("p2")
		more = letters(100, 13)
		all = append(all, more...)
		publishWords(c, more...)
		c.Settle()
		if got, want := owners(c, "p1", "p2"), []int{4, 4}; !slices.Equal(got, want) {
			t.Errorf("shards of the processes: %v, want %v", got, want)
		}
		checkCounts(t, c, 8, all)
	})
}

// A process that was frozen beyond its session finds that it has lost its
// shards. What it had in hand does not become visible.
func TestFreeze(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := consumertest.Start(t, counter{}, consumer.Config{CreateTopics: 4})
		c.StartProcess("p2")
		all := letters(100, 31)
		publishWords(c, all...)
		c.Settle()
		more := letters(100, 17)
		all = append(all, more...)
		publishWords(c, more...)
		c.Freeze("p1")
		c.Settle()
		if got, want := owners(c, "p2"), []int{4}; !slices.Equal(got, want) {
			t.Errorf("shards of the process: %v, want %v", got, want)
		}
		checkCounts(t, c, 4, all)
		c.Thaw("p1")
		more = letters(100, 13)
		all = append(all, more...)
		publishWords(c, more...)
		c.Settle()
		checkCounts(t, c, 4, all)
	})
}

// The same, where connections break in place of standing still.
func TestCut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := consumertest.Start(t, counter{}, consumer.Config{CreateTopics: 4})
		c.StartProcess("p2")
		c.Settle()
		all := letters(100, 31)
		publishWords(c, all...)
		c.Cut("p1")
		c.Settle()
		checkCounts(t, c, 4, all)
		c.Heal("p1")
		more := letters(100, 13)
		all = append(all, more...)
		publishWords(c, more...)
		c.Settle()
		checkCounts(t, c, 4, all)
	})
}

// A commit whose answer is lost, or which is answered with an error, counts
// once.
func TestLostReplies(t *testing.T) {
	for _, request := range []string{"EndTxn", "Produce", "InitProducerID", "Fetch", "Heartbeat", "JoinGroup", "AddPartitionsToTxn"} {
		for nth := 1; nth <= 3; nth++ {
			t.Run(fmt.Sprintf("%s/%d", request, nth), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					c := consumertest.Start(t, counter{}, consumer.Config{CreateTopics: 2})
					c.DropReply("p1", request, nth)
					all := letters(100, 7)
					publishWords(c, all...)
					c.Settle()
					checkCounts(t, c, 2, all)
				})
			})
		}
	}
}

// A process is any function. It is told its host and directory, and its error
// is the test's to see.
func TestRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := consumertest.NewCluster(t)
		lost := errors.New("lost")
		c.Run("mine", func(ctx context.Context, cl cluster.Cluster, dir string) error {
			conn, err := cl.Dial(ctx, "tcp", cl.Brokers[0])
			if err != nil {
				return err
			}
			defer conn.Close()
			name := filepath.Join(dir, "lives")
			old, err := os.ReadFile(name)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			if err := os.WriteFile(name, append(old, '|'), 0o644); err != nil {
				return err
			}
			if string(old) == "||" {
				return lost
			}
			<-ctx.Done()
			// What a process that has crashed still does is lost.
			return os.WriteFile(name, append(old, "|end"...), 0o644)
		})
		c.Advance(time.Second)
		c.Crash("mine")
		c.Advance(time.Second)
		c.Restart("mine")
		c.Advance(time.Second)
		c.Crash("mine")
		c.Restart("mine")
		if err := c.Wait("mine"); !errors.Is(err, lost) {
			t.Errorf("Wait = %v, want %v", err, lost)
		}
	})
}

// Outside a bubble a cluster runs in real time, without any tag.
func TestRealTime(t *testing.T) {
	c := consumertest.Start(t, counter{}, consumer.Config{CreateTopics: 2, DrainTimeout: time.Second})
	all := letters(100, 7)
	publishWords(c, all...)
	c.Settle()
	c.Crash("p1")
	more := letters(50, 11)
	all = append(all, more...)
	publishWords(c, more...)
	c.Restart("p1")
	c.Settle()
	checkCounts(t, c, 2, all)
	if err := c.Stop("p1"); err != nil {
		t.Error(err)
	}
}

// At whatever point of a start or a commit a process crashes, nothing is lost
// and nothing is counted twice.
func TestCrashAt(t *testing.T) {
	starts := []string{"heartbeat-before", "heartbeat-after", "fence-before", "fence-after", "start-record-after", "restore-after", "resolve-after"}
	commits := []string{
		"flush-after", "seal-before", "commit-before", "produce-before", "produce-after", "endtxn-sent", "endtxn-replied", "apply-before", "store-apply", "apply-after",
		"database-flush-before", "database-flush-after",
	}
	for _, point := range append(starts, commits...) {
		most := 3
		if slices.Contains(starts, point) {
			most = 2 // as many as there are shards
		}
		for nth := 1; nth <= most; nth++ {
			t.Run(fmt.Sprintf("%s/%d", point, nth), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					c := consumertest.NewCluster(t)
					crashed := c.CrashAt("p1", point, nth)
					c.StartApp("p1", consumer.Config{CreateTopics: 2, FlushInterval: time.Second}, counter{})
					var all []string
					c.Until("a crash at "+point, func() bool {
						ws := letters(3, 2)
						all = append(all, ws...)
						publishWords(c, ws...)
						c.Advance(30 * time.Millisecond)
						return crashed()
					})
					c.Restart("p1")
					c.Settle()
					checkCounts(t, c, 2, all)
				})
			})
		}
	}
}
