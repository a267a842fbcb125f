package cli

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/config"
)

// clusterFlags adds to a command the flags that say which cluster it reaches
// and how. What it returns tells the cluster, once the command line is parsed:
// from the flags, the variables, the file of settings, and the context that is
// named or the current one.
//
// Its error is one of the command line, or of the files that it names, and is
// returned by the command as it is: with --print-config the settings are
// printed, and the error is the status 0.
func clusterFlags(cmd *cobra.Command) func() (cluster.Cluster, error) {
	c := addCluster(cmd)
	return func() (cluster.Cluster, error) { return c.load(os.Environ()) }
}

// clusterSettings are the settings of a command that reaches a cluster.
type clusterSettings struct {
	cmd     *cobra.Command
	more    []config.Setting // that the command has besides
	cluster cluster.Cluster
	tls     config.TLSFiles
	read    func(config.Input) (*config.Loaded, error)
}

func addCluster(cmd *cobra.Command, more ...config.Setting) *clusterSettings {
	c := &clusterSettings{cmd: cmd, more: more}
	c.read = config.AddFlags(cmd.Flags(), c.table())
	return c
}

func (c *clusterSettings) table() []config.Setting {
	return slices.Concat([]config.Setting{config.BrokersSetting(&c.cluster, "those of the context")}, c.more, config.ClusterSettings(&c.cluster, &c.tls))
}

func (c *clusterSettings) load(env []string) (cluster.Cluster, error) {
	c.cluster, c.tls = cluster.Cluster{}, config.TLSFiles{}
	loaded, err := c.read(config.Input{Env: env, Others: config.Names, Current: true})
	if err != nil {
		return cluster.Cluster{}, usageError{err, c.cmd}
	}
	if _, wanted := loaded.PrintWanted(); wanted {
		if err := loaded.Print(c.cmd.OutOrStdout(), formatOf(c.cmd)); err != nil {
			return cluster.Cluster{}, err
		}
		return cluster.Cluster{}, statusError(exitOK)
	}
	if len(c.cluster.Brokers) == 0 {
		return cluster.Cluster{}, usagef(c.cmd, "no brokers are named: set --brokers, PAWL_BROKERS or a context (see pawl context)")
	}
	if err := loaded.LoadCluster(&c.cluster, c.tls, ""); err != nil {
		return cluster.Cluster{}, usageError{err, c.cmd}
	}
	return c.cluster, nil
}

// formatOf is how a command prints what is not its result: as JSON if that is
// how it prints its result.
func formatOf(cmd *cobra.Command) string {
	if f := cmd.Flags().Lookup("output"); f != nil && f.Value.String() == "json" {
		return "json"
	}
	return "yaml"
}

// untilSignal returns a context that ends with the first signal to stop. The
// second ends the process.
func untilSignal(cmd *cobra.Command) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(cmd.Context())
	end := onSignals(cancel, func(s os.Signal) {
		fmt.Fprintf(cmd.ErrOrStderr(), "second signal (%v): exiting at once\n", s)
	})
	return ctx, func() {
		end()
		cancel()
	}
}
