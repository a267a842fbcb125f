package broker

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// group is a group of consumers of the classic protocol, and its offsets. It is
// guarded by the broker's lock.
//
//	         join               all joined            leader's sync
//	empty ─────────► preparing ────────────► completing ───────────► stable
//	  ▲                  ▲  ▲                    │ join, leave           │
//	  │ last one left    │  └────────────────────┘                       │
//	  └──────────────────┴───────────────────────────────────────────────┘
//
// A generation is stored when it becomes stable, so that members go on after a
// restart of the broker without a rebalance.
type group struct {
	b            *Broker
	id           string
	state        groupState
	protocolType string
	protocol     string
	generation   int32
	leader       string
	members      map[string]*member
	order        []string               // the members in the order in which they joined
	instances    map[string]string      // instance of a static member -> member
	announced    map[string]*time.Timer // IDs that were given out and have not joined yet
	timer        *time.Timer            // of the rebalance or of its syncs
	stamp        int                    // of the timer: an older one means nothing
	began        bool                   // the first rebalance of an empty group is going on
	offsets      map[offsetOf]committed
	pending      map[offsetOf]int // offsets that open transactions will commit
	emptySince   int64
}

type groupState byte

const (
	groupEmpty groupState = iota
	groupPreparing
	groupCompleting
	groupStable
)

// String is the state as Kafka's tools know it.
func (s groupState) String() string {
	return [...]string{"Empty", "PreparingRebalance", "CompletingRebalance", "Stable"}[s]
}

// groupLocked returns a group, made if it isn't there.
func (b *Broker) groupLocked(id string) *group {
	g := b.mu.groups[id]
	if g == nil {
		g = b.emptyGroup(id)
		b.mu.groups[id] = g
	}
	return g
}

func (b *Broker) emptyGroup(id string) *group {
	return &group{
		b: b, id: id, emptySince: now(),
		members: make(map[string]*member), instances: make(map[string]string),
		announced: make(map[string]*time.Timer),
		offsets:   make(map[offsetOf]committed), pending: make(map[offsetOf]int),
	}
}

// encode is the group as it is stored, without its offsets.
func (g *group) encode() []byte {
	b := []byte{formatVersion}
	b = kbin.AppendCompactString(b, g.protocolType)
	b = kbin.AppendCompactString(b, g.protocol)
	b = kbin.AppendInt32(b, g.generation)
	b = kbin.AppendCompactString(b, g.leader)
	b = kbin.AppendVarlong(b, g.emptySince)
	b = appendCount(b, len(g.order))
	for _, id := range g.order {
		b = g.members[id].appendTo(b)
	}
	return b
}

// decode reads what encode wrote.
func (g *group) decode(val []byte) error {
	return decode("a group", val, func(_ byte, d *decoder) {
		g.protocolType, g.protocol = d.CompactString(), d.CompactString()
		g.generation = d.Int32()
		g.leader = d.CompactString()
		g.emptySince = d.Varlong()
		for range d.count() {
			m := readMember(d)
			g.members[m.id] = m
			g.order = append(g.order, m.id)
			if m.instance != nil {
				g.instances[*m.instance] = m.id
			}
		}
		if len(g.members) > 0 {
			g.state = groupStable
		}
	})
}

// stageLocked stages the group's record.
func (g *group) stageLocked() *round {
	var o op
	o.set(groupKey(g.id), g.encode())
	return g.b.stageLocked(&o)
}

// checkLocked says whether a request comes from a member of this generation.
func (g *group) checkLocked(id string, instance *string, generation int32) (*member, *kerr.Error) {
	if instance != nil {
		switch known, ok := g.instances[*instance]; {
		case !ok:
			return nil, kerr.UnknownMemberID
		case known != id:
			return nil, kerr.FencedInstanceID
		}
	}
	m := g.members[id]
	switch {
	case m == nil:
		return nil, kerr.UnknownMemberID
	case generation != g.generation:
		return m, kerr.IllegalGeneration
	}
	return m, nil
}

// announceLocked gives out a member ID, with which to join again in time.
func (g *group) announceLocked(id string, timeout time.Duration) {
	var t *time.Timer
	t = time.AfterFunc(timeout, func() {
		g.b.mu.Lock()
		defer g.b.mu.Unlock()
		if g.announced[id] == t {
			delete(g.announced, id)
			g.tryCompleteLocked()
			g.dropIfUnusedLocked()
		}
	})
	g.announced[id] = t
}

// forgetLocked takes an ID that was given out back.
func (g *group) forgetLocked(id string) bool {
	t, ok := g.announced[id]
	if ok {
		t.Stop()
		delete(g.announced, id)
	}
	return ok
}

// addLocked adds a member.
func (g *group) addLocked(m *member) {
	g.members[m.id] = m
	g.order = append(g.order, m.id)
	if m.instance != nil {
		g.instances[*m.instance] = m.id
	}
	if g.leader == "" {
		g.leader = m.id
	}
	g.renewLocked(m)
}

