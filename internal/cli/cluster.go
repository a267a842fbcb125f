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
// returned by the command as it is.
func clusterFlags(cmd *cobra.Command) func() (cluster.Cluster, error) {
	c := addCluster(cmd)
	return func() (cluster.Cluster, error) { return c.load(os.Environ()) }
}

// clusterSettings are the settings of a command that reaches a cluster.
type clusterSettings struct {
	cmd     *cobra.Command
	unset   string           // what is reached where no brokers are named
	more    []config.Setting // that the command has besides
	cluster cluster.Cluster
	tls     config.TLSFiles
	read    func(config.Input) (*config.Loaded, error)
}

func addCluster(cmd *cobra.Command, more ...config.Setting) *clusterSettings {
	c := newClusterSettings(cmd, "those of the context", more)
	cmd.PreRunE = printing(func() (*config.Loaded, error) { return c.settings(os.Environ(), true) })
	return c
}

// addClusterOrOwn is addCluster for a command that has a broker of its own where
// none is named, so that it never uses the current context by itself.
func addClusterOrOwn(cmd *cobra.Command) *clusterSettings {
	c := newClusterSettings(cmd, "a broker of the command's own", nil)
	cmd.PreRunE = printing(func() (*config.Loaded, error) { return c.settings(os.Environ(), false) })
	return c
}

func newClusterSettings(cmd *cobra.Command, unset string, more []config.Setting) *clusterSettings {
	c := &clusterSettings{cmd: cmd, unset: unset, more: more}
	c.read = config.AddFlags(cmd.Flags(), c.table())
	return c
}

func (c *clusterSettings) table() []config.Setting {
	return slices.Concat([]config.Setting{config.BrokersSetting(&c.cluster, c.unset)}, c.more, config.ClusterSettings(&c.cluster, &c.tls))
}

// load returns the cluster, which must be named.
func (c *clusterSettings) load(env []string) (cluster.Cluster, error) {
	loaded, err := c.settings(env, true)
	if err != nil {
		return cluster.Cluster{}, err
	}
	return c.reach(loaded)
}

// settings fills the settings in. current says whether the current context is
// used where no brokers are named.
func (c *clusterSettings) settings(env []string, current bool) (*config.Loaded, error) {
	c.cluster, c.tls = cluster.Cluster{}, config.TLSFiles{}
	loaded, err := c.read(config.Input{Env: env, Others: slices.Concat(config.Names, brokerNames), Current: current})
	if err != nil {
		return nil, usageError{err, c.cmd}
	}
	return loaded, nil
}

// loadOrOwn returns the cluster, or one without brokers where none are named.
func (c *clusterSettings) loadOrOwn(env []string) (cluster.Cluster, *config.Loaded, error) {
	loaded, err := c.settings(env, false)
	switch {
	case err != nil:
		return cluster.Cluster{}, nil, err
	case len(c.cluster.Brokers) > 0:
		at, err := c.reach(loaded)
		return at, loaded, err
	case c.tls.Wanted() || c.cluster.SASL != (cluster.SASL{}):
		return cluster.Cluster{}, nil, usagef(c.cmd, "TLS or SASL is set and no brokers are named: set --brokers")
	}
	return cluster.Cluster{}, loaded, nil
}

// reach finishes the cluster, which must be named.
func (c *clusterSettings) reach(loaded *config.Loaded) (cluster.Cluster, error) {
	if len(c.cluster.Brokers) == 0 {
		return cluster.Cluster{}, usagef(c.cmd, "no brokers are named: set --brokers, PAWL_BROKERS or a context (see pawl context)")
	}
	if err := loaded.LoadCluster(&c.cluster, c.tls, ""); err != nil {
		return cluster.Cluster{}, usageError{err, c.cmd}
	}
	return c.cluster, nil
}

// printing is what a command does before anything else: with --print-config it
// prints its settings, and ends with the status 0. Whatever else it may miss on
// its command line is not asked for then.
func printing(load func() (*config.Loaded, error)) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		if f := cmd.Flags().Lookup(config.PrintSetting); f.Value.String() != "true" {
			return nil
		}
		loaded, err := load()
		if err != nil {
			return err
		}
		if err := loaded.Print(cmd.OutOrStdout(), formatOf(cmd)); err != nil {
			return err
		}
		return statusError(exitOK)
	}
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
