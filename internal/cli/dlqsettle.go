package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/messaging"
)

// settleFlags say how letters are redriven or discarded.
type settleFlags struct {
	letterFlags
	options   messaging.Options
	toContext string // of the cluster that letters go to; empty: that of the letters
	all       bool
	yes       bool
}

func (s *settleFlags) add(cmd *cobra.Command) {
	s.addTopic(cmd)
	s.addQuery(cmd)
	f := cmd.Flags()
	f.BoolVar(&s.all, "all", false, "all letters; needed where nothing else says which")
	f.BoolVar(&s.options.DryRun, "dry-run", false, "only count them")
	f.Float64Var(&s.options.Rate, "rate", 0, "letters a second (default: as fast as it goes)")
	f.StringVar(&s.options.Why, "why", "", "goes into the record of what became of each")
	f.BoolVarP(&s.yes, "yes", "y", false, "don't ask")
}

func newDLQRedriveCommand() *cobra.Command {
	var s settleFlags
	cmd := &cobra.Command{
		Use:   "redrive [LETTER]",
		Short: "Send dead letters back to the consumer that they failed in",
		Long: `Redrive sends dead letters back, with all their attempts before them, to the
consumer that they failed in and to no other, or to a topic with --to. A letter
and the record of its redrive are written in one transaction: each is redriven
exactly once, also if the command is killed and called again.

With --to-context they go to the cluster of that context: to the consumer there,
or to the topic of --to there. No transaction spans two clusters, so a letter is
written there first, and the record of it then beside the letter: each is
redriven at least once. If the command is killed between the two and called
again, some are sent a second time; none is lost.

It ends with the letters that were there when it began. The exit status is 1 if
any failed.`,
		Example: `  pawl dlq redrive --brokers kafka-1:9092 --application shop --consumer mailer 0:17
  pawl dlq redrive … --error timeout --since 2h --dry-run
  pawl dlq redrive … --all --rate 50 --yes
  pawl dlq redrive … --all --to-context prod --dry-run`,
		RunE: func(cmd *cobra.Command, args []string) error { return s.settle(cmd, args, messaging.Redriven) },
	}
	s.add(cmd)
	cmd.Flags().IntVar(&s.options.MaxRedrives, "max-redrives", 0, "leave those that came back so often already (default: 10)")
	cmd.Flags().StringVar(&s.options.To, "to", "", "a topic to send them to, of the same cluster or that of --to-context")
	cmd.Flags().StringVar(&s.toContext, toContextFlag, "", "a context whose cluster to send them to, at least once each; of those that pawl context lists")
	completeFlag(cmd, toContextFlag, contextNames)
	completeFlag(cmd, "to", (&operation{cmd: cmd, cluster: s.cluster}).topicNames)
	return cmd
}

func newDLQDiscardCommand() *cobra.Command {
	var s settleFlags
	cmd := &cobra.Command{
		Use:   "discard [LETTER]",
		Short: "Record of dead letters that nothing is to become of them",
		Long: `Discard records of dead letters that they are done with: list does not list
them any more, and redrive passes over them. The messages stay in the topic for
as long as it keeps them; list --settled shows them.`,
		Example: "  pawl dlq discard --brokers kafka-1:9092 --application shop --consumer mailer --reason decode --why 'version 3 sent garbage'",
		RunE:    func(cmd *cobra.Command, args []string) error { return s.settle(cmd, args, messaging.Discarded) },
	}
	s.add(cmd)
	return cmd
}

// settlement is what a redrive or a discard comes to.
type settlement struct {
	Action string `json:"action"`
	Topic  string `json:"topic"`
	DryRun bool   `json:"dry_run,omitempty"`
	Moved  int    `json:"moved"`  // with a dry run: that would be
	Failed int    `json:"failed"` // and are still there
	Left   int    `json:"left"`   // came back too often already, and are still there
	Whole  bool   `json:"whole"`  // it came to the last letter

	// Where letters go to another cluster: its context, and that each goes there
	// at least once.
	ToContext string `json:"to_context,omitempty"`
	Delivery  string `json:"delivery,omitempty"`
}

