package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/internal/clock"
	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// group is this process's membership. The group says which shards belong to
// which process; it does not protect them, fencing does. So shards run on
// through a rebalance, and only the difference is acted on.
type group struct {
	app     *App
	log     *slog.Logger
	member  *kafka.Member
	changes chan struct{} // told of each assignment; has room for one

	mu struct {
		sync.Mutex
		joined     bool
		joining    bool // a join was sent, and its assignment has not come: shards may be others' already
		assignment kafka.Assignment
		changed    chan struct{} // closed at the next assignment
		heartbeat  clock.Reading // when the last was sent that was answered without an error
		owned      map[ShardID]bool
		suspect    map[ShardID]bool // another process may have had them since this one last confirmed them
		lapsed     map[ShardID]bool // those of them that were taken away when the membership had lapsed
	}

	sent map[topic.Partition]kafka.Committed // the offsets last committed, as advice; advise's own
}

func newGroup(app *App) (*group, error) {
	g := &group{app: app, log: app.log, changes: make(chan struct{}, 1)}
	g.mu.changed = make(chan struct{})
	g.mu.suspect, g.mu.lapsed = make(map[ShardID]bool), make(map[ShardID]bool)
	g.sent = make(map[topic.Partition]kafka.Committed)
	var topics []string
	for _, set := range app.sets {
		for _, d := range set.topics {
			topics = append(topics, d.Name())
		}
	}
	member, err := kafka.NewMember(app.kafkaConfig(), kafka.MemberConfig{
		Group: app.cfg.Application, Instance: app.cfg.Instance, Topics: topics,
		SessionTimeout: app.cfg.SessionTimeout, HeartbeatInterval: app.cfg.HeartbeatInterval,
		RebalanceTimeout: app.cfg.SessionTimeout, TopicsInterval: app.cfg.TopicsInterval,
		Metadata: g.metadata, Assign: g.assign,
	})
	if err != nil {
		return nil, err
	}
	g.member = member
	return g, nil
}

// assign is called when this process leads the group.
func (g *group) assign(members []kafka.MemberInfo, partitions map[string]int32) (map[string][]topic.Partition, error) {
	return assignGroup(members, partitions, func(instance string, err error) {
		g.log.Error("a member is assigned nothing: this version can't read what it says of itself", "instance", instance, "error", err)
	}), nil
}

// run keeps the membership until ctx ends.
func (g *group) run(ctx context.Context) error {
	err := g.member.Run(ctx, g.assigned)
	if ctx.Err() != nil {
		return nil
	}
	if errors.Is(err, kafka.ErrInstanceFenced) {
		return fmt.Errorf("instance %q of application %s runs elsewhere: %w; give each process its own instance", g.app.cfg.Instance, g.app.cfg.Application, err)
	}
	return fmt.Errorf("member of group %s: %w", g.app.cfg.Application, err)
}

