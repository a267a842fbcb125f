package cli

import (
	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/cluster"
)

// clusterFlags adds to a command the flags that say which cluster it reaches
// and how. What it returns tells the cluster, once the command line is parsed;
// its error is one of the command line, or of the files that it names, and is
// returned by the command as it is.
func clusterFlags(cmd *cobra.Command) func() (cluster.Cluster, error) {
	b := new(brokerFlags)
	b.add(cmd.Flags())
	return func() (cluster.Cluster, error) { return b.cluster(cmd) }
}
