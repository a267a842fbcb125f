package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// consumeFlags say what is read, from where, and until when.
type consumeFlags struct {
	topics      []string
	partitions  []int32
	from, until string
	count       int64
	group       string
	uncommitted bool

	start, end place
}

// consumeExclusions are the flags of consume that exclude each other.
var consumeExclusions = exclusions{
	{"group", "partition", "a group says itself who reads which partition"},
}

func newConsumeCommand() *cobra.Command {
	var (
		o *operation
		f consumeFlags
	)
	cmd := &cobra.Command{
		Use:   "consume TOPIC...",
		Short: "Print messages",
		Long: `Consume prints messages with keys, headers, partitions, offsets and timestamps,
as they come: those of a partition in order. It prints those alone that are
committed, or were not written in a transaction, unless --uncommitted.

--from says where it starts: earliest, latest, an offset (of one partition), or a
time: 2006-01-02, 2006-01-02T15:04:05Z, now-1h. --until says where it ends: end
(where the topic ends now), an offset, or a time; without --until and --count it
goes on until it is told to stop. At a time means: at the first message that is
as late as that.

With --group it reads as a member of a group, shares the partitions with the
others, goes on where the group has come, and commits what it has printed; --from
then holds where the group has committed nothing.

-o json prints an object a line, which produce reads. When a signal ends it, the
status is 0 if nothing else was to end it, and else 130.`,
		Example: `  pawl consume orders --from now-1h --until end
  pawl consume orders --partition 3 --from 1700 --count 1 -o json
  pawl consume orders --until end -o json | pawl produce orders-copy`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(cmd, args, time.Now()); err != nil {
				return err
			}
			return o.run(func(ctx context.Context, c asked) error {
				reading, cancel := context.WithCancelCause(ctx)
				var watching sync.WaitGroup
				watching.Go(func() { whileRead(reading, cmd.OutOrStdout(), func() { cancel(syscall.EPIPE) }) })
				err := f.consume(reading, cmd, c, o.output)
				if errors.Is(err, context.Canceled) && (errors.Is(context.Cause(reading), syscall.EPIPE) || f.endless() && ctx.Err() != nil) {
					err = nil // nobody reads any more, or it was told to stop, as it had to be
				}
				cancel(nil)
				watching.Wait()
				return err
			})
		},
	}
	o = newOperation(cmd)
	cmd.ValidArgsFunction = o.topicNames
	flags := cmd.Flags()
	flags.Int32SliceVarP(&f.partitions, "partition", "p", nil, "only this partition; again for another")
	flags.StringVar(&f.from, "from", "earliest", "where to start: earliest, latest, an offset, or a time")
	flags.StringVar(&f.until, "until", "", "where to end: end, an offset, or a time (default: never)")
	flags.Int64VarP(&f.count, "count", "n", 0, "end after so many messages")
	flags.StringVarP(&f.group, "group", "g", "", "read as a member of this group")
	flags.BoolVar(&f.uncommitted, "uncommitted", false, "also messages of transactions that are open or were aborted")
	completeFlag(cmd, "group", o.groupNames)
	completeFlag(cmd, "from", fixed("earliest", "latest"))
	completeFlag(cmd, "until", fixed("end"))
	return cmd
}

// check refuses flags that can't be obeyed.
func (f *consumeFlags) check(cmd *cobra.Command, args []string, now time.Time) (err error) {
	if err := consumeExclusions.check(cmd); err != nil {
		return err
	}
	changed := cmd.Flags().Changed
	if f.start, err = parsePlace(f.from, now, "earliest, latest, an offset, or a time"); err != nil {
		return usagef(cmd, "--from %q: %w", f.from, err)
	}
	if changed("until") {
		if f.end, err = parsePlace(f.until, now, "end, an offset, or a time"); err != nil {
			return usagef(cmd, "--until %q: %w", f.until, err)
		}
	}
	if err := eachOnce(cmd, args); err != nil {
		return err
	}
	seen := make(map[int32]bool)
	for _, p := range f.partitions {
		if p < 0 || seen[p] {
			return usagef(cmd, "--partition %d: want 0 or more, and each once", p)
		}
		seen[p] = true
	}
	one := len(args) == 1 && len(f.partitions) == 1
	switch {
	case len(args) == 0:
		return usagef(cmd, "which topic? Name it; pawl topic list lists them")
	case changed("partition") && len(args) > 1:
		return usagef(cmd, "--partition is for one topic, and %d are named", len(args))
	case changed("count") && f.count < 1:
		return usagef(cmd, "--count %d: want 1 or more", f.count)
	case changed("group") && f.group == "":
		return usagef(cmd, "--group is empty")
	case f.end.kind == placeEarliest:
		return usagef(cmd, "--until %s: nothing is before it", f.until)
	case f.start.kind == placeOffset && f.group != "":
		return usagef(cmd, "--from %s and --group exclude each other: a group has offsets of its own; see pawl offsets reset", f.from)
	case f.end.kind != placeNone && f.end.kind != placeEnd && f.group != "":
		return usagef(cmd, "--until %s and --group exclude each other: with a group say --until end, or --count", f.until)
	case (f.start.kind == placeOffset || f.end.kind == placeOffset) && !one:
		return usagef(cmd, "an offset is one of a partition: name one topic, and one --partition")
	case f.start.kind == placeOffset && f.end.kind == placeOffset && f.end.at < f.start.at,
		f.start.kind == placeTime && f.end.kind == placeTime && f.end.time.Before(f.start.time):
		return usagef(cmd, "--until %s is before --from %s", f.until, f.from)
	case f.start.kind == placeEnd && f.group == "" && (f.end.kind == placeEnd || f.end.kind == placeTime && !f.end.time.After(now)):
		return usagef(cmd, "from %s until %s there is nothing", f.from, f.until)
	}
	f.topics = args
	return nil
}

// endless says whether nothing ends it but a signal.
func (f *consumeFlags) endless() bool { return f.end.kind == placeNone && f.count == 0 }

// place is where reading starts or ends.
type place struct {
	kind placeKind
	at   int64     // an offset
	time time.Time // a time
}

type placeKind int

const (
	placeNone placeKind = iota
	placeEarliest
	placeEnd
	placeOffset
	placeTime
)

// parsePlace reads where reading starts or ends. An error says what is wanted.
func parsePlace(s string, now time.Time, wanted string) (place, error) {
	switch s {
	case "earliest", "beginning", "start":
		return place{kind: placeEarliest}, nil
	case "latest", "end":
		return place{kind: placeEnd}, nil
	}
	if s != "" && strings.Trim(s, "0123456789") == "" {
		at, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return place{}, errors.New("no offset is as large as that")
		}
		return place{kind: placeOffset, at: at}, nil
	}
	t, err := parseMoment(s, now)
	switch {
	case err != nil && strings.HasPrefix(s, "now-"):
		return place{}, err
	case err != nil:
		return place{}, fmt.Errorf("want %s, such as 2006-01-02T15:04:05Z, 2006-01-02 or now-1h", wanted)
	}
	return place{kind: placeTime, time: t}, nil
}

// parseMoment reads a time: now, now-1h, or what parseTime reads.
func parseMoment(s string, now time.Time) (time.Time, error) {
	if s == "now" {
		return now, nil
	}
	if ago, ok := strings.CutPrefix(s, "now-"); ok {
		d, err := time.ParseDuration(ago)
		if err != nil || d < 0 {
			return time.Time{}, fmt.Errorf("%q is no duration: want one such as 90s, 15m or 1h", ago)
		}
		return now.Add(-d), nil
	}
	return parseTime(s, now)
}
