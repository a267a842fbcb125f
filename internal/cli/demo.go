package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/config"
	"github.com/pawlstream/pawl/internal/signals"
)

// demoConfig is what the flags of the demo say.
type demoConfig struct {
	kills       int
	brokerKills int
	seed        uint64
	rate        int
	input       string
	keep        bool
	dir         string
	output      string
	queue       bool

	cluster  cluster.Cluster // with brokers, if any are named
	childEnv []string        // in which a child reaches them
}

func newDemoCommand() *cobra.Command {
	var cfg demoConfig
	var at *clusterSettings
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch two processes being killed again and again, and nothing lost or counted twice",
		Long: `Runs examples/filestats, which keeps totals per path, per author and per
author and day of a real repository's history, in two processes. They are
killed with kill -9 again and again, in the middle of a transaction; every third
time the victim stays down, so that the other takes its shards over.

At the end everything that was committed is read from the broker, and the
stores are opened. Every message must have been counted once, and every total
must equal a count made from the input by other code.

With --queue the same input is a work queue. The handler of two processes fails
by a rule that the seed decides: some attempts must be made again, some messages
become dead letters. The processes are killed as they work; then the dead
letters are redriven to a handler that is repaired. At the end every message
must have been settled, and retried as often as the rule says.

Needs nothing installed: a durable broker runs in this process, unless --brokers,
a variable, a file of settings or --context names a Kafka: then it runs there, in
topics of its own, which it deletes at its end. With --broker-kills it runs in a process of its own, which is
killed too, and comes back with what is on its disk.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("seed") {
				cfg.seed = rand.Uint64N(1_000_000)
			}
			if err := cfg.load(cmd, at, os.Environ()); err != nil {
				return err
			}
			return cfg.command(cmd)
		},
	}
	at = addClusterOrOwn(cmd)
	f := cmd.Flags()
	f.IntVar(&cfg.kills, "kills", 5, "how often a process is killed")
	f.IntVar(&cfg.brokerKills, "broker-kills", 0, "how often the broker is killed")
	f.Uint64Var(&cfg.seed, "seed", 0, "decides when each kill comes and who is killed (default: another each time)")
	f.IntVar(&cfg.rate, "rate", 5000, "events fed a second; 0: as fast as it goes")
	f.StringVar(&cfg.input, "input", "", "a file of changes, one JSON object a line, plain or gzip; - for standard input (default: the history that is built in)")
	f.BoolVar(&cfg.keep, "keep", false, "on a Kafka: leave the run's topics there")
	f.StringVar(&cfg.dir, "dir", "", "keep stores, logs and the broker's data in this directory (default: a temporary one, which is removed)")
	f.StringVarP(&cfg.output, "output", "o", "text", "what is printed: text or json")
	completeFlag(cmd, "output", fixed("text", "json"))
	f.BoolVar(&cfg.queue, "queue", false, "work a queue, with retries and dead letters")
	cmd.AddCommand(newChildCommand(), newQueueChildCommand(), newBrokerChildCommand())
	return cmd
}

// load finishes what the flags say with the settings of the cluster.
func (c *demoConfig) load(cmd *cobra.Command, at *clusterSettings, env []string) error {
	where, loaded, err := at.loadOrOwn(env)
	if err != nil {
		return err
	}
	c.cluster, c.childEnv = where, config.WithoutSettings(env)
	if len(where.Brokers) > 0 {
		c.childEnv = loaded.ClusterEnv(env)
	}
	return c.check(cmd, loaded.Named("brokers"))
}

// check reports what is wrong with the flags. named is what has named brokers,
// if any are.
func (c *demoConfig) check(cmd *cobra.Command, named string) error {
	switch {
	case c.kills < 0:
		return usagef(cmd, "--kills %d: want 0 or more", c.kills)
	case c.brokerKills < 0:
		return usagef(cmd, "--broker-kills %d: want 0 or more", c.brokerKills)
	case c.brokerKills > 0 && len(c.cluster.Brokers) > 0:
		return usagef(cmd, "--broker-kills: the demo kills a broker of its own, and %s names others", named)
	case c.rate < 0:
		return usagef(cmd, "--rate %d: want events a second, or 0 for no limit", c.rate)
	case c.output != "text" && c.output != "json":
		return usagef(cmd, "--output %q: want text or json", c.output)
	case c.keep && len(c.cluster.Brokers) == 0:
		return usagef(cmd, "--keep: there is nothing to keep without --brokers, since the broker ends with the demo")
	}
	return nil
}

// command runs the demo, as the program's command: with its signals, and with
// its result printed.
func (c demoConfig) command(cmd *cobra.Command) error {
	stdout, stderr := cmd.OutOrStdout(), cmd.ErrOrStderr()
	progress := stdout
	if c.output == "json" {
		progress = stderr
	}
	v := newView(progress, os.Getenv)
	d, err := c.newRun(v)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	v.broken = cancel
	stop := onSignals(cancel, func(s os.Signal) {
		d.abandon()
		fmt.Fprintf(stderr, "second signal (%v): exiting at once\n", s)
	})
	defer stop()

	r, err := d.run(ctx, cmd.InOrStdin())
	if r == nil {
		return err
	}
	errs := []error{err, v.failed()}
	if c.output == "json" {
		errs = append(errs, r.writeJSON(stdout))
	} else {
		errs = append(errs, r.writeText(stdout))
	}
	if wrong := r.findings(); wrong.count > 0 {
		errs = append(errs, fmt.Errorf("%d differences (seed %d):\n%v", wrong.count, c.seed, wrong))
	}
	return errors.Join(errs...)
}

// demoRun is a run of a demo: run runs it, with its result if it came to one;
// abandon is for a parent that is about to exit.
type demoRun interface {
	run(ctx context.Context, stdin io.Reader) (outcome, error)
	abandon()
}

// outcome is the result of a demo.
type outcome interface {
	writeJSON(io.Writer) error
	writeText(io.Writer) error
	findings() findings
}

func (c demoConfig) newRun(v *view) (demoRun, error) {
	if c.queue {
		return newQueueDemo(c, v)
	}
	d, err := newDemo(c, v)
	return shardDemo{d}, err
}

// shardDemo is the demo of shards.
type shardDemo struct{ *demo }

func (s shardDemo) run(ctx context.Context, stdin io.Reader) (outcome, error) {
	r, err := s.demo.run(ctx, stdin)
	if r == nil {
		return nil, err
	}
	return r, err
}

func (r *result) findings() findings { return r.wrong }

// onSignals calls first on the first signal to stop, and second on another,
// upon which the process ends. stop ends that.
func onSignals(first func(), second func(os.Signal)) (stop func()) {
	came := make(chan os.Signal, 4)
	signal.Notify(came, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	// A pipe that nobody reads from any more must not end the process before it
	// has cleaned up. It is met as an error of the write; the signal says
	// nothing, since it also comes for a connection that a killed process had.
	unread := make(chan os.Signal, 1)
	signal.Notify(unread, syscall.SIGPIPE)
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var echo signals.Echo
		for asked := false; ; asked = true {
			select {
			case s := <-came:
				if !asked {
					echo.First(s, time.Now())
					first()
					continue
				}
				if echo.Hears(s, time.Now()) {
					continue
				}
				second(s)
				status := exitError
				if n, ok := s.(syscall.Signal); ok {
					status = 128 + int(n)
				}
				os.Exit(status)
			case <-end:
				return
			}
		}
	}()
	return func() {
		signal.Stop(came)
		signal.Stop(unread)
		close(end)
		<-ended
	}
}

// result is what a run comes to.
type result struct {
	Events      int64   `json:"events"`
	Added       int64   `json:"added"`
	Deleted     int64   `json:"deleted"`
	Paths       int     `json:"paths"`
	Authors     int     `json:"authors"`
	Days        int     `json:"days"`
	AuthorDays  int     `json:"author_days"`
	Kills       int     `json:"kills"`
	BrokerKills int     `json:"broker_kills"`
	Takeovers   int     `json:"takeovers"`
	Lost        int64   `json:"lost"`
	Duplicated  int64   `json:"duplicated"`
	Seconds     float64 `json:"seconds"`
	Verified    bool    `json:"verified"`
	Interrupted bool    `json:"interrupted,omitempty"`

	middle int // kills in the middle of a transaction
	want   totals
	wrong  findings
}

// fail adds what has gone wrong with the run itself.
func (r *result) fail(err error) {
	r.wrong.add("%v", err)
	r.Verified = false
}

func (r *result) writeJSON(w io.Writer) error {
	if err := json.NewEncoder(w).Encode(r); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}

// writeText prints the totals, beside those that were expected.
func (r *result) writeText(w io.Writer) error {
	sum := r.want.sum()
	rows := []struct {
		name      string
		got, want int64
	}{
		{"events", r.Events, sum.Events},
		{"lines added", r.Added, sum.Added},
		{"lines deleted", r.Deleted, sum.Deleted},
		{"paths", int64(r.Paths), int64(len(r.want.paths))},
		{"authors", int64(r.Authors), int64(len(r.want.authors))},
		{"days", int64(r.Days), int64(r.want.days())},
		{"authors' days", int64(r.AuthorDays), int64(len(r.want.authorDays))},
		{"lost", r.Lost, 0},
		{"duplicated", r.Duplicated, 0},
	}
	s := fmt.Sprintf("\n%-22s %12s %12s\n", "", "committed", "in the input")
	for _, row := range rows {
		s += fmt.Sprintf("%-22s %12s %12s\n", row.name, thousands(row.got), thousands(row.want))
	}
	s += fmt.Sprintf("%-22s %12d\n%-22s %12d\n%-22s %12d\n%-22s %12d\n%-22s %12.1f\n\n",
		"kills", r.Kills, "mid-transaction kills", r.middle, "kills of the broker", r.BrokerKills, "takeovers", r.Takeovers, "seconds", r.Seconds)
	switch {
	case r.Interrupted:
		s += "interrupted: the totals are those of what was consumed until then\n"
	case r.Verified:
		s += "verified: nothing is lost or duplicated; every total per path, per author, and per\nauthor and day, in the last output and in the stores, equals a count of the input\n"
	default:
		s += "NOT verified\n"
	}
	if _, err := io.WriteString(w, s); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}
