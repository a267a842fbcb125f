package cli

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/internal/admin"
)

// names looks names up in the processes for the shell to complete: those that all
// of them together say. Which processes is said by the flags before; a shell can't
// be told what is wrong with them, or that a process does not answer.
func (p *processes) names(prefix string, ask func(ctx context.Context, c admin.Client) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), completeTime)
	defer cancel()
	all, err := p.find(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	said := make([][]string, len(all))
	var wg sync.WaitGroup
	for i, one := range all {
		if one.reason == "" {
			wg.Go(func() { said[i], _ = ask(ctx, one.Client) })
		}
	}
	wg.Wait()
	names := slices.Concat(said...)
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, prefix) || printable(name) != name })
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}

// shardNames completes the names of shards.
func (p *processes) shardNames(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return p.names(prefix, func(ctx context.Context, c admin.Client) ([]string, error) {
		shards, err := c.Shards(ctx)
		names := make([]string, len(shards))
		for i, s := range shards {
			names[i] = s.ID
		}
		return names, err
	})
}

// shardAndTable completes a shard, and then one of its tables.
func (p *processes) shardAndTable(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return p.shardNames(cmd, args, prefix)
	case 1:
		return p.names(prefix, func(ctx context.Context, c admin.Client) ([]string, error) { return c.Tables(ctx, args[0]) })
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// tableNames completes the tables of all shards.
func (p *processes) tableNames(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return p.names(prefix, func(ctx context.Context, c admin.Client) (names []string, err error) {
		shards, err := c.Shards(ctx)
		for _, s := range shards {
			tables, failed := c.Tables(ctx, s.ID)
			if failed != nil {
				continue // one that just starts has none to tell of
			}
			names = append(names, tables...)
		}
		return names, err
	})
}
