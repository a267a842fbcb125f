// Command large measures programs with much state, and with many shards: how
// long it takes from the start of a process to the first new message that it has
// processed, after a kill -9 with all its state, without its directory, and
// with no state at all; and how much memory it takes.
//
//	make bench-large                        # on a real Kafka, and on the broker in the process
//	make bench-large LARGE='-only restart -keys 1000000'
//
// Each process is a program of pawl.Main with its defaults, in a process of its
// own. It is watched from outside: what it publishes is read back read committed,
// and its memory and CPU time are what the kernel says of them. Without
// PAWL_TEST_KAFKA it runs the broker too.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 2 && runProgram(os.Args[1], os.Args[2]) {
		return
	}
	b := bench{broker: os.Getenv("PAWL_TEST_KAFKA")}
	only := flag.String("only", "", "what to measure, separated by commas, of "+strings.Join(scenarioNames(), ", ")+"; without it, all")
	flag.IntVar(&b.keys, "keys", 8_000_000, "keys of the state that is restored, of 100 bytes each")
	flag.IntVar(&b.counted, "counted", 10_000_000, "keys that are counted")
	flag.IntVar(&b.shards, "shards", 4, "shards of the process; those that idle are 256")
	flag.IntVar(&b.runs, "runs", 5, "starts of each kind, of which the median counts")
	flag.StringVar(&b.memory, "memory", "", "the processes' --memory, if it is not to be the default")
	flag.StringVar(&b.profile, "profile", "", "file for a CPU profile of the process that restores")
	flag.Parse()
	chosen, err := choose(*only)
	if err == nil && flag.NArg() > 0 {
		err = fmt.Errorf("no arguments are wanted, got %q", flag.Args())
	}
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		err = b.run(ctx, chosen)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "large:", err)
		os.Exit(1)
	}
}

// bench is what all scenarios have in common.
type bench struct {
	broker  string // HOST:PORT; empty for the one within the process
	keys    int
	counted int
	shards  int
	runs    int
	memory  string
	profile string
}

// A scenario prints lines of what it has measured.
type scenario struct {
	name string
	run  func(bench, context.Context) error
}

var scenarios = []scenario{
	{"start", bench.fromNothing},
	{"restart", bench.restarts},
	{"count", bench.counts},
	{"idle", bench.idle},
}

func scenarioNames() (all []string) {
	for _, s := range scenarios {
		all = append(all, s.name)
	}
	return all
}

func choose(list string) ([]scenario, error) {
	if list == "" {
		return scenarios, nil
	}
	var chosen []scenario
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("nothing is named %q: there are %s", name, strings.Join(scenarioNames(), ", "))
		}
		chosen = append(chosen, scenarios[i])
	}
	return chosen, nil
}

