package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/admin"
	"github.com/pawlstream/pawl/messaging"
)

func newAppCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "app",
		Short: "Look into applications: their processes, topics and shards",
		Args:  onlyCommands,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newAppListCommand(), newAppDescribeCommand(), newAppTopologyCommand(), newAppPauseCommand(true), newAppPauseCommand(false), newAppLogLevelCommand(), newAppResetCommand())
	return cmd
}

// appRow is an application in a list, or a consumer of one that works on a
// queue.
type appRow struct {
	Application string `json:"application"`
	Consumer    string `json:"consumer,omitempty"` // of a queue
	Processes   int    `json:"processes"`
	Shards      int    `json:"shards"`               // that the group has assigned
	Partitions  int    `json:"partitions,omitempty"` // likewise, of a queue
}

func newAppListCommand() *cobra.Command {
	var o *operation
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the applications that run on a cluster",
		Args:  noArguments,
		RunE: func(*cobra.Command, []string) error {
			return o.run(func(ctx context.Context, c asked) error {
				groups, err := consumer.Applications(ctx, c.config.Cluster)
				if err != nil {
					return err
				}
				rows := []appRow{}
				for _, group := range groups {
					row, err := newAppRow(ctx, c, group)
					if err != nil {
						return err
					}
					rows = append(rows, row)
				}
				return o.document(rows, func(t *table) {
					t.row("APPLICATION", "CONSUMER", "PROCESSES", "SHARDS", "PARTITIONS")
					for _, r := range rows {
						if r.Consumer != "" {
							t.row(r.Application, r.Consumer, r.Processes, "-", r.Partitions)
						} else {
							t.row(r.Application, "-", r.Processes, r.Shards, "-")
						}
					}
				})
			})
		},
	}
	o = newOperation(cmd)
	return cmd
}

// newAppRow asks a group. The name of a queue's has a dot in it, and no
// application's has.
func newAppRow(ctx context.Context, c asked, group string) (appRow, error) {
	name, worker, isQueue := strings.Cut(group, ".")
	row := appRow{Application: name, Consumer: worker}
	if isQueue {
		members, err := messaging.Members(ctx, c.config.Cluster, name, worker)
		for _, m := range members {
			row.Partitions += len(m.Partitions)
		}
		row.Processes = len(members)
		return row, err
	}
	members, err := consumer.Members(ctx, c.config.Cluster, name)
	for _, m := range members {
		row.Shards += len(m.Shards)
	}
	row.Processes = len(members)
	return row, err
}

// processRow is a process of an application.
type processRow struct {
	Instance string       `json:"instance"`
	Admin    string       `json:"admin,omitempty"`
	Version  string       `json:"version,omitempty"`
	Ready    bool         `json:"ready"`
	Paused   bool         `json:"paused"`
	Shards   []string     `json:"shards"`
	Queue    *admin.Queue `json:"queue,omitempty"`   // that it works on
	Reasons  []string     `json:"reasons,omitempty"` // why it is not ready, or can't be asked
}

func newAppDescribeCommand() *cobra.Command {
	var p *processes
	cmd := &cobra.Command{
		Use:   "describe",
		Short: "Show the processes of an application, and the shards or the partitions of a queue that each has",
		Example: `  pawl app describe --application counter --brokers kafka:9092
  pawl app describe --application shop --consumer mailer --brokers kafka:9092
  pawl app describe --state-dir /var/lib/counter
  pawl app describe --admin 127.0.0.1:8080 -o json`,
		Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			return p.run(func(ctx context.Context, all []runningProcess) error {
				answers, err := askAll(ctx, p, all, func(ctx context.Context, c admin.Client) (admin.App, error) { return c.App(ctx) })
				if err != nil {
					return err
				}
				var rows []processRow
				for _, a := range answers {
					row := processRow{Instance: cmp.Or(a.said.Instance, a.Instance, a.Address), Queue: a.said.Queue, Admin: a.Address, Version: a.said.Version, Ready: a.said.Ready, Paused: a.said.Paused, Shards: a.said.Shards, Reasons: a.said.Unready}
					if a.err != nil {
						row.Shards, row.Reasons = append([]string{}, a.shards...), []string{a.err.Error()}
					}
					rows = append(rows, row)
				}
				return p.o.document(rows, func(t *table) {
					what := "SHARDS"
					if slices.ContainsFunc(rows, func(r processRow) bool { return r.Queue != nil }) {
						what = "PARTITIONS"
					}
					t.row("INSTANCE", "ADMIN", "READY", what, "WHY NOT")
					for _, r := range rows {
						ready, n := yesNo(r.Ready), len(r.Shards)
						if r.Paused {
							ready += ", paused"
						}
						if r.Queue != nil {
							n = len(r.Queue.Partitions)
						}
						t.row(r.Instance, r.Admin, ready, n, strings.Join(whyNot(r, time.Now()), "; "))
					}
					showQueues(t, rows, time.Now())
				})
			})
		},
	}
	p = newProcesses(cmd)
	return cmd
}

