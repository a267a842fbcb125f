package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

func newTopicAlterCommand() *cobra.Command {
	var (
		o       *operation
		ok      consent
		change  kafka.TopicChange
		set     []string
		refused = exclusions{dryRunNeedsNoYes}
	)
	cmd := &cobra.Command{
		Use:   "alter TOPIC",
		Short: "Change a topic's settings, or give it more partitions",
		Long: `Alter changes the settings that it is told, and leaves the others as they are.
It prints what will change, and asks first where that can lose messages.

More partitions can't be taken back, and move keys: messages with a key that
went to one partition go to another from then on.`,
		Example: `  pawl topic alter orders --set retention.ms=3600000 --dry-run
  pawl topic alter orders --partitions 24`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := refused.check(cmd); err != nil {
				return err
			}
			switch {
			case len(args) != 1:
				return usagef(cmd, "which topic? Name one")
			case cmd.Flags().Changed("partitions") && change.Partitions < 1:
				return usagef(cmd, "--partitions %d: want 1 or more", change.Partitions)
			case change.Partitions == 0 && len(set) == 0 && len(change.Unset) == 0:
				return usagef(cmd, "what is to change? Say --set, --unset or --partitions")
			}
			if change.Set, err = settingsOf(cmd, "set", set); err != nil {
				return err
			}
			for _, name := range change.Unset {
				if _, both := change.Set[name]; both || name == "" {
					return usagef(cmd, "--unset %q: it is set at the same time, or has no name", name)
				}
			}
			return o.run(func(ctx context.Context, c asked) error { return alterTopic(ctx, o, c, args[0], change, ok) })
		},
	}
	o = newOperation(cmd)
	cmd.ValidArgsFunction = oneOf(o.topicNames)
	f := cmd.Flags()
	f.IntVar(&change.Partitions, "partitions", 0, "number of partitions from now on")
	f.StringArrayVar(&set, "set", nil, "a setting by Kafka's name, NAME=VALUE; again for another")
	f.StringArrayVar(&change.Unset, "unset", nil, "a setting that goes back to its default; again for another")
	ok.add(cmd)
	return cmd
}

// oneOf completes one argument, and no second.
func oneOf(names cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names(cmd, args, prefix)
	}
}

// alteration is what an alter comes to.
type alteration struct {
	topicResult
	Changes []settingChange `json:"changes"`
	Notes   []string        `json:"notes,omitempty"`
}

// settingChange is one of them.
type settingChange struct {
	Name  string `json:"name"` // of the setting, or partitions
	From  string `json:"from"`
	To    string `json:"to"`
	Loses string `json:"loses,omitempty"` // what can be lost by it
}

func alterTopic(ctx context.Context, o *operation, c asked, name string, change kafka.TopicChange, ok consent) error {
	d, err := c.DescribeTopic(ctx, name)
	if err != nil {
		return err
	}
	a := alteration{topicResult: topicResult{Topic: name, Action: "unchanged", DryRun: ok.dryRun}, Changes: planAlteration(d, change)}
	if change.Partitions > d.Partitions {
		a.Notes = append(a.Notes, "from then on most keys go to other partitions than before, and this can't be taken back")
	}
	if len(a.Changes) > 0 {
		if err := c.AlterTopic(ctx, name, change, true); err != nil {
			return err
		}
		a.Action = "altered"
		loses := slices.ContainsFunc(a.Changes, func(s settingChange) bool { return s.Loses != "" })
		if loses && !ok.dryRun && !ok.yes {
			// Whoever is asked has to see what for. On standard output it
			// comes once it is done.
			t := newTable(o.cmd.ErrOrStderr())
			a.show(t)
			if err := t.flush(); err != nil {
				return fmt.Errorf("print the plan: %w", err)
			}
			if err := ok.given(o.cmd, fmt.Sprintf("This can lose messages of topic %s.", printable(name))); err != nil {
				return err
			}
		}
		if !ok.dryRun {
			if err := c.AlterTopic(ctx, name, change, false); err != nil {
				return err
			}
		}
	}
	return o.document(a, func(t *table) {
		a.show(t)
		action := a.Action
		if ok.dryRun && len(a.Changes) > 0 {
			action = "would be altered"
		}
		t.line("topic %s %s", name, action)
	})
}

func (a alteration) show(t *table) {
	if len(a.Changes) == 0 {
		return
	}
	t.row("SETTING", "FROM", "TO", "LOSES")
	for _, s := range a.Changes {
		t.row(s.Name, s.From, s.To, s.Loses)
	}
	for _, n := range a.Notes {
		t.line("note: %s", n)
	}
}

// planAlteration says what a change comes to, setting by setting.
func planAlteration(d kafka.TopicDetail, change kafka.TopicChange) []settingChange {
	changes := []settingChange{}
	if change.Partitions != 0 && change.Partitions != d.Partitions {
		changes = append(changes, settingChange{Name: "partitions", From: fmt.Sprint(d.Partitions), To: fmt.Sprint(change.Partitions)})
	}
	find := func(name string) kafka.Setting {
		i := slices.IndexFunc(d.Settings, func(s kafka.Setting) bool { return s.Name == name })
		if i < 0 {
			return kafka.Setting{Name: name} // the cluster will say that there is none
		}
		return d.Settings[i]
	}
	for _, name := range slices.Sorted(maps.Keys(change.Set)) {
		if s, to := find(name), change.Set[name]; !s.Own || s.Value != to {
			changes = append(changes, settingChange{name, s.Value, to, loses(d.Name, name, s.Value, to)})
		}
	}
	for _, name := range slices.Sorted(slices.Values(change.Unset)) {
		if s := find(name); s.Own || s.Value == "" {
			to := s.Default
			if to == "" {
				to = "(default)" // not every broker says what that is
			}
			changes = append(changes, settingChange{name, s.Value, to, loses(d.Name, name, s.Value, to)})
		}
	}
	return changes
}

