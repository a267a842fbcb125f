package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"github.com/pawlstream/pawl"
	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// pawlRole is the first argument of a process of this program that is Pawl's
// side of a workload.
const pawlRole = "pawl"

// total is a key and how often it has come.
type total struct {
	key string
	n   int64
}

// totalCodec writes a total as Kafka Streams does: the count alone, in eight
// bytes. The key is the message's.
type totalCodec struct{}

func (totalCodec) Append(dst []byte, t total) ([]byte, error) {
	return binary.BigEndian.AppendUint64(dst, uint64(t.n)), nil
}

func (totalCodec) Decode(src []byte) (total, error) {
	if len(src) != 8 {
		return total{}, fmt.Errorf("a count has %d bytes: want 8", len(src))
	}
	return total{n: int64(binary.BigEndian.Uint64(src))}, nil
}

var counts = store.NewTable("counts", store.String, store.Int64)

// counter counts the messages of each key, and publishes the counts that
// changed.
type counter struct {
	input  topic.Of[[]byte]
	output topic.Of[total]
}

func (c counter) Topics() []*topic.Description  { return []*topic.Description{c.input.Description} }
func (c counter) Outputs() []*topic.Description { return []*topic.Description{c.output.Description} }

// Prefetch is called for keys that are stored and not at hand: not in the
// workloads that there are, whose keys are at hand or new.
func (c counter) Prefetch(es []topic.Envelope, s consumer.Shard) error {
	keys := make([]string, len(es))
	for i, e := range es {
		keys[i] = string(e.Key)
	}
	return counts.Prefetch(s.Transaction(), keys)
}

func (c counter) Consume(e topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
	_, err := counts.Update(s.Transaction(), string(e.Key), func(n int64) int64 { return n + 1 })
	return err
}

func (c counter) Flush(s consumer.Shard, p *topic.Publisher) error {
	for key, change := range counts.Changes(s.Transaction()) {
		if err := c.output.Publish(p, total{key, change.New}); err != nil {
			return err
		}
	}
	return nil
}

// mapper inverts all bytes of a value but the eight of its number.
type mapper struct{ input, output topic.Of[[]byte] }

func (m mapper) Topics() []*topic.Description  { return []*topic.Description{m.input.Description} }
func (m mapper) Outputs() []*topic.Description { return []*topic.Description{m.output.Description} }

func (m mapper) Consume(e topic.Envelope, s consumer.Shard, p *topic.Publisher) error {
	// Publish copies its message, so one buffer a shard does for all.
	value, ok := s.Cache().([]byte)
	if !ok || len(value) != len(e.Value) {
		value = make([]byte, len(e.Value))
		s.SetCache(value)
	}
	copy(value, e.Value[:8])
	for i := 8; i < len(value); i++ {
		value[i] = e.Value[i] ^ 0xff
	}
	return m.output.Publish(p, value, topic.Key(e.Key))
}

func (m mapper) Flush(consumer.Shard, *topic.Publisher) error { return nil }

// runPawl is Pawl's side of a workload, in a process of its own: as a program
// of pawl.Main runs, but for the flags, the log and the admin port. It prints
// how many messages are committed and applied, as often as that changes, until
// its standard input is closed.
func runPawl(args []string, stdin io.Reader, stdout io.Writer) error {
	// A Ctrl-C is for the driver, which closes the input.
	signal.Ignore(os.Interrupt)

	flags := flag.NewFlagSet(pawlRole, flag.ContinueOnError)
	broker := flags.String("broker", "", "")
	program := flags.String("program", "", "")
	application := flags.String("application", "", "")
	input := flags.String("input", "", "")
	output := flags.String("output", "", "")
	stateDir := flags.String("state-dir", "", "")
	transactionMessages := flags.Int("transaction-messages", 0, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var c consumer.Consumer
	switch *program {
	case "count":
		c = counter{topic.Bytes(*input), topic.New(*output, totalCodec{}, topic.KeyedBy(func(t total) string { return t.key }))}
	case "map":
		c = mapper{topic.Bytes(*input), topic.Bytes(*output)}
	default:
		return fmt.Errorf("no program %q", *program)
	}
	pawl.TuneGC(memory)
	app, err := consumer.New(consumer.Config{
		Application: *application, Cluster: cluster.Cluster{Brokers: []string{*broker}}, StateDir: *stateDir, Instance: *application,
		TransactionMessages: *transactionMessages, Memory: memory, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}, c)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	go func() { // until the driver closes it, or the process ends
		_, err := io.Copy(io.Discard, stdin)
		stop(err)
	}()
	reported := make(chan error, 1)
	go func() { reported <- reportProgress(ctx, app, stdout, stop) }()
	err = app.Run(ctx)
	stop(err)
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, <-reported)
}

// memory is the default budget of a program.
const memory = 512 << 20

// reportProgress prints what is committed until ctx ends. It ends it by stop if
// it can't print.
func reportProgress(ctx context.Context, app *consumer.App, stdout io.Writer, stop context.CancelCauseFunc) error {
	tick := time.NewTicker(sampling)
	defer tick.Stop()
	for last := int64(0); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		committed := int64(0)
		for _, s := range app.Status().Shards {
			for _, next := range s.Offsets {
				committed += next
			}
		}
		if committed == last {
			continue
		}
		last = committed
		if _, err := fmt.Fprintln(stdout, committed); err != nil {
			stop(err)
			return err
		}
	}
}
