package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// operation is what the commands that work on a cluster have in common: which
// cluster, the form of what they print, and how they end.
type operation struct {
	cmd     *cobra.Command
	cluster func() (cluster.Cluster, error)
	output  string
}

// newOperation adds the flags that all operations have.
func newOperation(cmd *cobra.Command) *operation {
	o := &operation{cmd: cmd, cluster: clusterFlags(cmd)}
	addOutput(cmd, &o.output)
	return o
}

// exitInterrupted is the status of a command that a signal has ended before it
// was done.
const exitInterrupted = 130

// asked is a cluster that an operation works on.
type asked struct {
	*kafka.Admin
	config kafka.Config
}

// bounds returns where the partitions begin, and where they end for who reads up
// to end.
func (c asked) bounds(ctx context.Context, end kafka.At, parts ...topic.Partition) (starts, ends map[topic.Partition]int64, err error) {
	if starts, err = c.Offsets(ctx, kafka.Earliest, parts...); err != nil {
		return nil, nil, err
	}
	if ends, err = c.Offsets(ctx, end, parts...); err != nil {
		return nil, nil, err
	}
	return starts, ends, nil
}

// run does the operation, once the cluster is known to be there. The first
// signal ends ctx.
func (o *operation) run(do func(ctx context.Context, c asked) error) error {
	if err := checkOutput(o.cmd, o.output); err != nil {
		return err
	}
	c, err := o.cluster()
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(o.cmd)
	defer stop()
	cfg := kafka.Config{Cluster: c, Logger: warnings(o.cmd.ErrOrStderr())}
	a, err := kafka.NewAdmin(cfg)
	if err != nil {
		return err
	}
	defer a.Close()
	err = a.Check(ctx, true)
	if err == nil {
		err = do(ctx, asked{a, cfg})
	}
	return ending(ctx, err)
}

// ending is how a command ends. That nobody reads its output any more, as with
// | head -1, is no error: it has printed all that was wanted.
func ending(ctx context.Context, err error) error {
	switch {
	case err == nil, errors.Is(err, syscall.EPIPE):
		return nil
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return statusError(exitInterrupted)
	}
	return err
}

// exclusion is a pair of flags of which only one can be set.
type exclusion struct {
	a, b string
	why  string
}

// exclusions are those of a command. A flag that could not be obeyed is
// refused, never ignored.
type exclusions []exclusion

func (es exclusions) check(cmd *cobra.Command) error {
	for _, e := range es {
		if cmd.Flags().Changed(e.a) && cmd.Flags().Changed(e.b) {
			return usagef(cmd, "--%s and --%s exclude each other: %s", e.a, e.b, e.why)
		}
	}
	return nil
}

// settingsOf reads NAME=VALUE pairs.
func settingsOf(cmd *cobra.Command, flag string, pairs []string) (map[string]string, error) {
	settings := make(map[string]string)
	for _, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, usagef(cmd, "--%s %q: want NAME=VALUE", flag, pair)
		}
		if _, twice := settings[name]; twice {
			return nil, usagef(cmd, "--%s names %s twice", flag, name)
		}
		settings[name] = value
	}
	return settings, nil
}

// completeTime bounds how long the shell waits for names.
const completeTime = 3 * time.Second

// names looks names up for the shell to complete. No cluster, no names: a shell
// can't be told what is wrong.
func (o *operation) names(prefix string, look func(ctx context.Context, a *kafka.Admin) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	c, err := o.cluster()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	a, err := kafka.NewAdmin(kafka.Config{Cluster: c, Logger: silent})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer a.Close()
	ctx, cancel := context.WithTimeout(context.Background(), completeTime)
	defer cancel()
	all, err := look(ctx, a)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	all = slices.DeleteFunc(all, func(name string) bool { return !strings.HasPrefix(name, prefix) || printable(name) != name })
	return all, cobra.ShellCompDirectiveNoFileComp
}

// topicNames completes the names of topics that are not named yet.
func (o *operation) topicNames(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return o.names(prefix, func(ctx context.Context, a *kafka.Admin) (names []string, err error) {
		topics, err := a.ListTopics(ctx)
		for _, t := range topics {
			if !slices.Contains(args, t.Name) && (!t.Internal || strings.HasPrefix(prefix, "_")) {
				names = append(names, t.Name)
			}
		}
		return names, err
	})
}

// groupNames completes the names of groups.
func (o *operation) groupNames(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return o.names(prefix, func(ctx context.Context, a *kafka.Admin) (names []string, err error) {
		groups, err := a.Groups(ctx)
		for _, g := range groups {
			if !slices.Contains(args, g.Name) {
				names = append(names, g.Name)
			}
		}
		return names, err
	})
}

// completeFlag has the shell complete a flag's value.
func completeFlag(cmd *cobra.Command, flag string, names cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, names); err != nil {
		panic(fmt.Sprintf("complete --%s of %s: %v", flag, cmd.Name(), err)) // the flag was added before
	}
}
