package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/examples/filestats"
)

// child is what a process of the demo is told by its flags.
type child struct {
	application, prefix, instance, stateDir string
	brokers                                 []string // the rest of the cluster is in its environment
}

const (
	// demoSession is the shortest that Kafka allows, so that a takeover fits
	// into a demo.
	demoSession = 6 * time.Second

	// childDrain is how long a child has to finish what it has begun.
	childDrain = 5 * time.Second

	childMemory = 128 << 20
)

// args is the command line that runs the child.
func (c child) args() []string {
	args := []string{"demo", "child", "--application", c.application, "--prefix", c.prefix, "--instance", c.instance, "--state-dir", c.stateDir}
	for _, b := range c.brokers {
		args = append(args, "--brokers", b)
	}
	return args
}

// newChildCommand is the command that the demo runs its processes by.
func newChildCommand() *cobra.Command {
	var c child
	cmd := childCommand("child", "Run examples/filestats until standard input is closed", func(cmd *cobra.Command, at cluster.Cluster, log *slog.Logger) error {
		return c.run(cmd.Context(), at, cmd.InOrStdin(), cmd.OutOrStdout(), log)
	})
	f := cmd.Flags()
	f.StringVar(&c.application, "application", "", "the application's name")
	f.StringVar(&c.prefix, "prefix", "", "what the names of the topics begin with")
	f.StringVar(&c.instance, "instance", "", "the process's name in the group")
	f.StringVar(&c.stateDir, "state-dir", "", "the directory of the stores")
	return cmd
}

// childCommand is a command that a demo runs its processes by. They are told of
// their cluster by flags and by their environment.
func childCommand(use, short string, run func(cmd *cobra.Command, at cluster.Cluster, log *slog.Logger) error) *cobra.Command {
	var at *clusterSettings
	cmd := &cobra.Command{
		Use:    use,
		Short:  short,
		Hidden: true,
		Args:   noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			where, err := at.load(os.Environ())
			if err != nil {
				return err
			}
			return run(cmd, where, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
		},
	}
	at = addCluster(cmd)
	return cmd
}

// run runs the consumers until standard input ends, which it also does when
// the parent ends in whatever way. Then it drains. Until then it says on
// standard output which shards run here: a line each time that they change.
func (c child) run(ctx context.Context, at cluster.Cluster, stdin io.Reader, stdout io.Writer, log *slog.Logger) error {
	app, err := consumer.New(consumer.Config{
		Application:    c.application,
		Cluster:        at,
		StateDir:       c.stateDir,
		Instance:       c.instance,
		SessionTimeout: demoSession,
		DrainTimeout:   childDrain,
		Memory:         childMemory,
		Logger:         log,
	}, filestats.New(c.prefix).Consumers()...)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // which ends with the process, at the latest
		if _, err := io.Copy(io.Discard, stdin); err != nil {
			log.Error("read standard input", "error", err)
		}
		// The broker may have gone with the parent, and user code may hang:
		// nothing keeps an orphan.
		time.AfterFunc(childDrain+3*time.Second, func() {
			log.Error("the drain did not end in time")
			os.Exit(exitError)
		})
		cancel()
	}()
	var reporting sync.WaitGroup
	defer reporting.Wait()
	defer cancel()
	reporting.Go(func() {
		if err := report(ctx, app, stdout); err != nil {
			log.Error("report the running shards", "error", err)
		}
	})
	err = app.Run(ctx)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // it was asked to stop before it had begun
	}
	return err
}

// reportInterval is how often the shards are looked at.
const reportInterval = 50 * time.Millisecond

// report writes the IDs of the running shards, a line each time that they
// change, until ctx ends.
func report(ctx context.Context, app *consumer.App, w io.Writer) error {
	before := ""
	for pause(ctx, reportInterval, nil) == nil {
		var ids []string
		for _, s := range app.Status().Shards {
			if s.Phase == consumer.Running {
				ids = append(ids, s.ID.String())
			}
		}
		now := strings.Join(ids, " ")
		if now == before {
			continue
		}
		if _, err := fmt.Fprintln(w, now); err != nil {
			return err
		}
		before = now
	}
	return nil
}
