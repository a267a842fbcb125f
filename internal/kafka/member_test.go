package kafka

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlstream/pawl/topic"
)

// deal deals out all partitions in turn.
func deal(members []MemberInfo, counts map[string]int32) (map[string][]topic.Partition, error) {
	out := make(map[string][]topic.Partition)
	i := 0
	for name, n := range counts {
		for p := range n {
			id := members[i%len(members)].ID
			out[id] = append(out[id], topic.Partition{Topic: name, Number: p})
			i++
		}
	}
	return out, nil
}

// running is a member whose Run runs.
type running struct {
	*Member
	assigned chan Assignment
	ended    chan error
	last     Assignment
}

func (e *env) run(mc MemberConfig) *running {
	e.Helper()
	mc.Group = e.name("group")
	if mc.Assign == nil {
		mc.Assign = deal
	}
	m, err := NewMember(e.config(), mc)
	if err != nil {
		e.Fatal(err)
	}
	r := &running{Member: m, assigned: make(chan Assignment, 100), ended: make(chan error, 1)}
	go func() { r.ended <- m.Run(e.ctx, func(a Assignment) { r.assigned <- a }) }()
	e.Cleanup(m.Close)
	return r
}

// until waits for an assignment of n partitions.
func (e *env) until(r *running, n int) Assignment {
	e.Helper()
	for {
		select {
		case r.last = <-r.assigned:
			if len(r.last.Partitions) == n {
				return r.last
			}
		case err := <-r.ended:
			e.Fatalf("Run ended with %v before %d partitions were assigned; last %+v", err, n, r.last)
		case <-e.ctx.Done():
			e.Fatalf("no assignment of %d partitions; last %+v", n, r.last)
		}
	}
}

func TestMembersShare(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("in", 4, nil)
		a := e.run(MemberConfig{Instance: "a", Topics: []string{d.Name()}})
		e.until(a, 4)
		b := e.run(MemberConfig{Instance: "b", Topics: []string{d.Name()}, Metadata: func() []byte { return []byte("spare") }})
		got := append(e.until(a, 2).Partitions, e.until(b, 2).Partitions...)
		slices.SortFunc(got, topic.Partition.Compare)
		for i, p := range got {
			if int(p.Number) != i {
				e.Errorf("assigned %v, want each partition once", got)
			}
		}
		if err := a.Heartbeat(e.ctx); err != nil {
			e.Errorf("heartbeat of a member: %v", err)
		}
		if a.LastHeartbeat().IsZero() {
			e.Errorf("no heartbeat was dated")
		}
		start := time.Now()
		if err := b.Leave(e.ctx); err != nil {
			e.Fatal(err)
		}
		e.until(a, 4)
		if took := time.Since(start); took > 5*time.Second {
			e.Errorf("a static member's partitions moved %v after it left, want at once", took)
		}
		if err := b.Heartbeat(e.ctx); !errors.Is(err, ErrNotMember) {
			e.Errorf("heartbeat after leaving: %v, want ErrNotMember", err)
		}
		if err := <-b.ended; err != nil {
			e.Errorf("Run ended with %v after Leave", err)
		}
	})
}

func TestStaticRestart(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("in", 2, nil)
		var assigns atomic.Int32
		assign := func(ms []MemberInfo, counts map[string]int32) (map[string][]topic.Partition, error) {
			assigns.Add(1)
			return deal(ms, counts)
		}
		mc := MemberConfig{Instance: "a", Topics: []string{d.Name()}, Assign: assign}
		a := e.run(mc)
		b := e.run(MemberConfig{Instance: "b", Topics: []string{d.Name()}, Assign: assign})
		before := e.until(a, 1)
		e.until(b, 1)
		n := assigns.Load()
		a.Close()
		start := time.Now()
		a = e.run(mc)
		after := e.until(a, 1)
		if took := time.Since(start); took > 5*time.Second {
			e.Errorf("a restart took %v to its assignment, want no wait for its session to end", took)
		}
		if !slices.Equal(before.Partitions, after.Partitions) {
			e.Errorf("a restart was assigned %v, want %v as before", after.Partitions, before.Partitions)
		}
		if got := assigns.Load(); got != n {
			e.Errorf("a restart caused %d rebalances, want none", got-n)
		}
	})
}

func TestInstanceFenced(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("in", 1, nil)
		a := e.run(MemberConfig{Instance: "a", Topics: []string{d.Name()}})
		e.until(a, 1)
		again := e.run(MemberConfig{Instance: "a", Topics: []string{d.Name()}})
		e.until(again, 1)
		if err := a.Heartbeat(e.ctx); !errors.Is(err, ErrInstanceFenced) {
			e.Errorf("heartbeat of the first: %v, want ErrInstanceFenced", err)
		}
		if err := <-a.ended; !errors.Is(err, ErrInstanceFenced) {
			e.Errorf("Run of the first ended with %v, want ErrInstanceFenced", err)
		}
	})
}

