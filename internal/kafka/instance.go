package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// RemoveInstance removes a static member from a group, as the member itself
// does that leaves. One that is not there is none to remove.
func (a *Admin) RemoveInstance(ctx context.Context, group, instance string) error {
	rs, err := a.adm.LeaveGroup(ctx, kadm.LeaveGroup(group).InstanceIDs(instance).Reason("gone"))
	if err == nil {
		err = rs.Error()
	}
	if err != nil && !errors.Is(err, kerr.UnknownMemberID) && !errors.Is(err, kerr.GroupIDNotFound) {
		return fmt.Errorf("remove instance %s from group %s: %w", instance, group, classed(err))
	}
	return nil
}
