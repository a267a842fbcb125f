package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// reset moves an application, or a group, to another place in its input.
//
// What an application has consumed and its state are of the same transactions,
// and a reset keeps that so, one way or the other:
//
//   - with its state: the changelogs are made anew, and so every copy of the
//     state, wherever it is, is of another topic and discarded; each begins
//     with the offsets to go on from. Nothing is left of before.
//   - without: an offsets record is committed to each changelog. The state stays
//     as it is, and so has consumed what comes again, or has not what is
//     skipped: it is for whoever can live with that, and says so.
//
// Either way the shards' transactional IDs are fenced first, and the offsets
// are written by who has fenced: an owner that still runs can commit nothing in
// between.
type reset struct {
	o           *operation
	application string
	group       string
	keepState   bool
	force       bool
	to          string
	topics      []string // of --topic: those to move, or, of app reset, SET=TOPIC
	partitions  []int32
	consumes    map[string][]string // the topics of a set, as the user names them
	ok          consent

	place place
}

// resetExclusions are the flags of offsets reset that exclude each other.
var resetExclusions = exclusions{
	dryRunNeedsNoYes,
	{"group", "application", "an application has its offsets in its changelogs, and a group in itself"},
	{"group", "keep-state", "a group has no state"},
	{"group", "force", "the offsets of a group with members are its members'"},
}

func newOffsetsResetCommand() *cobra.Command {
	r := &reset{}
	cmd := &cobra.Command{
		Use:   "reset (--group GROUP | --application APPLICATION --keep-state) --to PLACE",
		Short: "Move a group, or an application without its state, to another place",
		Long: `Reset moves how far a group, or the shards of a Pawl application, have come.

For an application it wants --keep-state, since that is what happens: the state
stays as it is. Messages that come again are counted into it again, and those
that are skipped are missing from it. To begin anew with both, see pawl app reset.

It prints a plan, partition by partition, asks, and refuses while the group has
members; a dry run prints the plan then, and exits with status 1. With --force it
moves an application whose shards run: each is fenced, and goes on from the new
place with its next start, which is at its next message.`,
		Example: `  pawl offsets reset --group shop.mailer --to now-1h --dry-run
  pawl offsets reset --application counter --keep-state --to latest
  pawl offsets reset --application counter --keep-state --topic words --partition 3 --to 1700`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := resetExclusions.check(cmd); err != nil {
				return err
			}
			switch {
			case r.group == "" && r.application == "":
				return usagef(cmd, "whose offsets? Set --group or --application")
			case r.application != "" && !r.keepState:
				return usagef(cmd, "the offsets of application %s belong to its state: say --keep-state to move them alone, or reset both with pawl app reset", printable(r.application))
			}
			return r.run(cmd)
		},
	}
	r.add(cmd)
	f := cmd.Flags()
	f.StringVar(&r.group, "group", "", "a group, which must have no members")
	f.StringVar(&r.application, "application", "", "a Pawl application")
	f.BoolVar(&r.keepState, "keep-state", false, "the application's state stays as it is")
	f.StringArrayVar(&r.topics, "topic", nil, "only this topic; again for another")
	f.Int32SliceVar(&r.partitions, "partition", nil, "only this partition of it; again for another")
	completeFlag(cmd, "group", r.o.groupNames)
	completeFlag(cmd, "application", r.o.applicationNames)
	completeFlag(cmd, "topic", r.o.topicNames)
	return cmd
}

func newAppResetCommand() *cobra.Command {
	r := &reset{}
	cmd := &cobra.Command{
		Use:   "reset APPLICATION --to PLACE",
		Short: "Begin an application anew: its state is deleted, and its offsets moved",
		Long: `Reset deletes all state of a Pawl application, and has it begin at another place
of its input: earliest, latest, an offset, or a time.

Its changelogs are made anew, with the settings that they had. Copies of the
state in state directories need not be deleted: they are of another changelog,
and discarded when their shards start. What the application has published stays.

It prints a plan, partition by partition, asks, and refuses while the application
runs; a dry run prints the plan then, and exits with status 1. With --force it
goes on: each shard is fenced, and begins anew with its next message, or within
ten seconds (--topics-interval).

One that is cut off leaves no shard with state and offsets that disagree: a shard
is as it was, or begins without state where the application's configuration
says, until the reset is done again. If no shard of a set of topics has begun by
then, and the set has not the name of its topic, --topic says which topics those
are.`,
		Example: `  pawl app reset counter --to earliest --dry-run
  pawl app reset counter --to 2026-01-01 --yes
  pawl app reset joiner --to earliest --topic pairs=orders --topic pairs=payments`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := (exclusions{dryRunNeedsNoYes}).check(cmd); err != nil {
				return err
			}
			if len(args) != 1 {
				return usagef(cmd, "which application? Name one")
			}
			r.application = args[0]
			if r.consumes, err = topicsOfSets(cmd, r.topics); err != nil {
				return err
			}
			r.topics = nil // every topic is moved
			return r.run(cmd)
		},
	}
	r.add(cmd)
	cmd.Flags().StringArrayVar(&r.topics, "topic", nil, "SET=TOPIC: what a set consumes of which nothing on the cluster says so any more; again for another")
	completeFlag(cmd, "topic", cobra.NoFileCompletions)
	cmd.ValidArgsFunction = oneOf(r.o.applicationNames)
	return cmd
}