// beat sends this process's own heartbeats until ctx ends. The last one that
// was answered without an error dates what this process knows of its shards.
func (g *group) beat(ctx context.Context) {
	t := time.NewTicker(g.app.cfg.HeartbeatInterval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			g.heartbeat(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// heartbeat asks the coordinator whether this process is a member of the
// group's current generation.
func (g *group) heartbeat(ctx context.Context) error {
	g.mu.Lock()
	joined := g.mu.joined
	g.mu.Unlock()
	if !joined {
		return kafka.ErrRebalancing
	}
	ctx, cancel := context.WithTimeout(ctx, g.app.cfg.SessionTimeout)
	defer cancel()
	sent := g.app.clock.Read()
	err := g.member.Heartbeat(ctx)
	if err != nil {
		return err
	}
	g.mu.Lock()
	if g.mu.joining {
		// It was answered for a generation that ends, or for one whose
		// assignment is not known here yet.
		g.mu.Unlock()
		return kafka.ErrRebalancing
	}
	lapsed := g.lapsedLocked()
	if lapsed {
		for id := range g.mu.owned {
			g.mu.suspect[id] = true
		}
	}
	g.mu.heartbeat = sent
	g.mu.Unlock()
	if lapsed {
		g.log.Warn("the membership has lapsed: shards are fenced anew")
		g.tell()
	}
	return nil
}

// lapsedLocked says whether the last heartbeat is so old that the coordinator has
// taken this process for dead meanwhile. A machine that was suspended has not
// counted that time; its time of day has jumped.
func (g *group) lapsedLocked() bool {
	return !g.mu.heartbeat.IsZero() && g.app.clock.Since(g.mu.heartbeat) >= g.app.cfg.SessionTimeout
}

// tell wakes whoever acts on assignments.
func (g *group) tell() {
	select {
	case g.changes <- struct{}{}:
	default: // it is on its way already, and the newest is what is read
	}
}

// assigned takes a new assignment.
func (g *group) assigned(a kafka.Assignment) {
	owned := make(map[ShardID]bool)
	for _, p := range a.Partitions {
		if set := g.app.setOf(p.Topic); set != nil {
			owned[shardID(set.name, p.Number)] = true
		}
	}
	g.mu.Lock()
	// Assignments can come faster than they are acted on. What an assignment
	// in between took away, another process may have had meanwhile.
	lapsed := g.lapsedLocked()
	for id := range g.mu.owned {
		if !owned[id] {
			g.mu.suspect[id] = true
			if lapsed {
				g.mu.lapsed[id] = true
			}
		}
	}
	g.mu.joined, g.mu.joining, g.mu.assignment, g.mu.owned = true, false, a, owned
	close(g.mu.changed)
	g.mu.changed = make(chan struct{})
	g.mu.Unlock()
	g.log.Info("assigned", "generation", a.Generation, "shards", len(owned))
	g.tell()
}

// suspects tells of each shard that another process may have had since it was
// last confirmed, and forgets them: at no time is neither the group nor the
// shard in the know. lapsed says that it was taken away when the membership had
// lapsed.
func (g *group) suspects(tell func(id ShardID, lapsed bool)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id := range g.mu.suspect {
		tell(id, g.mu.lapsed[id])
	}
	clear(g.mu.suspect)
	clear(g.mu.lapsed)
}

// owned returns the shards that the last assignment gives to this process.
func (g *group) owned() map[ShardID]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.owned
}

// confirm returns nil once the coordinator has answered that this process is a
// member of the current generation, whose assignment holds the shard, and
// errNotOurs if that assignment does not. Any other answer is waited out: a
// generation that is not certain lets nobody go on.
func (g *group) confirm(ctx context.Context, s *shard) error {
	for {
		g.mu.Lock()
		changed := g.mu.changed
		g.mu.Unlock()
		err := g.heartbeat(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			g.mu.Lock()
			owned, still := g.mu.owned[s.id], changed == g.mu.changed
			g.mu.Unlock()
			switch {
			case !still: // the answer was for the generation before
				continue
			case !owned:
				return errNotOurs
			}
			return nil
		}
		s.note(fmt.Sprintf("waiting for the group: %v", err))
		select {
		case <-changed:
		case <-time.After(g.app.cfg.HeartbeatInterval):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ownedAt returns the last time of day at which the group is known to have counted
// the shard as this process's, no other having had it meanwhile.
func (g *group) ownedAt(s *shard) (time.Time, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.heartbeat.Day(), g.mu.owned[s.id] && !g.mu.suspect[s.id] && !g.mu.heartbeat.IsZero()
}

// fresh says whether the shard can be asked: the last heartbeat is so young
// that no other process can have been given it since, and none had it before.
// While this process joins another generation, one may.
func (g *group) fresh(id ShardID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.owned[id] && !g.mu.suspect[id] && !g.mu.joining && g.app.clock.Since(g.mu.heartbeat) < g.app.cfg.SessionTimeout
}

// adviseInterval is how often the group is advised, at most.
const adviseInterval = time.Second

// adviseUntil advises the group now and then, until ctx ends.
func (g *group) adviseUntil(ctx context.Context) {
	t := time.NewTicker(adviseInterval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			g.advise(ctx, g.app.all())
		case <-ctx.Done():
			return
		}
	}
}

// advise commits the shards' offsets to the group, for the sake of tools that
// show lag. It is never read to decide where to go on, and a refusal means
// nothing. What is read of it is that there was state (see checkStateLost).
func (g *group) advise(ctx context.Context, shards []*shard) {
	offsets := make(map[topic.Partition]kafka.Committed)
	g.mu.Lock()
	joined, owned := g.mu.joined, g.mu.owned
	g.mu.Unlock()
	if !joined {
		return
	}
	for _, s := range shards {
		if !owned[s.id] {
			continue // its new owner knows better
		}
		committed, advice := s.advice()
		for p, next := range committed {
			c := kafka.Committed{Offset: next, Metadata: advice}
			if g.sent[p] != c {
				offsets[p] = c
			}
		}
	}
	if len(offsets) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, g.app.cfg.SessionTimeout)
	defer cancel()
	if err := g.member.CommitOffsets(ctx, offsets); err != nil {
		g.log.Debug("commit offsets to the group, as advice", "error", err)
		return
	}
	for p, c := range offsets {
		g.sent[p] = c
	}
}

// leave ends the membership, so that the shards move at once.
func (g *group) leave(ctx context.Context) {
	invariants.Crash("leave-before")
	if err := g.member.Leave(ctx); err != nil {
		g.log.Warn("leave the group", "error", err)
	}
	invariants.Crash("leave-after")
}

// metadata is what the leader of the group is told of this process. It is asked
// for before each join.
func (g *group) metadata() []byte {
	g.mu.Lock()
	g.mu.joining = true
	g.mu.Unlock()
	m := memberMetadata{V: metadataFormat, Formats: []int{changelog.Format}, Capacity: 1, Sets: make(map[string][]string), Shards: make(map[ShardID]warmth)}
	for _, set := range g.app.sets {
		for _, d := range set.topics {
			m.Sets[set.name] = append(m.Sets[set.name], d.Name())
		}
	}
	g.app.mu.Lock()
	m.Admin = g.app.mu.admin
	g.app.mu.Unlock()
	for id, w := range g.app.warm() {
		m.Shards[id] = w
	}
	return m.marshal()
}
