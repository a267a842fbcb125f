package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func newShardCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "shard",
		Short: "Look at shards: where they run, how far they are, and why not",
		Args:  onlyCommands,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newShardListCommand(), newShardDescribeCommand(), newShardPauseCommand(true), newShardPauseCommand(false))
	return cmd
}

func newShardListCommand() *cobra.Command {
	var p *processes
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the shards of an application, with owner, phase and lag",
		Args:  noArguments,
		RunE: func(*cobra.Command, []string) error {
			return p.run(func(ctx context.Context, all []runningProcess) error {
				rows, err := p.shardRows(ctx, all)
				if err != nil {
					return err
				}
				now := time.Now()
				return p.o.document(rows, func(t *table) {
					t.row("SHARD", "OWNER", "PHASE", "LAG", "BEHIND", "STATE", "LAST COMMIT", "WHY")
					for _, r := range rows {
						t.row(r.ID, r.Owner, r.phase(), lagText(r.Lag), behind(r.LagSeconds), sizeOfText(r.Bytes), ago(r.LastCommit, now), r.why())
					}
				})
			})
		},
	}
	p = newProcesses(cmd)
	return cmd
}

// phase is the shard's phase, and whether it is paused.
func (r shardRow) phase() string {
	if r.Paused {
		return r.Phase + ", paused"
	}
	return r.Phase
}

// why says why a shard does not run, and how far a restore is.
func (r shardRow) why() string {
	var why []string
	if r.Reason != "" {
		why = append(why, r.Reason)
	}
	if r.Restore != nil {
		left := ""
		if r.Restore.Seconds > 0 {
			left = fmt.Sprintf(", about %v left", time.Duration(r.Restore.Seconds*float64(time.Second)).Round(time.Second))
		}
		why = append(why, fmt.Sprintf("restored %s of %s%s", thousands(r.Restore.Next), thousands(r.Restore.End), left))
	}
	if r.Busy != nil && r.Busy.Stack != "" {
		why = append(why, fmt.Sprintf("stuck in %s at %s", r.Busy.Name, r.Busy.Message))
	}
	return strings.Join(why, "; ")
}

// behind is a lag in time.
func behind(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(100 * time.Millisecond).String()
}

// lagText shows a lag, which nobody knows of a shard that has not read yet.
func lagText(lag int64) string {
	if lag < 0 {
		return "-"
	}
	return thousands(lag)
}

// ago is how long a time is over.
func ago(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return age(now, t).Round(time.Second).String() + " ago"
}

// sizeOfText is a size that a person reads.
func sizeOfText(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	size, name := float64(n), ""
	for _, name = range []string{"KiB", "MiB", "GiB", "TiB"} {
		if size /= unit; size < unit {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", size, name)
}

func newShardDescribeCommand() *cobra.Command {
	var p *processes
	cmd := &cobra.Command{
		Use:   "describe SHARD",
		Short: "Show all there is to know of a shard",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errNoShard, cmd}
			}
			return p.run(func(ctx context.Context, all []runningProcess) error {
				rows, err := p.shardRows(ctx, all)
				if err != nil {
					return err
				}
				for _, r := range rows {
					if r.ID == args[0] {
						return p.o.document(r, func(t *table) { r.show(t, time.Now()) })
					}
				}
				return fmt.Errorf("no process that answers has shard %s", printable(args[0]))
			})
		},
	}
	p = newProcesses(cmd)
	cmd.ValidArgsFunction = oneOf(p.shardNames)
	return cmd
}

// show prints all of a shard.
func (r shardRow) show(t *table, now time.Time) {
	line := func(name string, value any) { t.row(name, value) }
	line("shard", r.ID)
	line("owner", r.Owner)
	line("phase", r.phase())
	if !r.Since.IsZero() {
		line("since", r.Since.UTC().Format(time.RFC3339))
	}
	if why := r.why(); why != "" {
		line("why", why)
	}
	if r.Lag < 0 {
		line("lag", "unknown")
	} else {
		line("lag", fmt.Sprintf("%s, %s behind", count(r.Lag, "message"), behind(r.LagSeconds)))
	}
	for _, o := range r.Offsets {
		line("committed", fmt.Sprintf("%s-%d: %d", o.Topic, o.Partition, o.Next))
	}
	line("changelog", r.Changelog)
	line("state", sizeOfText(r.Bytes))
	line("commits", thousands(r.Commits))
	line("last commit", ago(r.LastCommit, now))
	if r.Busy != nil {
		line("runs", strings.TrimSpace(fmt.Sprintf("%s for %v %s", r.Busy.Name, age(now, r.Busy.Since).Round(time.Millisecond), r.Busy.Message)))
		for frame := range strings.Lines(r.Busy.Stack) {
			t.line("  %s", strings.TrimRight(frame, "\n"))
		}
	}
}

func newShardPauseCommand(pause bool) *cobra.Command {
	verb, short, done := pauseWords(pause)
	var p *processes
	cmd := &cobra.Command{
		Use:   verb + " SHARD",
		Short: short,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errNoShard, cmd}
			}
			return p.run(func(ctx context.Context, all []runningProcess) error {
				owner, err := p.owner(ctx, all, args[0])
				if err != nil {
					return err
				}
				if err := owner.Pause(ctx, args[0], pause); err != nil {
					return err
				}
				_, err = fmt.Fprintf(p.o.cmd.OutOrStdout(), "%s: %s\n", done, printable(args[0]))
				return err
			})
		},
	}
	p = newProcesses(cmd)
	cmd.ValidArgsFunction = oneOf(p.shardNames)
	return cmd
}

// age is how long ago something was that another machine tells of, whose clock may
// be ahead of this one's.
func age(now, t time.Time) time.Duration { return max(0, now.Sub(t)) }