func (r *reset) add(cmd *cobra.Command) {
	r.o = newOperation(cmd)
	cmd.Flags().StringVar(&r.to, "to", "", "where to go on: earliest, latest, an offset, or a time such as 2006-01-02T15:04:05Z or now-1h")
	cmd.Flags().BoolVar(&r.force, "force", false, "also while shards run")
	r.ok.add(cmd)
	completeFlag(cmd, "to", fixed("earliest", "latest"))
}

// run does the reset.
func (r *reset) run(cmd *cobra.Command) (err error) {
	if r.to == "" {
		return usagef(cmd, "where to? Set --to")
	}
	if r.place, err = parsePlace(r.to, time.Now(), "earliest, latest, an offset, or a time"); err != nil {
		return usagef(cmd, "--to %q: %w", r.to, err)
	}
	if r.application != "" {
		if err := consumer.CheckApplication(r.application); err != nil {
			return usageError{err, cmd}
		}
	}
	if len(r.partitions) > 0 && len(r.topics) != 1 {
		return usagef(cmd, "--partition is for one topic: set --topic")
	}
	return r.o.run(func(ctx context.Context, c asked) error {
		plan, err := r.plan(ctx, c)
		if err != nil {
			return err
		}
		if !r.ok.dryRun && len(plan.Moves) > 0 {
			t := newTable(r.o.cmd.ErrOrStderr())
			plan.show(t)
			if err := t.flush(); err != nil {
				return fmt.Errorf("print the plan: %w", err)
			}
			if err := r.ok.given(cmd, "This can't be undone."); err != nil {
				return err
			}
			if err := r.do(ctx, c, plan); err != nil {
				return err
			}
			plan.Done = true
		}
		err = r.o.document(plan, func(t *table) {
			if !plan.Done {
				plan.show(t)
			}
			switch {
			case len(plan.Moves) == 0:
				t.line("nothing to reset")
			case plan.Done:
				t.line("%s reset", count(int64(len(plan.Moves)), "partition"))
			}
		})
		if err == nil && plan.Refused != "" {
			err = fmt.Errorf("this would be refused: %s", plan.Refused)
		}
		return err
	})
}

// resetPlan says what a reset comes to.
type resetPlan struct {
	Application string      `json:"application,omitempty"`
	Group       string      `json:"group,omitempty"`
	Moves       []resetMove `json:"moves"`
	State       string      `json:"state,omitempty"` // what becomes of it
	Notes       []string    `json:"notes,omitempty"`
	Refused     string      `json:"refused,omitempty"` // why it would be refused; only of a dry run
	Done        bool        `json:"done"`

	shards []shardPosition
	infos  map[string]kafka.TopicInfo
	parts  map[topic.Partition]int64 // where each goes on
}

// resetMove is what becomes of a partition.
type resetMove struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Shard     string `json:"shard,omitempty"`
	From      int64  `json:"from"` // -1: nowhere yet
	To        int64  `json:"to"`
	Repeats   int64  `json:"repeats"` // offsets that come again
	Skips     int64  `json:"skips"`   // offsets that never come
}

func (p *resetPlan) show(t *table) {
	t.row("TOPIC", "PARTITION", "FROM", "TO", "REPEATS", "SKIPS")
	for _, m := range p.Moves {
		t.row(m.Topic, m.Partition, known(m.From), m.To, m.Repeats, m.Skips)
	}
	if p.State != "" {
		t.line("state: %s", p.State)
	}
	for _, n := range p.Notes {
		t.line("note: %s", n)
	}
}

// plan finds out where everything stands and where it is to go, and whether it
// may.
func (r *reset) plan(ctx context.Context, c asked) (*resetPlan, error) {
	p := &resetPlan{Application: r.application, Group: r.group, Moves: []resetMove{}}
	if err := r.checkMembers(ctx, c, p); err != nil {
		return nil, err
	}
	var err error
	if p.infos, err = c.Topics(ctx); err != nil {
		return nil, err
	}
	if r.application != "" {
		if p.shards, err = shardsOf(ctx, c, r.application); err != nil {
			return nil, err
		}
		p.State = "all of it is deleted"
		if r.keepState {
			p.State = "it stays as it is: what comes again is counted into it again, and what is skipped is missing from it"
		}
		if !r.keepState {
			if err := r.findInputs(p); err != nil {
				return nil, err
			}
		}
		for _, s := range p.shards {
			for _, in := range s.offsets.Inputs {
				p.Moves = append(p.Moves, resetMove{Topic: in.Topic, Partition: in.Partition, Shard: string(s.id), From: in.Next})
			}
		}
	} else {
		for name := range p.infos {
			if app, ok := applicationOf(name); ok && app == r.group {
				return nil, fmt.Errorf("group %s is that of a Pawl application, which takes its offsets from its changelogs: say --application %s", r.group, r.group)
			}
		}
		committed, err := c.Committed(ctx, r.group)
		if err != nil {
			return nil, err
		}
		for _, part := range slices.SortedFunc(maps.Keys(committed), topic.Partition.Compare) {
			p.Moves = append(p.Moves, resetMove{Topic: part.Topic, Partition: part.Number, From: committed[part].Offset})
		}
	}
	if err := r.choose(p); err != nil {
		return nil, err
	}
	return p, r.resolve(ctx, c, p)
}