// showQueues prints the partitions of queues, with what keeps each from going
// on.
func showQueues(t *table, rows []processRow, now time.Time) {
	begun := false
	for _, r := range rows {
		if r.Queue == nil {
			continue
		}
		if !begun {
			begun = true
			t.line("")
			t.row("INSTANCE", "PARTITION", "PHASE", "COMMITTED", "LAG", "IN FLIGHT", "UNSETTLED", "DELAYED", "HELD", "OLDEST", "WHY NOT")
		}
		for _, p := range r.Queue.Partitions {
			t.row(r.Instance, fmt.Sprintf("%s-%d", r.Queue.Topic, p.Partition), p.Phase, p.Committed, known(p.Lag), p.InFlight, p.Backlog, p.Delayed, p.Held, oldestOf(p, now), whyOf(p))
		}
	}
}

// whyNot says what keeps a process from its work: also a breaker that is open,
// for how long, and with what handlers fail, before it makes the process unready.
func whyNot(r processRow, now time.Time) []string {
	q := r.Queue
	if q == nil || q.BreakerOpen.IsZero() || slices.ContainsFunc(r.Reasons, func(s string) bool { return strings.Contains(s, "circuit breaker") }) {
		return r.Reasons
	}
	s := fmt.Sprintf("the circuit breaker is open for %v", age(now, q.BreakerOpen).Round(time.Second))
	if q.BreakerError != "" {
		s += ", as handlers fail: " + q.BreakerError
	}
	return append(slices.Clip(r.Reasons), s)
}

// oldestOf says which message holds a partition's committed offset back, and
// since when the process has it.
func oldestOf(p admin.QueuePartition, now time.Time) string {
	if p.Oldest == nil {
		return ""
	}
	s := fmt.Sprintf("%d, attempt %d", p.Oldest.Offset, p.Oldest.Attempt)
	if !p.Oldest.Since.IsZero() {
		s += fmt.Sprintf(", here for %v", age(now, p.Oldest.Since).Round(time.Second))
	}
	if !p.Oldest.Handed.IsZero() {
		s += fmt.Sprintf(", in a handler for %v", age(now, p.Oldest.Handed).Round(time.Second))
	}
	return s
}

