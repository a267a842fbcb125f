package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

func newOffsetsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "offsets",
		Short: "Look at how far groups and applications have come, and move them",
		Args:  onlyCommands,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newOffsetsShowCommand(), newOffsetsResetCommand())
	return cmd
}

// offsetsRow is how far a partition has been read.
type offsetsRow struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Shard     string `json:"shard,omitempty"`
	Position  int64  `json:"position"`
	Earliest  int64  `json:"earliest"`   // -1: the partition is not there
	StableEnd int64  `json:"stable_end"` // -1: the partition is not there
	Lag       int64  `json:"lag"`        // messages and markers that are not read yet
	Note      string `json:"note,omitempty"`
}

// offsetsShown is what offsets show says.
type offsetsShown struct {
	Group       string       `json:"group,omitempty"`
	Application string       `json:"application,omitempty"`
	Kind        string       `json:"kind,omitempty"` // of the group
	State       string       `json:"state,omitempty"`
	Rows        []offsetsRow `json:"offsets"`
	Lag         int64        `json:"lag"`
}

var offsetsExclusions = exclusions{
	{"group", "application", "the positions of an application are not those of its group"},
}

func newOffsetsShowCommand() *cobra.Command {
	var o *operation
	var group, application string
	cmd := &cobra.Command{
		Use:   "show (--group GROUP | --application APPLICATION)",
		Short: "Show how far a group or an application has come, and its lag",
		Long: `Show shows what a group has committed, and how far that is from where the
partitions end for a reader of committed messages.

What a Pawl application has consumed is not in its group but in its changelogs,
in the same transactions as its state: with --application it is read from there.
Its group holds about the same, as advice to other tools.`,
		Example: `  pawl offsets show --group shop.mailer
  pawl offsets show --application counter -o json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := offsetsExclusions.check(cmd); err != nil {
				return err
			}
			if group == "" && application == "" {
				return usagef(cmd, "whose offsets? Set --group or --application")
			}
			if application != "" {
				if err := consumer.CheckApplication(application); err != nil {
					return usageError{err, cmd}
				}
			}
			return o.run(func(ctx context.Context, c asked) (err error) {
				shown := offsetsShown{Group: group, Application: application}
				if application != "" {
					err = shown.ofApplication(ctx, c)
				} else {
					err = shown.ofGroup(ctx, c)
				}
				if err != nil {
					return err
				}
				return o.document(shown, shown.show)
			})
		},
	}
	o = newOperation(cmd)
	cmd.Flags().StringVar(&group, "group", "", "a group")
	cmd.Flags().StringVar(&application, "application", "", "a Pawl application")
	completeFlag(cmd, "group", o.groupNames)
	completeFlag(cmd, "application", o.applicationNames)
	return cmd
}

// applicationNames completes the names of applications that have changelogs.
func (o *operation) applicationNames(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return o.names(prefix, func(ctx context.Context, a *kafka.Admin) (names []string, err error) {
		topics, err := a.ListTopics(ctx)
		for _, t := range topics {
			if app, ok := applicationOf(t.Name); ok && !slices.Contains(names, app) {
				names = append(names, app)
			}
		}
		return names, err
	})
}

func (s *offsetsShown) show(t *table) {
	if len(s.Rows) == 0 {
		t.line("nothing is committed")
		return
	}
	shards := s.Application != ""
	head := []any{"TOPIC", "PARTITION", "POSITION", "STABLE END", "LAG", "NOTE"}
	if shards {
		head = append([]any{"SHARD"}, head...)
	}
	t.row(head...)
	for _, r := range s.Rows {
		cells := []any{r.Topic, r.Partition, r.Position, known(r.StableEnd), r.Lag, r.Note}
		if shards {
			cells = append([]any{r.Shard}, cells...)
		}
		t.row(cells...)
	}
	t.line("lag in all: %s", thousands(s.Lag))
}

// ofGroup looks up what a group has committed.
func (s *offsetsShown) ofGroup(ctx context.Context, c asked) error {
	d, err := c.DescribeGroup(ctx, s.Group)
	if err != nil {
		return err
	}
	s.Kind, s.State = d.Kind, d.State
	positions := make(map[topic.Partition]int64)
	if d.Kind == kafka.GroupShare {
		if positions, err = c.ShareOffsets(ctx, s.Group); err != nil {
			return err
		}
	} else {
		committed, err := c.Committed(ctx, s.Group)
		if err != nil {
			return err
		}
		for p, at := range committed {
			positions[p] = at.Offset
		}
	}
	for p, at := range positions {
		s.Rows = append(s.Rows, offsetsRow{Topic: p.Topic, Partition: p.Number, Position: at})
	}
	return s.compare(ctx, c, nil)
}

// compare adds where the partitions begin and end. ids are those of the topics
// that the positions are of, where they are known.
func (s *offsetsShown) compare(ctx context.Context, c asked, ids map[string]topic.ID) error {
	slices.SortFunc(s.Rows, func(x, y offsetsRow) int {
		return cmp.Or(cmp.Compare(x.Topic, y.Topic), cmp.Compare(x.Partition, y.Partition))
	})
	infos, err := c.Topics(ctx)
	if err != nil {
		return err
	}
	var parts []topic.Partition
	for _, r := range s.Rows {
		if info, ok := infos[r.Topic]; ok && int(r.Partition) < info.Partitions {
			parts = append(parts, topic.Partition{Topic: r.Topic, Number: r.Partition})
		}
	}
	starts, ends, err := c.bounds(ctx, kafka.StableEnd, parts...)
	if err != nil {
		return err
	}
	for i := range s.Rows {
		r := &s.Rows[i]
		p := topic.Partition{Topic: r.Topic, Number: r.Partition}
		end, ok := ends[p]
		id, known := ids[r.Topic]
		switch {
		case !ok:
			r.Earliest, r.StableEnd, r.Note = -1, -1, "the partition does not exist"
			continue
		case known && id != infos[r.Topic].ID:
			r.Note = "the topic was created anew since"
		case r.Position < starts[p]:
			r.Note = fmt.Sprintf("%s deleted that were not read", count(starts[p]-r.Position, "offset"))
		case r.Position > end:
			r.Note = "beyond the end"
		}
		r.Earliest, r.StableEnd = starts[p], end
		r.Lag = max(0, end-max(r.Position, starts[p]))
		s.Lag += r.Lag
	}
	if s.Rows == nil {
		s.Rows = []offsetsRow{}
	}
	return nil
}

// ofApplication reads the positions of an application's shards from its
// changelogs.
func (s *offsetsShown) ofApplication(ctx context.Context, c asked) error {
	shards, err := shardsOf(ctx, c, s.Application)
	if err != nil {
		return err
	}
	ids := make(map[string]topic.ID)
	for _, sh := range shards {
		for _, in := range sh.offsets.Inputs {
			ids[in.Topic] = in.ID
			s.Rows = append(s.Rows, offsetsRow{Topic: in.Topic, Partition: in.Partition, Shard: string(sh.id), Position: in.Next})
		}
	}
	return s.compare(ctx, c, ids)
}

// shardPosition is a shard of an application, and what its changelog says of
// how far it has come.
type shardPosition struct {
	id        consumer.ShardID
	set       string
	changelog topic.Partition
	offsets   changelog.Offsets // no inputs: it has none yet
}

// errNoApplication says that an application has left nothing on the cluster.
var errNoApplication = errors.New("it has no changelog: it has never run on this cluster")

// shardsOf reads the positions of all shards of an application, in order.
func shardsOf(ctx context.Context, c asked, application string) ([]shardPosition, error) {
	infos, err := c.Topics(ctx)
	if err != nil {
		return nil, err
	}
	var shards []shardPosition
	var parts []topic.Partition
	for _, name := range slices.Sorted(maps.Keys(infos)) {
		app, ok := applicationOf(name)
		if !ok || app != application {
			continue
		}
		set := strings.TrimSuffix(strings.TrimPrefix(name, application+"."), ".changelog")
		for n := range infos[name].Partitions {
			p := topic.Partition{Topic: name, Number: int32(n)}
			shards = append(shards, shardPosition{id: consumer.NewShardID(set, p.Number), set: set, changelog: p})
			parts = append(parts, p)
		}
	}
	if len(shards) == 0 {
		return nil, fmt.Errorf("application %s: %w", application, errNoApplication)
	}
	last, err := c.LastRecords(ctx, changelog.OffsetsKey, parts...)
	if err != nil {
		return nil, err
	}
	for i := range shards {
		e, ok := last[shards[i].changelog]
		if !ok || e.Value == nil {
			continue
		}
		if shards[i].offsets, err = changelog.ParseOffsets(e.Value); err != nil {
			return nil, fmt.Errorf("read changelog %s at offset %d: %w", shards[i].changelog, e.Offset, err)
		}
	}
	return shards, nil
}
