package cli

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
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
	"github.com/pawlstream/pawl/internal/config"
)

// serveConfig is what the flags of serve say.
type serveConfig struct {
	dir       string
	listen    string
	advertise string
	admin     string

	cert, key, clientCA string
	users               string
	insecure            bool

	set       []string
	unsynced  bool
	memory    int64
	freeSpace int64

	level  slog.Level
	format string
}

func newServeCommand() *cobra.Command {
	var cfg serveConfig
	cmd := &cobra.Command{
		Use:   "serve --dir DIR",
		Short: "Run the broker: one node, one directory, the Kafka protocol",
		Long: `Runs a durable broker on one node, which any Kafka client and tool can use.
What it has acknowledged is on disk, and survives kill -9 and power cuts.

It listens on loopback unless told otherwise. On another address whoever
connects must say who they are (--users, or --tls-client-ca), unless --insecure
lets everybody in. The admin port has /healthz, /readyz, /metrics and /v1/broker.

SIGTERM and SIGINT stop it; a second signal ends it at once, which loses nothing
that was acknowledged either.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cfg.brokerConfig(cmd)
			if err != nil {
				return err
			}
			return cfg.command(cmd, c)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.dir, "dir", "", "the directory of the data; it is made if it isn't there")
	f.StringVar(&cfg.listen, "listen", "127.0.0.1:9092", "the HOST:PORT to listen on")
	f.StringVar(&cfg.advertise, "advertise", "", "the HOST:PORT that clients are told to connect to (default: the one that is listened on)")
	f.StringVar(&cfg.admin, "admin", "127.0.0.1:0", "the HOST:PORT of the admin API; port 0 is a free one")
	f.StringVar(&cfg.cert, "tls-cert", "", "speak TLS, with the certificate in this file")
	f.StringVar(&cfg.key, "tls-key", "", "the file of the certificate's key")
	f.StringVar(&cfg.clientCA, "tls-client-ca", "", "let in only clients whose certificate is signed by one in this file")
	f.StringVar(&cfg.users, "users", "", "a file of who may connect, by SASL PLAIN or SCRAM: a line NAME:PASSWORD each")
	f.BoolVar(&cfg.insecure, "insecure", false, "let everybody in who reaches an address that is not loopback")
	f.StringArrayVar(&cfg.set, "set", nil, "a setting of the broker by Kafka's name, such as log.retention.ms=86400000; again for another")
	f.BoolVar(&cfg.unsynced, "unsynced", false, "acknowledge what is not synced to disk yet: a power cut loses the last moments of it")
	cfg.memory, cfg.freeSpace = 512<<20, 256<<20
	f.Var(sizeFlag(&cfg.memory, "512MiB"), "memory", "bound of what requests, answers and caches take")
	f.Var(sizeFlag(&cfg.freeSpace, "256MiB"), "free-space", "space on the disk below which writes are refused")
	f.TextVar(&cfg.level, "log-level", slog.LevelInfo, "least level that is logged: debug, info, warn or error")
	f.StringVar(&cfg.format, "log-format", "text", "format of the log, which goes to standard error: text or json")
	return cmd
}

// textFlag is a flag whose text a value of a program's settings takes.
type textFlag struct {
	config.Value
	shown string // the default
}

func (f *textFlag) String() string { return f.shown }

func (f *textFlag) Type() string { return f.Form() }

func (f *textFlag) Set(text string) error {
	f.shown = text
	return f.Value.Set(text)
}

func sizeFlag(p *int64, shown string) *textFlag { return &textFlag{config.Bytes(p), shown} }

// brokerConfig is how the flags say that the broker runs, or what is wrong with
// them.
func (c serveConfig) brokerConfig(cmd *cobra.Command) (b broker.Config, err error) {
	host, port, splitErr := net.SplitHostPort(c.listen)
	switch {
	case c.dir == "":
		return b, usagef(cmd, "--dir is not set: name the directory of the broker's data")
	case splitErr != nil || port == "":
		return b, usagef(cmd, "--listen %q: want HOST:PORT, such as 127.0.0.1:9092", c.listen)
	case c.advertise != "" && !connectable(c.advertise):
		return b, usagef(cmd, "--advertise %q: want a HOST:PORT that a client can connect to", c.advertise)
	case (c.cert == "") != (c.key == ""):
		return b, usagef(cmd, "--tls-cert and --tls-key go together, and one of them is not set")
	case c.clientCA != "" && c.cert == "":
		return b, usagef(cmd, "--tls-client-ca needs --tls-cert and --tls-key")
	case c.users == "" && c.clientCA == "" && !c.insecure && !isLoopback(host):
		return b, usagef(cmd, "--listen %s: others can reach this address, and nobody has to say who they are: set --users or --tls-client-ca, or --insecure to let everybody in", c.listen)
	case c.format != "text" && c.format != "json":
		return b, usagef(cmd, "--log-format %q: want text or json", c.format)
	}
	b = broker.Config{
		Listen: c.listen, Advertise: c.advertise, Unsynced: c.unsynced, Memory: c.memory, FreeSpace: c.freeSpace,
		Insecure: c.insecure || c.clientCA != "", Settings: make(map[string]string),
	}
	for _, s := range c.set {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return b, usagef(cmd, "--set %q: want NAME=VALUE", s)
		}
		b.Settings[name] = value
	}
	if b.TLS, err = c.tls(); err != nil {
		return b, err
	}
	if c.users != "" {
		if b.Users, err = readUsers(c.users); err != nil {
			return b, fmt.Errorf("--users: %w", err)
		}
	}
	return b, nil
}

// tls reads the certificates, and returns nil if there are none.
func (c serveConfig) tls() (*tls.Config, error) {
	if c.cert == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert %s with --tls-key %s: %w", c.cert, c.key, err)
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if c.clientCA != "" {
		pem, err := os.ReadFile(c.clientCA)
		if err != nil {
			return nil, fmt.Errorf("--tls-client-ca: %w", err)
		}
		t.ClientCAs, t.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !t.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--tls-client-ca: %s holds no certificate in PEM form", c.clientCA)
		}
	}
	return t, nil
}

// usersMax is the size of the longest file of users that is read.
const usersMax = 1 << 20

// readUsers reads who may connect: a line NAME:PASSWORD each. Empty lines, and
// those that begin with #, say nothing. No error shows a password.
func readUsers(name string) ([]broker.User, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, usersMax+1))
	if err != nil {
		return nil, err
	}
	if len(text) > usersMax {
		return nil, fmt.Errorf("%s is longer than %d bytes", name, usersMax)
	}
	var users []broker.User
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimRight(line, "\r\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		user, password, ok := strings.Cut(line, ":")
		if !ok || user == "" || password == "" {
			return nil, fmt.Errorf("%s line %d: want NAME:PASSWORD", name, number)
		}
		users = append(users, broker.User{Name: user, Password: password})
	}
	if len(users) == 0 {
		return nil, fmt.Errorf("%s names nobody", name)
	}
	return users, nil
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
			Broker:   func() any { return b.Snapshot() },
			Gatherer: registry,
			Logger:   log,
			Backup:   b.Backup,
			Secret:   access.Secret,
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
