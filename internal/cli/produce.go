package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/semaphore"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// produceFlags say what is written, and where.
type produceFlags struct {
	topic     string
	input     string
	key       string
	separator string
	value     string
	tombstone bool
	headers   []string
	partition int32
	keep      bool
	timestamp string

	fixed topic.Envelope // what the flags say of every message
}

// The forms of input.
const (
	inputJSON  = "json"
	inputLines = "lines"
	inputWhole = "whole"
)

// produceExclusions are the flags of produce that exclude each other.
var produceExclusions = exclusions{
	{"value", "tombstone", "a value is null or it is not"},
	{"value", "input", "a value that is given is all that is written"},
	{"tombstone", "input", "a null value is all that is written"},
	{"value", "key-separator", "it is for lines"},
	{"tombstone", "key-separator", "it is for lines"},
	{"key", "key-separator", "the key is the same for all messages, or it is in each line"},
	{"partition", "keep-partitions", "messages go to one partition, or where each was"},
	{"value", "keep-partitions", "it is for JSON"},
	{"tombstone", "keep-partitions", "it is for JSON"},
	{"key-separator", "keep-partitions", "the one is for lines and the other for JSON"},
	{"key", "keep-partitions", "a JSON message has its own key"},
	{"header", "keep-partitions", "a JSON message has its own headers"},
	{"timestamp", "keep-partitions", "a JSON message has its own timestamp"},
}

func newProduceCommand() *cobra.Command {
	var p produceFlags
	var cluster = new(operation)
	cmd := &cobra.Command{
		Use:   "produce [TOPIC]",
		Short: "Write messages to a topic",
		Long: `Produce writes messages from standard input, each acknowledged by all replicas
that are in sync before the command ends.

By default the input is JSON, one message a line, as consume -o json prints it:

  {"key":"ann","value":"42","headers":[{"name":"tenant","value":"a"}]}

Only "value" must be there; null is a null value, which deletes where a topic is
compacted. Bytes that are not UTF-8 are in base64, with "value_encoding":"base64"
(or "key_encoding", or those of a header). "timestamp_ms" is kept; without it the
time is now. A message goes to TOPIC, or else to the "topic" that it names, and
to the partition of its key unless --keep-partitions or --partition says another.

So pawl consume -o json A | pawl produce B copies A byte for byte.

With --input lines each line is a value, with --input whole all of the input is
one; --value and --tombstone write one message and read nothing.`,
		Example: `  echo '{"key":"ann","value":"42"}' | pawl produce orders
  pawl produce orders --input lines --key-separator : <orders.txt
  pawl produce customers --key ann --tombstone`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.check(cmd, args, time.Now()); err != nil {
				return err
			}
			return cluster.run(func(ctx context.Context, c asked) error { return p.produce(ctx, cmd, c) })
		},
	}
	cluster.cmd, cluster.cluster, cluster.output = cmd, clusterFlags(cmd), asTable
	cmd.ValidArgsFunction = oneOf(cluster.topicNames)
	f := cmd.Flags()
	f.StringVar(&p.input, "input", inputJSON, "what standard input holds: json, lines or whole")
	f.StringVar(&p.key, "key", "", "the key of every message (not of JSON ones)")
	f.StringVar(&p.separator, "key-separator", "", "what ends the key in each line; a line without it is refused")
	f.StringVar(&p.value, "value", "", "the value of the one message to write")
	f.BoolVar(&p.tombstone, "tombstone", false, "write one message with a null value")
	f.StringArrayVar(&p.headers, "header", nil, "a header NAME=VALUE of every message; again for another (not of JSON ones)")
	f.Int32Var(&p.partition, "partition", -1, "the partition of every message (default: that of its key)")
	f.BoolVar(&p.keep, "keep-partitions", false, "each JSON message goes to the partition that it names")
	f.StringVar(&p.timestamp, "timestamp", "", "the time of every message, such as 2006-01-02T15:04:05Z or now-1h (default: now)")
	completeFlag(cmd, "input", fixed(inputJSON, inputLines, inputWhole))
	return cmd
}

