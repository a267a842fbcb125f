package cli

import (
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

func newDLQListCommand() *cobra.Command {
	var l letterFlags
	var limit int
	var after string
	cmd := &cobra.Command{
		Use:   "list [LETTER]",
		Short: "List dead letters",
		Long: `List lists dead letters as they are read, partition after partition: all of
them, or a page of them with --limit. A page ends with the command line flag
that begins the next one.`,
		Example: `  pawl dlq list --brokers kafka-1:9092 --application shop --consumer mailer
  pawl dlq list … --error timeout --since 2h -o json
  pawl dlq list … --limit 100 --after 0:99`,
		RunE: func(cmd *cobra.Command, args []string) error {
			p := page{limit: limit, partition: -1}
			if limit < 0 {
				return usagef(cmd, "--limit %d: want 0 for all, or more", limit)
			}
			if after != "" {
				partition, offset, to, err := parseLetters(after)
				if err != nil || to != offset+1 {
					return usagef(cmd, "--after %q: want PARTITION:OFFSET", after)
				}
				p.partition, p.offset = partition, offset
			}
			return l.list(cmd, args, p)
		},
	}
	l.addTopic(cmd)
	l.addQuery(cmd)
	l.addSettled(cmd)
	cmd.Flags().IntVar(&limit, "limit", 0, "at most so many (default: all)")
	cmd.Flags().StringVar(&after, "after", "", "only those after this letter, PARTITION:OFFSET")
	return cmd
}

// page is the part of a list that is wanted.
type page struct {
	limit     int   // letters; 0: all
	partition int32 // those after this letter; -1: from the first
	offset    int64
}

// passed says whether a letter was on an earlier page.
func (p page) passed(l messaging.Letter) bool {
	return l.Partition < p.partition || l.Partition == p.partition && l.Offset <= p.offset
}

func (l *letterFlags) list(cmd *cobra.Command, args []string, p page) error {
	ctx, stop := untilSignal(cmd)
	defer stop()
	return ending(ctx, l.listUntil(ctx, cmd, args, p))
}

func (l *letterFlags) listUntil(ctx context.Context, cmd *cobra.Command, args []string, p page) error {
	q, err := l.query(cmd, args, time.Now())
	if err != nil {
		return err
	}
	letters, err := l.open(cmd, warnings(cmd.ErrOrStderr()))
	if err != nil {
		return err
	}
	defer letters.Close()
	print := l.rows(cmd.OutOrStdout())
	n := 0
	var last messaging.Letter
	for letter, err := range letters.List(ctx, q) {
		if err != nil {
			return err
		}
		if p.passed(letter) {
			continue
		}
		if p.limit > 0 && n == p.limit {
			_, err := fmt.Fprintf(cmd.ErrOrStderr(), "there are more: --after %s\n", letterName(last.Partition, last.Offset))
			return err
		}
		if err := print(letter); err != nil {
			return fmt.Errorf("list dead letters: %w", err)
		}
		n, last = n+1, letter
	}
	if l.output == "table" && n == 0 {
		_, err := fmt.Fprintln(cmd.ErrOrStderr(), "no dead letters")
		return err
	}
	return nil
}

// rows returns what prints letters, one a line, in the form that is asked for.
func (l *letterFlags) rows(to io.Writer) func(messaging.Letter) error {
	if l.output == "json" {
		enc := json.NewEncoder(jsonWriter{to})
		enc.SetEscapeHTML(false)
		return func(letter messaging.Letter) error { return enc.Encode(letter) }
	}
	const row = "%-12s %-20s %-9s %8s  %-20s %-10s %s\n"
	header := true
	return func(letter messaging.Letter) error {
		if header {
			header = false
			if _, err := fmt.Fprintf(to, row, "LETTER", "SINCE", "REASON", "ATTEMPTS", "KEY", "BECAME", "ERROR"); err != nil {
				return err
			}
		}
		became := "-"
		if letter.Outcome != nil {
			became = printable(letter.Outcome.Action)
		}
		reason := printable(letter.Reason)
		if letter.FromElsewhere {
			reason = "unknown"
		}
		_, err := fmt.Fprintf(to, row, letterName(letter.Partition, letter.Offset), moment(letter.Time), cut(reason, 9), fmt.Sprint(letter.Attempts),
			cut(bytesText(letter.Key), 20), cut(became, 10), cut(printable(letter.Error), 60))
		return err
	}
}

// moment writes a time; what no clock says is said to be that.
func moment(t time.Time) string {
	if y := t.UTC().Year(); y < 1 || y > 9999 {
		return "absurd"
	}
	return t.UTC().Format(time.RFC3339)
}

// bytesText shows bytes that may be null.
func bytesText(b []byte) string {
	if b == nil {
		return "(null)"
	}
	return printable(string(b))
}

func newDLQShowCommand() *cobra.Command {
	var l letterFlags
	cmd := &cobra.Command{
		Use:     "show LETTER",
		Short:   "Show one dead letter whole: key, value, headers, and every attempt that is on record",
		Example: "  pawl dlq show --brokers kafka-1:9092 --application shop --consumer mailer 0:17",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef(cmd, "which letter? Name one, PARTITION:OFFSET")
			}
			partition, offset, to, err := parseLetters(args[0])
			if err != nil {
				return usageError{err, cmd}
			}
			if to != offset+1 {
				return usagef(cmd, "%q names several letters: list lists them", args[0])
			}
			letters, err := l.open(cmd, warnings(cmd.ErrOrStderr()))
			if err != nil {
				return err
			}
			defer letters.Close()
			ctx, stop := untilSignal(cmd)
			defer stop()
			letter, err := letters.Show(ctx, partition, offset)
			if err != nil {
				return ending(ctx, err)
			}
			if l.output == "json" {
				return ending(ctx, l.rows(cmd.OutOrStdout())(letter))
			}
			return ending(ctx, showLetter(cmd.OutOrStdout(), letter))
		},
	}
	l.addTopic(cmd)
	return cmd
}

