package consumertest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// sessionTimeout is what a zero consumer.Config.SessionTimeout means.
const sessionTimeout = 10 * time.Second

// Settle returns once everything that was published so far is consumed and
// committed: each partition of the consumed topics has its shard in one process
// that can be reached, all of these run, none has anything left to consume, and
// no transaction is open. It fails the test if that takes five minutes.
//
// It knows of the processes that run consumers. What processes of the test's
// own do, and messages that come while it waits, it does not wait for.
func (c *Cluster) Settle() {
	c.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		c.rest()
		c.bury()
		why := c.unsettled()
		if why == "" {
			return
		}
		c.mu.Lock()
		processes := slices.Clone(c.mu.processes)
		c.mu.Unlock()
		for _, p := range processes {
			if !p.crashed.Load() && p.ended() && p.err != nil && !p.seen {
				p.seen = true
				c.t.Fatalf("settle: %s; process %s has ended: %v", why, p.name, p.err)
			}
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("not settled after %v: %s\n%s", patience, why, c.dump())
		}
		time.Sleep(pollInterval) // virtual in a bubble; elsewhere nothing tells but asking
	}
}

// SettleGroup returns once a group, such as that of a process of the test's own,
// has committed the offsets of everything that the topics hold. It fails the
// test if that takes five minutes.
func (c *Cluster) SettleGroup(group string, topics ...Topic) {
	c.t.Helper()
	c.Until(fmt.Sprintf("group %s to commit all of its topics", group), func() bool {
		ctx, cancel := c.context()
		defer cancel()
		committed, err := c.admin.Committed(ctx, group)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, of := range topics {
			parts := c.partitions(of.Describe().Name())
			ends := c.offsets(kafka.StableEnd, parts...)
			for _, p := range parts {
				next := committed[p].Offset
				if next < ends[p] && len(c.read(of.Describe(), p, next, true)) > 0 {
					return false
				}
			}
		}
		return true
	})
}

// unsettled says what is still to be done, or returns "".
//
// The shards are asked before the broker is. So a shard whose committed offset
// is at the end that the broker says had nothing in hand when it was asked and
// has been given nothing until then; and since that holds for all of them, none
// was given anything by another.
func (c *Cluster) unsettled() string {
	where := make(map[string]map[consumer.ShardID]consumer.ShardStatus) // by application
	apps := make(map[string]*application)
	generation := make(map[string]int32)
	c.mu.Lock()
	for _, p := range c.mu.processes { // also of those that can't be reached: someone has to take over
		if p.app != nil && !p.stopping {
			apps[p.config.cfg.Application] = p.config
		}
	}
	c.mu.Unlock()
	for _, p := range c.apps() {
		if p.stopping {
			return fmt.Sprintf("process %s is stopping", p.name)
		}
		st := p.app.Status()
		if !st.Joined {
			return fmt.Sprintf("process %s has not joined", p.name)
		}
		if age := time.Since(st.LastHeartbeat); age > cmp.Or(p.config.cfg.SessionTimeout, sessionTimeout) {
			return fmt.Sprintf("process %s has not heard of the group for %v", p.name, age)
		}
		if g, ok := generation[st.Application]; ok && g != st.Generation {
			return fmt.Sprintf("process %s is in generation %d, and another in %d", p.name, st.Generation, g)
		}
		generation[st.Application] = st.Generation
		shards := where[st.Application]
		if shards == nil {
			shards = make(map[consumer.ShardID]consumer.ShardStatus)
			where[st.Application] = shards
		}
		for _, s := range st.Shards {
			if s.Phase != consumer.Running {
				return fmt.Sprintf("shard %s in process %s is %s: %s", s.ID, p.name, s.Phase, s.Reason)
			}
			if _, ok := shards[s.ID]; ok {
				return fmt.Sprintf("shard %s runs in two processes", s.ID)
			}
			shards[s.ID] = s
		}
	}
	for name, app := range apps {
		if why := c.unsettledApp(name, app, where[name]); why != "" {
			return why
		}
	}
	return ""
}

