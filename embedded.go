package pawl

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pawlstream/pawl/broker"
	"github.com/pawlstream/pawl/internal/admin"
	"github.com/pawlstream/pawl/internal/config"
)

// embedded are the settings of the broker within the process.
type embedded struct {
	listen     string
	advertise  string
	insecure   bool
	partitions int
}

// defaultPartitions is how many partitions a topic of the broker within the
// process has: enough to see shards work side by side, few enough to read.
const defaultPartitions = 4

func (e *embedded) table() []config.Setting {
	return []config.Setting{
		{Name: "listen", Value: config.Parsed(&e.listen, "HOST:PORT", parseAddress), Help: "open the broker within the process to other programs"},
		{Name: "advertise", Value: config.Parsed(&e.advertise, "HOST:PORT", parseAddress), Unset: "the address of --listen", Help: "address that other programs are told to connect to"},
		{Name: "insecure", Value: config.Bool(&e.insecure), Help: "let everybody in who reaches a --listen that is not loopback"},
		{Name: "partitions", Value: config.Int(&e.partitions, 1), Unset: fmt.Sprint(defaultPartitions), Help: "partitions of topics on the broker within the process"},
	}
}

// check reports what is wrong where the broker is used.
func (e *embedded) check() error {
	switch {
	case e.listen == "" && e.advertise != "":
		return errors.New("--advertise is set and --listen is not: the broker within the process is open to this process alone")
	case e.listen != "" && !e.insecure && !isLoopback(e.listen):
		return fmt.Errorf("--listen %s: others can reach this address, and nobody has to say who they are: set --insecure to let everybody in, or run pawl serve, which knows users", e.listen)
	}
	return nil
}

// unused reports settings that mean nothing where brokers are named. instead
// says what to do about partitions there.
func (e *embedded) unused(instead string) (errs []error) {
	for _, s := range []struct {
		name string
		set  bool
	}{{"listen", e.listen != ""}, {"advertise", e.advertise != ""}, {"insecure", e.insecure}} {
		switch {
		case !s.set:
		case s.name == "listen":
			errs = append(errs, errors.New("--listen opens the broker within the process, and --brokers names others: set one of them"))
		default:
			errs = append(errs, fmt.Errorf("--%s is for the broker within the process, and --brokers names others", s.name))
		}
	}
	if e.partitions > 0 {
		errs = append(errs, fmt.Errorf("--partitions is for the broker within the process: on others, %s", instead))
	}
	return errs
}

// defaultStateDir is where a program keeps its state that is told nothing: in
// the directory that the system has for what programs keep, by its name.
func defaultStateDir(env []string, application string) (string, error) {
	get := func(name string) (value string) {
		for _, v := range env {
			if text, ok := strings.CutPrefix(v, name+"="); ok {
				value = text // the last one holds
			}
		}
		return value
	}
	// A relative one is invalid, says the standard that they come from.
	if dir := get("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "pawl", application), nil
	}
	if home := get("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "pawl", application), nil
	}
	return "", errors.New("no state directory is set, and there is no HOME to have one in: set --state-dir")
}

// brokerDir is the broker's in a state directory. The names of applications,
// which have directories there too, hold no dot.
const brokerDir = "broker.data"

// within is a broker that runs within the process.
type within struct {
	*broker.Broker
	memory int64        // its part of the program's
	secret string       // for backups
	forget func() error // undoes announce
}

// What the broker makes do with at least, and the consumers beside it.
const (
	brokerLeast    = 64 << 20
	consumersLeast = 64 << 20
)

// lockPoll is how often a directory that another program has is tried again.
const lockPoll = 50 * time.Millisecond

// start opens the broker in a state directory. It takes a quarter of the
// program's memory, and leaves the others. While another program has the
// directory, as one does that drains, it waits for up to patience.
func (e *embedded) start(ctx context.Context, p *program, stateDir string, patience time.Duration, metrics prometheus.Registerer) (*within, error) {
	memory := max(brokerLeast, p.memory/4)
	cfg := broker.Config{
		Listen: e.listen, Advertise: e.advertise, Insecure: e.insecure,
		Settings: map[string]string{"num.partitions": fmt.Sprint(e.partitions)},
		Memory:   memory,
		Logger:   p.log,
	}
	dir, begun := filepath.Join(stateDir, brokerDir), time.Now()
	b, err := broker.Open(dir, cfg)
	for waits := false; errors.Is(err, broker.ErrLocked) && time.Since(begun) < patience; b, err = broker.Open(dir, cfg) {
		if !waits {
			waits = true
			p.log.Info("another program has the state directory, and is waited for", "state", stateDir, "for", patience, "holder", err)
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
	}
	if errors.Is(err, broker.ErrLocked) {
		return nil, fmt.Errorf("%w: stop that one, or give this one a --state-dir of its own", err)
	}
	if err != nil {
		return nil, err
	}
	metrics.MustRegister(b.Metrics())
	return &within{Broker: b, memory: memory, secret: rand.Text(), forget: func() error { return nil }}, nil
}

// say says that the broker is there, once other programs may use it.
func (w *within) say(p *program, stateDir string) {
	p.log.Info("no brokers are named, so one runs within this process", "listen", w.Addr(), "state", stateDir)
}

// alive returns a context that also ends when the broker stops by itself:
// nothing goes on without it.
func (w *within) alive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-w.Done():
			cancel(w.Err())
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(context.Canceled)
		<-ended
	}
}

// show adds the broker to what the admin API shows.
func (w *within) show(s *admin.Source) {
	s.Warnings = w.Warnings
	s.Broker, s.Backup, s.Secret = func() any { return w.Snapshot() }, w.Backup, w.secret
}

// announce says in the broker's directory where it can be backed up.
func (w *within) announce(address string) (err error) {
	if w.forget, err = (admin.Access{Address: address, Secret: w.secret}).Announce(w.Dir()); err != nil {
		w.forget = func() error { return nil }
		return fmt.Errorf("say where the admin API is: %w", err)
	}
	return nil
}

// close ends the broker, and says why it has stopped by itself if it has.
func (w *within) close() error { return errors.Join(w.forget(), w.Close()) }