// renewLocked begins a member's session anew.
func (g *group) renewLocked(m *member) {
	if m.session != nil {
		m.session.Stop()
	}
	var t *time.Timer
	t = time.AfterFunc(m.sessionTimeout, func() {
		g.b.mu.Lock()
		defer g.b.mu.Unlock()
		if g.b.mu.closed || g.members[m.id] != m || m.session != t {
			return
		}
		if m.join != nil || m.sync != nil {
			g.renewLocked(m) // it waits for an answer, and so can't send heartbeats
			return
		}
		g.removeLocked(m)
		g.rebalanceLocked()
	})
	m.session = t
}

// removeLocked takes a member out of the group. The rebalance is the caller's.
func (g *group) removeLocked(m *member) {
	m.session.Stop()
	m.fail(kerr.UnknownMemberID)
	delete(g.members, m.id)
	g.order = slices.DeleteFunc(g.order, func(id string) bool { return id == m.id })
	if m.instance != nil && g.instances[*m.instance] == m.id {
		delete(g.instances, *m.instance)
	}
	if g.leader == m.id {
		g.leader = ""
		if len(g.order) > 0 {
			g.leader = g.order[0]
		}
	}
}

// replaceLocked gives a static member that came back a new ID. Whoever waits
// under the old one is fenced.
func (g *group) replaceLocked(m *member, id string) {
	m.fail(kerr.FencedInstanceID)
	delete(g.members, m.id)
	g.order[slices.Index(g.order, m.id)] = id
	if g.leader == m.id {
		g.leader = id
	}
	m.id = id
	g.members[id] = m
	g.instances[*m.instance] = id
	g.renewLocked(m)
}

// fail answers what the member waits for with an error.
func (m *member) fail(err *kerr.Error) {
	if m.join != nil {
		m.join.resp.ErrorCode = err.Code
		m.join.complete(nil)
		m.join = nil
	}
	if m.sync != nil {
		m.sync.resp.ErrorCode = err.Code
		m.sync.complete(nil)
		m.sync = nil
	}
}

// setTimerLocked calls fn after a while, unless another timer is set before.
func (g *group) setTimerLocked(d time.Duration, fn func()) {
	g.stopTimerLocked()
	stamp := g.stamp
	g.timer = time.AfterFunc(d, func() {
		g.b.mu.Lock()
		defer g.b.mu.Unlock()
		if !g.b.mu.closed && g.stamp == stamp {
			fn()
		}
	})
}

func (g *group) stopTimerLocked() {
	g.stamp++
	if g.timer != nil {
		g.timer.Stop()
	}
}

// rebalanceLocked begins a rebalance, or goes on with one when a member left or
// came.
func (g *group) rebalanceLocked() {
	if g.state == groupPreparing {
		g.tryCompleteLocked()
		return
	}
	for _, m := range g.members {
		if m.sync != nil {
			m.sync.resp.ErrorCode = kerr.RebalanceInProgress.Code
			m.sync.complete(nil)
			m.sync = nil
		}
		m.joined = m.join != nil
	}
	g.began = g.state == groupEmpty
	g.state = groupPreparing
	wait := time.Duration(0)
	for _, m := range g.members {
		wait = max(wait, m.rebalanceTimeout)
	}
	delay := time.Duration(g.b.settings.number("group.initial.rebalance.delay.ms")) * time.Millisecond
	if g.began && delay > 0 {
		g.setTimerLocked(min(wait, delay), func() {
			g.began = false
			g.completeJoinLocked()
		})
		return
	}
	g.began = false
	g.setTimerLocked(wait, g.completeJoinLocked)
	g.tryCompleteLocked()
}

// tryCompleteLocked ends a rebalance that waits for nobody any more.
func (g *group) tryCompleteLocked() {
	if g.state != groupPreparing || g.began || len(g.announced) > 0 && len(g.members) > 0 {
		return
	}
	for _, m := range g.members {
		if !m.joined {
			return
		}
	}
	g.completeJoinLocked()
}

// completeJoinLocked begins a new generation with who has joined. Static members
// that have not stay until their sessions end.
func (g *group) completeJoinLocked() {
	joined := 0
	for _, id := range slices.Clone(g.order) {
		m := g.members[id]
		switch {
		case m.joined:
			joined++
		case m.instance == nil:
			g.removeLocked(m)
		}
	}
	if len(g.members) == 0 {
		g.becomeEmptyLocked()
		return
	}
	if joined == 0 {
		// Only static members are left, and none has come: wait for them.
		wait := time.Duration(0)
		for _, m := range g.members {
			wait = max(wait, m.rebalanceTimeout)
		}
		g.setTimerLocked(wait, g.completeJoinLocked)
		return
	}
	if l := g.members[g.leader]; l == nil || !l.joined {
		for _, id := range g.order {
			if g.members[id].joined {
				g.leader = id
				break
			}
		}
	}
	g.generation++
	g.protocol = g.electLocked()
	g.state = groupCompleting
	wait := time.Duration(0)
	for _, id := range g.order {
		m := g.members[id]
		wait = max(wait, m.rebalanceTimeout)
		m.synced = false
		if m.join == nil {
			continue
		}
		g.describeJoinLocked(m, m.join.resp, g.leader)
		m.join.complete(nil)
		m.join = nil
		g.renewLocked(m)
	}
	g.setTimerLocked(wait, func() {
		// Members that joined and don't sync hold up the others.
		for _, id := range slices.Clone(g.order) {
			if m := g.members[id]; m.joined && !m.synced && m.sync == nil {
				g.removeLocked(m)
			}
		}
		g.rebalanceLocked()
	})
}