func (b bench) run(ctx context.Context, chosen []scenario) error {
	where := "a real Kafka"
	if b.broker == "" {
		where = "the broker within the process"
	}
	fmt.Printf("on %s\n", where)
	for _, s := range chosen {
		if err := s.run(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func say(what, format string, args ...any) {
	fmt.Printf("%-44s %s\n", what, fmt.Sprintf(format, args...))
}

// fromNothing measures how long a program takes that has never run.
func (b bench) fromNothing(ctx context.Context) error {
	var first []time.Duration
	for range b.runs {
		p, err := b.newProgram(ctx, "keep", b.shards)
		if err != nil {
			return err
		}
		took, err := p.startAndProbe(ctx)
		if err := errors.Join(err, p.close()); err != nil {
			return err
		}
		first = append(first, took.first)
	}
	say("start with no state, first message", "%s", spread(first))
	return nil
}

// restarts measures how long a program takes to come back with all its state,
// and without its directory.
func (b bench) restarts(ctx context.Context) (err error) {
	p, err := b.newProgram(ctx, "keep", b.shards)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	begun := time.Now()
	if _, err := p.startAndProbe(ctx); err != nil {
		return err
	}
	if err := p.fill(ctx, b.keys, b.keys); err != nil {
		return err
	}
	if err := p.probe(ctx); err != nil {
		return err
	}
	u, err := p.usage()
	if err != nil {
		return err
	}
	bytes, err := p.stateBytes()
	if err != nil {
		return err
	}
	say(fmt.Sprintf("%d keys stored in %d shards", b.keys, b.shards), "%.1f s, %d MB on disk, peak RSS %d MB", time.Since(begun).Seconds(), bytes>>20, u.peak>>20)
	if err := p.kill(); err != nil {
		return err
	}
	var first, all []time.Duration
	for range b.runs {
		took, err := p.startAndProbe(ctx)
		if err != nil {
			return err
		}
		first, all = append(first, took.first), append(all, took.all)
		if err := p.trickleAndKill(ctx); err != nil {
			return err
		}
	}
	say("restart after kill -9, first new message", "%s", spread(first))
	say("… and one of every shard", "%s", spread(all))

	if err := p.removeState(); err != nil {
		return err
	}
	p.profile = b.profile
	took, err := p.startAndProbe(ctx)
	if err != nil {
		return err
	}
	if u, err = p.usage(); err != nil {
		return err
	}
	records, restoring, err := p.restored()
	if err != nil {
		return err
	}
	say("restored from an empty directory", "%d records in %.2f s, %.0f a second; %.1f s of CPU, peak RSS %d MB",
		records, restoring.Seconds(), float64(records)/restoring.Seconds(), u.cpu.Seconds(), u.peak>>20)
	say("… from the start of the process", "%.2f s to the first new message, %.2f s to one of every shard: %.0f records a second", took.first.Seconds(), took.all.Seconds(), float64(records)/took.all.Seconds())
	return nil
}

// counts measures the memory that counting takes.
func (b bench) counts(ctx context.Context) (err error) {
	p, err := b.newProgram(ctx, "count", b.shards)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if _, err := p.startAndProbe(ctx); err != nil {
		return err
	}
	begun := time.Now()
	// Each key once, and then keys at random among all.
	if err := p.fill(ctx, b.counted, b.counted+b.counted/5); err != nil {
		return err
	}
	if err := p.probe(ctx); err != nil {
		return err
	}
	took := time.Since(begun)
	u, err := p.usage()
	if err != nil {
		return err
	}
	say(fmt.Sprintf("counting %d keys in %d shards", b.counted, b.shards), "peak RSS %d MB; %d messages in %.1f s, %.1f s of CPU", u.peak>>20, b.counted+b.counted/5, took.Seconds(), u.cpu.Seconds())
	return nil
}

// idleShards is how many shards idle.
const idleShards = 256

// idle measures what shards take that have nothing to do.
func (b bench) idle(ctx context.Context) (err error) {
	p, err := b.newProgram(ctx, "count", idleShards)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	took, err := p.startAndProbe(ctx)
	if err != nil {
		return err
	}
	say(fmt.Sprintf("%d shards start with no state", idleShards), "%.2f s to the first message, %.2f s to one of every shard", took.first.Seconds(), took.all.Seconds())
	const window = 20 * time.Second
	before, err := p.usage()
	if err != nil {
		return err
	}
	select {
	case <-time.After(window):
	case <-ctx.Done():
		return ctx.Err()
	}
	after, err := p.usage()
	if err != nil {
		return err
	}
	say("… and idle", "RSS %d MB, peak %d MB; %.1f %% of a core", after.now>>20, after.peak>>20, 100*(after.cpu-before.cpu).Seconds()/window.Seconds())
	return nil
}

// spread shows the median of some durations, and the least and the most.
func spread(all []time.Duration) string {
	all = slices.Sorted(slices.Values(all))
	return fmt.Sprintf("%.2f s (%.2f to %.2f, %d runs)", all[len(all)/2].Seconds(), all[0].Seconds(), all[len(all)-1].Seconds(), len(all))
}