// check refuses flags that can't be obeyed.
func (p *produceFlags) check(cmd *cobra.Command, args []string, now time.Time) error {
	if err := produceExclusions.check(cmd); err != nil {
		return err
	}
	changed := cmd.Flags().Changed
	one := p.tombstone || changed("value")
	json := !one && p.input == inputJSON
	switch {
	case len(args) > 1:
		return usagef(cmd, "unexpected argument %q: want one topic", args[1])
	case p.input != inputJSON && p.input != inputLines && p.input != inputWhole:
		return usagef(cmd, "--input %q: want json, lines or whole", p.input)
	case len(args) == 0 && !json:
		return usagef(cmd, "which topic? Name it")
	case changed("partition") && p.partition < 0:
		return usagef(cmd, "--partition %d: want 0 or more", p.partition)
	case changed("key-separator") && p.separator == "":
		return usagef(cmd, "--key-separator is empty")
	case changed("key-separator") && p.input != inputLines:
		return usagef(cmd, "--key-separator is for --input lines")
	case p.keep && !json:
		return usagef(cmd, "--keep-partitions is for --input json")
	case p.tombstone && !changed("key"):
		return usagef(cmd, "--tombstone deletes a key: which? Set --key")
	}
	for _, name := range []string{"key", "header", "timestamp"} {
		if json && changed(name) {
			return usagef(cmd, "--%s is not for JSON messages, each of which has its own; see --input", name)
		}
	}
	if len(args) == 1 {
		p.topic = args[0]
	}
	p.fixed.Partition = p.partition
	if changed("key") {
		p.fixed.Key = []byte(p.key)
	}
	if changed("timestamp") {
		at, err := parseMoment(p.timestamp, now)
		if err != nil {
			return usagef(cmd, "--timestamp %q: %w", p.timestamp, err)
		}
		p.fixed.Timestamp = at
	}
	for _, h := range p.headers {
		name, value, ok := strings.Cut(h, "=")
		if !ok || name == "" {
			return usagef(cmd, "--header %q: want NAME=VALUE", h)
		}
		p.fixed.Headers = append(p.fixed.Headers, topic.Header{Key: name, Value: []byte(value)})
	}
	if p.tombstone {
		p.input = ""
	} else if changed("value") {
		p.input, p.fixed.Value = "", []byte(p.value)
	}
	return nil
}

// Bounds of what is written at once, of what is read ahead of that, and of one
// line.
const (
	produceCount = 1000
	produceBytes = 1 << 20
	aheadBytes   = 8 << 20
	inputMax     = 192 << 20 // more than any topic takes, in base64
)

// produced is a message to be written, or what is wrong with it.
type produced struct {
	record kafka.Record
	line   int
	err    error
	size   int64 // of the room that it takes
}

// ahead reads the input while what was read before is written. It holds no more
// messages than are written at once, and, but for one that is larger, no more
// bytes than aheadBytes, with those that are being written.
type ahead struct {
	inputs chan produced
	room   *semaphore.Weighted
	stop   context.CancelFunc
}

// readAhead begins to read. Nobody waits for its goroutine when a read of
// standard input goes on for ever: it ends with the process, with the input, or
// after stop.
func (p *produceFlags) readAhead(ctx context.Context, from io.Reader) *ahead {
	ctx, stop := context.WithCancel(ctx)
	a := &ahead{make(chan produced, produceCount), semaphore.NewWeighted(aheadBytes), stop}
	go func() {
		defer close(a.inputs)
		p.read(from, func(in produced) bool {
			in.size = min(aheadBytes, sizeOfRecord(in.record))
			if a.room.Acquire(ctx, in.size) != nil {
				return false
			}
			select {
			case a.inputs <- in:
				return in.err == nil
			case <-ctx.Done():
				return false
			}
		})
	}()
	return a
}

func sizeOfRecord(r kafka.Record) int64 {
	size := len(r.Topic) + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		size += len(h.Key) + len(h.Value)
	}
	return int64(size)
}

// produce writes all of the input. It reads on while a batch is written, and
// writes what there is as soon as there is something: who types sees each line
// go.
func (p *produceFlags) produce(ctx context.Context, cmd *cobra.Command, c asked) error {
	producer, err := kafka.NewProducer(c.config)
	if err != nil {
		return err
	}
	defer producer.Close()
	from := p.readAhead(ctx, cmd.InOrStdin())
	defer from.stop()
	written := 0
	err = p.write(ctx, producer, from, &written)
	said := fmt.Sprintf("%s written", count(int64(written), "message"))
	if p.topic != "" {
		said += " to " + printable(p.topic)
	}
	if _, sayErr := fmt.Fprintln(cmd.ErrOrStderr(), said); err == nil {
		err = sayErr
	}
	return err
}

