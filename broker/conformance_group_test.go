package broker_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// participant is a member of a group of which each request is sent by hand.
type participant struct {
	s          *suite
	w          *wire
	group      string
	instance   *string
	id         string
	generation int32
}

func (s *suite) participant(group, instance string) *participant {
	s.Helper()
	m := &participant{s: s, w: s.dial(), group: group, generation: -1}
	if instance != "" {
		m.instance = kmsg.StringPtr(instance)
	}
	return m
}

func (m *participant) joinRequest(version int16, metadata string) *kmsg.JoinGroupRequest {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.MemberID, req.InstanceID = version, m.group, m.id, m.instance
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis, req.ProtocolType = 6000, 10_000, "consumer"
	for _, name := range []string{"one", "two"} {
		p := kmsg.NewJoinGroupRequestProtocol()
		p.Name, p.Metadata = name, []byte(metadata)
		req.Protocols = append(req.Protocols, p)
	}
	return req
}

// join joins, and waits for the others.
func (m *participant) join(metadata string) *kmsg.JoinGroupResponse {
	m.s.Helper()
	var resp *kmsg.JoinGroupResponse
	_ = again(m.s, func() int16 { // the caller looks at it
		resp = query[*kmsg.JoinGroupResponse](m.w, m.joinRequest(9, metadata))
		if resp.ErrorCode == kerr.MemberIDRequired.Code {
			m.id = resp.MemberID
			resp = query[*kmsg.JoinGroupResponse](m.w, m.joinRequest(9, metadata))
		}
		return resp.ErrorCode
	})
	m.took(resp)
	return resp
}

func (m *participant) took(resp *kmsg.JoinGroupResponse) {
	if resp.ErrorCode == 0 {
		m.id, m.generation = resp.MemberID, resp.Generation
	}
}

func (m *participant) syncRequest(assign map[string]string) *kmsg.SyncGroupRequest {
	req := kmsg.NewPtrSyncGroupRequest()
	req.Version, req.Group, req.MemberID, req.InstanceID, req.Generation = 5, m.group, m.id, m.instance, m.generation
	req.ProtocolType, req.Protocol = kmsg.StringPtr("consumer"), kmsg.StringPtr("one")
	for id, a := range assign {
		ra := kmsg.NewSyncGroupRequestGroupAssignment()
		ra.MemberID, ra.MemberAssignment = id, []byte(a)
		req.GroupAssignment = append(req.GroupAssignment, ra)
	}
	return req
}

func (m *participant) sync(assign map[string]string) *kmsg.SyncGroupResponse {
	m.s.Helper()
	return query[*kmsg.SyncGroupResponse](m.w, m.syncRequest(assign))
}

func (m *participant) heartbeat() int16 {
	m.s.Helper()
	req := kmsg.NewPtrHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.InstanceID, req.Generation = 4, m.group, m.id, m.instance, m.generation
	return query[*kmsg.HeartbeatResponse](m.w, req).ErrorCode
}

func (m *participant) leave() int16 {
	m.s.Helper()
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Version, req.Group = 4, m.group
	r := kmsg.NewLeaveGroupRequestMember()
	r.MemberID, r.InstanceID = m.id, m.instance
	req.Members = append(req.Members, r)
	resp := query[*kmsg.LeaveGroupResponse](m.w, req)
	m.s.want("leave", resp.ErrorCode, nil)
	return resp.Members[0].ErrorCode
}

func (m *participant) commit(topic string, offset int64) int16 {
	m.s.Helper()
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.MemberID, req.InstanceID, req.Generation = 8, m.group, m.id, m.instance, m.generation
	t := kmsg.NewOffsetCommitRequestTopic()
	t.Topic = topic
	p := kmsg.NewOffsetCommitRequestTopicPartition()
	p.Offset, p.Metadata = offset, kmsg.StringPtr("meta")
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return query[*kmsg.OffsetCommitResponse](m.w, req).Topics[0].Partitions[0].ErrorCode
}

func (m *participant) describe() kmsg.DescribeGroupsResponseGroup {
	m.s.Helper()
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Version, req.Groups = 5, []string{m.group}
	return query[*kmsg.DescribeGroupsResponse](m.s.dial(), req).Groups[0]
}

