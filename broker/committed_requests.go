package broker

import (
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// mayCommitLocked says whether a commit of offsets is to be taken: from a member
// of this generation, or from somebody who doesn't use the group's membership
// while nobody else does.
func (g *group) mayCommitLocked(member string, instance *string, generation int32) *kerr.Error {
	if generation < 0 && member == "" && instance == nil {
		if g != nil && len(g.members) > 0 {
			return kerr.UnknownMemberID
		}
		return nil
	}
	if g == nil {
		if generation < 0 {
			return kerr.UnknownMemberID
		}
		return kerr.IllegalGeneration
	}
	if generation < 0 && len(g.members) == 0 {
		return nil
	}
	m, err := g.checkLocked(member, instance, generation)
	if err != nil {
		return err
	}
	g.renewLocked(m)
	if g.state == groupCompleting {
		return kerr.RebalanceInProgress
	}
	return nil
}

func (b *Broker) offsetCommit(_ *connection, req *kmsg.OffsetCommitRequest) answer {
	resp := req.ResponseKind().(*kmsg.OffsetCommitResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	var o op
	var failed *kerr.Error
	if req.Group == "" || len(req.Group) > nameMax {
		failed = kerr.InvalidGroupID
	} else {
		failed = b.mu.groups[req.Group].mayCommitLocked(req.MemberID, req.InstanceID, req.Generation)
	}
	at := now()
	metadataMax := int(b.settings.number("offset.metadata.max.bytes"))
	for _, t := range req.Topics {
		rt := kmsg.NewOffsetCommitResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewOffsetCommitResponseTopicPartition()
			rp.Partition = p.Partition
			metadata := ""
			if p.Metadata != nil {
				metadata = *p.Metadata
			}
			switch {
			case failed != nil:
				rp.ErrorCode = failed.Code
			case b.partitionLocked(t.Topic, p.Partition) == nil:
				rp.ErrorCode = kerr.UnknownTopicOrPartition.Code
			case len(metadata) > metadataMax:
				rp.ErrorCode = kerr.OffsetMetadataTooLarge.Code
			default:
				b.groupLocked(req.Group).commitLocked(offsetOf{t.Topic, p.Partition}, committed{p.Offset, p.LeaderEpoch, metadata, at}, &o)
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return answer{resp: resp, round: b.stageLocked(&o)}
}

func (b *Broker) offsetFetch(_ *connection, req *kmsg.OffsetFetchRequest) answer {
	resp := req.ResponseKind().(*kmsg.OffsetFetchResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	if req.Version < 8 {
		rq := kmsg.NewOffsetFetchRequestGroup()
		rq.Group = req.Group
		if req.Topics != nil {
			rq.Topics = []kmsg.OffsetFetchRequestGroupTopic{}
		}
		for _, t := range req.Topics {
			rt := kmsg.NewOffsetFetchRequestGroupTopic()
			rt.Topic, rt.Partitions = t.Topic, t.Partitions
			rq.Topics = append(rq.Topics, rt)
		}
		g := b.fetchOffsetsLocked(rq, req.RequireStable)
		resp.ErrorCode = g.ErrorCode
		for _, t := range g.Topics {
			rt := kmsg.NewOffsetFetchResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewOffsetFetchResponseTopicPartition()
				rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata, rp.ErrorCode = p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return answer{resp: resp, round: b.mu.groupRound}
	}
	for _, rq := range req.Groups {
		resp.Groups = append(resp.Groups, b.fetchOffsetsLocked(rq, req.RequireStable))
	}
	return answer{resp: resp, round: b.mu.groupRound}
}

// fetchOffsetsLocked answers what a group has committed. With stable, an offset
// that an open transaction is about to commit is not answered yet.
func (b *Broker) fetchOffsetsLocked(req kmsg.OffsetFetchRequestGroup, stable bool) kmsg.OffsetFetchResponseGroup {
	resp := kmsg.NewOffsetFetchResponseGroup()
	resp.Group = req.Group
	g := b.mu.groups[req.Group]
	if req.MemberID != nil && *req.MemberID != "" && g != nil {
		if _, err := g.checkLocked(*req.MemberID, nil, g.generation); err != nil {
			resp.ErrorCode = err.Code
			return resp
		}
	}
	if req.Topics == nil && g != nil {
		all := make(map[string][]int32)
		for of := range g.offsets {
			all[of.topic] = append(all[of.topic], of.partition)
		}
		for of := range g.pending {
			if _, ok := g.offsets[of]; !ok {
				all[of.topic] = append(all[of.topic], of.partition)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			rt := kmsg.NewOffsetFetchRequestGroupTopic()
			rt.Topic, rt.Partitions = name, slices.Sorted(slices.Values(all[name]))
			req.Topics = append(req.Topics, rt)
		}
	}
	for _, t := range req.Topics {
		rt := kmsg.NewOffsetFetchResponseGroupTopic()
		rt.Topic = t.Topic
		for _, number := range t.Partitions {
			rp := kmsg.NewOffsetFetchResponseGroupTopicPartition()
			rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata = number, -1, -1, kmsg.StringPtr("")
			of := offsetOf{t.Topic, number}
			if g != nil {
				if c, ok := g.offsets[of]; ok {
					rp.Offset, rp.LeaderEpoch, rp.Metadata = c.offset, c.leaderEpoch, kmsg.StringPtr(c.metadata)
				}
				if stable && g.pending[of] > 0 {
					rp.Offset, rp.LeaderEpoch, rp.Metadata = -1, -1, kmsg.StringPtr("")
					rp.ErrorCode = kerr.UnstableOffsetCommit.Code
				}
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (b *Broker) offsetDelete(_ *connection, req *kmsg.OffsetDeleteRequest) answer {
	resp := req.ResponseKind().(*kmsg.OffsetDeleteResponse)
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.mu.groups[req.Group]
	if g == nil {
		resp.ErrorCode = kerr.GroupIDNotFound.Code
		return answer{resp: resp}
	}
	if len(g.members) > 0 && g.protocolType != "consumer" {
		resp.ErrorCode = kerr.NonEmptyGroup.Code
		return answer{resp: resp}
	}
	subscribed := g.subscribedLocked()
	var o op
	for _, t := range req.Topics {
		rt := kmsg.NewOffsetDeleteResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewOffsetDeleteResponseTopicPartition()
			rp.Partition = p.Partition
			switch {
			case b.partitionLocked(t.Topic, p.Partition) == nil:
				rp.ErrorCode = kerr.UnknownTopicOrPartition.Code
			case subscribed[t.Topic]:
				rp.ErrorCode = kerr.GroupSubscribedToTopic.Code
			default:
				g.deleteOffsetLocked(offsetOf{t.Topic, p.Partition}, &o)
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return answer{resp: resp, round: b.stageLocked(&o)}
}

// subscribedLocked returns the topics that the group's members consume. One
// whose metadata is not a consumer's may consume any.
func (g *group) subscribedLocked() map[string]bool {
	topics := make(map[string]bool)
	for _, m := range g.members {
		metadata, _ := m.metadata(g.protocol)
		if metadata == nil && len(m.protocols) > 0 {
			metadata = m.protocols[0].Metadata
		}
		var meta kmsg.ConsumerMemberMetadata
		if meta.ReadFrom(metadata) != nil {
			continue
		}
		for _, t := range meta.Topics {
			topics[t] = true
		}
	}
	return topics
}

func containsFold(list []string, s string) bool {
	return slices.ContainsFunc(list, func(e string) bool { return strings.EqualFold(e, s) })
}

func sortedGroups(groups map[string]*group) []*group {
	return slices.SortedFunc(maps.Values(groups), func(a, b *group) int { return strings.Compare(a.id, b.id) })
}