func TestHeartbeatOfOldGeneration(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("in", 1, nil)
		a := e.run(MemberConfig{Instance: "a", Topics: []string{d.Name()}})
		e.until(a, 1)
		a.mu.Lock()
		a.mu.generation--
		a.mu.Unlock()
		if a.mu.generation > 0 { // generations begin at 1, and a first join may be given any
			if err := a.beat(e.ctx); !errors.Is(err, ErrNotMember) {
				e.Errorf("heartbeat with an old generation: %v, want ErrNotMember", err)
			}
		}
		if err := a.CommitOffsets(e.ctx, map[topic.Partition]Committed{{Topic: d.Name()}: {Offset: 3}}); !errors.Is(err, ErrNotMember) {
			e.Errorf("commit with an old generation: %v, want ErrNotMember", err)
		}
		e.until(a, 1) // it joins again by itself
	})
}

func TestNewPartitionsCauseRebalance(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("in", 1, nil)
		mc := MemberConfig{Instance: "a", Topics: []string{d.Name(), e.name("later")}, TopicsInterval: time.Second}
		a := e.run(mc)
		e.until(a, 1)
		if err := e.admin().CreatePartitions(e.ctx, d.Name(), 3); err != nil {
			e.Fatal(err)
		}
		e.until(a, 3)
		e.topic("later", 2, nil)
		e.until(a, 5)

		// A leader that comes back finds out what happened while it was away.
		a.Close()
		if err := e.admin().CreatePartitions(e.ctx, d.Name(), 4); err != nil {
			e.Fatal(err)
		}
		e.until(e.run(mc), 6)
	})
}

func TestRejoinCausesRebalance(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("in", 2, nil)
		a := e.run(MemberConfig{Instance: "a", Topics: []string{d.Name()}})
		b := e.run(MemberConfig{Instance: "b", Topics: []string{d.Name()}})
		e.until(a, 1)
		e.until(b, 1)
		for range 2 {
			for _, r := range []*running{a, b} {
				before := r.last.Generation
				r.Rejoin()
				if got := e.until(r, 1).Generation; got <= before {
					e.Errorf("after Rejoin the generation is %d, want more than %d", got, before)
				}
				if other := map[*running]*running{a: b, b: a}[r]; e.until(other, 1).Generation <= before {
					e.Errorf("the other member was given generation %d, want more than %d", other.last.Generation, before)
				}
			}
		}
	})
}

func TestCommitOffsets(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("in", 2, nil)
		a := e.run(MemberConfig{Topics: []string{d.Name()}}) // a dynamic member
		e.until(a, 2)
		want := map[topic.Partition]Committed{
			{Topic: d.Name(), Number: 0}: {Offset: 7, Metadata: "x"},
			{Topic: d.Name(), Number: 1}: {Offset: 0},
		}
		if err := a.CommitOffsets(e.ctx, want); err != nil {
			e.Fatal(err)
		}
		got, err := e.admin().Committed(e.ctx, e.name("group"))
		if err != nil {
			e.Fatal(err)
		}
		for p, c := range want {
			if got[p] != c {
				e.Errorf("committed for %s: %+v, want %+v", p, got[p], c)
			}
		}
		if err := a.Leave(e.ctx); err != nil {
			e.Fatal(err)
		}
		if err := e.admin().DeleteGroup(e.ctx, e.name("group")); err != nil {
			e.Error(err)
		}
	})
}

// A member is there for membership alone.
func TestMemberFetchesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dev(t, func(e *env) {
			d := e.topic("in", 2, nil)
			var fetches atomic.Int32
			e.dev.OnRequest(func(_ string, key int16) {
				switch key {
				case 1, 9: // Fetch, OffsetFetch
					fetches.Add(1)
				}
			})
			a := e.run(MemberConfig{Instance: "a", Topics: []string{d.Name()}})
			e.until(a, 2)
			if virtual {
				time.Sleep(time.Minute) // virtual time
			}
			if n := fetches.Load(); n > 0 {
				e.Errorf("%d fetches by a member, want none", n)
			}
		})
	})
}

// An owner that was frozen beyond its session comes back as a new member.
func TestFrozenMemberJoinsAgain(t *testing.T) {
	if !virtual { // a session is ten seconds
		return
	}
	bubble(t, func(t *testing.T) {
		dev(t, func(e *env) {
			d := e.topic("in", 2, nil)
			e.cluster = e.dev.Host("one")
			a := e.run(MemberConfig{Instance: "a", Topics: []string{d.Name()}})
			e.until(a, 2)
			e.cluster = e.dev.Host("two")
			b := e.run(MemberConfig{Instance: "b", Topics: []string{d.Name()}})
			e.until(a, 1)
			e.until(b, 1)
			e.dev.Freeze("one")
			e.until(b, 2)
			if ago := time.Since(a.LastHeartbeat()); ago < 10*time.Second {
				e.Errorf("the frozen member's last heartbeat is dated %v ago, want its session or more", ago)
			}
			e.dev.Thaw("one")
			e.until(a, 1)
			e.until(b, 1)
		})
	})
}

func TestAssignErrorEndsRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dev(t, func(e *env) {
			d := e.topic("in", 1, nil)
			bad := errors.New("no format in common")
			a := e.run(MemberConfig{Instance: "a", Topics: []string{d.Name()}, Assign: func([]MemberInfo, map[string]int32) (map[string][]topic.Partition, error) {
				return nil, bad
			}})
			if err := <-a.ended; !errors.Is(err, bad) {
				e.Errorf("Run ended with %v, want %v", err, bad)
			}
			if err := a.Run(context.Background(), func(Assignment) {}); !errors.Is(err, ErrClosed) {
				e.Errorf("a second Run: %v, want ErrClosed", err)
			}
		})
	})
}