// describeJoinLocked fills in what a member that joined hears.
func (g *group) describeJoinLocked(m *member, resp *kmsg.JoinGroupResponse, leader string) {
	resp.Generation = g.generation
	resp.ProtocolType = kmsg.StringPtr(g.protocolType)
	resp.Protocol = kmsg.StringPtr(g.protocol)
	resp.LeaderID = leader
	resp.MemberID = m.id
	if m.id != leader {
		return
	}
	for _, id := range g.order {
		o := g.members[id]
		rm := kmsg.NewJoinGroupResponseMember()
		rm.MemberID, rm.InstanceID = o.id, o.instance
		rm.ProtocolMetadata, _ = o.metadata(g.protocol)
		resp.Members = append(resp.Members, rm)
	}
}

// electLocked returns the protocol that all members support and most prefer.
func (g *group) electLocked() string {
	votes := make(map[string]int)
	var best string
	for _, id := range g.order {
		for _, p := range g.members[id].protocols {
			if g.supportedLocked(p.Name, nil) {
				votes[p.Name]++
				break
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(votes)) {
		if best == "" || votes[name] > votes[best] {
			best = name
		}
	}
	invariants.Check(best != "", "group %s has members without a common protocol", g.id)
	return best
}

// supportedLocked says whether all members, but perhaps one, support a protocol.
func (g *group) supportedLocked(protocol string, but *member) bool {
	for _, m := range g.members {
		if m == but {
			continue
		}
		if _, ok := m.metadata(protocol); !ok {
			return false
		}
	}
	return true
}

// acceptsLocked says whether a member with these protocols can be in the group.
func (g *group) acceptsLocked(protocolType string, protocols []kmsg.JoinGroupRequestProtocol, self *member) bool {
	if others := len(g.members); others == 0 || others == 1 && self != nil {
		return protocolType != "" && len(protocols) > 0
	}
	if protocolType != g.protocolType {
		return false
	}
	return slices.ContainsFunc(protocols, func(p kmsg.JoinGroupRequestProtocol) bool { return g.supportedLocked(p.Name, self) })
}

// assignLocked makes the generation stable with the leader's assignment.
func (g *group) assignLocked(assignments []kmsg.SyncGroupRequestGroupAssignment) {
	for _, m := range g.members {
		m.assignment = nil
	}
	for _, a := range assignments {
		if m := g.members[a.MemberID]; m != nil {
			m.assignment = bytes.Clone(a.MemberAssignment)
		}
	}
	g.state = groupStable
	r := g.stageLocked()
	waiting := false
	for _, m := range g.members {
		if m.sync != nil {
			g.answerSyncLocked(m, m.sync.resp)
			m.sync.complete(r)
			m.sync = nil
			m.synced = true
			g.renewLocked(m)
		}
		waiting = waiting || !m.synced && m.joined
	}
	if !waiting {
		g.stopTimerLocked()
	}
}

func (g *group) answerSyncLocked(m *member, resp *kmsg.SyncGroupResponse) {
	resp.ProtocolType = kmsg.StringPtr(g.protocolType)
	resp.Protocol = kmsg.StringPtr(g.protocol)
	resp.MemberAssignment = m.assignment
}

// becomeEmptyLocked ends the last generation of a group that has no members.
func (g *group) becomeEmptyLocked() {
	g.stopTimerLocked()
	g.state, g.began = groupEmpty, false
	g.generation++
	g.protocol, g.leader = "", ""
	g.emptySince = now()
	g.stageLocked()
}

// dropIfUnusedLocked forgets a group that was never more than a name.
func (g *group) dropIfUnusedLocked() {
	if g.state == groupEmpty && g.generation == 0 && len(g.members) == 0 && len(g.announced) == 0 && len(g.offsets) == 0 && len(g.pending) == 0 {
		g.stopTimerLocked()
		delete(g.b.mu.groups, g.id)
	}
}

// deleteLocked stages the end of a group and its offsets.
func (g *group) deleteLocked(o *op) {
	g.stopTimerLocked()
	for id := range g.announced {
		g.forgetLocked(id)
	}
	for of := range g.offsets {
		g.deleteOffsetLocked(of, o)
	}
	o.remove(groupKey(g.id))
	delete(g.b.mu.groups, g.id)
}

func (g *group) String() string { return fmt.Sprintf("group %s (%s)", g.id, g.state) }