// loses says what is lost when a setting goes from one value to another, or
// nothing.
func loses(name, setting, from, to string) string {
	less := func() bool {
		a, errA := strconv.ParseInt(from, 10, 64)
		b, errB := strconv.ParseInt(to, 10, 64)
		if errA != nil || errB != nil {
			return from != to
		}
		return b >= 0 && (a < 0 || b < a) // below 0 is for ever
	}
	policies := func(s string) []string {
		ps := strings.Split(strings.ReplaceAll(s, " ", ""), ",")
		return slices.DeleteFunc(ps, func(p string) bool { return p == "" })
	}
	switch setting {
	case "retention.ms", "local.retention.ms":
		if less() {
			return "messages that are older"
		}
	case "retention.bytes", "local.retention.bytes":
		if less() {
			return "the oldest messages beyond that"
		}
	case "delete.retention.ms":
		if less() {
			return "deletes that a reader which is away for longer does not see"
		}
	case "cleanup.policy":
		had, has := policies(from), policies(to)
		app, changelog := applicationOf(name)
		switch {
		case changelog && !slices.Equal(has, []string{"compact"}):
			return fmt.Sprintf("state of application %s, whose changelog this is", app)
		case slices.Contains(has, "delete") && !slices.Contains(had, "delete"):
			return "messages older than retention.ms"
		case slices.Contains(has, "compact") && !slices.Contains(had, "compact"):
			return "all but the last message of each key"
		}
	case "unclean.leader.election.enable":
		if to == "true" && from != "true" {
			return "acknowledged messages, when a replica leads that has not all"
		}
	}
	return ""
}

// applicationOf returns whose changelog a topic is, if it is one.
func applicationOf(name string) (application string, ok bool) {
	application, rest, dotted := strings.Cut(name, ".")
	return application, dotted && strings.HasSuffix(rest, ".changelog")
}

func newTopicDeleteCommand() *cobra.Command {
	var (
		o        *operation
		ok       consent
		ifExists bool
		refused  = exclusions{dryRunNeedsNoYes}
	)
	cmd := &cobra.Command{
		Use:     "delete TOPIC...",
		Short:   "Delete topics, with all their messages",
		Example: "  pawl topic delete orders --dry-run",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := refused.check(cmd); err != nil {
				return err
			}
			if len(args) == 0 {
				return usagef(cmd, "which topic? Name it")
			}
			if err := eachOnce(cmd, args); err != nil {
				return err
			}
			return o.run(func(ctx context.Context, c asked) error { return deleteTopics(ctx, o, c, args, ifExists, ok) })
		},
	}
	o = newOperation(cmd)
	cmd.ValidArgsFunction = o.topicNames
	cmd.Flags().BoolVar(&ifExists, "if-exists", false, "a topic that is missing is none to delete, and no error")
	ok.add(cmd)
	return cmd
}

func deleteTopics(ctx context.Context, o *operation, c asked, names []string, ifExists bool, ok consent) error {
	there, err := c.ListTopics(ctx)
	if err != nil {
		return err
	}
	byName := make(map[string]kafka.TopicDetail)
	for _, t := range there {
		byName[t.Name] = t
	}
	var rs []topicResult
	var doomed []string
	for _, name := range names {
		t, exists := byName[name]
		switch {
		case !exists && !ifExists:
			return fmt.Errorf("topic %s does not exist: nothing is done", printable(name))
		case !exists:
			rs = append(rs, topicResult{Topic: name, Action: "missing", DryRun: ok.dryRun})
		case t.Internal:
			return fmt.Errorf("topic %s is the cluster's own: nothing is done", name)
		default:
			rs = append(rs, topicResult{Topic: name, Action: "deleted", DryRun: ok.dryRun})
			doomed = append(doomed, name)
		}
	}
	if len(doomed) > 0 {
		plan, err := doom(ctx, c, byName, doomed)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprint(o.cmd.ErrOrStderr(), plan); err != nil {
			return fmt.Errorf("print the plan: %w", err)
		}
		if !ok.dryRun {
			if err := ok.given(o.cmd, count(int64(len(doomed)), "topic")+" will be deleted, with all messages."); err != nil {
				return err
			}
			if err := c.DeleteTopics(ctx, doomed...); err != nil {
				return err
			}
		}
	}
	return o.results(rs)
}

// doom says what goes with topics, a line each.
func doom(ctx context.Context, c asked, byName map[string]kafka.TopicDetail, names []string) (string, error) {
	var b strings.Builder
	for _, name := range names {
		var parts []topic.Partition
		for _, p := range byName[name].Parts {
			if p.Leader >= 0 {
				parts = append(parts, topic.Partition{Topic: name, Number: p.Number})
			}
		}
		starts, ends, err := c.bounds(ctx, kafka.End, parts...)
		if err != nil {
			return "", err
		}
		offsets := int64(0)
		for p, end := range ends {
			offsets += end - starts[p]
		}
		fmt.Fprintf(&b, "topic %s: %s, %s", name, count(int64(byName[name].Partitions), "partition"), count(offsets, "offset"))
		if app, ok := applicationOf(name); ok {
			fmt.Fprintf(&b, "; it is the state of application %s, whose shards will refuse to start without it", app)
		}
		b.WriteString("\n")
	}
	return b.String(), nil
}
