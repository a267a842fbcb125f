package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/internal/kafka"
)

func newTopicCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "topic",
		Short: "Work with topics: create, list, describe, alter and delete them",
		Args:  onlyCommands,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTopicCreateCommand(), newTopicListCommand(), newTopicDescribeCommand(), newTopicAlterCommand(), newTopicDeleteCommand())
	return cmd
}

// topicResult is what became of a topic.
type topicResult struct {
	Topic  string `json:"topic"`
	Action string `json:"action"` // created, exists, altered, unchanged, deleted or missing
	DryRun bool   `json:"dry_run,omitempty"`
}

// results prints what became of topics.
func (o *operation) results(rs []topicResult) error {
	return o.document(rs, func(t *table) {
		for _, r := range rs {
			action := r.Action
			if r.DryRun && (action == "created" || action == "altered" || action == "deleted") {
				action = "would be " + action
			}
			t.line("topic %s %s", r.Topic, action)
		}
	})
}

func newTopicCreateCommand() *cobra.Command {
	var (
		o           *operation
		partitions  int
		replication int16
		set         []string
		ifMissing   bool
		dryRun      bool
	)
	cmd := &cobra.Command{
		Use:   "create TOPIC...",
		Short: "Create topics",

		ValidArgsFunction: cobra.NoFileCompletions, // they are new
		Example: `  pawl topic create orders --partitions 12 --set retention.ms=86400000
  pawl topic create customers --set cleanup.policy=compact --dry-run`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return usagef(cmd, "which topic? Name it")
			case cmd.Flags().Changed("partitions") && partitions < 1:
				return usagef(cmd, "--partitions %d: want 1 or more", partitions)
			case cmd.Flags().Changed("replication") && replication < 1:
				return usagef(cmd, "--replication %d: want 1 or more", replication)
			}
			if err := eachOnce(cmd, args); err != nil {
				return err
			}
			settings, err := settingsOf(cmd, "set", set)
			if err != nil {
				return err
			}
			return o.run(func(ctx context.Context, c asked) error {
				there, err := c.Topics(ctx, args...)
				if err != nil {
					return err
				}
				for _, name := range args {
					if _, ok := there[name]; ok && !ifMissing {
						return fmt.Errorf("topic %s exists already: nothing is done", name)
					}
				}
				var rs []topicResult
				for _, name := range args {
					r := topicResult{Topic: name, Action: "exists", DryRun: dryRun}
					spec := kafka.TopicSpec{Name: name, Partitions: partitions, Replication: replication, Settings: settings}
					_, exists := there[name]
					switch {
					case exists:
					case dryRun:
						r.Action = "created"
						err = c.ValidateTopic(ctx, spec)
					default:
						var created bool
						if created, err = c.CreateTopic(ctx, spec); created {
							r.Action = "created"
						}
					}
					if err != nil {
						return withDone(o, rs, err)
					}
					rs = append(rs, r)
				}
				return o.results(rs)
			})
		},
	}
	o = newOperation(cmd)
	f := cmd.Flags()
	f.IntVar(&partitions, "partitions", 0, "number of partitions (default: the broker's)")
	f.Int16Var(&replication, "replication", 0, "number of replicas of each (default: the broker's)")
	f.StringArrayVar(&set, "set", nil, "a setting by Kafka's name, NAME=VALUE; again for another")
	f.BoolVar(&ifMissing, "if-missing", false, "leave a topic as it is that exists already")
	f.BoolVar(&dryRun, "dry-run", false, "only ask the cluster whether it would")
	return cmd
}

// withDone prints what was done before an error, if anything was.
func withDone(o *operation, rs []topicResult, err error) error {
	if len(rs) == 0 {
		return err
	}
	if printErr := o.results(rs); printErr != nil {
		return fmt.Errorf("%w (and: %w)", err, printErr)
	}
	return err
}

// topicRow is a topic in a list.
type topicRow struct {
	Topic           string `json:"topic"`
	ID              string `json:"id"`
	Partitions      int    `json:"partitions"`
	Replication     int    `json:"replication"`
	UnderReplicated int    `json:"under_replicated"` // partitions with a replica that is not in sync
	Offline         int    `json:"offline"`          // partitions without a leader
	Internal        bool   `json:"internal,omitempty"`
}

func newTopicRow(d kafka.TopicDetail) topicRow {
	r := topicRow{Topic: d.Name, ID: d.ID.String(), Partitions: d.Partitions, Replication: d.Replication, Internal: d.Internal}
	for _, p := range d.Parts {
		if len(p.InSync) < len(p.Replicas) {
			r.UnderReplicated++
		}
		if p.Leader < 0 {
			r.Offline++
		}
	}
	return r
}

