package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/broker"
	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/kafka"
)

// demoBroker is where the messages of a run are: on a Kafka that is named, on a
// broker within this process, or, so that it can be killed, on one in a process
// of its own.
type demoBroker struct {
	named     cluster.Cluster // of a Kafka
	addresses []string
	within    *broker.Broker
	apart     *process
}

const (
	demoBrokerMemory = 128 << 20
	demoBrokerTime   = 20 * time.Second // for a broker to open its data and listen
	demoBrokerStop   = 20 * time.Second
)

// openBroker starts the run's broker, unless others are named. Its data are in
// the directory of the run.
func (d *demo) openBroker(ctx context.Context) error {
	b := &demoBroker{named: d.cfg.cluster, addresses: d.cfg.cluster.Brokers}
	dir := filepath.Join(d.dir, "broker")
	switch {
	case len(d.cfg.cluster.Brokers) > 0:
	case d.cfg.brokerKills == 0:
		own, err := broker.Open(dir, broker.Config{Listen: "127.0.0.1:0", Memory: demoBrokerMemory, Logger: d.log})
		if err != nil {
			return err
		}
		b.within, b.addresses = own, []string{own.Addr()}
	default:
		p, err := newProcess(child{instance: "broker"}, d.dir, d.failed)
		if err != nil {
			return err
		}
		b.apart, p.dir = p, d.temporary
		d.mu.Lock()
		d.broker = b // from here on there is something to end
		d.mu.Unlock()
		p.args = brokerChild{dir: dir, listen: "127.0.0.1:0"}.args()
		if err := b.start(ctx); err != nil {
			return err
		}
		// It comes back where its clients look for it.
		p.args = brokerChild{dir: dir, listen: b.addresses[0]}.args()
	}
	d.mu.Lock()
	d.broker = b
	d.mu.Unlock()
	return nil
}

// cluster says how to reach the broker.
func (b *demoBroker) cluster() cluster.Cluster {
	switch {
	case b.within != nil:
		return b.within.Cluster()
	case b.apart != nil:
		return cluster.Cluster{Brokers: b.addresses}
	}
	return b.named
}

// own says whether the broker ends with the demo.
func (b *demoBroker) own() bool { return b.within != nil || b.apart != nil }

func (b *demoBroker) String() string {
	at := strings.Join(b.addresses, ",")
	switch {
	case b.within != nil:
		return "the broker in this process, at " + at
	case b.apart != nil:
		return "a broker in a process of its own, at " + at
	}
	return at
}

// start starts the broker's process, and waits until it listens.
func (b *demoBroker) start(ctx context.Context) error {
	if err := b.apart.start(); err != nil {
		return err
	}
	end := time.Now().Add(demoBrokerTime)
	for {
		if said := b.apart.shards(); len(said) > 0 {
			b.addresses = said
			return nil
		}
		if state, _ := b.apart.now(); state != running {
			return fmt.Errorf("the broker ended as it started; its log ends with:\n%s", b.apart.tail())
		}
		if time.Now().After(end) {
			return fmt.Errorf("the broker does not listen %v after its start; its log ends with:\n%s", demoBrokerTime, b.apart.tail())
		}
		if err := pause(ctx, 10*time.Millisecond, nil); err != nil {
			return err
		}
	}
}

// kill ends the broker as kill -9 does, and starts it again with what is on
// its disk.
func (b *demoBroker) kill(ctx context.Context) error {
	if err := b.apart.kill(); err != nil {
		return err
	}
	return b.start(ctx)
}

func (b *demoBroker) close() error {
	switch {
	case b == nil:
		return nil
	case b.within != nil:
		return b.within.Close()
	case b.apart != nil:
		return b.apart.stop(demoBrokerStop)
	}
	return nil
}

// strikeBroker makes one kill of the broker. Nobody else may use the run's admin
// client meanwhile: it is replaced.
func (d *demo) strikeBroker(ctx context.Context) error {
	_, pid := d.broker.apart.now()
	begun := time.Now()
	if err := d.broker.kill(ctx); err != nil {
		return err
	}
	// The connections that the old one had to the broker are dead, which it
	// would learn at the next request on each.
	fresh, err := kafka.NewAdmin(d.kafka)
	if err != nil {
		return err
	}
	d.admin.Close()
	d.admin = fresh
	d.mu.Lock()
	d.mu.brokerKills++
	d.mu.Unlock()
	d.view.say("kill -9 of the broker (pid %d); it listens again after %d ms", pid, time.Since(begun).Milliseconds())
	return nil
}

// brokerChild is what the broker's process is told by its flags.
type brokerChild struct{ dir, listen string }

func (c brokerChild) args() []string {
	return []string{"demo", "broker", "--dir", c.dir, "--listen", c.listen}
}

// newBrokerChildCommand is the command that a demo runs its broker by.
func newBrokerChildCommand() *cobra.Command {
	var c brokerChild
	cmd := &cobra.Command{
		Use:    "broker",
		Short:  "Run a broker until standard input is closed",
		Hidden: true,
		Args:   noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			return c.run(cmd.InOrStdin(), cmd.OutOrStdout(), log)
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.dir, "dir", "", "the directory of the data")
	f.StringVar(&c.listen, "listen", "", "the HOST:PORT to listen on")
	return cmd
}

// run says on standard output where the broker listens, and runs it until
// standard input ends, which it also does when the parent ends in whatever way.
func (c brokerChild) run(stdin io.Reader, stdout io.Writer, log *slog.Logger) (err error) {
	b, err := broker.Open(c.dir, broker.Config{Listen: c.listen, Memory: demoBrokerMemory, Logger: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if _, err := fmt.Fprintln(stdout, b.Addr()); err != nil {
		return fmt.Errorf("say where the broker listens: %w", err)
	}
	ended := make(chan error, 1)
	go func() { // which ends with the process, at the latest
		_, err := io.Copy(io.Discard, stdin)
		ended <- err
	}()
	select {
	case err := <-ended:
		return err
	case <-b.Done():
		return b.Err()
	}
}
