package pawl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/config"
)

// The exit statuses.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2 // the program was called wrongly
)

// body is what a program runs: consumers, or the worker of a queue.
type body interface {
	table() []config.Setting // where the settings go
	load(Options) error      // fills the settings in
	general() general        // once they are loaded
	serve(context.Context, *program) error
}

// general are the settings that every program has.
type general struct {
	process
	memory int64 // the budget that the garbage collector is tuned to
}

// program is one run of a body as a program.
type program struct {
	Options
	body body
	owns bool // the process is the program's alone

	general
	log   *slog.Logger
	level slog.LevelVar // of the log: the admin API can change it
}

// run runs the program, and returns its exit status.
func (p *program) run(ctx context.Context) int {
	err := p.body.load(p.Options)
	p.general = p.body.general()
	switch {
	case errors.Is(err, config.ErrHelp):
		fmt.Fprintf(p.Stdout, "Usage: %s [FLAG…]\n\nEach flag has a variable and a key in %s: %s and %s for %s. A flag wins\nover its variable, and that over the file.\n\n%s", p.name(), config.DefaultFile, "PAWL_APPLICATION", "application", "--application", config.Usage(p.body.table()))
		return exitOK
	case err != nil:
		p.complain(err)
		fmt.Fprintf(p.Stderr, "%s: --help lists the flags\n", p.name())
		return exitUsage
	case p.version:
		fmt.Fprintf(p.Stdout, "%s: Pawl %s, %s, %s/%s\n", p.name(), consumer.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return exitOK
	}
	if format, wanted := p.loaded.PrintWanted(); wanted {
		if err := p.loaded.Print(p.Stdout, format); err != nil {
			p.complain(err)
			return exitError
		}
		return exitOK
	}
	p.log = p.logger()
	if p.owns {
		slog.SetDefault(p.log)
		defer TuneGC(p.memory)()
	}
	stop := context.AfterFunc(ctx, func() {
		p.log.Info("stopping"+p.hint(), "reason", context.Cause(ctx))
	})
	defer stop()
	err = p.body.serve(ctx, p)
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
	p.level.Set(p.logLevel)
	o := &slog.HandlerOptions{Level: &p.level}
	if p.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(p.Stderr, o))
	}
	return slog.New(slog.NewTextHandler(p.Stderr, o))
}

// warnOfPlainPasswords says who else learns of a password.
func (p *program) warnOfPlainPasswords(c cluster.Cluster) {
	if c.SASL.Mechanism != "" && c.TLS == nil {
		p.log.Warn("SASL without TLS: the network between here and the brokers sees who logs in and every message", "cluster", c)
	}
}

// newRegistry returns the metrics of the process itself.
func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}