func (s *settleFlags) settle(cmd *cobra.Command, args []string, action string) error {
	switch {
	case s.options.Rate < 0:
		return usagef(cmd, "--rate %v: want letters a second, or 0 for no limit", s.options.Rate)
	case s.options.MaxRedrives < 0:
		return usagef(cmd, "--max-redrives %d: want 1 or more", s.options.MaxRedrives)
	case !s.all && !s.asks(cmd, args):
		return usagef(cmd, "which letters? Name them, ask for them with flags, or say --all")
	case s.all && len(args) > 0:
		return usagef(cmd, "--all is set and %q is named: set one of them", args[0])
	}
	q, err := s.query(cmd, args, time.Now())
	if err != nil {
		return err
	}
	bar := newProgressBar(cmd.ErrOrStderr(), os.Getenv, action)
	letters, err := s.open(cmd, warnings(bar))
	if err != nil {
		return err
	}
	defer letters.Close()
	ctx, stop := untilSignal(cmd)
	defer stop()
	if cmd.Flags().Changed(toContextFlag) {
		if err := s.aim(ctx, cmd); err != nil {
			return ending(ctx, err)
		}
	}
	if err := named(ctx, letters, q); err != nil {
		return ending(ctx, err)
	}
	run := letters.Redrive
	if action == messaging.Discarded {
		run = letters.Discard
	}
	if !s.options.DryRun && !s.yes {
		if ok, err := s.confirm(ctx, cmd, letters, q, action); err != nil || !ok {
			return err
		}
	}
	s.options.Progress = bar.draw
	res, err := run(ctx, q, s.options)
	bar.erase()
	if ctx.Err() != nil {
		err = errors.New("interrupted: what was done is done, and the same command does the rest")
	}
	out := settlement{Action: action, Topic: letters.Topic(), DryRun: s.options.DryRun, Moved: res.Moved, Failed: res.Failed, Left: res.Capped, Whole: err == nil || res.Failed > 0 && ctx.Err() == nil && errors.Is(err, res.Err)}
	if s.toContext != "" {
		out.ToContext, out.Delivery = s.toContext, "at least once"
	}
	return errors.Join(err, out.print(cmd.OutOrStdout(), s.output))
}

func (s settlement) print(to io.Writer, output string) error {
	var err error
	if output == "json" {
		err = json.NewEncoder(jsonWriter{to}).Encode(s)
	} else {
		text := fmt.Sprintf("%s %s, %d failed, %d left", count(int64(s.Moved), "letter"), s.Action, s.Failed, s.Left)
		if s.DryRun {
			text = fmt.Sprintf("%s would be %s, %d left", count(int64(s.Moved), "letter"), s.Action, s.Left)
		}
		if s.ToContext != "" {
			text += "; " + intoContext(s.ToContext)
		}
		_, err = fmt.Fprintln(to, text)
	}
	if err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}

// named says whether a letter is there that is named by itself: not to find it is
// no success, as it is for whatever fits a query. One that is settled is there.
func named(ctx context.Context, letters *messaging.Letters, q messaging.Query) error {
	if q.Partition == nil || q.To != q.From+1 {
		return nil
	}
	if _, err := letters.Show(ctx, *q.Partition, q.From); err != nil {
		return fmt.Errorf("look for the letter that is named: %w", err)
	}
	return nil
}

// confirm asks whether to go on, with the number of letters that are meant.
func (s *settleFlags) confirm(ctx context.Context, cmd *cobra.Command, letters *messaging.Letters, q messaging.Query, action string) (bool, error) {
	if !isTerminal(cmd.InOrStdin(), os.Getenv) {
		return false, usagef(cmd, "standard input is no terminal to ask at: look with --dry-run, then say --yes")
	}
	dry := s.options
	dry.DryRun = true
	count := letters.Redrive
	if action == messaging.Discarded {
		count = letters.Discard
	}
	res, err := count(ctx, q, dry)
	if err != nil {
		return false, err
	}
	if s.toContext != "" {
		action += " " + intoContext(s.toContext)
	}
	return ask(cmd.InOrStdin(), cmd.ErrOrStderr(), res.Moved, letters.Topic(), action)
}

// ask asks, and says whether the answer is yes.
func ask(in io.Reader, out io.Writer, n int, topic, action string) (bool, error) {
	if n == 0 {
		_, err := fmt.Fprintln(out, "no dead letters fit")
		return false, err
	}
	if _, err := fmt.Fprintf(out, "%s of %s will be %s. Go on? [y/N] ", count(int64(n), "letter"), printable(topic), action); err != nil {
		return false, err
	}
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil {
		return false, fmt.Errorf("nothing is done: read the answer: %w", err)
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	if answer == "y" || answer == "yes" {
		return true, nil
	}
	return false, errors.New("nothing is done")
}