// checkMembers refuses a reset of what runs.
func (r *reset) checkMembers(ctx context.Context, c asked, p *resetPlan) error {
	group := r.group
	if r.application != "" {
		group = r.application
	}
	d, err := c.DescribeGroup(ctx, group)
	switch {
	case errors.Is(err, kafka.ErrUnknownGroup) && r.application != "":
		return nil
	case err != nil:
		return err
	case len(d.Members) == 0:
		return nil
	case !r.force:
		hint := "stop them first (one that was killed is counted until its session ends)"
		if r.application != "" {
			hint += ", or say --force"
		}
		err := fmt.Errorf("%s of %s: %s: %s", count(int64(len(d.Members)), "member"), printable(group), membersOf(d), hint)
		if !r.ok.dryRun {
			return err
		}
		p.Refused = err.Error()
		return nil
	}
	p.Notes = append(p.Notes, fmt.Sprintf("%s: %s; their shards are fenced", count(int64(len(d.Members)), "member"), membersOf(d)))
	return nil
}

// choose leaves the moves that are wanted.
func (r *reset) choose(p *resetPlan) error {
	for _, name := range r.topics {
		if !slices.ContainsFunc(p.Moves, func(m resetMove) bool { return m.Topic == name }) {
			return fmt.Errorf("topic %s: nothing has been consumed of it here", printable(name))
		}
	}
	for _, n := range r.partitions {
		if !slices.ContainsFunc(p.Moves, func(m resetMove) bool { return m.Topic == r.topics[0] && m.Partition == n }) {
			return fmt.Errorf("partition %d of topic %s: nothing has been consumed of it here", n, printable(r.topics[0]))
		}
	}
	own := 0
	p.Moves = slices.DeleteFunc(p.Moves, func(m resetMove) bool {
		if r.group != "" && len(r.topics) == 0 && strings.HasPrefix(m.Topic, r.group+".") {
			own++
			return true
		}
		return len(r.topics) > 0 && !slices.Contains(r.topics, m.Topic) || len(r.partitions) > 0 && !slices.Contains(r.partitions, m.Partition)
	})
	if own > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("%s of the queue's own topics, for retries and redriven messages, stay where they are: to move them, too, say --topic", count(int64(own), "partition")))
	}
	return nil
}

// resolve says where each partition goes on.
func (r *reset) resolve(ctx context.Context, c asked, p *resetPlan) error {
	var parts []topic.Partition
	for _, m := range p.Moves {
		if info, ok := p.infos[m.Topic]; !ok || int(m.Partition) >= info.Partitions {
			return fmt.Errorf("%s-%d was consumed and is not there any more: %w", m.Topic, m.Partition, kafka.ErrUnknownTopic)
		}
		parts = append(parts, topic.Partition{Topic: m.Topic, Number: m.Partition})
	}
	starts, ends, err := c.bounds(ctx, kafka.StableEnd, parts...)
	if err != nil {
		return err
	}
	p.parts = ends
	switch r.place.kind {
	case placeEarliest:
		p.parts = starts
	case placeTime:
		if r.place.time.After(time.Now()) {
			p.Notes = append(p.Notes, "the time is in the future: that is where the partitions end now")
		}
		if p.parts, err = c.Offsets(ctx, kafka.Time(r.place.time), parts...); err != nil {
			return err
		}
	case placeOffset:
		p.parts = make(map[topic.Partition]int64)
		for _, part := range parts {
			if p.parts[part] = r.place.at; r.place.at < starts[part] || r.place.at > ends[part] {
				return fmt.Errorf("--to %d: %s holds offsets %d to %d", r.place.at, part, starts[part], ends[part])
			}
		}
	}
	for i, part := range parts {
		m := &p.Moves[i]
		// A time may lie within a transaction that is open.
		m.To = min(p.parts[part], ends[part])
		p.parts[part] = m.To
		m.Repeats, m.Skips = max(0, m.From-max(m.To, starts[part])), max(0, m.To-max(m.From, starts[part]))
		if m.From < 0 {
			m.Skips = m.To - starts[part]
		}
	}
	return nil
}