func newTopicListCommand() *cobra.Command {
	var o *operation
	var internal bool
	var prefix string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List topics",
		Example: "  pawl topic list --prefix shop. -o json",
		Args:    noArguments,
		RunE: func(*cobra.Command, []string) error {
			return o.run(func(ctx context.Context, c asked) error {
				topics, err := c.ListTopics(ctx)
				if err != nil {
					return err
				}
				rows := []topicRow{}
				for _, t := range topics {
					if strings.HasPrefix(t.Name, prefix) && (internal || !t.Internal) {
						rows = append(rows, newTopicRow(t))
					}
				}
				return o.document(rows, func(t *table) {
					t.row("TOPIC", "PARTITIONS", "REPLICATION", "UNDER-REPLICATED", "OFFLINE")
					for _, r := range rows {
						t.row(r.Topic, r.Partitions, r.Replication, r.UnderReplicated, r.Offline)
					}
				})
			})
		},
	}
	o = newOperation(cmd)
	cmd.Flags().BoolVar(&internal, "internal", false, "also the cluster's own")
	cmd.Flags().StringVar(&prefix, "prefix", "", "only those whose names begin with this")
	return cmd
}

// topicDescription is all there is to say of a topic.
type topicDescription struct {
	topicRow
	Parts    []partitionRow `json:"partition_details"`
	Settings []settingRow   `json:"settings"`
}

type partitionRow struct {
	Partition int32   `json:"partition"`
	Leader    int32   `json:"leader"`
	Replicas  []int32 `json:"replicas"`
	InSync    []int32 `json:"in_sync"`
	Earliest  int64   `json:"earliest"`
	StableEnd int64   `json:"stable_end"`
	End       int64   `json:"end"`
	Bytes     int64   `json:"bytes"` // -1 where that can't be told
}

type settingRow struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	Default string `json:"default"`
	Own     bool   `json:"own"` // set for this topic
}

func newTopicDescribeCommand() *cobra.Command {
	var o *operation
	var all bool
	cmd := &cobra.Command{
		Use:   "describe TOPIC...",
		Short: "Show topics whole: partitions, offsets and settings",
		Long: `Describe shows topics with their partitions and with the settings that are
their own; --all shows those, too, that hold by default. The stable end is where
committed messages end: while it stays below the end, a transaction is open.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef(cmd, "which topic? Name it; pawl topic list lists them")
			}
			return o.run(func(ctx context.Context, c asked) error {
				var ds []topicDescription
				for _, name := range args {
					d, err := c.DescribeTopic(ctx, name)
					if err != nil {
						return err
					}
					ds = append(ds, newTopicDescription(d, all))
				}
				return documentAll(o, ds)
			})
		},
	}
	o = newOperation(cmd)
	cmd.ValidArgsFunction = o.topicNames
	cmd.Flags().BoolVar(&all, "all", false, "also the settings that hold by default")
	return cmd
}

func newTopicDescription(d kafka.TopicDetail, all bool) topicDescription {
	out := topicDescription{topicRow: newTopicRow(d), Settings: []settingRow{}}
	for _, p := range d.Parts {
		out.Parts = append(out.Parts, partitionRow{p.Number, p.Leader, p.Replicas, p.InSync, p.Earliest, p.StableEnd, p.End, p.Bytes})
	}
	for _, s := range d.Settings {
		switch {
		case s.Sensitive:
			s.Value, s.Default = "(hidden)", "(hidden)"
		case !all && !s.Own:
			continue
		}
		out.Settings = append(out.Settings, settingRow{s.Name, s.Value, s.Default, s.Own})
	}
	return out
}

func (d topicDescription) show(t *table) {
	t.line("topic %s, ID %s, %s, replication %d", d.Topic, d.ID, count(int64(d.Partitions), "partition"), d.Replication)
	t.row("PARTITION", "LEADER", "REPLICAS", "IN SYNC", "EARLIEST", "STABLE END", "END", "BYTES")
	for _, p := range d.Parts {
		t.row(p.Partition, known(int64(p.Leader)), numbers(p.Replicas), numbers(p.InSync), known(p.Earliest), known(p.StableEnd), known(p.End), known(p.Bytes))
	}
	if len(d.Settings) == 0 {
		return
	}
	t.row("SETTING", "VALUE", "DEFAULT")
	for _, s := range d.Settings {
		t.row(s.Name, s.Value, s.Default)
	}
}

// known writes a number that may not be known.
func known(n int64) string {
	if n < 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func numbers(ns []int32) string {
	ns = slices.Sorted(slices.Values(ns))
	return strings.Join(strings.Fields(strings.Trim(fmt.Sprint(ns), "[]")), ",")
}
