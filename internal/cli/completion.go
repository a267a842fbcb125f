package cli

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pawlstream/pawl/internal/admin"
	"github.com/pawlstream/pawl/internal/kafka"
)

// fixed completes one of several words.
func fixed(words ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}

// completeSettings has the shell complete those flags of all commands that are
// settings: the ones whose form is a choice between words, and the context.
func completeSettings(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		completeSettings(c)
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if _, done := cmd.GetFlagCompletionFunc(f.Name); done {
			return
		}
		switch form := f.Value.Type(); {
		case f.Name == "context":
			completeFlag(cmd, f.Name, contextNames)
		case strings.Contains(form, "|"):
			completeFlag(cmd, f.Name, fixed(strings.Split(form, "|")...))
		}
	})
}

// contextNames completes the value of a flag that names a context.
func contextNames(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return completeContexts(cmd, nil, prefix) // the command's arguments are no contexts
}

// queueNames completes what is to be had of the names of the queues that have a
// topic of dead letters.
func (o *operation) queueNames(prefix string, of func(application, consumer string) string) ([]string, cobra.ShellCompDirective) {
	return o.names(prefix, func(ctx context.Context, a *kafka.Admin) (names []string, err error) {
		topics, err := a.ListTopics(ctx)
		for _, t := range topics {
			queue, ok := strings.CutSuffix(t.Name, ".dlq")
			i := strings.LastIndexByte(queue, '.')
			if !ok || i < 0 {
				continue
			}
			if name := of(queue[:i], queue[i+1:]); name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		return names, err
	})
}

// queueApplications completes the names of applications that work on queues.
func (o *operation) queueApplications(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return o.queueNames(prefix, func(application, _ string) string { return application })
}

// consumersOf completes the names of an application's consumers.
func (o *operation) consumersOf(application *string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return o.queueNames(prefix, func(of, consumer string) string {
			if *application != "" && *application != of {
				return ""
			}
			return consumer
		})
	}
}

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
