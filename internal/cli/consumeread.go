package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// errEnough ends the reading when as many messages are printed as were wanted.
var errEnough = errors.New("enough")

// andThen adds what failed after something had ended. That there was enough is no
// failure, and gives way to one.
func andThen(err, failed error) error {
	if failed != nil && errors.Is(err, errEnough) {
		return failed
	}
	return errors.Join(err, failed)
}

func (f *consumeFlags) consume(ctx context.Context, cmd *cobra.Command, c asked, output string) error {
	infos, err := c.Topics(ctx, f.topics...)
	if err != nil {
		return err
	}
	var parts []topic.Partition
	for _, name := range f.topics {
		info, ok := infos[name]
		if !ok {
			return fmt.Errorf("topic %s: %w", printable(name), kafka.ErrUnknownTopic)
		}
		numbers := f.partitions
		if len(numbers) == 0 {
			for n := range info.Partitions {
				numbers = append(numbers, int32(n))
			}
		}
		for _, n := range numbers {
			if int(n) >= info.Partitions {
				return fmt.Errorf("topic %s has %s: there is no partition %d", name, count(int64(info.Partitions), "partition"), n)
			}
			parts = append(parts, topic.Partition{Topic: name, Number: n})
		}
	}
	p := newMessagePrinter(cmd.OutOrStdout(), output, len(f.topics) > 1)
	if f.group != "" {
		err = f.consumeGroup(ctx, c, parts, p)
	} else {
		err = f.consumeParts(ctx, c, parts, p)
	}
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// stable is where a reader of what the flags ask for ends.
func (f *consumeFlags) stable() kafka.At {
	if f.uncommitted {
		return kafka.End
	}
	return kafka.StableEnd
}

// offsets returns the offsets at a place.
func (f *consumeFlags) offsets(ctx context.Context, c asked, at place, parts []topic.Partition) (map[topic.Partition]int64, error) {
	switch at.kind {
	case placeEarliest:
		return c.Offsets(ctx, kafka.Earliest, parts...)
	case placeEnd:
		return c.Offsets(ctx, f.stable(), parts...)
	case placeTime:
		return c.Offsets(ctx, kafka.Time(at.time), parts...)
	}
	offsets := make(map[topic.Partition]int64)
	for _, p := range parts {
		offsets[p] = at.at // NoEnd where there is none
	}
	return offsets, nil
}

// consumeParts reads partitions without a group.
func (f *consumeFlags) consumeParts(ctx context.Context, c asked, parts []topic.Partition, p *messagePrinter) error {
	from, err := f.offsets(ctx, c, f.start, parts)
	if err != nil {
		return err
	}
	end := f.end
	later := end.kind == placeTime && end.time.After(time.Now())
	if end.kind == placeNone || later {
		end = place{at: kafka.NoEnd}
	}
	to, err := f.offsets(ctx, c, end, parts)
	if err != nil {
		return err
	}
	starts, ends, err := c.bounds(ctx, f.stable(), parts...)
	if err != nil {
		return err
	}
	if f.start.kind == placeOffset {
		if low, high := starts[parts[0]], ends[parts[0]]; f.start.at < low || f.start.at > high {
			return fmt.Errorf("--from %d: %s holds offsets %d to %d", f.start.at, parts[0], low, high)
		}
	}
	spans := make([]kafka.Span, len(parts))
	for i, part := range parts {
		if end.at != kafka.NoEnd {
			// What is not there yet is not waited for, unless there is no end.
			to[part] = min(to[part], ends[part])
		}
		spans[i] = kafka.Span{Partition: part, From: from[part], To: to[part]}
	}
	if !later {
		return f.scan(ctx, c, spans, p)
	}
	// Until a time that is still to come: what comes until then, and of that
	// what is earlier.
	reading, cancel := context.WithDeadline(ctx, f.end.time)
	err = f.scan(reading, c, spans, p)
	cancel()
	if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if to, err = f.offsets(ctx, c, f.end, parts); err != nil {
		return err
	}
	if _, ends, err = c.bounds(ctx, f.stable(), parts...); err != nil {
		return err
	}
	for i, part := range parts {
		spans[i].To = min(to[part], ends[part])
	}
	return f.scan(ctx, c, spans, p)
}

// scan prints spans, and moves their beginnings past what is printed.
func (f *consumeFlags) scan(ctx context.Context, c asked, spans []kafka.Span, p *messagePrinter) error {
	at := make(map[topic.Partition]*kafka.Span)
	for i := range spans {
		at[spans[i].Partition] = &spans[i]
	}
	return kafka.Scan(ctx, c.config, kafka.ReaderConfig{Committed: !f.uncommitted}, spans, func(es []topic.Envelope, next map[topic.Partition]int64) error {
		for _, e := range es {
			if err := f.print(p, e); err != nil {
				return andThen(err, p.flush())
			}
		}
		for part, n := range next {
			at[part].From = n
		}
		return p.flush()
	})
}

// print prints a message. Its error is errEnough with the last one.
func (f *consumeFlags) print(p *messagePrinter, e topic.Envelope) error {
	if err := p.print(e); err != nil {
		return err
	}
	if f.count > 0 && p.printed == f.count {
		return errEnough
	}
	return nil
}

// Polls of a group: how long each waits, so that the group can be left, and
// partitions given away, in between; and how long nothing has to come before
// it is asked whether the end is reached.
const (
	groupPoll  = 500 * time.Millisecond
	groupCount = 500
	leaveTime  = 5 * time.Second
)

// consumeGroup reads as a member of a group.
func (f *consumeFlags) consumeGroup(ctx context.Context, c asked, parts []topic.Partition, p *messagePrinter) (err error) {
	ends, err := f.offsets(ctx, c, place{kind: placeEnd}, parts)
	if err != nil {
		return err
	}
	start := kafka.Earliest
	switch f.start.kind {
	case placeEnd:
		start = f.stable()
	case placeTime:
		start = kafka.Time(f.start.time)
	}
	g, err := kafka.NewGroupReader(c.config, kafka.GroupReaderConfig{Group: f.group, Topics: f.topics, Start: start, Committed: !f.uncommitted})
	if err != nil {
		return err
	}
	defer func() {
		// Also after a signal: the group is not to wait for a member that is
		// gone.
		leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
		defer cancel()
		err = andThen(err, g.Close(leaving))
	}()
	began := make(map[topic.Partition]bool) // where a partition starts is committed, too
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		wait, cancel := context.WithTimeout(ctx, groupPoll)
		es, next, err := g.Poll(wait, groupCount)
		idle := wait.Err() != nil
		cancel()
		done := f.printBatch(p, es, next)
		if done != nil && !errors.Is(done, errEnough) {
			return done // what could not be printed is not committed
		}
		positions, _ := g.Positions()
		for part, at := range positions {
			if _, moved := next[part]; !moved && !began[part] {
				next[part] = at
			}
			began[part] = true
		}
		if err := f.commit(ctx, g, next); err != nil {
			return err
		}
		switch {
		case done != nil:
			return done
		case err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled):
			return err
		}
		if f.end.kind == placeEnd {
			ended, err := reachedEnds(ctx, g, ends, idle)
			if err != nil || ended {
				return err
			}
		}
	}
}