// showLetter prints a letter, an item a line.
func showLetter(to io.Writer, l messaging.Letter) error {
	var b strings.Builder
	item := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-11s %s\n", name, fmt.Sprintf(format, args...))
	}
	item("letter", "%s", letterName(l.Partition, l.Offset))
	item("since", "%s", moment(l.Time))
	if l.FromElsewhere {
		item("from", "unknown: it does not say")
	} else {
		item("from", "%s, partition %d, offset %d, of %s", printable(l.Topic), l.TopicPartition, l.TopicOffset, moment(l.TopicTimestamp))
		item("group", "%s", printable(l.Group))
		item("reason", "%s", printable(l.Reason))
		item("attempts", "%d", l.Attempts)
		item("redrives", "%d", l.Redrives)
	}
	if o := l.Outcome; o != nil {
		text := printable(o.Action) + " " + moment(o.Time)
		if o.To != "" {
			text += " to " + printable(o.To)
		}
		if o.Why != "" {
			text += ": " + printable(o.Why)
		}
		item("became", "%s", text)
	}
	for line := range strings.SplitSeq(l.Error, "\n") {
		if line != "" {
			item("error", "%s", printable(line))
		}
	}
	for _, f := range l.History {
		item("attempt "+fmt.Sprint(f.Attempt), "%s  %s", moment(f.Time), printable(f.Error))
	}
	item("key", "%s", bytesText(l.Key))
	for _, h := range l.Headers {
		item("header", "%s: %s", printable(h.Key), bytesText(h.Value))
	}
	item("value", "%s", bytesText(l.Value))
	if _, err := io.WriteString(to, b.String()); err != nil {
		return fmt.Errorf("show the dead letter: %w", err)
	}
	return nil
}

func newDLQExportCommand() *cobra.Command {
	var l letterFlags
	var file string
	cmd := &cobra.Command{
		Use:   "export [LETTER]",
		Short: "Write dead letters as JSON, one a line, to a file or to standard output",
		Long: `Export writes dead letters whole, one JSON object a line: keys, values and
headers in base64, and as text, too, where they are text. It leaves them where
they are.`,
		Example: "  pawl dlq export --brokers kafka-1:9092 --application shop --consumer mailer --file letters.jsonl",
		RunE:    func(cmd *cobra.Command, args []string) error { return l.export(cmd, args, file) },
	}
	l.addTopic(cmd)
	if err := cmd.Flags().MarkHidden("output"); err != nil {
		panic(err) // the flag was added a line above
	}
	l.addQuery(cmd)
	l.addSettled(cmd)
	cmd.Flags().StringVar(&file, "file", "-", "the file, which must not exist; - for standard output")
	return cmd
}

func (l *letterFlags) export(cmd *cobra.Command, args []string, file string) (err error) {
	q, err := l.query(cmd, args, time.Now())
	if err != nil {
		return err
	}
	letters, err := l.open(cmd, warnings(cmd.ErrOrStderr()))
	if err != nil {
		return err
	}
	defer letters.Close()
	to := cmd.OutOrStdout()
	if file != "-" {
		f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) // letters may hold what is not for everybody
		if err != nil {
			return fmt.Errorf("export dead letters: %w", err)
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		to = f
	}
	ctx, stop := untilSignal(cmd)
	defer stop()
	n, err := letters.Export(ctx, q, jsonWriter{to})
	if err != nil {
		return ending(ctx, fmt.Errorf("after %s: %w", count(int64(n), "letter"), err))
	}
	_, err = fmt.Fprintf(cmd.ErrOrStderr(), "%s exported\n", count(int64(n), "letter"))
	return err
}

// count writes a number of things.
func count(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return thousands(n) + " " + noun + "s"
}
