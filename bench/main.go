// Command bench measures Pawl against plain polling with the same Kafka
// client library, on the Kafka that PAWL_TEST_KAFKA names:
//
//	make bench
//
// Throughput is messages per second of the measured process's own CPU time,
// user and system, from its start until everything is committed and applied.
// Each figure is the median of several runs, which alternate, each in a
// process of its own. What a run has done is validated read committed.
//
// Latency is from publishing a message to receiving, read committed, an output
// that includes it, with messages sent at a fixed rate whatever comes back.
//
// With -check the program fails where a figure is worse than what is promised:
// see limits.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	role := flag.String("role", "", "what a child process does; for the program itself")
	runs := flag.Int("runs", 3, "runs of each figure, of which the median counts")
	messages := flag.Int("messages", 0, "messages of a run; for a child")
	keys := flag.Int("keys", 0, "distinct keys; for a child")
	rows := rows{{1_000, 20_000_000}, {100_000, 5_000_000}}
	flag.Var(&rows, "rows", "throughput runs, each as KEYS:MESSAGES")
	rate := flag.Int("rate", 0, "messages a second; for a child")
	partitions := flag.Int("partitions", 4, "partitions; for a child")
	seconds := flag.Int("seconds", 10, "seconds of a latency run")
	only := flag.String("only", "", "throughput or latency alone")
	check := flag.Bool("check", false, "fail where a figure is worse than is promised")
	profile := flag.String("profile", "", "file for a CPU profile of a child")
	flag.Parse()

	broker := os.Getenv("PAWL_TEST_KAFKA")
	if broker == "" {
		fatal(fmt.Errorf("PAWL_TEST_KAFKA names no broker: run make bench, which starts one"))
	}
	b := bench{broker: broker, runs: *runs, messages: *messages, seconds: *seconds, profile: *profile}
	var err error
	switch *role {
	case "":
		err = b.run(*only, rows)
		if *check && err == nil {
			err = b.met.err()
		}
	case "poll":
		err = b.poll(*keys)
	case "count":
		err = b.count(*keys)
	case "latency":
		err = b.latency(*rate, *partitions)
	default:
		err = fmt.Errorf("unknown role %q", *role)
	}
	if err != nil {
		fatal(err)
	}
}

// rows are the throughput runs: so many messages of so many keys. With few keys
// it takes many messages for the start of a process not to matter.
type rows []row

type row struct{ keys, messages int }

func (rs rows) String() string {
	var all []string
	for _, r := range rs {
		all = append(all, fmt.Sprintf("%d:%d", r.keys, r.messages))
	}
	return strings.Join(all, ",")
}

// Set implements flag.Value.
func (rs *rows) Set(s string) error {
	*rs = nil
	for part := range strings.SplitSeq(s, ",") {
		var r row
		if n, _ := fmt.Sscanf(part, "%d:%d", &r.keys, &r.messages); n != 2 || r.keys < 1 || r.messages < 1 {
			return fmt.Errorf("%q: want KEYS:MESSAGES, both above 0", part)
		}
		*rs = append(*rs, r)
	}
	return nil
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}

type bench struct {
	broker         string
	runs, messages int
	seconds        int
	profile        string
	met            limits
}

// figures is what a child prints.
type figures struct {
	Messages int     `json:"messages"`
	CPU      float64 `json:"cpu"`     // seconds of the process's own
	Seconds  float64 `json:"seconds"` // of wall clock
	RSS      int64   `json:"rss"`     // peak, in bytes
	Commits  float64 `json:"commits,omitempty"`
	P50      float64 `json:"p50,omitempty"` // milliseconds
	P99      float64 `json:"p99,omitempty"`
}

func (f figures) perCPU() float64 { return float64(f.Messages) / f.CPU }

// usage fills in what the operating system knows of this process.
func (f *figures) usage() {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		fatal(err)
	}
	f.CPU = time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
	f.RSS = u.Maxrss << 10
}

func (f figures) print() error { return json.NewEncoder(os.Stdout).Encode(f) }

// child runs this program again in a role, and returns its figures.
func (b bench) child(role string, args ...string) (figures, error) {
	exe, err := os.Executable()
	if err != nil {
		return figures{}, err
	}
	args = append([]string{"-role", role, "-messages", fmt.Sprint(b.messages), "-seconds", fmt.Sprint(b.seconds)}, args...)
	if b.profile != "" {
		args = append(args, "-profile", b.profile+"."+role)
	}
	cmd := exec.Command(exe, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return figures{}, fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	var f figures
	if err := json.Unmarshal(out, &f); err != nil {
		return f, fmt.Errorf("%s printed %q: %w", strings.Join(args, " "), out, err)
	}
	return f, nil
}

// run runs everything and prints the tables.
func (b *bench) run(only string, rows rows) error {
	if only != "latency" {
		fmt.Printf("%-10s %10s %14s %14s %8s %10s %10s %8s\n", "keys", "messages", "poll msg/cpu-s", "pawl msg/cpu-s", "share", "msg/s", "msg/commit", "RSS MB")
		for _, r := range rows {
			b.messages = r.messages
			keys := r.keys
			if err := b.fill(keys); err != nil {
				return err
			}
			var polls, counts []figures
			for range b.runs {
				p, err := b.child("poll", "-keys", fmt.Sprint(keys))
				if err != nil {
					return err
				}
				c, err := b.child("count", "-keys", fmt.Sprint(keys))
				if err != nil {
					return err
				}
				polls, counts = append(polls, p), append(counts, c)
			}
			p, c := median(polls), median(counts)
			fmt.Printf("%-10d %10d %14.0f %14.0f %7.0f%% %10.0f %10.0f %8d\n", keys, r.messages, p.perCPU(), c.perCPU(), 100*c.perCPU()/p.perCPU(),
				float64(c.Messages)/c.Seconds, float64(c.Messages)/c.Commits, c.RSS>>20)
			b.met.throughput(r, c.perCPU()/p.perCPU())
		}
	}
	if only == "throughput" {
		return nil
	}
	fmt.Printf("\n%-24s %10s %10s %10s %8s\n", "latency", "p50 ms", "p99 ms", "messages", "cores")
	run := func(l load) (figures, error) {
		return b.child("latency", "-rate", fmt.Sprint(l.rate), "-partitions", fmt.Sprint(l.partitions))
	}
	// A broker that has just been started compiles what it runs often, and takes
	// twice as long over a commit until it has: that is not what is asked for.
	loads := []load{{10, 1}, {100, 1}, {1_000, 1}, {20_000, 4}}
	for range latencyWarmUps {
		if _, err := run(loads[len(loads)-1]); err != nil {
			return err
		}
	}
	for _, l := range loads {
		var all []figures
		for range b.runs {
			f, err := run(l)
			if err != nil {
				return err
			}
			all = append(all, f)
		}
		slices.SortFunc(all, func(x, y figures) int { return int(1000 * (x.P99 - y.P99)) })
		f := all[len(all)/2]
		fmt.Printf("%6d/s on %d shard(s)    %10.1f %10.1f %10d %8.2f\n", l.rate, l.partitions, f.P50, f.P99, f.Messages, f.CPU/f.Seconds)
		b.met.latency(l, f)
	}
	return nil
}

// load is what a latency run sends.
type load struct{ rate, partitions int } // messages a second

// latencyWarmUps is how many runs at the highest rate come before what is
// measured.
const latencyWarmUps = 3

// median returns the run whose rate is the middle one.
func median(all []figures) figures {
	all = slices.Clone(all)
	slices.SortFunc(all, func(x, y figures) int { return int(x.perCPU() - y.perCPU()) })
	return all[len(all)/2]
}
