package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// docs/cli.md says what the commands say of themselves. (-rewrite writes it.)
func TestReference(t *testing.T) {
	root := newRoot()
	root.InitDefaultCompletionCmd()
	var b bytes.Buffer
	b.WriteString("# The command line\n\nThis page is what `pawl help` says of each command; a test writes it. Settings of a cluster, and where they\ncome from, are in [configuration.md](configuration.md).\n")
	writeReference(&b, root)
	name := filepath.Join("..", "..", "docs", "cli.md")
	if *rewrite {
		if err := os.WriteFile(name, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(got, b.Bytes()) {
		return
	}
	have, want := strings.Split(string(got), "\n"), strings.Split(b.String(), "\n")
	for i := range min(len(have), len(want)) {
		if have[i] != want[i] {
			t.Fatalf("%s is stale (go test ./internal/cli -run TestReference -rewrite): line %d is\n%s\nwant\n%s", name, i+1, have[i], want[i])
		}
	}
	t.Fatalf("%s is stale (go test ./internal/cli -run TestReference -rewrite): it has %d lines, want %d", name, len(have), len(want))
}

func writeReference(b *bytes.Buffer, cmd *cobra.Command) {
	if cmd.Name() == "help" || cmd.Hidden {
		return
	}
	cmd.InitDefaultHelpFlag()
	about := cmd.Long
	if about == "" {
		about = cmd.Short + "."
	}
	fmt.Fprintf(b, "\n%s %s\n\n```\n%s\n\nUsage:\n", "##", cmd.CommandPath(), strings.TrimSpace(about))
	if cmd.HasSubCommands() {
		fmt.Fprintf(b, "  %s COMMAND\n", cmd.CommandPath())
	}
	if cmd.Runnable() && !cmd.HasSubCommands() {
		fmt.Fprintf(b, "  %s\n", cmd.UseLine())
	}
	if flags := cmd.LocalFlags().FlagUsages(); flags != "" {
		fmt.Fprintf(b, "\nFlags:\n%s", flags)
	}
	b.WriteString("```\n")
	for _, sub := range cmd.Commands() {
		writeReference(b, sub)
	}
}

// The scripts of completion are there for the shells, and are listed.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		status, stdout, stderr := pawl("completion", shell)
		if status != 0 || stderr != "" || !strings.Contains(stdout, "pawl") {
			t.Errorf("pawl completion %s: status %d, %q, %d bytes", shell, status, stderr, len(stdout))
		}
	}
	if _, stdout, _ := pawl("--help"); !strings.Contains(stdout, "\n  completion ") {
		t.Errorf("pawl --help does not list completion:\n%s", stdout)
	}
}