func (p *produceFlags) write(ctx context.Context, producer *kafka.Producer, from *ahead, written *int) error {
	var recs []kafka.Record
	var lines []int
	for {
		var in produced
		var ok bool
		select {
		case in, ok = <-from.inputs:
		case <-ctx.Done():
			return ctx.Err()
		}
		recs, lines = recs[:0], lines[:0]
		size := int64(0)
		var bad error
		for ok {
			if in.err != nil {
				bad = in.err
				break
			}
			recs, lines = append(recs, in.record), append(lines, in.line)
			if size += in.size; len(recs) == produceCount || size >= produceBytes {
				break
			}
			var more bool
			select {
			case in, more = <-from.inputs:
			default:
				more = false
			}
			if !more {
				break
			}
		}
		if err := producer.Publish(ctx, recs...); err != nil {
			if refused := (*kafka.RecordError)(nil); errors.As(err, &refused) && lines[refused.Index] > 0 {
				err = fmt.Errorf("line %d: %w", lines[refused.Index], err)
			}
			if len(recs) > 1 {
				err = fmt.Errorf("%w (of the %d messages that were sent with it some may be written)", err, len(recs)-1)
			}
			return err
		}
		*written += len(recs)
		clear(recs) // what they hold is not to outlive their room
		from.room.Release(size)
		if bad != nil || !ok {
			return bad
		}
	}
}

// read reads messages, until deliver wants no more.
func (p *produceFlags) read(from io.Reader, deliver func(produced) bool) {
	switch p.input {
	case "":
		deliver(produced{record: p.record(p.fixed)})
	case inputWhole:
		text, err := io.ReadAll(io.LimitReader(from, inputMax+1))
		if err == nil && len(text) > inputMax {
			err = fmt.Errorf("it is longer than %d bytes", inputMax)
		}
		if err != nil {
			deliver(produced{err: fmt.Errorf("read standard input: %w", err)})
			return
		}
		e := p.fixed
		e.Value = append([]byte{}, text...)
		deliver(produced{record: p.record(e)})
	default:
		p.readLines(from, deliver)
	}
}

func (p *produceFlags) readLines(from io.Reader, deliver func(produced) bool) {
	r := bufio.NewReaderSize(from, 64<<10)
	for n := 1; ; n++ {
		line, err := readLine(r)
		if err != nil && !errors.Is(err, io.EOF) {
			deliver(produced{err: fmt.Errorf("line %d: %w", n, err)})
			return
		}
		last := err != nil
		if last && len(line) == 0 {
			return
		}
		in := produced{line: n}
		if p.input == inputJSON && len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if in.record, err = p.parse(line); err != nil {
			in.err = fmt.Errorf("line %d: %w", n, err)
		}
		if !deliver(in) || last {
			return
		}
	}
}

// readLine reads a line without its end. Its error comes with what there was
// before it.
func readLine(r *bufio.Reader) ([]byte, error) {
	line := []byte{}
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > inputMax:
			return nil, fmt.Errorf("it is longer than %d bytes", inputMax)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return line, err
		}
		return line[:len(line)-1], nil
	}
}

// parse reads a line.
func (p *produceFlags) parse(line []byte) (kafka.Record, error) {
	if p.input == inputLines {
		e := p.fixed
		e.Value = line
		if p.separator != "" {
			key, value, ok := bytes.Cut(line, []byte(p.separator))
			if !ok {
				return kafka.Record{}, fmt.Errorf("%.60q has no %q after its key", line, p.separator)
			}
			e.Key, e.Value = key, value
		}
		return p.record(e), nil
	}
	m, err := parseMessage(line)
	if err != nil {
		return kafka.Record{}, fmt.Errorf("read a JSON message: %w (for plain text say --input lines)", err)
	}
	e, err := m.envelope()
	if err != nil {
		return kafka.Record{}, fmt.Errorf("read a JSON message: %w", err)
	}
	switch {
	case !p.keep:
		e.Partition = p.fixed.Partition
	case m.Partition == nil:
		return kafka.Record{}, errors.New(`with --keep-partitions each message must name its "partition"`)
	}
	rec := p.record(e)
	if rec.Topic == "" {
		if rec.Topic = m.Topic; rec.Topic == "" {
			return kafka.Record{}, errors.New("it names no topic, and the command line neither")
		}
	}
	return rec, nil
}

func (p *produceFlags) record(e topic.Envelope) kafka.Record {
	return kafka.Record{Topic: p.topic, Partition: e.Partition, Key: e.Key, Value: e.Value, Headers: e.Headers, Timestamp: e.Timestamp}
}