// commit commits what was printed, also after a signal.
func (f *consumeFlags) commit(ctx context.Context, g *kafka.GroupReader, next map[topic.Partition]int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	return g.Commit(ctx, next)
}

// printBatch prints messages, and makes next what may be committed.
func (f *consumeFlags) printBatch(p *messagePrinter, es []topic.Envelope, next map[topic.Partition]int64) error {
	for i, e := range es {
		err := f.print(p, e)
		if err == nil {
			continue
		}
		// What comes after it is not printed.
		for _, rest := range es[i+1:] {
			part := topic.Partition{Topic: rest.TopicName(), Number: rest.Partition}
			next[part] = min(next[part], rest.Offset)
		}
		return andThen(err, p.flush())
	}
	return p.flush()
}

// reachedEnds says whether this member has read all of the partitions that it
// has up to where they ended when the command began.
func reachedEnds(ctx context.Context, g *kafka.GroupReader, ends map[topic.Partition]int64, idle bool) (bool, error) {
	positions, joined := g.Positions()
	if !joined {
		return false, nil
	}
	for p, at := range positions {
		if at >= ends[p] {
			continue
		}
		if !idle {
			return false, nil
		}
		next, err := g.NextOffset(ctx, p, at)
		if err != nil && !kafka.Transient(err) {
			return false, err
		}
		if err != nil || next < ends[p] {
			return false, nil
		}
	}
	// A member that has none may be given some in a moment.
	return len(positions) > 0 || idle, nil
}