func TestConformGroup(t *testing.T) {
	conform(t, func(s *suite) {
		name, _ := s.topic(1)
		a := s.participant(s.prefix+"g", "")
		b := s.participant(s.prefix+"g", "")
		joined := a.join("A")
		s.want("join", joined.ErrorCode, nil)
		if joined.LeaderID != a.id || *joined.Protocol != "one" || len(joined.Members) != 1 || string(joined.Members[0].ProtocolMetadata) != "A" {
			s.Errorf("joined %+v, want the leader of one", joined)
		}
		s.want("commit before the sync", a.commit(name, 1), kerr.RebalanceInProgress)
		got := a.sync(map[string]string{a.id: "all"})
		s.want("sync", got.ErrorCode, nil)
		if string(got.MemberAssignment) != "all" {
			s.Errorf("assignment %q, want all", got.MemberAssignment)
		}
		s.want("heartbeat", a.heartbeat(), nil)
		s.want("commit", a.commit(name, 1), nil)
		if d := a.describe(); d.State != "Stable" || d.Protocol != "one" || len(d.Members) != 1 || string(d.Members[0].MemberAssignment) != "all" {
			s.Errorf("described %+v", d)
		}

		// Another one joins: the first hears of it, and joins again.
		first := query[*kmsg.JoinGroupResponse](b.w, b.joinRequest(9, "B"))
		s.want("join without an ID", first.ErrorCode, kerr.MemberIDRequired)
		b.id = first.MemberID
		req := b.joinRequest(9, "B")
		b.w.send(req)
		for a.heartbeat() == 0 {
			pause(s.ctx, 5*time.Millisecond)
		}
		s.want("heartbeat in a rebalance", a.heartbeat(), kerr.RebalanceInProgress)
		s.want("sync in a rebalance", a.sync(nil).ErrorCode, kerr.RebalanceInProgress)
		s.want("commit in a rebalance", a.commit(name, 2), nil)
		joined = a.join("A")
		s.want("join again", joined.ErrorCode, nil)
		resp, err := b.w.receive(req)
		if err != nil {
			s.Fatal(err)
		}
		b.took(resp.(*kmsg.JoinGroupResponse))
		if a.generation != b.generation || len(joined.Members) != 2 || joined.LeaderID != a.id {
			s.Errorf("generations %d and %d, %d members, leader %s", a.generation, b.generation, len(joined.Members), joined.LeaderID)
		}
		follower := b.syncRequest(nil)
		b.w.send(follower)
		s.want("sync", a.sync(map[string]string{a.id: "left", b.id: "right"}).ErrorCode, nil)
		resp, err = b.w.receive(follower)
		if err != nil {
			s.Fatal(err)
		}
		if got := resp.(*kmsg.SyncGroupResponse); got.ErrorCode != 0 || string(got.MemberAssignment) != "right" {
			s.Errorf("the follower got %q, %v", got.MemberAssignment, kerr.ErrorForCode(got.ErrorCode))
		}

		// What does not fit is refused.
		old := *a
		old.generation--
		s.want("heartbeat of an old generation", old.heartbeat(), kerr.IllegalGeneration)
		s.want("commit of an old generation", old.commit(name, 3), kerr.IllegalGeneration)
		s.want("sync of an old generation", old.sync(nil).ErrorCode, kerr.IllegalGeneration)
		stranger := *a
		stranger.id = "stranger"
		s.want("heartbeat of a stranger", stranger.heartbeat(), kerr.UnknownMemberID)
		s.want("commit of a stranger", stranger.commit(name, 3), kerr.UnknownMemberID)
		s.want("leave of a stranger", stranger.leave(), kerr.UnknownMemberID)
		outsider := s.participant(a.group, "")
		s.want("commit without membership", outsider.commit(name, 3), kerr.UnknownMemberID)
		odd := s.participant(a.group, "")
		oddReq := odd.joinRequest(9, "O")
		oddReq.Protocols = oddReq.Protocols[:1]
		oddReq.Protocols[0].Name = "three"
		s.want("no common protocol", query[*kmsg.JoinGroupResponse](odd.w, oddReq).ErrorCode, kerr.InconsistentGroupProtocol)

		s.want("leave", b.leave(), nil)
		s.want("heartbeat after another left", a.heartbeat(), kerr.RebalanceInProgress)
		s.want("leave", a.leave(), nil)
		if d := a.describe(); d.State != "Empty" || len(d.Members) != 0 {
			s.Errorf("described %+v, want it empty", d)
		}
		s.want("commit without membership to an empty group", outsider.commit(name, 4), nil)
		if got, code := s.offset(s.dial(), a.group, name, true); got != 4 || code != 0 {
			s.Errorf("offset %d, want 4", got)
		}
	})
}

