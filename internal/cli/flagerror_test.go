package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Every flag of every command that takes not any text refuses what it can't
// take in our words: which flag, what was given, what is wanted. None shows the
// words of who parsed it.
func TestEachFlagRefusesInOurWords(t *testing.T) {
	bad := map[string][]string{
		"int": {"1x", "", "1.5", "99999999999999999999"}, "int16": {"1x", "99999", "-99999"}, "int32": {"1x", "9999999999"}, "int64": {"1x", "99999999999999999999"}, "uint64": {"1x", "-1", "99999999999999999999"},
		"int32Slice": {"1x", "1,x", "9999999999"}, "float64": {"1x", ""}, "bool": {"perhaps"}, "duration": {"soon", "5"}, "stringSlice": {`a"b`},
	}
	seen := make(map[string]int)
	var walk func(path []string, cmd *cobra.Command)
	walk = func(path []string, cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			walk(append(path[:len(path):len(path)], c.Name()), c)
		}
		if !cmd.Runnable() {
			return
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			texts, ok := bad[f.Value.Type()]
			if f.Value.Type() == "bool" && f.Value.Set("perhaps") == nil {
				return // a setting's, which is refused when all of them are read
			}
			if !ok {
				return
			}
			seen[f.Value.Type()]++
			for _, text := range texts {
				args := append(path[:len(path):len(path)], "--"+f.Name+"="+text)
				status, stdout, stderr := pawl(args...)
				want := fmt.Sprintf("pawl: --%s %q: want ", f.Name, text)
				if status != exitUsage || stdout != "" || !strings.HasPrefix(stderr, want) {
					t.Errorf("pawl %v: status %d, stdout %q, stderr %q, want status 2, %s...", args, status, stdout, stderr, want)
				}
				for _, foreign := range []string{"strconv", "invalid argument", "invalid syntax", "parse error", "time:"} {
					if strings.Contains(stderr, foreign) {
						t.Errorf("pawl %v: %q says %q", args, stderr, foreign)
					}
				}
			}
		})
	}
	walk(nil, newRoot())
	for kind := range bad {
		if seen[kind] == 0 {
			t.Errorf("no command has a flag of type %s: nothing was tried", kind)
		}
	}
}

// What a flag is told, and what it says then.
func TestFlagErrors(t *testing.T) {
	for args, want := range map[string]string{
		"demo --kills 1x":                    `--kills "1x": want a whole number`,
		"demo --kills 1e99":                  `--kills "1e99": want a whole number`,
		"demo --seed -1":                     `--seed "-1": want at least 0`,
		"demo --kills":                       `--kills: want a value with it`,
		"demo --=3":                          `"--=3" is no flag: want --NAME or --NAME=VALUE`,
		"demo --keep=perhaps":                `--keep "perhaps": want true or false`,
		"consume t -n x":                     `--count "x": want a whole number`,
		"consume t -n":                       `--count: want a value with it`,
		"consume t -p 0,b":                   `--partition "0,b": want a whole number, or several with commas between them`,
		"topic create t --replication 40000": `--replication "40000": want a smaller number`,
		"txn list --hanging --older soon":    `--older "soon": want a duration such as 100ms, 30s or 5m`,
		"dlq redrive --rate fast":            `--rate "fast": want a number`,
	} {
		status, stdout, stderr := pawl(strings.Fields(args)...)
		if first, _, _ := strings.Cut(stderr, "\n"); status != exitUsage || stdout != "" || first != "pawl: "+want {
			t.Errorf("pawl %s: status %d, stdout %q, stderr %q, want status 2, %s", args, status, stdout, stderr, want)
		}
	}
}
