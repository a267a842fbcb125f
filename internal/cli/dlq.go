package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/messaging"
)

func newDLQCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dlq",
		Short: "Work with dead letters: list, show, redrive, discard and export them",
		Long: `Dead letters are messages whose handler has failed too often, or has given them
up. They wait in a topic, whole, with why they are there.

Name them by --application and --consumer, or by the topic that they are in.
Each command works on the letters that are there when it starts, and ends with
them: one that comes back meanwhile is for the next call.

A letter is named PARTITION:OFFSET, several of one partition PARTITION:FROM-TO,
both included; flags ask for letters by error, key, header and time.`,
		Args: onlyCommands,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newDLQListCommand(), newDLQShowCommand(), newDLQRedriveCommand(), newDLQDiscardCommand(), newDLQExportCommand())
	return cmd
}

// letterFlags say which dead letters are meant.
type letterFlags struct {
	cluster               func() (cluster.Cluster, error)
	application, consumer string
	topic                 string

	reason, err, key, header string
	nullKey                  bool
	since, until             string
	settled                  bool
	output                   string
}

// addTopic adds the flags that say where dead letters are.
func (l *letterFlags) addTopic(cmd *cobra.Command) {
	f := cmd.Flags()
	l.cluster = clusterFlags(cmd)
	f.StringVar(&l.application, "application", "", "the application whose dead letters are meant")
	f.StringVar(&l.consumer, "consumer", "", "and its consumer")
	f.StringVar(&l.topic, "topic", "", "the topic of the dead letters (default: <application>.<consumer>.dlq)")
	f.StringVarP(&l.output, "output", "o", "table", "what is printed: table or json")
	o := &operation{cmd: cmd, cluster: l.cluster}
	completeFlag(cmd, "application", o.queueApplications)
	completeFlag(cmd, "consumer", o.consumersOf(&l.application))
	completeFlag(cmd, "topic", o.topicNames)
	completeFlag(cmd, "output", fixed("table", "json"))
}

// letterReasons are why letters are set aside.
var letterReasons = []string{messaging.ReasonFailed, messaging.ReasonRejected, messaging.ReasonDecode, messaging.ReasonCrash}

// addQuery adds the flags that ask for letters.
func (l *letterFlags) addQuery(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&l.reason, "reason", "", "only those set aside for this reason: failed, rejected, decode or crash")
	f.StringVar(&l.err, "error", "", "only those whose last error contains this")
	f.StringVar(&l.key, "key", "", "only those with this key")
	f.BoolVar(&l.nullKey, "null-key", false, "only those without a key")
	f.StringVar(&l.header, "header", "", "only those with this header: NAME or NAME=VALUE")
	f.StringVar(&l.since, "since", "", "only those set aside since then: a time such as 2006-01-02T15:04:05Z, or how long ago, such as 2h")
	f.StringVar(&l.until, "until", "", "only those set aside before then")
	completeFlag(cmd, "reason", fixed(letterReasons...))
}

// addSettled adds the flag that asks for letters that are done with, too.
func (l *letterFlags) addSettled(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&l.settled, "settled", false, "also those that were redriven or discarded")
}

// open returns the dead letters.
func (l *letterFlags) open(cmd *cobra.Command, log *slog.Logger) (*messaging.Letters, error) {
	if l.output != "table" && l.output != "json" {
		return nil, usagef(cmd, "--output %q: want table or json", l.output)
	}
	if l.topic == "" && (l.application == "" || l.consumer == "") {
		return nil, usagef(cmd, "whose dead letters? Set --application and --consumer, or --topic")
	}
	c, err := l.cluster()
	if err != nil {
		return nil, err
	}
	letters, err := messaging.OpenLetters(messaging.LettersConfig{Cluster: c, Application: l.application, Consumer: l.consumer, Topic: l.topic, Logger: log})
	if err != nil {
		return nil, usageError{err, cmd}
	}
	return letters, nil
}

// query returns what arguments and flags ask for.
func (l *letterFlags) query(cmd *cobra.Command, args []string, now time.Time) (messaging.Query, error) {
	q := messaging.Query{Reason: l.reason, Error: l.err, Settled: l.settled}
	var errs []error
	switch len(args) {
	case 0:
	case 1:
		p, from, to, err := parseLetters(args[0])
		if err != nil {
			errs = append(errs, err)
		}
		q.Partition, q.From, q.To = &p, from, to
	default:
		errs = append(errs, fmt.Errorf("unexpected argument %q: want one letter, PARTITION:OFFSET, or one range, PARTITION:FROM-TO", args[1]))
	}
	if l.reason != "" {
		if !slices.Contains(letterReasons, l.reason) {
			errs = append(errs, fmt.Errorf("--reason %q: want one of %s", l.reason, strings.Join(letterReasons, ", ")))
		}
	}
	q.NullKey = l.nullKey
	if cmd.Flags().Changed("key") {
		q.Key = []byte(l.key)
		if q.NullKey {
			errs = append(errs, errors.New("--key and --null-key exclude each other: a letter with a key is not without one"))
		}
	}
	if l.header != "" {
		q.Header, q.HeaderValue, _ = strings.Cut(l.header, "=")
	}
	for _, t := range []struct {
		flag, text string
		to         *time.Time
	}{{"since", l.since, &q.Since}, {"until", l.until, &q.Until}} {
		if t.text == "" {
			continue
		}
		at, err := parseTime(t.text, now)
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s %q: %w", t.flag, t.text, err))
		}
		*t.to = at
	}
	if !q.Since.IsZero() && !q.Until.IsZero() && !q.Since.Before(q.Until) {
		errs = append(errs, errors.New("--since is not before --until: no letter can be meant"))
	}
	if err := errors.Join(errs...); err != nil {
		return q, usageError{err, cmd}
	}
	return q, nil
}

// asks says whether arguments or flags ask for anything but all letters.
func (l *letterFlags) asks(cmd *cobra.Command, args []string) bool {
	asked := len(args) > 0
	for _, name := range []string{"reason", "error", "key", "null-key", "header", "since", "until"} {
		asked = asked || cmd.Flags().Changed(name)
	}
	return asked
}

// parseLetters reads PARTITION:OFFSET or PARTITION:FROM-TO. to is above the
// last one.
func parseLetters(s string) (partition int32, from, to int64, err error) {
	bad := fmt.Errorf("%q names no letter: want PARTITION:OFFSET such as 0:17, or PARTITION:FROM-TO such as 0:17-40", s)
	p, offsets, ok := strings.Cut(s, ":")
	n, err := strconv.ParseUint(p, 10, 31)
	if !ok || err != nil {
		return 0, 0, 0, bad
	}
	first, last, several := strings.Cut(offsets, "-")
	if !several {
		last = first
	}
	a, err := strconv.ParseUint(first, 10, 62)
	if err != nil {
		return 0, 0, 0, bad
	}
	b, err := strconv.ParseUint(last, 10, 62)
	if err != nil || b < a {
		return 0, 0, 0, bad
	}
	return int32(n), int64(a), int64(b) + 1, nil
}

// parseTime reads a time, or how long ago it was.
func parseTime(s string, now time.Time) (time.Time, error) {
	if ago, err := time.ParseDuration(s); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, errors.New("want a time such as 2006-01-02T15:04:05Z or 2006-01-02, or how long ago, such as 2h")
}

// letterName is how a letter is named on the command line.
func letterName(partition int32, offset int64) string { return fmt.Sprintf("%d:%d", partition, offset) }
