package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/broker"
	"github.com/pawlstream/pawl/internal/config"
	"github.com/pawlstream/pawl/internal/kafka"
)

// devConfig is what the settings of dev say.
type devConfig struct {
	listen string
	topics []kafka.TopicSpec
	set    []string
	level  slog.Level

	settings map[string]string
}

// table are the settings of dev, each with a flag, a variable and a key.
func (c *devConfig) table() []config.Setting {
	return []config.Setting{
		{Name: "listen", Value: config.Parsed(&c.listen, "HOST:PORT", parseListen), Default: "127.0.0.1:9092", Help: "the address to listen on, of this machine alone; port 0 is a free one"},
		{Name: "topic", Value: config.ParsedList(&c.topics, "NAME[:PARTITIONS]", parseTopics), Help: "create a topic; again for another"},
		{Name: "set", Value: config.ParsedList(&c.set, "NAME=VALUE", parseSet), Help: "a setting of the broker by Kafka's name, such as log.retention.ms=86400000; again for another"},
		{Name: "log-level", Value: config.Parsed(&c.level, "debug|info|warn|error", parseLogLevel), Default: "warn", Help: "least level that is logged"},
	}
}

// parseTopics takes topics between commas.
func parseTopics(text string) (specs []kafka.TopicSpec, err error) {
	for item := range strings.SplitSeq(text, ",") {
		name, number, several := strings.Cut(item, ":")
		partitions := uint64(1)
		if several {
			if partitions, err = strconv.ParseUint(number, 10, 16); err != nil || partitions == 0 {
				return nil, errors.New("want NAME or NAME:PARTITIONS")
			}
		}
		if name == "" {
			return nil, errors.New("want NAME or NAME:PARTITIONS")
		}
		specs = append(specs, kafka.TopicSpec{Name: name, Partitions: int(partitions)})
	}
	return specs, nil
}

func newDevCommand() *cobra.Command {
	var cfg devConfig
	var own *ownSettings
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a broker to try things on: nothing survives it",
		Long: `Dev runs a broker on a port of this machine, for as long as the command runs:
the one that pawl serve runs, on a directory that is deleted when it ends. Any
Kafka client and tool can use it. The directory of one that was killed is deleted
by the next. For data that are to be kept, see pawl serve.

Each flag has a variable and a key in pawl.yaml: PAWL_LISTEN and listen for
--listen. A flag wins over its variable, and that over the file.`,
		Example: `  pawl dev --topic orders:3 --topic totals
  pawl dev --listen 127.0.0.1:0`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := own.load(os.Environ())
			if err != nil {
				return err
			}
			if err := cfg.check(cmd, loaded.Named); err != nil {
				return err
			}
			ctx, stop := untilSignal(cmd)
			defer stop()
			return ending(ctx, cfg.run(ctx, cmd))
		},
	}
	own = addOwn(cmd, cfg.table())
	completeFlag(cmd, "topic", cobra.NoFileCompletions) // it makes them
	return cmd
}

// check reports what is wrong with the settings. named is what has set each.
func (c *devConfig) check(cmd *cobra.Command, named func(string) string) (err error) {
	if !isLoopback(hostOf(c.listen)) {
		return usagef(cmd, "%s %s: others can reach this address; pawl serve has users and TLS for that", named("listen"), c.listen)
	}
	c.settings, err = brokerSettings(cmd, c.set, named)
	return err
}

// run runs the broker until ctx ends.
func (c *devConfig) run(ctx context.Context, cmd *cobra.Command) (err error) {
	dir, err := makeTempDir("dev")
	if err != nil {
		return fmt.Errorf("make a directory for the broker: %w", err)
	}
	defer func() { err = errors.Join(err, dir.remove()) }()
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: c.level}))
	b, err := broker.Open(filepath.Join(dir.path, "data"), broker.Config{Listen: c.listen, Settings: c.settings, Unsynced: true, Logger: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	a, err := kafka.NewAdmin(kafka.Config{Cluster: b.Cluster(), Logger: log})
	if err != nil {
		return err
	}
	defer a.Close()
	for _, spec := range c.topics {
		if _, err := a.CreateTopic(ctx, spec); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(cmd.OutOrStdout(), "listening   %s\nexport      PAWL_BROKERS=%s\n", b.ListenAddr(), b.Addr()); err != nil {
		return fmt.Errorf("print the address: %w", err)
	}
	if _, err := fmt.Fprintln(cmd.ErrOrStderr(), "nothing survives this broker: its topics are gone when it ends (pawl serve keeps them)"); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-b.Done():
		return b.Err()
	}
}
