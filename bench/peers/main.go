// Command peers runs the same workloads on Kafka Streams and on Pawl, on one
// Kafka and the same topics, and prints the figures side by side, as tables
// for docs/performance.md:
//
//	make bench-peers
//	make bench-peers PEERS='-only map,latency -runs 1'
//	make bench-peers PEERS=-short
//
// Each run is a process of its own, and the two sides take turns. This program
// watches them from outside: their CPU time, user and system, and their peak
// memory are what the kernel says of them, and what they have put out is read
// back read committed and checked, message by message. A run that lost or
// doubled anything ends the benchmark.
//
// Kafka Streams runs with exactly_once_v2 and the best settings that were
// found for each workload; they are printed below the tables. Pawl runs with
// its defaults, but where a row says otherwise.
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
	if len(os.Args) > 1 && os.Args[1] == pawlRole {
		exit(runPawl(os.Args[2:], os.Stdin, os.Stdout))
		return
	}
	var b bench
	flag.IntVar(&b.runs, "runs", 3, "runs of each side, of which the medians count")
	flag.BoolVar(&b.short, "short", false, "a hundredth of the messages, a tenth of the rate, and one run: to see whether it works, not what it measures")
	only := flag.String("only", "", "workloads to run, separated by commas, of "+strings.Join(names(), ", ")+"; without it, all but cold")
	flag.StringVar(&b.heap, "heap", "2g", "heap of Kafka Streams' JVM, all of it taken at start")
	flag.StringVar(&b.jars, "streams", "bench/kafka-streams/target", "where Maven has built bench/kafka-streams")
	flag.Parse()

	b.broker, b.brokerPID = os.Getenv("PAWL_TEST_KAFKA"), os.Getenv("PAWL_TEST_KAFKA_PID")
	chosen, err := choose(*only)
	switch {
	case err != nil:
	case flag.NArg() > 0:
		err = fmt.Errorf("no arguments are wanted, got %q", flag.Args())
	case b.runs < 1:
		err = fmt.Errorf("-runs is %d: want at least 1", b.runs)
	case b.broker == "" || b.brokerPID == "":
		err = fmt.Errorf("PAWL_TEST_KAFKA and PAWL_TEST_KAFKA_PID name no broker: run make bench-peers, which starts one")
	}
	if err != nil {
		exit(err)
	}
	b.measured = 20 * time.Second
	b.warmUp = 12 * time.Second // a JVM is at its full speed by then
	if b.short {
		b.runs, b.measured, b.warmUp = 1, 2*time.Second, 2*time.Second
		for i := range chosen {
			chosen[i].input.messages /= 100
			chosen[i].rate /= 10
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	exit(b.run(ctx, chosen))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// choose returns the workloads that a list of names asks for, or without one all
// that are no extras.
func choose(list string) ([]workload, error) {
	if list == "" {
		return slices.DeleteFunc(slices.Clone(workloads), func(w workload) bool { return w.extra }), nil
	}
	var chosen []workload
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(workloads, func(w workload) bool { return w.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no workload %q: there are %s", name, strings.Join(names(), ", "))
		}
		chosen = append(chosen, workloads[i])
	}
	return chosen, nil
}

func names() []string {
	var all []string
	for _, w := range workloads {
		all = append(all, w.name)
	}
	return all
}

// bench is what all runs have in common.
type bench struct {
	broker    string // HOST:PORT
	brokerPID string
	runs      int
	short     bool
	heap      string
	jars      string

	// Of the runs that measure latency.
	warmUp, measured time.Duration
}

// run runs the workloads and prints what they measured: also when one fails,
// of those before it.
func (b bench) run(ctx context.Context, chosen []workload) error {
	var results []result
	var failed error
	for _, w := range chosen {
		r, err := b.both(ctx, w)
		if err != nil {
			failed = fmt.Errorf("%s: %w", w.name, err)
			break
		}
		results = append(results, r)
	}
	if len(results) == 0 {
		return failed
	}
	return errors.Join(failed, b.print(os.Stdout, results))
}

// both runs the two sides of a workload in turns.
func (b bench) both(ctx context.Context, w workload) (result, error) {
	r := result{workload: w, pawl: make([][]figures, len(w.pawl))}
	if err := b.fill(ctx, w); err != nil {
		return r, fmt.Errorf("make the input: %w", err)
	}
	measure := b.throughput
	if w.rate > 0 {
		measure = b.latency
	}
	for n := range b.runs {
		f, err := measure(ctx, w, b.streamsPeer(w))
		if err != nil {
			return r, fmt.Errorf("on Kafka Streams, run %d: %w", n+1, err)
		}
		report(w.name, "Kafka Streams", f)
		r.streams = append(r.streams, f)
		for i, v := range w.pawl {
			f, err := measure(ctx, w, b.pawlPeer(w, v))
			if err != nil {
				return r, fmt.Errorf("on Pawl%s, run %d: %w", v.note, n+1, err)
			}
			report(w.name, "Pawl"+v.note, f)
			r.pawl[i] = append(r.pawl[i], f)
		}
	}
	return r, nil
}

// report says how a run went, on standard error, where it does not mix with
// the tables.
func report(workload, side string, f figures) {
	fmt.Fprintf(os.Stderr, "%-10s %-44s %s\n", workload, side, f)
}
