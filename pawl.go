// Package pawl turns consumers into a program: one with flags and variables,
// logs and metrics, an admin port, and a stop that finishes what was begun.
//
//	func main() { pawl.Main(counter{}) }
//
// Package consumer says what a consumer is and what is promised to it.
package pawl

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/signals"
)

// Main runs the consumers as this process's program, and does not return.
// They belong to one application and share its group.
//
// Settings come from flags, variables and a file, which --help lists. With no
// brokers named, Main starts one within the process, which --listen opens to
// other programs: it needs nothing installed. What it holds is in the state
// directory, beside the shards' databases, and survives kill -9 and power cuts;
// the next start goes on from there. With brokers named, a state directory must
// be too.
//
// SIGTERM and SIGINT drain: open transactions are finished, the shards handed
// over, and the program exits with status 0 within the time that --drain sets.
// A second signal exits at once. What is wrong is said on standard error, with
// status 1, or 2 if it is how the program was called.
//
// Main sets the process's memory limit (see [TuneGC]) and its default logger.
func Main(consumers ...consumer.Consumer) {
	runProcess(&application{consumers: consumers})
}

// runProcess runs a body as this process's program, and does not return.
func runProcess(b body) {
	ctx := stopContext()
	p := program{Options: Options{Name: os.Args[0], Args: os.Args[1:], Env: os.Environ(), Stdout: os.Stdout, Stderr: os.Stderr}, body: b, owns: true}
	os.Exit(p.run(ctx))
}

// Options are what a program is given from outside.
type Options struct {
	// Name is the program's file name. It begins what the program says of
	// itself, and is the application's name unless one is set.
	Name string

	Args   []string  // the command line, without the program's name
	Env    []string  // the environment, as os.Environ returns it
	Stdout io.Writer // for --help and --version
	Stderr io.Writer // for the log and for what is wrong
}

// Run runs the consumers as [Main] does, within a process that has more to
// do, such as a test or a program with commands of its own. It stops when ctx
// ends, as Main does on a signal, and returns the exit status. Signals, the
// memory limit and the default logger are left to its caller.
func Run(ctx context.Context, o Options, consumers ...consumer.Consumer) int {
	p := program{Options: o, body: &application{consumers: consumers}}
	return p.run(ctx)
}

// stopContext returns a context that ends with the first signal to stop. The
// second ends the process.
func stopContext() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	came := make(chan os.Signal, 4) // all may come before the first is looked at
	signal.Notify(came, syscall.SIGINT, syscall.SIGTERM)
	go func() { // which lives as long as the process
		var echo signals.Echo
		first := <-came
		echo.First(first, time.Now())
		cancel(fmt.Errorf("signal: %v", first))
		second := <-came
		for echo.Hears(second, time.Now()) {
			second = <-came
		}
		fmt.Fprintf(os.Stderr, "second signal (%v): exiting at once\n", second)
		status := 1
		if s, ok := second.(syscall.Signal); ok {
			status = 128 + int(s)
		}
		os.Exit(status)
	}()
	return ctx
}
