package kafka

import (
	"log/slog"

	"github.com/pawlstream/pawl/cluster"
)

// Config says how to reach a cluster and under which name.
type Config struct {
	Cluster  cluster.Cluster
	ClientID string       // shown in the brokers' logs; "pawl" if empty
	Logger   *slog.Logger // slog.Default() if nil
}