// unsettledApp says what an application, whose shards run as given, has still
// to do.
func (c *Cluster) unsettledApp(name string, app *application, shards map[consumer.ShardID]consumer.ShardStatus) string {
	set := make(map[string]string) // of each consumed topic
	names := make(map[string]bool) // of all topics that the application has to do with
	for _, cons := range app.consumers {
		for _, d := range cons.Topics() {
			set[d.Name()] = d.Set()
			names[d.Name()], names[consumer.ChangelogTopic(name, d.Set())] = true, true
		}
		if o, ok := cons.(consumer.Outputs); ok {
			for _, d := range o.Outputs() {
				names[d.Name()] = true
			}
		}
	}
	infos := c.topics(slices.Sorted(maps.Keys(names))...)
	for t := range set {
		if _, ok := infos[t]; !ok {
			return fmt.Sprintf("topic %s does not exist", t)
		}
	}
	var all, consumed []topic.Partition
	for t, info := range infos {
		for i := range info.Partitions {
			p := topic.Partition{Topic: t, Number: int32(i)}
			all = append(all, p)
			if _, ok := set[t]; ok {
				consumed = append(consumed, p)
			}
		}
	}
	slices.SortFunc(all, topic.Partition.Compare)
	slices.SortFunc(consumed, topic.Partition.Compare)
	stable, ends := c.offsets(kafka.StableEnd, all...), c.offsets(kafka.End, all...)
	for _, p := range all {
		if stable[p] != ends[p] {
			return fmt.Sprintf("a transaction is open on %s from offset %d on", p, stable[p])
		}
	}
	for _, p := range consumed {
		id := shardID(set[p.Topic], p.Number)
		s, ok := shards[id]
		if !ok {
			return fmt.Sprintf("shard %s runs nowhere", id)
		}
		next, ok := s.Offsets[p]
		if !ok {
			return fmt.Sprintf("shard %s does not say where in %s it is", id, p)
		}
		// What follows the last message may be markers, or was aborted: no
		// message carries the offset past it.
		if next < ends[p] && (s.Lag > 0 || len(c.read(topic.Bytes(p.Topic).Description, p, next, true)) > 0) {
			return fmt.Sprintf("shard %s has committed %s to %d of %d", id, p, next, ends[p])
		}
	}
	return ""
}

// topics returns what is known of those of the topics that exist.
func (c *Cluster) topics(names ...string) map[string]kafka.TopicInfo {
	c.t.Helper()
	ctx, cancel := c.context()
	defer cancel()
	infos, err := c.admin.Topics(ctx, names...)
	if err != nil {
		c.t.Fatal(err)
	}
	return infos
}

// application returns the application that Start was given, or else that of
// the first process that runs one.
func (c *Cluster) application() *application {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.mu.processes {
		if p.config != nil {
			return p.config
		}
	}
	c.t.Fatal("no process of the cluster runs consumers")
	return nil
}

// dump describes all processes, for a test that fails.
func (c *Cluster) dump() string {
	c.mu.Lock()
	processes := slices.Clone(c.mu.processes)
	broken := make(map[string]bool)
	for _, p := range processes {
		broken[p.host] = c.mu.broken[p.host]
	}
	c.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "at %s:\n", time.Now().UTC().Format(time.RFC3339Nano))
	for _, p := range processes {
		fmt.Fprintf(&b, "process %s", p.host)
		switch {
		case p.crashed.Load():
			fmt.Fprintf(&b, ": crashed\n")
			continue
		case p.ended():
			fmt.Fprintf(&b, ": ended: %v\n", p.err)
			continue
		case broken[p.host]:
			fmt.Fprintf(&b, " (cut or frozen)")
		}
		if p.app == nil {
			fmt.Fprintf(&b, ": runs\n")
			continue
		}
		st := p.app.Status()
		fmt.Fprintf(&b, ": joined %v, generation %d, last heartbeat %s\n", st.Joined, st.Generation, st.LastHeartbeat.UTC().Format(time.RFC3339Nano))
		for _, s := range st.Shards {
			fmt.Fprintf(&b, "  shard %s: %s since %s, lag %d, offsets %v, changelog %d, restore %d of %d, %d commits, %s\n",
				s.ID, s.Phase, s.Since.UTC().Format(time.RFC3339Nano), s.Lag, s.Offsets, s.Changelog, s.RestoreNext, s.RestoreEnd, s.Commits, s.Reason)
			if s.Busy != nil {
				fmt.Fprintf(&b, "    %s since %s %s\n%s", s.Busy.Call, s.Busy.Since.UTC().Format(time.RFC3339Nano), s.Busy.Message, s.Busy.Stack)
			}
		}
	}
	return b.String()
}
