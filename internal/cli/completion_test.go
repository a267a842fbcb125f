package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The shell completes every flag that takes one of a few words, or names what is
// on the cluster, and every argument that does.
func TestEverythingNamedIsCompleted(t *testing.T) {
	named := []string{"application", "consumer", "context", "group", "input", "output", "reason", "shard", "to-context", "topic", "transactional-id"}
	arguments := []string{"APPLICATION", "GROUP", "NAME", "SHARD", "TABLE", "TOPIC", "debug|"}
	flags, args := 0, 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			walk(c)
		}
		if cmd.Hidden || !cmd.Runnable() {
			return
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			files := strings.Contains(f.Usage, "file") || strings.Contains(f.Value.Type(), "FILE") || strings.Contains(f.Value.Type(), "PATH")
			if !slices.Contains(named, f.Name) && !strings.Contains(f.Value.Type(), "|") || files {
				return
			}
			flags++
			if _, ok := cmd.GetFlagCompletionFunc(f.Name); !ok {
				t.Errorf("%s: --%s (%s) is not completed", cmd.CommandPath(), f.Name, f.Value.Type())
			}
		})
		_, use, _ := strings.Cut(cmd.Use, " ")
		use, _, _ = strings.Cut(use, "--")
		if slices.ContainsFunc(arguments, func(a string) bool { return strings.Contains(use, a) }) {
			args++
			if cmd.ValidArgsFunction == nil {
				t.Errorf("%s: %s is not completed", cmd.CommandPath(), use)
			}
		}
	}
	walk(newRoot())
	if flags < 100 || args < 15 {
		t.Errorf("%d flags and %d arguments were looked at: that can't be all", flags, args)
	}
}

// Words are completed, and no files offered in their place.
func TestWordsAreCompleted(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"serve", "--log-format", ""}, "text\njson\n:4\n"},
		{[]string{"doctor", "--sasl-mechanism", ""}, "PLAIN\nSCRAM-SHA-256\nSCRAM-SHA-512\nOAUTHBEARER\n:4\n"},
		{[]string{"context", "add", "x", "--sasl-mechanism", ""}, "PLAIN\nSCRAM-SHA-256\nSCRAM-SHA-512\nOAUTHBEARER\n:4\n"},
		{[]string{"dlq", "list", "-o", ""}, "table\njson\n:4\n"},
		{[]string{"dlq", "list", "--reason", ""}, "failed\nrejected\ndecode\ncrash\n:4\n"},
		{[]string{"app", "log-level", ""}, "debug\ninfo\nwarn\nerror\n:4\n"},
		{[]string{"topic", "create", ""}, ":4\n"},
	} {
		if _, stdout, _ := pawl(append([]string{"__complete"}, tt.args...)...); stdout != tt.want {
			t.Errorf("completion of pawl %q: %q, want %q", tt.args, stdout, tt.want)
		}
	}
}