func TestConformStaticMember(t *testing.T) {
	conform(t, func(s *suite) {
		name, _ := s.topic(1)
		a := s.participant(s.prefix+"g", "i1")
		s.want("join", a.join("A").ErrorCode, nil)
		s.want("sync", a.sync(map[string]string{a.id: "all"}).ErrorCode, nil)
		generation := a.generation
		// It comes back without its ID: no rebalance, and the old one is out.
		b := s.participant(a.group, "i1")
		joined := b.join("A")
		s.want("join again", joined.ErrorCode, nil)
		if joined.Generation != generation || !joined.SkipAssignment || joined.LeaderID != b.id {
			s.Errorf("generation %d after %d, skip %t, leader %s of %s", joined.Generation, generation, joined.SkipAssignment, joined.LeaderID, b.id)
		}
		got := b.sync(nil)
		s.want("sync", got.ErrorCode, nil)
		if string(got.MemberAssignment) != "all" {
			s.Errorf("assignment %q, want all", got.MemberAssignment)
		}
		s.want("heartbeat of the old one", a.heartbeat(), kerr.FencedInstanceID)
		s.want("commit of the old one", a.commit(name, 1), kerr.FencedInstanceID)
		s.want("leave of the old one", a.leave(), kerr.FencedInstanceID)
		s.want("heartbeat", b.heartbeat(), nil)
		c := s.participant(a.group, "i1")
		s.want("leave by instance alone", c.leave(), nil)
		s.want("heartbeat after it", b.heartbeat(), kerr.UnknownMemberID)
	})
}

func TestConformSessionTimeout(t *testing.T) {
	conform(t, func(s *suite) {
		a := s.participant(s.prefix+"g", "")
		s.want("join", a.join("A").ErrorCode, nil)
		s.want("sync", a.sync(map[string]string{a.id: "all"}).ErrorCode, nil)
		begun := time.Now()
		for a.describe().State != "Empty" {
			pause(s.ctx, 100*time.Millisecond)
			if s.ctx.Err() != nil {
				s.Fatal("its session never ends")
			}
		}
		if took := time.Since(begun); took < 5*time.Second || took > 10*time.Second {
			s.Errorf("the session ended after %v, want 6 s", took)
		}
		s.want("heartbeat", a.heartbeat(), kerr.UnknownMemberID)
	})
}

func TestConformGroupRequests(t *testing.T) {
	conform(t, func(s *suite) {
		name, _ := s.topic(1)
		w := s.dial()
		a := s.participant(s.prefix+"g", "")
		req := a.joinRequest(9, "A")
		req.SessionTimeoutMillis = 1
		s.want("a session that is too short", query[*kmsg.JoinGroupResponse](w, req).ErrorCode, kerr.InvalidSessionTimeout)
		req = a.joinRequest(9, "A")
		req.Group = ""
		s.want("no group", query[*kmsg.JoinGroupResponse](w, req).ErrorCode, kerr.InvalidGroupID)
		req = a.joinRequest(9, "A")
		req.MemberID = "stranger"
		s.want("a stranger", query[*kmsg.JoinGroupResponse](w, req).ErrorCode, kerr.UnknownMemberID)
		s.want("heartbeat to no group", a.heartbeat(), kerr.UnknownMemberID)
		s.want("commit for an unknown topic", a.commit(name+"x", 1), kerr.UnknownTopicOrPartition)
		if got, code := s.offset(w, a.group, name, true); got != -1 || code != 0 {
			s.Errorf("offset %d of a group that is not there, want -1", got)
		}
		del := kmsg.NewPtrDeleteGroupsRequest()
		del.Version, del.Groups = 2, []string{s.prefix + "none"}
		s.want("delete no group", query[*kmsg.DeleteGroupsResponse](w, del).Groups[0].ErrorCode, kerr.GroupIDNotFound)
		s.want("join", a.join("A").ErrorCode, nil)
		s.want("sync", a.sync(map[string]string{a.id: "all"}).ErrorCode, nil)
		s.want("commit", a.commit(name, 1), nil)
		del.Groups = []string{a.group}
		s.want("delete a group with members", query[*kmsg.DeleteGroupsResponse](w, del).Groups[0].ErrorCode, kerr.NonEmptyGroup)
		s.want("leave", a.leave(), nil)
		s.want("delete", query[*kmsg.DeleteGroupsResponse](w, del).Groups[0].ErrorCode, nil)
		if got, _ := s.offset(w, a.group, name, true); got != -1 {
			s.Errorf("offset %d after the group was deleted, want -1", got)
		}
		list := kmsg.NewPtrListGroupsRequest()
		list.Version = 4
		for _, g := range query[*kmsg.ListGroupsResponse](w, list).Groups {
			if g.Group == a.group {
				s.Errorf("the deleted group is listed: %+v", g)
			}
		}
	})
}