func whyOf(p admin.QueuePartition) string {
	var why []string
	if p.Reason != "" {
		why = append(why, p.Reason)
	}
	if p.Full {
		why = append(why, "a limit of unsettled messages is reached")
	}
	return strings.Join(why, "; ")
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func newAppTopologyCommand() *cobra.Command {
	var p *processes
	cmd := &cobra.Command{
		Use:   "topology",
		Short: "Show what an application consumes, keeps and publishes",
		Args:  noArguments,
		RunE: func(*cobra.Command, []string) error {
			return p.run(func(ctx context.Context, all []runningProcess) error {
				answers, err := askAll(ctx, p, all, func(ctx context.Context, c admin.Client) (admin.App, error) { return c.App(ctx) })
				if err != nil {
					return err
				}
				i := slices.IndexFunc(answers, func(a answer[admin.App]) bool { return a.err == nil })
				sets := answers[i].said.Sets
				for _, a := range answers { // while a new version is rolled out they may differ
					if a.err == nil && fmt.Sprint(a.said.Sets) != fmt.Sprint(sets) {
						fmt.Fprintf(p.o.cmd.ErrOrStderr(), "pawl: %s has another topology than %s, which is shown\n", printable(a.said.Instance), printable(answers[i].said.Instance))
					}
				}
				return p.o.document(sets, func(t *table) {
					t.row("SET", "CONSUMES", "CHANGELOG", "DEAD LETTERS", "PUBLISHES TO")
					for _, s := range sets {
						t.row(s.Name, strings.Join(s.Topics, ", "), s.Changelog, s.DeadLetters, strings.Join(s.Outputs, ", "))
					}
				})
			})
		},
	}
	p = newProcesses(cmd)
	return cmd
}

// pauseWords are what is said of a pause and of its end.
func pauseWords(pause bool) (verb, short, done string) {
	if pause {
		return "pause", "Let shards finish what is open, and wait", "paused"
	}
	return "resume", "Let shards that were paused go on", "resumed"
}

func newAppPauseCommand(pause bool) *cobra.Command {
	verb, short, done := pauseWords(pause)
	var p *processes
	cmd := &cobra.Command{
		Use:   verb,
		Short: short,
		Long: short + `: those of all processes that the flags name. A pause lasts until it is
resumed, or the process ends; shards that move to a process that is not paused go
on there.`,
		Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			return p.run(func(ctx context.Context, all []runningProcess) error {
				answers, err := askAll(ctx, p, all, func(ctx context.Context, c admin.Client) (admin.App, error) {
					if err := c.Pause(ctx, "", pause); err != nil {
						return admin.App{}, err
					}
					return c.App(ctx)
				})
				if err != nil {
					return err
				}
				n, failed, what := 0, 0, "shard"
				for _, a := range answers {
					if a.err != nil {
						failed++
						continue
					}
					n += len(a.said.Shards)
					if q := a.said.Queue; q != nil {
						n, what = n+len(q.Partitions), "partition"
					}
				}
				fmt.Fprintf(p.o.cmd.OutOrStdout(), "%s: %s in %s\n", done, count(int64(n), what), countOf(int64(len(answers)-failed), "process", "processes"))
				if failed > 0 {
					return fmt.Errorf("%s did not answer, and %s not %s", countOf(int64(failed), "process", "processes"), isAre(failed), done)
				}
				return nil
			})
		},
	}
	p = newProcesses(cmd)
	return cmd
}

func newAppLogLevelCommand() *cobra.Command {
	var p *processes
	cmd := &cobra.Command{
		Use:   "log-level debug|info|warn|error",
		Short: "Set the least level that processes log, until they end",

		ValidArgsFunction: oneOf(fixed("debug", "info", "warn", "error")),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains([]string{"debug", "info", "warn", "error"}, args[0]) {
				return usagef(cmd, "which level? Name debug, info, warn or error")
			}
			return p.run(func(ctx context.Context, all []runningProcess) error {
				answers, err := askAll(ctx, p, all, func(ctx context.Context, c admin.Client) (bool, error) {
					return true, c.SetLevel(ctx, args[0])
				})
				if err != nil {
					return err
				}
				set := 0
				for _, a := range answers {
					if a.err == nil {
						set++
					}
				}
				fmt.Fprintf(p.o.cmd.OutOrStdout(), "level %s: set in %s\n", args[0], countOf(int64(set), "process", "processes"))
				if set < len(answers) {
					return fmt.Errorf("%s did not answer", countOf(int64(len(answers)-set), "process", "processes"))
				}
				return nil
			})
		},
	}
	p = newProcesses(cmd)
	return cmd
}

func isAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// countOf is count for a noun with a plural of its own.
func countOf(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return thousands(n) + " " + many
}

// errNoShard is of a command that was told no shard.
var errNoShard = errors.New("which shard? Name one, such as orders-003")
