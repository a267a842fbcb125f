package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/internal/kafka"
)

func newGroupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "group",
		Short: "Look at groups: who is in them, and who reads what",
		Args:  onlyCommands,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newGroupListCommand(), newGroupDescribeCommand())
	return cmd
}

// groupRow is a group in a list.
type groupRow struct {
	Group    string `json:"group"`
	Kind     string `json:"kind"`
	Protocol string `json:"protocol,omitempty"`
	State    string `json:"state"`
}

func newGroupRow(g kafka.Group) groupRow { return groupRow{g.Name, g.Kind, g.Protocol, g.State} }

func newGroupListCommand() *cobra.Command {
	var o *operation
	var prefix string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List groups of every kind",
		Long: `List lists the groups that the cluster knows: classic ones, whose members agree
among themselves; those of Kafka's newer consumer protocol; share groups; and
those of Kafka Streams.`,
		Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			return o.run(func(ctx context.Context, c asked) error {
				groups, err := c.Groups(ctx)
				if err != nil {
					return err
				}
				rows := []groupRow{}
				for _, g := range groups {
					if strings.HasPrefix(g.Name, prefix) {
						rows = append(rows, newGroupRow(g))
					}
				}
				return o.document(rows, func(t *table) {
					t.row("GROUP", "KIND", "PROTOCOL", "STATE")
					for _, r := range rows {
						t.row(r.Group, r.Kind, r.Protocol, r.State)
					}
				})
			})
		},
	}
	o = newOperation(cmd)
	cmd.Flags().StringVar(&prefix, "prefix", "", "only those whose names begin with this")
	return cmd
}

// groupDescription is a group with its members.
type groupDescription struct {
	groupRow
	Assignor    string      `json:"assignor,omitempty"`
	Coordinator int32       `json:"coordinator"` // -1 where it is not known
	Members     []memberRow `json:"members"`
	Hidden      bool        `json:"members_hidden,omitempty"` // they are of a kind that can't be looked up
}

type memberRow struct {
	Member     string         `json:"member"`
	Instance   string         `json:"instance,omitempty"`
	Client     string         `json:"client"`
	Host       string         `json:"host"`
	Topics     []string       `json:"topics"`
	Partitions []partitionRef `json:"partitions"`
}

// partitionRef names a partition.
type partitionRef struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
}

func newGroupDescription(d kafka.GroupDetail) groupDescription {
	out := groupDescription{groupRow: newGroupRow(d.Group), Assignor: d.Assignor, Coordinator: d.Coordinator, Members: []memberRow{}, Hidden: d.Hidden}
	for _, m := range d.Members {
		row := memberRow{Member: m.ID, Instance: m.Instance, Client: m.Client, Host: m.Host, Topics: m.Topics, Partitions: []partitionRef{}}
		for _, p := range m.Partitions {
			row.Partitions = append(row.Partitions, partitionRef{p.Topic, p.Number})
		}
		out.Members = append(out.Members, row)
	}
	return out
}

func newGroupDescribeCommand() *cobra.Command {
	var o *operation
	cmd := &cobra.Command{
		Use:   "describe GROUP...",
		Short: "Show the members of groups, and the partitions that each has",
		Long: `Describe shows the members of groups, and the partitions that each has. Offsets
and lag are in pawl offsets show.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef(cmd, "which group? Name it; pawl group list lists them")
			}
			return o.run(func(ctx context.Context, c asked) error {
				var ds []groupDescription
				for _, name := range args {
					d, err := c.DescribeGroup(ctx, name)
					if err != nil {
						return err
					}
					ds = append(ds, newGroupDescription(d))
				}
				return documentAll(o, ds)
			})
		},
	}
	o = newOperation(cmd)
	cmd.ValidArgsFunction = o.groupNames
	return cmd
}

func (d groupDescription) show(t *table) {
	assignor := ""
	if d.Assignor != "" {
		assignor = ", assigned by " + d.Assignor
	}
	t.line("group %s, %s, %s%s, %s", d.Group, d.Kind, d.State, assignor, count(int64(len(d.Members)), "member"))
	if d.Hidden {
		t.line("its members are of a kind that can't be looked up here")
	}
	if len(d.Members) == 0 {
		return
	}
	t.row("MEMBER", "CLIENT", "HOST", "PARTITIONS")
	for _, m := range d.Members {
		name := m.Instance
		if name == "" {
			name = m.Member
		}
		t.row(name, m.Client, m.Host, m.partitions())
	}
}

// partitions writes partitions in short: orders 0-3,7; totals 1.
func (m memberRow) partitions() string {
	var b strings.Builder
	for i := 0; i < len(m.Partitions); {
		first := m.Partitions[i]
		switch {
		case i == 0:
			b.WriteString(first.Topic + " ")
		case m.Partitions[i-1].Topic != first.Topic:
			b.WriteString("; " + first.Topic + " ")
		default:
			b.WriteString(",")
		}
		last := first
		for i++; i < len(m.Partitions) && m.Partitions[i] == (partitionRef{last.Topic, last.Partition + 1}); i++ {
			last = m.Partitions[i]
		}
		if first == last {
			fmt.Fprintf(&b, "%d", first.Partition)
		} else {
			fmt.Fprintf(&b, "%d-%d", first.Partition, last.Partition)
		}
	}
	return b.String()
}

// membersOf writes who is in a group, for an error that says who is in the way.
func membersOf(d kafka.GroupDetail) string {
	var names []string
	for _, m := range d.Members {
		name := m.Instance
		if name == "" {
			name = m.ID
		}
		names = append(names, fmt.Sprintf("%s at %s", printable(name), printable(m.Host)))
	}
	return strings.Join(names, ", ")
}