// The client library's own groups, eager and cooperative, share a topic and
// hand partitions over.
func TestConformConsumers(t *testing.T) {
	for name, balancer := range map[string]kgo.GroupBalancer{"eager": kgo.RangeBalancer(), "cooperative": kgo.CooperativeStickyBalancer()} {
		t.Run(name, func(t *testing.T) {
			conform(t, func(s *suite) {
				topic, _ := s.topic(4)
				consumer := func() *kgo.Client {
					return s.client(kgo.ConsumerGroup(s.prefix+"g"), kgo.ConsumeTopics(topic), kgo.Balancers(balancer),
						kgo.HeartbeatInterval(50*time.Millisecond), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(50*time.Millisecond))
				}
				produce := func(round int) (want []string) {
					cl := s.client()
					for i := range 40 {
						v := fmt.Sprintf("%d-%d", round, i)
						want = append(want, v)
						if err := cl.ProduceSync(s.ctx, &kgo.Record{Topic: topic, Partition: int32(i % 4), Value: []byte(v)}).FirstErr(); err != nil {
							s.Fatal(err)
						}
					}
					return want
				}
				a := consumer()
				consume := func(want []string, from ...*kgo.Client) {
					s.Helper()
					left := make(map[string]bool)
					for _, v := range want {
						left[v] = true
					}
					for i := 0; len(left) > 0; i++ { // others may come again
						fs := from[i%len(from)].PollRecords(contextFor(s, 200*time.Millisecond), 100)
						fs.EachRecord(func(r *kgo.Record) { delete(left, string(r.Value)) })
						if s.ctx.Err() != nil {
							s.Fatalf("%d of %d were not consumed", len(left), len(want))
						}
					}
				}
				consume(produce(0), a)
				b := consumer()
				consume(produce(1), a, b)
				if err := a.CommitUncommittedOffsets(s.ctx); err != nil {
					s.Errorf("commit: %v", err)
				}
				a.Close()
				consume(produce(2), b)
			})
		})
	}
}

func contextFor(s *suite, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(s.ctx, d)
	s.Cleanup(cancel)
	return ctx
}

func TestConformOffsetsOfAll(t *testing.T) {
	conform(t, func(s *suite) {
		one, _ := s.topic(1)
		two, _ := s.topic(1)
		a := s.participant(s.prefix+"g", "")
		s.want("commit", a.commit(one, 5), nil)
		s.want("commit", a.commit(two, 6), nil)
		for v := int16(2); v <= 9; v++ {
			req := kmsg.NewPtrOffsetFetchRequest()
			req.Version = v
			var got []string
			if v >= 8 {
				g := kmsg.NewOffsetFetchRequestGroup()
				g.Group = a.group
				req.Groups = append(req.Groups, g)
				for _, t := range query[*kmsg.OffsetFetchResponse](a.w, req).Groups[0].Topics {
					for _, p := range t.Partitions {
						got = append(got, fmt.Sprint(t.Topic, p.Offset, *p.Metadata))
					}
				}
			} else {
				req.Group = a.group
				for _, t := range query[*kmsg.OffsetFetchResponse](a.w, req).Topics {
					for _, p := range t.Partitions {
						got = append(got, fmt.Sprint(t.Topic, p.Offset, *p.Metadata))
					}
				}
			}
			slices.Sort(got)
			want := []string{fmt.Sprint(one, 5, "meta"), fmt.Sprint(two, 6, "meta")}
			slices.Sort(want)
			if !slices.Equal(got, want) {
				s.Errorf("v%d: offsets %q, want %q", v, got, want)
			}
		}
		del := kmsg.NewPtrOffsetDeleteRequest()
		del.Group = a.group
		dt := kmsg.NewOffsetDeleteRequestTopic()
		dt.Topic = one
		dt.Partitions = append(dt.Partitions, kmsg.NewOffsetDeleteRequestTopicPartition())
		del.Topics = append(del.Topics, dt)
		s.want("delete", query[*kmsg.OffsetDeleteResponse](a.w, del).Topics[0].Partitions[0].ErrorCode, nil)
		if got, _ := s.offset(a.w, a.group, one, true); got != -1 {
			s.Errorf("offset %d after it was deleted", got)
		}
		if got, _ := s.offset(a.w, a.group, two, true); got != 6 {
			s.Errorf("offset %d, want 6", got)
		}
	})
}
