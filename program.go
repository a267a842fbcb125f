package pawl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/config"
	"github.com/pawlstream/pawl/internal/devbroker"
)

// The exit statuses.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2 // the program was called wrongly
)

// program is one run of consumers as a program.
type program struct {
	Options
	settings
	owns bool // the process is the program's alone

	log *slog.Logger
}

// run runs the program, and returns its exit status.
func (p *program) run(ctx context.Context, consumers []consumer.Consumer) int {
	switch err := p.settings.load(p.Options); {
	case errors.Is(err, config.ErrHelp):
		fmt.Fprintf(p.Stdout, "Usage: %s [FLAG…]\n\nEach flag has a variable: %s for %s. A flag wins over its variable.\n\n%s", p.name(), "PAWL_STATE_DIR", "--state-dir", config.Usage(p.settings.table()))
		return exitOK
	case err != nil:
		p.complain(err)
		fmt.Fprintf(p.Stderr, "%s: --help lists the flags\n", p.name())
		return exitUsage
	case p.version:
		fmt.Fprintf(p.Stdout, "%s: Pawl %s, %s, %s/%s\n", p.name(), consumer.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return exitOK
	}
	p.log = p.logger()
	p.Logger = p.log
	if p.owns {
		slog.SetDefault(p.log)
		defer TuneGC(p.Memory)()
	}
	stop := context.AfterFunc(ctx, func() {
		p.log.Info("stopping"+p.hint(), "reason", context.Cause(ctx))
	})
	defer stop()
	err := p.serve(ctx, consumers)
	var bad usageError
	switch {
	case err == nil, ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))):
		return exitOK
	case errors.As(err, &bad):
		p.complain(err)
		return exitUsage
	default:
		p.complain(err)
		return exitError
	}
}

// hint says what a second signal does, where this program takes signals.
func (p *program) hint() string {
	if p.owns {
		return ": a second signal exits at once"
	}
	return ""
}

// usageError is an error of how the program was called.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func (p *program) name() string { return strings.TrimSuffix(filepath.Base(p.Options.Name), ".exe") }

// complain says what is wrong, a line each.
func (p *program) complain(err error) {
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(p.Stderr, "%s: %s\n", p.name(), strings.TrimRight(line, "\n"))
	}
}

func (p *program) logger() *slog.Logger {
	o := &slog.HandlerOptions{Level: p.logLevel}
	if p.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(p.Stderr, o))
	}
	return slog.New(slog.NewTextHandler(p.Stderr, o))
}

// serve runs the consumers, with a broker if none is named, and the admin API
// beside them.
func (p *program) serve(ctx context.Context, consumers []consumer.Consumer) (err error) {
	if len(p.Cluster.Brokers) == 0 {
		stop, err := p.startBroker()
		if err != nil {
			return err
		}
		defer stop() // after everything that uses it
	}
	if p.Cluster.SASL.Mechanism != "" && p.Cluster.TLS == nil {
		p.log.Warn("SASL without TLS: the network between here and the brokers sees who logs in and every message", "cluster", p.Cluster)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	p.Registerer = registry
	app, err := consumer.New(p.Config, consumers...)
	if err != nil {
		return usageError{err}
	}
	port, err := openPort(ctx, p.admin, p.StateDir, app, registry, p.log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, port.close()) }()
	return app.Run(ctx)
}

// startBroker starts a broker within the process, and makes a state directory
// that lives as long unless one is named.
func (p *program) startBroker() (stop func(), err error) {
	broker, err := devbroker.Start(devbroker.Config{Listen: p.listen})
	if err != nil {
		return nil, err
	}
	p.Cluster = broker.Cluster()
	made := ""
	if p.StateDir == "" {
		if made, err = os.MkdirTemp("", "pawl-"+p.Application+"-"); err != nil {
			broker.Close()
			return nil, fmt.Errorf("make state directory: %w", err)
		}
		p.StateDir = made
	}
	p.log.Info("no brokers are named, so one runs within this process: what it holds ends with it", "listen", broker.Addr(), "state", p.StateDir)
	return func() {
		broker.Close()
		if made == "" {
			return
		}
		if err := os.RemoveAll(made); err != nil {
			p.log.Warn("state directory is not removed", "error", err)
		}
	}, nil
}
