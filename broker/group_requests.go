package broker

import (
	"bytes"
	"context"
	"encoding/hex"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func (b *Broker) findCoordinator(c *connection, req *kmsg.FindCoordinatorRequest) answer {
	resp := req.ResponseKind().(*kmsg.FindCoordinatorResponse)
	host, port := b.addressFor(c)
	if req.Version >= 4 {
		for _, key := range req.CoordinatorKeys {
			rc := kmsg.NewFindCoordinatorResponseCoordinator()
			rc.Key, rc.NodeID, rc.Host, rc.Port = key, nodeID, host, port
			if req.CoordinatorType > 1 {
				rc.NodeID, rc.Host, rc.Port = -1, "", -1
				rc.ErrorCode = kerr.InvalidRequest.Code
			}
			resp.Coordinators = append(resp.Coordinators, rc)
		}
		return answer{resp: resp}
	}
	resp.NodeID, resp.Host, resp.Port = nodeID, host, port
	if req.CoordinatorType > 1 {
		resp.NodeID, resp.Host, resp.Port = -1, "", -1
		resp.ErrorCode = kerr.InvalidRequest.Code
	}
	return answer{resp: resp}
}

func (b *Broker) joinGroup(c *connection, req *kmsg.JoinGroupRequest) answer {
	resp := req.ResponseKind().(*kmsg.JoinGroupResponse)
	resp.Generation = -1
	if req.Version >= 7 {
		resp.ProtocolType = nil
	} else {
		resp.Protocol = kmsg.StringPtr("")
	}
	resp.MemberID = req.MemberID
	fail := func(err *kerr.Error) answer {
		resp.ErrorCode = err.Code
		return answer{resp: resp}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	session := time.Duration(req.SessionTimeoutMillis) * time.Millisecond
	rebalance := session
	if req.Version >= 1 {
		rebalance = time.Duration(req.RebalanceTimeoutMillis) * time.Millisecond
	}
	switch {
	case req.Group == "" || len(req.Group) > nameMax:
		return fail(kerr.InvalidGroupID)
	case int64(req.SessionTimeoutMillis) < b.settings.number("group.min.session.timeout.ms"),
		int64(req.SessionTimeoutMillis) > b.settings.number("group.max.session.timeout.ms"):
		return fail(kerr.InvalidSessionTimeout)
	case req.ProtocolType == "" || len(req.Protocols) == 0:
		return fail(kerr.InconsistentGroupProtocol)
	case b.mu.groups[req.Group] == nil && req.MemberID != "":
		return fail(kerr.UnknownMemberID)
	}
	g := b.groupLocked(req.Group)
	defer g.dropIfUnusedLocked()

	var m *member
	switch {
	case req.MemberID != "" && g.announced[req.MemberID] != nil:
	case req.MemberID != "":
		var err *kerr.Error
		if m, err = g.checkLocked(req.MemberID, req.InstanceID, g.generation); err != nil {
			return fail(err)
		}
	case req.InstanceID != nil && g.instances[*req.InstanceID] != "":
		m = g.members[g.instances[*req.InstanceID]]
	}
	if !g.acceptsLocked(req.ProtocolType, req.Protocols, m) {
		return fail(kerr.InconsistentGroupProtocol)
	}
	if m == nil && int64(len(g.members)) >= b.settings.number("group.max.size") {
		return fail(kerr.GroupMaxSizeReached)
	}

	update := func() {
		m.protocols = slices.Clone(req.Protocols)
		for i := range m.protocols {
			m.protocols[i].Metadata = bytes.Clone(m.protocols[i].Metadata) // the request's bytes go
		}
		m.sessionTimeout, m.rebalanceTimeout = session, rebalance
		m.clientID, m.host = c.clientID(), c.host()
	}
	if m == nil {
		id := req.MemberID
		if id == "" {
			prefix := c.clientID()
			if req.InstanceID != nil {
				prefix = *req.InstanceID
			}
			id = newMemberID(prefix)
			if req.InstanceID == nil && req.Version >= 4 {
				g.announceLocked(id, session)
				resp.MemberID = id
				return fail(kerr.MemberIDRequired)
			}
		}
		g.forgetLocked(id)
		m = &member{id: id, instance: req.InstanceID}
		update()
		if len(g.members) == 0 {
			g.protocolType = req.ProtocolType
		}
		g.addLocked(m)
		return g.waitJoinLocked(m, resp)
	}
	if len(g.members) == 1 {
		g.protocolType = req.ProtocolType
	}

	if req.MemberID == "" {
		return g.comeBackLocked(m, req, resp, update)
	}
	same := m.offers(req.Protocols)
	switch {
	case g.state == groupPreparing,
		g.state == groupCompleting && !same,
		g.state == groupStable && (!same || m.id == g.leader):
		update()
		m.fail(kerr.UnknownMemberID) // of an earlier request that is still waiting
		return g.waitJoinLocked(m, resp)
	}
	// The answer to its join was lost, or nothing is new.
	g.describeJoinLocked(m, resp, g.leader)
	g.renewLocked(m)
	return answer{resp: resp, round: b.mu.groupRound}
}

// comeBackLocked lets a static member that comes with its instance and no ID
// take its place again: without a rebalance if its protocols are the same.
func (g *group) comeBackLocked(m *member, req *kmsg.JoinGroupRequest, resp *kmsg.JoinGroupResponse, update func()) answer {
	leader := g.leader
	metadata, _ := m.metadata(g.protocol)
	g.replaceLocked(m, newMemberID(*req.InstanceID))
	update()
	g.renewLocked(m)
	again, supported := m.metadata(g.protocol)
	if g.state != groupStable || !supported || string(metadata) != string(again) || g.electLocked() != g.protocol {
		return g.waitJoinLocked(m, resp)
	}
	if req.Version >= 9 {
		g.describeJoinLocked(m, resp, g.leader)
		resp.SkipAssignment = m.id == g.leader
	} else {
		// A client that can't be told to skip the assignment must not hold
		// itself for the leader: it hears of the one that was.
		g.describeJoinLocked(m, resp, leader)
	}
	return answer{resp: resp, round: g.stageLocked()}
}

// waitJoinLocked lets a member wait for the others.
func (g *group) waitJoinLocked(m *member, resp *kmsg.JoinGroupResponse) answer {
	p := newPending(resp)
	resp.MemberID = m.id
	m.join, m.joined = p, true
	g.rebalanceLocked()
	return answer{wait: func(ctx context.Context) answer {
		select {
		case <-p.done:
			return answer{resp: p.resp, round: p.round}
		case <-ctx.Done():
			return answer{}
		}
	}}
}

func newMemberID(prefix string) string {
	id := randomID()
	if prefix == "" {
		prefix = "member"
	}
	return prefix + "-" + hex.EncodeToString(id[:])
}

func (b *Broker) syncGroup(_ *connection, req *kmsg.SyncGroupRequest) answer {
	resp := req.ResponseKind().(*kmsg.SyncGroupResponse)
	fail := func(err *kerr.Error) answer {
		resp.ErrorCode = err.Code
		return answer{resp: resp}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.mu.groups[req.Group]
	if g == nil {
		return fail(kerr.UnknownMemberID)
	}
	m, err := g.checkLocked(req.MemberID, req.InstanceID, req.Generation)
	switch {
	case err != nil:
		return fail(err)
	case req.ProtocolType != nil && *req.ProtocolType != g.protocolType, req.Protocol != nil && *req.Protocol != g.protocol:
		return fail(kerr.InconsistentGroupProtocol)
	case g.state == groupPreparing:
		return fail(kerr.RebalanceInProgress)
	case g.state == groupStable:
		m.synced = true
		g.renewLocked(m)
		g.answerSyncLocked(m, resp)
		return answer{resp: resp, round: b.mu.groupRound}
	}
	if m.sync != nil {
		m.sync.resp.ErrorCode = kerr.UnknownMemberID.Code
		m.sync.complete(nil)
	}
	p := newPending(resp)
	m.sync = p
	if m.id == g.leader {
		g.assignLocked(req.GroupAssignment)
	}
	return answer{wait: func(ctx context.Context) answer {
		select {
		case <-p.done:
			return answer{resp: p.resp, round: p.round}
		case <-ctx.Done():
			return answer{}
		}
	}}
}

func (b *Broker) heartbeat(_ *connection, req *kmsg.HeartbeatRequest) answer {
	resp := req.ResponseKind().(*kmsg.HeartbeatResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.mu.groups[req.Group]
	if g == nil {
		resp.ErrorCode = kerr.UnknownMemberID.Code
		return answer{resp: resp}
	}
	m, err := g.checkLocked(req.MemberID, req.InstanceID, req.Generation)
	if err == nil && g.state == groupPreparing {
		err = kerr.RebalanceInProgress
	}
	if err != nil {
		resp.ErrorCode = err.Code
	}
	if m != nil && (err == nil || err == kerr.RebalanceInProgress) {
		g.renewLocked(m)
	}
	return answer{resp: resp}
}

func (b *Broker) leaveGroup(_ *connection, req *kmsg.LeaveGroupRequest) answer {
	resp := req.ResponseKind().(*kmsg.LeaveGroupResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	leaving := req.Members
	if req.Version < 3 {
		m := kmsg.NewLeaveGroupRequestMember()
		m.MemberID = req.MemberID
		leaving = []kmsg.LeaveGroupRequestMember{m}
	}
	g := b.mu.groups[req.Group]
	removed := false
	for _, l := range leaving {
		rm := kmsg.NewLeaveGroupResponseMember()
		rm.MemberID, rm.InstanceID = l.MemberID, l.InstanceID
		if err := g.leaveLocked(l.MemberID, l.InstanceID, &removed); err != nil {
			rm.ErrorCode = err.Code
		}
		if req.Version < 3 {
			resp.ErrorCode = rm.ErrorCode
		}
		resp.Members = append(resp.Members, rm)
	}
	if removed {
		g.rebalanceLocked()
	}
	if g != nil {
		g.dropIfUnusedLocked()
	}
	return answer{resp: resp, round: b.mu.groupRound}
}

// leaveLocked removes one member, which may be named by its instance alone.
func (g *group) leaveLocked(id string, instance *string, removed *bool) *kerr.Error {
	if g == nil {
		return kerr.UnknownMemberID
	}
	if g.forgetLocked(id) {
		g.tryCompleteLocked()
		return nil
	}
	if instance != nil && id == "" {
		known, ok := g.instances[*instance]
		if !ok {
			return kerr.UnknownMemberID
		}
		id = known
	}
	m, err := g.checkLocked(id, instance, g.generation)
	if err != nil {
		return err
	}
	g.removeLocked(m)
	*removed = true
	return nil
}

func (b *Broker) describeGroups(_ *connection, req *kmsg.DescribeGroupsRequest) answer {
	resp := req.ResponseKind().(*kmsg.DescribeGroupsResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range req.Groups {
		rg := kmsg.NewDescribeGroupsResponseGroup()
		rg.Group = id
		g := b.mu.groups[id]
		if g == nil {
			rg.State = "Dead"
			if req.Version >= 6 {
				rg.ErrorCode = kerr.GroupIDNotFound.Code
				rg.ErrorMessage = kmsg.StringPtr("group " + id + " not found")
			}
			resp.Groups = append(resp.Groups, rg)
			continue
		}
		rg.State, rg.ProtocolType = g.state.String(), g.protocolType
		if g.state == groupStable {
			rg.Protocol = g.protocol
		}
		for _, mid := range g.order {
			m := g.members[mid]
			rm := kmsg.NewDescribeGroupsResponseGroupMember()
			rm.MemberID, rm.InstanceID, rm.ClientID, rm.ClientHost = m.id, m.instance, m.clientID, m.host
			if g.state == groupStable {
				rm.ProtocolMetadata, _ = m.metadata(g.protocol)
				rm.MemberAssignment = m.assignment
			}
			rg.Members = append(rg.Members, rm)
		}
		resp.Groups = append(resp.Groups, rg)
	}
	return answer{resp: resp, round: b.mu.groupRound}
}

func (b *Broker) listGroups(_ *connection, req *kmsg.ListGroupsRequest) answer {
	resp := req.ResponseKind().(*kmsg.ListGroupsResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(req.TypesFilter) > 0 && !containsFold(req.TypesFilter, "classic") {
		return answer{resp: resp}
	}
	for _, g := range sortedGroups(b.mu.groups) {
		if len(req.StatesFilter) > 0 && !containsFold(req.StatesFilter, g.state.String()) {
			continue
		}
		rg := kmsg.NewListGroupsResponseGroup()
		rg.Group, rg.ProtocolType, rg.GroupState, rg.GroupType = g.id, g.protocolType, g.state.String(), "classic"
		resp.Groups = append(resp.Groups, rg)
	}
	return answer{resp: resp, round: b.mu.groupRound}
}

func (b *Broker) deleteGroups(_ *connection, req *kmsg.DeleteGroupsRequest) answer {
	resp := req.ResponseKind().(*kmsg.DeleteGroupsResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	var o op
	for _, id := range req.Groups {
		rg := kmsg.NewDeleteGroupsResponseGroup()
		rg.Group = id
		switch g := b.mu.groups[id]; {
		case g == nil:
			rg.ErrorCode = kerr.GroupIDNotFound.Code
		case len(g.members) > 0 || len(g.announced) > 0 || len(g.pending) > 0:
			rg.ErrorCode = kerr.NonEmptyGroup.Code
		default:
			g.deleteLocked(&o)
		}
		resp.Groups = append(resp.Groups, rg)
	}
	return answer{resp: resp, round: b.stageLocked(&o)}
}
