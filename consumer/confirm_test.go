package consumer_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
)

// holdGroup holds back the group's answers to a process: it can't learn whose
// its shards are.
func holdGroup(c *consumertest.Cluster, process string) (release func()) {
	var all []func()
	for _, request := range []string{"Heartbeat", "JoinGroup", "SyncGroup"} {
		all = append(all, c.Hold(process, request))
	}
	return func() {
		for _, release := range all {
			release()
		}
	}
}

// I10: a process that stood still while its shard moved asks the group before it
// fences anybody. While the group does not answer, it leaves the new owner in
// peace, whatever is published meanwhile.
func TestI10NobodyIsFencedBeforeTheGroupAnswers(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{SessionTimeout: 6 * time.Second})
		send(c, "a")
		c.Settle()
		c.Freeze("p1")
		c.StartProcess("p2")
		c.Advance(15 * time.Second)
		release := holdGroup(c, "p1")
		initialised := func() int { return c.Requests("p1", "InitProducerID") + c.Requests("p2", "InitProducerID") }
		before := initialised()
		c.Thaw("p1")
		for range 60 {
			send(c, "a")
			c.Advance(time.Second)
		}
		if n := initialised() - before; n != 0 {
			t.Errorf("producers were initialised %d times in a minute in which the group did not answer, want 0", n)
		}
		release()
		c.Settle()
		checkExact(t, c, map[string]int{"a": 61})
	})
}

// I10: a restore can take long. When it has ended, the group is asked once more
// before the shard runs: one that has moved meanwhile is shown to no user code.
func TestI10NothingRunsBeforeTheGroupAnswers(t *testing.T) {
	virtually(t, func(t *testing.T) {
		cfg := consumer.Config{SessionTimeout: 6 * time.Second}
		c := consumertest.Start(t, &program{}, cfg)
		send(c, "a", "b")
		c.Settle()
		if err := c.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		var inits atomic.Int64
		fetch := c.Hold("p2", "Fetch")
		c.StartApp("p2", cfg, &program{init: func(consumer.Shard) error { inits.Add(1); return nil }})
		c.Advance(3 * time.Second)
		if got := c.Status("p2").Shards[0].Phase; got != consumer.Restoring {
			t.Fatalf("the shard is %s, want restoring", got)
		}
		c.Freeze("p2")
		c.StartApp("p3", cfg, &program{})
		c.Advance(15 * time.Second)
		release := holdGroup(c, "p2")
		fetch()
		c.Thaw("p2")
		c.Advance(20 * time.Second)
		if n := inits.Load(); n != 0 {
			t.Errorf("InitShard was called %d times in a process that does not know whether it has the shard, want 0", n)
		}
		release()
		c.Settle()
		checkExact(t, c, map[string]int{"a": 1, "b": 1})
	})
}
