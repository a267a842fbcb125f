// Package cli is the command line of the program pawl: one file per command.
package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/internal/config"
)

// The exit statuses.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2 // the command line is wrong
)

// Run runs the command that args name, and returns the exit status.
func Run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return execute(newRoot(), args, stdin, stdout, stderr)
}

// commands are the commands of pawl, each in a file of its own.
func commands() []*cobra.Command {
	return []*cobra.Command{
		newAppCommand(), newBackupCommand(), newConsumeCommand(), newContextCommand(), newDemoCommand(), newDevCommand(), newDLQCommand(), newDoctorCommand(), newGroupCommand(), newOffsetsCommand(),
		newProduceCommand(), newServeCommand(), newShardCommand(), newStateCommand(), newTopicCommand(), newTxnCommand(), newVersionCommand(),
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "pawl",
		Short: "Exactly-once stream shards on Kafka",
		Long:  "Pawl consumes streams of messages so that work already done never slips back.",
		Args:  onlyCommands,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },

		// execute says what is wrong, in one line.
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError{flagError(cmd, err), cmd} })
	root.AddCommand(commands()...)
	completeSettings(root)
	return root
}

func execute(root *cobra.Command, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.Execute()
	var status statusError
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &status):
		return int(status)
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(stderr, "pawl: %s\n", visible(strings.TrimRight(line, "\n")))
	}
	if errors.As(err, &usage) {
		fmt.Fprintf(stderr, "pawl: see %s --help\n", usage.cmd.CommandPath())
		return exitUsage
	}
	return exitError
}

// usageError is an error of the command line.
type usageError struct {
	error
	cmd *cobra.Command
}

func (e usageError) Unwrap() error { return e.error }

// usagef returns an error of the command line: pawl exits with status 2.
func usagef(cmd *cobra.Command, format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...), cmd}
}

// statusError is the exit status of a command that has said itself what there
// is to say.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// onlyCommands refuses what is not one of the command's own.
func onlyCommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var known []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			known = append(known, c.Name())
		}
	}
	return usagef(cmd, "unknown command %q%s", args[0], config.Suggest(args[0], known))
}

// eachOnce refuses what is named twice.
func eachOnce(cmd *cobra.Command, names []string) error {
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return usagef(cmd, "%s is named twice", name)
		}
	}
	return nil
}

// noArguments refuses arguments that are not flags.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef(cmd, "unexpected argument %q", args[0])
	}
	return nil
}
