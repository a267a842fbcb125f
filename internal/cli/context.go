package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/config"
)

func newContextCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "context",
		Short: "Name ways to reach clusters, and choose one: list, use, show, add, delete",
		Long: `A context is a named way to reach a cluster: its brokers, TLS and SASL. It is
used by --context or PAWL_CONTEXT, and by commands that name no brokers at all if
it is the current one. Only flags change what a context says; an application's
program uses one only if it is told to.

Contexts are in $XDG_CONFIG_HOME/pawl/config.yaml, or else in ~/.config. No
secret is among them: a context names the variable or the file that holds it.`,
		Args: onlyCommands,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newContextListCommand(), newContextUseCommand(), newContextShowCommand(), newContextAddCommand(), newContextDeleteCommand())
	return cmd
}

// contextSettings are what can be said of a cluster.
func contextSettings() []config.Setting {
	var c cluster.Cluster
	return append([]config.Setting{config.BrokersSetting(&c, "")}, config.ClusterSettings(&c, new(config.TLSFiles))...)
}

func readContexts() (*config.Contexts, error) {
	return config.ReadContexts(config.ContextsFile(os.Environ()))
}

// shownContext is a context as it is printed.
type shownContext struct {
	Name    string            `json:"name"`
	Current bool              `json:"current"`
	Says    map[string]string `json:"says"`
}

func shownContexts(c *config.Contexts, names ...string) []shownContext {
	shown := []shownContext{}
	for _, name := range names {
		s := shownContext{name, name == c.Current, make(map[string]string)}
		for _, f := range c.Fields(name, contextSettings()) {
			s.Says[f.Key] = f.Value
		}
		shown = append(shown, s)
	}
	return shown
}

func newContextListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the contexts", Args: noArguments}
	o := &operation{cmd: cmd}
	addOutput(cmd, &o.output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkOutput(cmd, o.output); err != nil {
			return err
		}
		c, err := readContexts()
		if err != nil {
			return err
		}
		all := shownContexts(c, c.Names()...)
		return o.document(all, func(t *table) {
			if len(all) == 0 {
				t.line("there are no contexts: pawl context add makes one")
				return
			}
			t.row("CURRENT", "NAME", "BROKERS", "TLS", "SASL")
			for _, s := range all {
				mark := ""
				if s.Current {
					mark = "*"
				}
				t.row(mark, s.Name, s.Says["brokers"], tlsOf(s.Says), strings.TrimSpace(s.Says["sasl-mechanism"]+" "+s.Says["sasl-username"]))
			}
		})
	}
	return cmd
}

func tlsOf(says map[string]string) string {
	if says["tls"] == "true" {
		return "yes"
	}
	for key := range says {
		if strings.HasPrefix(key, "tls-") {
			return "yes"
		}
	}
	return "no"
}

func newContextUseCommand() *cobra.Command {
	var none bool
	cmd := &cobra.Command{
		Use:               "use NAME",
		Short:             "Make a context the current one",
		ValidArgsFunction: completeContexts,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 && !none || none && len(args) != 0 {
				return usagef(cmd, "want the name of one context, or --none")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := readContexts()
			if err != nil {
				return err
			}
			name := strings.Join(args, "")
			if err := c.Use(name); err != nil {
				return usageError{err, cmd}
			}
			return c.Write()
		},
	}
	cmd.Flags().BoolVar(&none, "none", false, "have no current context")
	return cmd
}

func newContextShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "show [NAME]",
		Short:             "Show what a context says: the current one, or the one that is named",
		ValidArgsFunction: completeContexts,
		Args:              atMostOne,
	}
	o := &operation{cmd: cmd}
	addOutput(cmd, &o.output)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkOutput(cmd, o.output); err != nil {
			return err
		}
		c, err := readContexts()
		if err != nil {
			return err
		}
		name := c.Current
		if len(args) == 1 {
			name = args[0]
		}
		if name == "" {
			return usagef(cmd, "there is no current context: name one, or choose one with pawl context use")
		}
		if err := c.CheckContext(name, contextSettings()); err != nil {
			return err
		}
		return o.document(shownContexts(c, name)[0], func(t *table) {
			for _, f := range c.Fields(name, contextSettings()) {
				t.row(f.Key, f.Value)
			}
		})
	}
	return cmd
}

func atMostOne(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usagef(cmd, "unexpected argument %q: want one name", args[1])
	}
	return nil
}

func newContextAddCommand() *cobra.Command {
	var replace, use bool
	cmd := &cobra.Command{
		Use:   "add NAME --brokers HOST:PORT,…",
		Short: "Add a context",

		ValidArgsFunction: cobra.NoFileCompletions, // it is new
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef(cmd, "want the name of the context")
			}
			return nil
		},
	}
	f := cmd.Flags()
	keys := config.ContextKeys(contextSettings())
	for _, k := range keys {
		if k.Form == "" {
			f.Bool(k.Name, false, k.Help)
		} else {
			f.String(k.Name, "", k.Help)
			if strings.Contains(k.Form, "|") {
				completeFlag(cmd, k.Name, fixed(strings.Split(k.Form, "|")...))
			}
		}
	}
	f.BoolVar(&replace, "replace", false, "replace the context of that name, if there is one")
	f.BoolVar(&use, "use", false, "and make it the current one")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := readContexts()
		if err != nil {
			return err
		}
		fields, err := contextFields(f, keys)
		if err == nil && !f.Changed("brokers") {
			err = errors.New("no brokers are named: set --brokers")
		}
		if err != nil {
			return usageError{err, cmd}
		}
		if err := c.Add(args[0], fields, replace); err != nil {
			return usageError{err, cmd}
		}
		if err := c.CheckContext(args[0], contextSettings()); err != nil {
			return usageError{err, cmd}
		}
		if use {
			if err := c.Use(args[0]); err != nil {
				return err
			}
		}
		return c.Write()
	}
	return cmd
}

// contextFields returns what the flags say. A file is named from the root: the
// contexts are in another directory.
func contextFields(f *pflag.FlagSet, keys []config.ContextKey) ([]config.Field, error) {
	var fields []config.Field
	for _, k := range keys {
		if !f.Changed(k.Name) {
			continue
		}
		value := f.Lookup(k.Name).Value.String()
		if k.Path && value != "" {
			abs, err := filepath.Abs(value)
			if err != nil {
				return nil, fmt.Errorf("--%s: %w", k.Name, err)
			}
			value = abs
		}
		fields = append(fields, config.Field{Key: k.Name, Value: value})
	}
	return fields, nil
}

func newContextDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "delete NAME",
		Short:             "Delete a context",
		ValidArgsFunction: completeContexts,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef(cmd, "want the name of the context")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := readContexts()
			if err != nil {
				return err
			}
			if err := c.Delete(args[0]); err != nil {
				return usageError{err, cmd}
			}
			return c.Write()
		},
	}
}

// completeContexts completes the name of a context.
func completeContexts(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	c, err := readContexts()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.Names(), cobra.ShellCompDirectiveNoFileComp
}
