package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/broker"
	"github.com/pawlstream/pawl/internal/kafka"
)

// devConfig is what the flags of dev say.
type devConfig struct {
	listen string
	topics []string
	set    []string
	level  slog.Level

	specs    []kafka.TopicSpec
	settings map[string]string
}

func newDevCommand() *cobra.Command {
	var cfg devConfig
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a broker to try things on: nothing survives it",
		Long: `Dev runs a broker on a port of this machine, for as long as the command runs:
the one that pawl serve runs, on a directory that is deleted when it ends. Any
Kafka client and tool can use it. The directory of one that was killed is deleted
by the next. For data that are to be kept, see pawl serve.`,
		Example: `  pawl dev --topic orders:3 --topic totals
  pawl dev --listen 127.0.0.1:0`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.check(cmd); err != nil {
				return err
			}
			ctx, stop := untilSignal(cmd)
			defer stop()
			return ending(ctx, cfg.run(ctx, cmd))
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.listen, "listen", "127.0.0.1:9092", "the HOST:PORT to listen on, of this machine alone; port 0 is a free one")
	f.StringArrayVar(&cfg.topics, "topic", nil, "create a topic, NAME or NAME:PARTITIONS; again for another")
	f.StringArrayVar(&cfg.set, "set", nil, "a setting of the broker by Kafka's name, NAME=VALUE; again for another")
	cfg.level = slog.LevelWarn
	f.TextVar(&cfg.level, "log-level", slog.LevelWarn, "least level that is logged: debug, info, warn or error")
	return cmd
}

func (c *devConfig) check(cmd *cobra.Command) (err error) {
	host, port, splitErr := net.SplitHostPort(c.listen)
	switch {
	case splitErr != nil || port == "":
		return usagef(cmd, "--listen %q: want HOST:PORT, such as 127.0.0.1:9092", c.listen)
	case !isLoopback(host):
		return usagef(cmd, "--listen %s: others can reach this address; pawl serve has users and TLS for that", c.listen)
	}
	if c.settings, err = settingsOf(cmd, "set", c.set); err != nil {
		return err
	}
	for _, t := range c.topics {
		name, number, several := strings.Cut(t, ":")
		partitions := uint64(1)
		if several {
			if partitions, err = strconv.ParseUint(number, 10, 16); err != nil || partitions == 0 {
				return usagef(cmd, "--topic %q: want NAME or NAME:PARTITIONS", t)
			}
		}
		if name == "" {
			return usagef(cmd, "--topic %q: want NAME or NAME:PARTITIONS", t)
		}
		c.specs = append(c.specs, kafka.TopicSpec{Name: name, Partitions: int(partitions)})
	}
	return nil
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
	for _, spec := range c.specs {
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
