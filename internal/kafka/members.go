package kafka

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// JoinedMember is a member of a group as the coordinator tells of it.
type JoinedMember struct {
	MemberInfo
	Host       string            // where it connects from
	Partitions []topic.Partition // that it was assigned, in order
}

// Members returns the members of a group in which [Member]s are, with what each
// says of itself, in order of their instances. A group that does not exist has
// none, and so has one of another protocol.
func (a *Admin) Members(ctx context.Context, group string) ([]JoinedMember, error) {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = []string{group}
	resp, err := req.RequestWith(ctx, a.cl)
	if err != nil {
		return nil, fmt.Errorf("describe group %s: %w", group, classed(err))
	}
	var members []JoinedMember
	for i := range resp.Groups {
		g := &resp.Groups[i]
		err := kerr.ErrorForCode(g.ErrorCode)
		switch {
		case err == kerr.GroupIDNotFound:
			continue
		case err != nil:
			return nil, fmt.Errorf("describe group %s: %w", group, classed(err))
		case g.Protocol != protocolName && g.Protocol != "":
			continue
		}
		for j := range g.Members {
			m := &g.Members[j]
			var known JoinedMember
			known.ID, known.Host = m.MemberID, m.ClientHost
			if m.InstanceID != nil {
				known.Instance = *m.InstanceID
			}
			if known.Topics, known.Metadata, err = decodeSubscription(m.ProtocolMetadata); err != nil {
				known.Metadata = nil // it joins just now, or is of a format that is not ours
			}
			if parts, _, err := decodeAssignment(m.MemberAssignment); err == nil {
				known.Partitions = parts
			}
			slices.SortFunc(known.Partitions, topic.Partition.Compare)
			members = append(members, known)
		}
	}
	slices.SortFunc(members, func(x, y JoinedMember) int {
		return cmp.Or(cmp.Compare(x.Instance, y.Instance), cmp.Compare(x.ID, y.ID))
	})
	return members, nil
}

// Applications returns the groups of which the members speak Pawl's protocol, in
// order: the applications that run.
func (a *Admin) Applications(ctx context.Context) ([]string, error) {
	list := kmsg.NewPtrListGroupsRequest()
	var all []string
	for _, shard := range a.cl.RequestSharded(ctx, list) {
		resp, ok := shard.Resp.(*kmsg.ListGroupsResponse)
		err := shard.Err
		if err == nil && ok {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if err != nil || !ok {
			return nil, fmt.Errorf("list groups: %w", classed(err))
		}
		for i := range resp.Groups {
			if g := &resp.Groups[i]; g.ProtocolType == protocolType {
				all = append(all, g.Group)
			}
		}
	}
	var found []string
	for len(all) > 0 {
		n := min(len(all), 200)
		req := kmsg.NewPtrDescribeGroupsRequest()
		req.Groups, all = all[:n], all[n:]
		resp, err := req.RequestWith(ctx, a.cl)
		if err != nil {
			return nil, fmt.Errorf("describe groups: %w", classed(err))
		}
		for i := range resp.Groups {
			if g := &resp.Groups[i]; g.ErrorCode == 0 && g.Protocol == protocolName {
				found = append(found, g.Group)
			}
		}
	}
	slices.Sort(found)
	return found, nil
}
