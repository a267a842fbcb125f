package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/internal/admin"
)

func newStateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "state",
		Short: "Read the state of shards: what is committed, decoded",
		Long: `State reads tables of a shard's committed state from the process that has it.
What it prints is as of a position: all commits up to it are in it, and no others.

A key that is a string is named by itself, and any other by its JSON.`,
		Args: onlyCommands,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newStateGetCommand(), newStateScanCommand(), newStateExportCommand())
	return cmd
}

func newStateGetCommand() *cobra.Command {
	var p *processes
	cmd := &cobra.Command{
		Use:     "get SHARD TABLE KEY",
		Short:   "Print the value of a key",
		Example: "  pawl state get words-000 counts hello --state-dir /var/lib/counter",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 3 {
				return usagef(cmd, "want a shard, a table and a key")
			}
			return p.run(func(ctx context.Context, all []runningProcess) error {
				owner, err := p.owner(ctx, all, args[0])
				if err != nil {
					return err
				}
				page, err := owner.State(ctx, admin.StateQuery{Shard: args[0], Table: args[1], Key: &args[2]})
				if err != nil {
					return err
				}
				return p.showPage(page)
			})
		},
	}
	p = newProcesses(cmd)
	cmd.ValidArgsFunction = p.shardAndTable
	return cmd
}

// showPage prints a page. Its position is in the document; beside a table it goes
// to standard error, where whoever reads the rows is not in its way.
func (p *processes) showPage(page admin.StatePage) error {
	err := p.o.document(page, func(t *table) {
		t.row("KEY", "VALUE")
		for _, e := range page.Entries {
			t.row(e.Text, oneLine(e.Value))
		}
	})
	if err == nil && p.o.output == asTable {
		fmt.Fprintf(p.o.cmd.ErrOrStderr(), "as of changelog position %d\n", page.Position.Changelog)
	}
	return err
}

// oneLine is JSON without white space.
func oneLine(v json.RawMessage) string {
	b, err := json.Marshal(v)
	if err != nil {
		return string(v)
	}
	return string(b)
}

// rangeFlags bound what is read of a table.
type rangeFlags struct{ from, to, prefix string }

func (r *rangeFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.from, "from", "", "from this key on")
	f.StringVar(&r.to, "to", "", "below this key")
	f.StringVar(&r.prefix, "prefix", "", "only keys that begin with this, of a table whose keys are strings")
}

func newStateScanCommand() *cobra.Command {
	var p *processes
	var r rangeFlags
	var limit int
	cmd := &cobra.Command{
		Use:   "scan SHARD TABLE",
		Short: "Print entries of a table, in key order",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef(cmd, "want a shard and a table")
			}
			if limit < 1 || limit > 10_000 {
				return usagef(cmd, "--limit %d: want 1 to 10000; state export prints everything", limit)
			}
			return p.run(func(ctx context.Context, all []runningProcess) error {
				owner, err := p.owner(ctx, all, args[0])
				if err != nil {
					return err
				}
				page, err := owner.State(ctx, admin.StateQuery{Shard: args[0], Table: args[1], From: r.from, To: r.to, Prefix: r.prefix, Limit: limit})
				if err != nil {
					return err
				}
				if err := p.showPage(page); err != nil {
					return err
				}
				if page.More {
					fmt.Fprintf(cmd.ErrOrStderr(), "there is more: go on with --from %s\n", printable(page.Next))
				}
				return nil
			})
		},
	}
	p = newProcesses(cmd)
	cmd.ValidArgsFunction = p.shardAndTable
	r.add(cmd)
	cmd.Flags().IntVar(&limit, "limit", 100, "at most so many entries")
	return cmd
}

// exported is a line of an export.
type exported struct {
	Shard string          `json:"shard"`
	Key   json.RawMessage `json:"key"`
	Value json.RawMessage `json:"value"`
}

func newStateExportCommand() *cobra.Command {
	var p *processes
	var r rangeFlags
	var shards []string
	cmd := &cobra.Command{
		Use:   "export TABLE",
		Short: "Print all entries of a table, of all shards, a JSON object a line",
		Long: `Export prints all entries of a table, shard by shard, as JSON lines. It is read page
by page, each as of a position of its own: what changes meanwhile may be in it or
not, and each entry is one that was committed. What it read, and from where to
where, it says on standard error.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef(cmd, "want a table")
			}
			return p.run(func(ctx context.Context, all []runningProcess) error {
				return export(ctx, p, all, shards, args[0], r)
			})
		},
	}
	p = newProcesses(cmd)
	cmd.ValidArgsFunction = oneOf(p.tableNames)
	r.add(cmd)
	cmd.Flags().StringSliceVar(&shards, "shard", nil, "only this shard; again for another")
	completeFlag(cmd, "shard", p.shardNames)
	return cmd
}

func export(ctx context.Context, p *processes, all []runningProcess, shards []string, table string, r rangeFlags) error {
	answers, err := askAll(ctx, p, all, func(ctx context.Context, c admin.Client) ([]admin.Shard, error) { return c.Shards(ctx) })
	if err != nil {
		return err
	}
	out := json.NewEncoder(jsonWriter{p.o.cmd.OutOrStdout()})
	out.SetEscapeHTML(false)
	var found []string
	var errs []error
	for _, a := range answers {
		if a.err != nil {
			errs = append(errs, errors.New("not all processes have answered: the export is not whole"))
			continue
		}
		for _, s := range a.said {
			if len(shards) > 0 && !slices.Contains(shards, s.ID) {
				continue
			}
			found = append(found, s.ID)
			q := admin.StateQuery{Shard: s.ID, Table: table, From: r.from, To: r.to, Prefix: r.prefix, Limit: 1000}
			n, first, last := 0, int64(0), int64(0)
			for more := true; more; {
				page, err := a.State(ctx, q)
				if err != nil {
					return err
				}
				if n == 0 {
					first = page.Position.Changelog
				}
				last = page.Position.Changelog
				for _, e := range page.Entries {
					if err := out.Encode(exported{s.ID, e.Key, e.Value}); err != nil {
						return err
					}
				}
				n += len(page.Entries)
				q.From, more = page.Next, page.More
			}
			fmt.Fprintf(p.o.cmd.ErrOrStderr(), "%s: %s, as of changelog position %d to %d\n", printable(s.ID), countOf(int64(n), "entry", "entries"), first, last)
		}
	}
	for _, id := range shards {
		if !slices.Contains(found, id) {
			errs = append(errs, fmt.Errorf("no process that answers has shard %s", printable(id)))
		}
	}
	return errors.Join(errs...)
}
