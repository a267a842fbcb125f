package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	program "github.com/pawlstream/pawl" // the tests have a function pawl
	"github.com/pawlstream/pawl/broker"
	"github.com/pawlstream/pawl/internal/admin"
)

func newServeCommand() *cobra.Command {
	var cfg serveConfig
	cmd := &cobra.Command{
		Use:   "serve --dir DIR",
		Short: "Run the broker: one node, one directory, the Kafka protocol",
		Long: `Runs a durable broker on one node, which any Kafka client and tool can use.
What it has acknowledged is on disk, and survives kill -9 and power cuts.

It listens on loopback unless told otherwise. On another address whoever
connects must say who they are (--users, or --tls-client-ca), unless --insecure
lets everybody in. The admin port has /healthz, /readyz, /metrics and /v1/broker;
on another address whoever asks must know --admin-token-file or PAWL_ADMIN_TOKEN.

Each flag has a variable and a key in pawl.yaml: PAWL_FREE_SPACE and free-space
for --free-space. A flag wins over its variable, and that over the file.

SIGTERM and SIGINT stop it; a second signal ends it at once, which loses nothing
that was acknowledged either.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cfg.load(cmd, os.Environ())
			if err != nil {
				return err
			}
			return cfg.command(cmd, c)
		},
	}
	cfg.add(cmd)
	return cmd
}

// errStopping says why a broker that was told to stop is not ready.
var errStopping = errors.New("stopping")

// command runs the broker as the program's command: with its signals.
func (c serveConfig) command(cmd *cobra.Command, b broker.Config) error {
	options := &slog.HandlerOptions{Level: c.level}
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), options))
	if c.format == "json" {
		log = slog.New(slog.NewJSONHandler(cmd.ErrOrStderr(), options))
	}
	b.Logger = log
	defer program.TuneGC(c.memory)()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stop := onSignals(func() {
		log.Info("stopping: a second signal exits at once")
		cancel()
	}, func(s os.Signal) {
		log.Warn("exiting at once", "signal", s.String())
	})
	defer stop()
	return c.serve(ctx, cmd.OutOrStdout(), log, b)
}

// serve runs the broker until ctx ends, or the broker stops by itself.
func (c serveConfig) serve(ctx context.Context, stdout io.Writer, log *slog.Logger, cfg broker.Config) (err error) {
	b, err := broker.Open(c.dir, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	stopAPI, url, err := c.serveAPI(ctx, b, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopAPI()) }()
	if _, err := fmt.Fprintf(stdout, "data        %s\nlistening   %s (%s)\nadvertised  %s\nadmin       %s\n", c.dir, b.ListenAddr(), c.security(cfg), b.Addr(), url); err != nil {
		return fmt.Errorf("print the addresses: %w", err)
	}
	if len(cfg.Users) > 0 && cfg.TLS == nil && !isLoopback(hostOf(b.ListenAddr())) {
		log.Warn("users log in without TLS: the network between here and the clients sees every message, and with SASL PLAIN the passwords")
	}
	var checked sync.WaitGroup
	defer checked.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	checked.Go(func() {
		host, err := os.Hostname()
		if err != nil {
			host = ""
		}
		if why := unreachable(ctx, b.Addr(), host); why != "" && ctx.Err() == nil {
			log.Warn("clients may not reach the advertised address: set --advertise", "advertised", b.Addr(), "reason", why)
		}
	})
	select {
	case <-ctx.Done():
		return nil
	case <-b.Done():
		return b.Err()
	}
}

// security says in words who may connect and how.
func (c serveConfig) security(b broker.Config) string {
	var words []string
	if b.TLS != nil {
		words = append(words, "TLS")
	} else {
		words = append(words, "no TLS")
	}
	if c.clientCA != "" {
		words = append(words, "client certificates")
	}
	switch n := len(b.Users); {
	case n == 1:
		words = append(words, "1 user")
	case n > 1:
		words = append(words, fmt.Sprintf("%d users", n))
	case c.clientCA == "":
		words = append(words, "no authentication")
	}
	return strings.Join(words, ", ")
}

// serveAPI serves the admin port, and says in the broker's directory where it
// is. It is there until stop, so also while the broker drains.
func (c serveConfig) serveAPI(ctx context.Context, b *broker.Broker, log *slog.Logger) (stop func() error, url string, err error) {
	l, err := net.Listen("tcp", c.admin)
	if err != nil {
		return nil, "", fmt.Errorf("serve the admin API: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), b.Metrics())
	access := admin.Access{Address: l.Addr().String(), Secret: rand.Text()}
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	go func() { // which stop waits for
		served <- admin.Serve(serving, l, admin.Source{
			Ready: func() error {
				if ctx.Err() != nil {
					return errStopping
				}
				return b.Err()
			},
			Warnings: b.Warnings,
			Broker:   func() any { return b.Snapshot() },
			Gatherer: registry,
			Logger:   log,
			Backup:   b.Backup,
			Secret:   access.Secret,
			Token:    string(c.adminToken),
		})
	}()
	forget, err := access.Announce(c.dir)
	if err != nil {
		cancel()
		return nil, "", errors.Join(fmt.Errorf("say where the admin API is: %w", err), <-served)
	}
	return func() error {
		err := forget()
		cancel()
		return errors.Join(err, <-served)
	}, "http://" + access.Address, nil
}
