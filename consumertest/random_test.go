package consumertest_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
)

// Whatever happens to three processes, and to their network, nothing is lost
// and nothing is counted twice. PAWL_SEED=N runs the Nth story alone,
// PAWL_SEEDS=N the first N.
func TestRandomStories(t *testing.T) {
	first, last := uint64(1), uint64(6)
	if s := os.Getenv("PAWL_SEEDS"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		last = n
	}
	if s := os.Getenv("PAWL_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		first, last = n, n
	}
	for seed := first; seed <= last; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) { story(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

// A story is a number of things that happen, each at some time, to a cluster.
func story(t *testing.T, r *rand.Rand) {
	const partitions = 4
	c := consumertest.Start(t, counter{}, consumer.Config{
		CreateTopics:   partitions,
		CommitInterval: time.Duration(1+r.IntN(100)) * time.Millisecond,
		FlushInterval:  time.Duration(1+r.IntN(5)) * time.Second,
	})
	const running, crashed, frozen, cut, stopped = "running", "crashed", "frozen", "cut", "stopped"
	state := map[string]string{"p1": running, "p2": stopped, "p3": stopped}
	names := []string{"p1", "p2", "p3"}
	started := map[string]bool{"p1": true}
	requests := []string{"Produce", "EndTxn", "InitProducerID", "Fetch", "Heartbeat", "JoinGroup", "SyncGroup", "OffsetCommit", "FindCoordinator", "Metadata", "ListOffsets"}
	wait := func() time.Duration {
		switch r.IntN(3) {
		case 0:
			return time.Duration(r.IntN(20)) * time.Millisecond
		case 1:
			return time.Duration(r.IntN(1000)) * time.Millisecond
		}
		return time.Duration(r.IntN(20)) * time.Second
	}
	var all []string
	start := func(p string) {
		if started[p] {
			c.Restart(p)
		} else {
			c.StartProcess(p)
		}
		started[p] = true
		state[p] = running
	}
	for range 12 {
		ws := letters(1+r.IntN(60), 1+r.IntN(20))
		all = append(all, ws...)
		for _, w := range ws {
			consumertest.PublishKeyed(c, words, w, w)
		}
		p := names[r.IntN(len(names))]
		switch was := state[p]; was {
		case running:
			switch r.IntN(6) {
			case 0:
				t.Logf("crash %s", p)
				c.Crash(p)
				state[p] = crashed
			case 1:
				t.Logf("freeze %s", p)
				c.Freeze(p)
				state[p] = frozen
			case 2:
				t.Logf("cut %s", p)
				c.Cut(p)
				state[p] = cut
			case 3:
				t.Logf("stop %s", p)
				if err := c.Stop(p); err != nil {
					t.Errorf("stop %s: %v", p, err)
				}
				state[p] = stopped
			case 4:
				req, n := requests[r.IntN(len(requests))], 1+r.IntN(4)
				t.Logf("drop reply %d to %s of %s", n, req, p)
				c.DropReply(p, req, n)
			case 5:
				req := requests[r.IntN(len(requests))]
				t.Logf("break %s of %s", req, p)
				c.Fail(p, req, "", 1)
			}
		case frozen:
			if r.IntN(4) == 0 {
				t.Logf("crash %s, which is frozen", p)
				c.Crash(p)
				state[p] = crashed
				break
			}
			t.Logf("thaw %s", p)
			c.Thaw(p)
			state[p] = running
		case cut:
			t.Logf("heal %s", p)
			c.Heal(p)
			state[p] = running
		default:
			t.Logf("start %s, which has %s", p, was)
			start(p)
		}
		c.Advance(wait())
	}
	for _, p := range names {
		switch state[p] {
		case frozen:
			c.Thaw(p)
		case cut:
			c.Heal(p)
		case running:
		default:
			if r.IntN(2) == 0 || p == "p1" {
				start(p)
			}
		}
	}
	t.Log("settle")
	c.Settle()
	checkCounts(t, c, partitions, all)
}
