package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// consent is how a command that destroys something asks first.
type consent struct {
	yes, dryRun bool
}

func (c *consent) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "only say what would be done")
	cmd.Flags().BoolVarP(&c.yes, "yes", "y", false, "don't ask")
}

// dryRunNeedsNoYes is one of the exclusions of each command that asks.
var dryRunNeedsNoYes = exclusion{"dry-run", "yes", "a dry run asks for nothing"}

// errNothingDone says that the answer was no.
var errNothingDone = errors.New("nothing is done")

// given asks whether to go on, unless that was said. Somebody who can't be
// asked has not said yes.
func (c *consent) given(cmd *cobra.Command, question string) error {
	if c.yes {
		return nil
	}
	if !isTerminal(cmd.InOrStdin(), os.Getenv) {
		return usagef(cmd, "standard input is no terminal to ask at: look with --dry-run, then say --yes")
	}
	return answered(cmd.InOrStdin(), cmd.ErrOrStderr(), question)
}

// answered asks, and returns nil if the answer is yes.
func answered(in io.Reader, out io.Writer, question string) error {
	if _, err := fmt.Fprintf(out, "%s Go on? [y/N] ", question); err != nil {
		return err
	}
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil {
		return fmt.Errorf("%w: read the answer: %w", errNothingDone, err)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errNothingDone
}
