package messaging

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/kafka"
)

// A Member is a process of a consumer, as the group tells of it.
type Member struct {
	Instance   string  // empty for one that has no name of its own
	Host       string  // where it connects from, as the broker sees it
	Admin      string  // HOST:PORT of its admin API; empty if it has none
	Partitions []int32 // that it is assigned, in order
	Reason     string  // why nothing else is known of it
}

// Members returns the processes of an application's consumer that are in its
// group now.
func Members(ctx context.Context, c cluster.Cluster, application, consumer string) ([]Member, error) {
	admin, err := kafka.NewAdmin(kafka.Config{Cluster: c, ClientID: "pawl", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	joined, err := admin.Members(ctx, application+"."+consumer)
	if err != nil {
		return nil, err
	}
	members := make([]Member, 0, len(joined))
	for _, j := range joined {
		m := Member{Instance: j.Instance, Host: j.Host}
		said, err := parseClaims(j.Metadata)
		if err != nil {
			m.Reason = fmt.Sprintf("what it says of itself can't be read: %v", err)
		}
		m.Admin = said.Admin
		for _, p := range j.Partitions {
			m.Partitions = append(m.Partitions, p.Number)
		}
		members = append(members, m)
	}
	return members, nil
}

// Announce tells the group, and so tools, where the admin API of this process
// is. It is called before Run.
func (w *Worker) Announce(admin string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.admin = admin
}
