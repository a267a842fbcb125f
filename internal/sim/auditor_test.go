package sim

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pawlstream/pawl/examples/filestats"
	"github.com/pawlstream/pawl/internal/cli"
)

// The processes that are killed are this program again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "demo" {
		os.Exit(cli.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// An audit is one run of filestats, two consumers one behind the other in two
// processes, under kill -9 at points that the seed decides: nothing lost,
// nothing duplicated, every total right.
type audit struct {
	seed        uint64
	kills       int
	brokerKills int
	rate        int
	input       string   // a file; empty for all of the real input
	broker      []string // flags that say where
}

// result is what the run prints.
type result struct {
	Events, Added, Deleted             int64
	Paths, Authors, Days               int
	AuthorDays                         int `json:"author_days"`
	Kills, Takeovers, Lost, Duplicated int
	BrokerKills                        int `json:"broker_kills"`
	Seconds                            float64
	Verified, Interrupted              bool
}

// whole is what the real input is known to add up to.
var whole = result{Events: 101_229, Added: 2_946_061, Deleted: 1_502_209, Paths: 10_101, Authors: 1_491, Days: 3_501, AuthorDays: 12_160}

// first is what the first 12,000 events of it add up to.
var first = result{Events: 12_000, Added: 355_431, Deleted: 224_252, Paths: 2_002, Authors: 153, Days: 704, AuthorDays: 1_133}

// run runs the audit, and checks what it prints.
func (a audit) run(t *testing.T, want result) {
	t.Helper()
	var got result
	again, said, dir := a.demo(t, &got, &got.Verified)
	middle := strings.Count(said, "in the middle of a transaction")
	t.Logf("%s: %d in the middle of a transaction, %d takeovers, %.1f s", again, middle, got.Takeovers, got.Seconds)
	// On a busy machine not every kill finds a transaction open; but if few do,
	// the test is about little. That every third victim is taken over is what
	// the other process is there for.
	if middle < a.kills/3 {
		t.Errorf("%s: %d kills in the middle of a transaction, want at least a third\n%s", again, middle, said)
	}
	if got.Takeovers < a.kills/3 {
		t.Errorf("%s: %d takeovers, want %d\n%s\n%s", again, got.Takeovers, a.kills/3, said, logs(dir))
	}
	got.Takeovers, got.Seconds = 0, 0
	want.Kills, want.BrokerKills, want.Verified = a.kills, a.brokerKills, true
	if got != want {
		t.Errorf("%s:\n%+v, want\n%+v", again, got, want)
	}
}

// demo runs a demo, which must verify what it has done, and reads its result.
func (a audit) demo(t *testing.T, into any, verified *bool, flags ...string) (again, said, dir string) {
	t.Helper()
	again = fmt.Sprintf("seed %d, %d kills, %d of the broker", a.seed, a.kills, a.brokerKills)
	dir = t.TempDir()
	args := append([]string{"demo", "-o", "json", "--dir", dir, "--seed", strconv.FormatUint(a.seed, 10), "--rate", strconv.Itoa(a.rate),
		"--kills", strconv.Itoa(a.kills), "--broker-kills", strconv.Itoa(a.brokerKills)}, flags...)
	if a.input != "" {
		args = append(args, "--input", a.input)
	}
	args = append(args, a.broker...)
	var stdout, stderr bytes.Buffer
	status := cli.Run(args, strings.NewReader(""), &stdout, &stderr)
	if err := json.Unmarshal(stdout.Bytes(), into); status != 0 || err != nil || !*verified {
		t.Fatalf("%s: status %d, printed %q (%v)\n%s\n%s", again, status, stdout.String(), err, stderr.String(), logs(dir))
	}
	return again, stderr.String(), dir
}

// queueResult is what a run of the demo of a work queue prints.
type queueResult struct {
	Messages, Acked int64
	Lost, Kills     int
	BrokerKills     int `json:"broker_kills"`
	DeadLettered    int `json:"dead_lettered"`
	Redriven        int
	Verified        bool
}

// queue runs the audit of a work queue of so many messages: each settled,
// retried as often as the rule says, redriven if it was a dead letter.
func (a audit) queue(t *testing.T, messages int64) {
	t.Helper()
	var got queueResult
	again, said, _ := a.demo(t, &got, &got.Verified, "--queue")
	if got.DeadLettered == 0 || got.Redriven != got.DeadLettered {
		t.Errorf("%s: %d dead letters and %d redriven, want some, and as many\n%s", again, got.DeadLettered, got.Redriven, said)
	}
	got.DeadLettered, got.Redriven = 0, 0
	if want := (queueResult{Messages: messages, Acked: messages, Kills: a.kills, BrokerKills: a.brokerKills, Verified: true}); got != want {
		t.Errorf("%s: %+v, want %+v\n%s", again, got, want, said)
	}
}

// logs returns the ends of the processes' logs.
func logs(dir string) string {
	var all strings.Builder
	names, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return err.Error()
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			text = []byte(err.Error())
		}
		fmt.Fprintf(&all, "--- %s\n%s\n", filepath.Base(name), text[max(0, len(text)-16<<10):])
	}
	return all.String()
}

// part writes the first events of the real input to a file.
func part(t *testing.T, events int) (file string) {
	t.Helper()
	r, err := gzip.NewReader(filestats.Input())
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfterN(all, []byte("\n"), events+1)
	file = filepath.Join(t.TempDir(), "changes.jsonl")
	if err := os.WriteFile(file, bytes.Join(lines[:events], nil), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// A slice of the auditor: three kills, the third of which is taken over, over
// the first 12,000 events.
func TestAuditor(t *testing.T) {
	audit{seed: 7, kills: 3, rate: 4_000, input: part(t, 12_000)}.run(t, first)
}

// And with the broker killed among the processes.
func TestAuditorKillsTheBroker(t *testing.T) {
	audit{seed: 8, kills: 2, brokerKills: 4, rate: 4_000, input: part(t, 12_000)}.run(t, first)
}

// A work queue whose workers and broker are killed.
func TestQueueAuditor(t *testing.T) {
	audit{seed: 9, kills: 2, brokerKills: 3, rate: 2_000, input: part(t, 6_000)}.queue(t, 6_000)
}

// The whole of it, on a real Kafka.
func TestAuditorOnKafka(t *testing.T) {
	address := os.Getenv("PAWL_TEST_KAFKA")
	if address == "" {
		t.Skip("PAWL_TEST_KAFKA names no Kafka to run on") // make kafka-test starts one
	}
	audit{seed: 11, kills: 30, rate: 5_000, broker: []string{"--brokers", address}}.run(t, whole)
}

// For as long as PAWL_SOAK says, the whole of it, with a new seed each time.
func TestAuditorSoak(t *testing.T) {
	soak := os.Getenv("PAWL_SOAK")
	if soak == "" {
		t.Skip("PAWL_SOAK names no time to run for") // hours of it are for make soak; a slice runs always
	}
	d, err := time.ParseDuration(soak)
	if err != nil {
		t.Fatalf("PAWL_SOAK: %v", err)
	}
	for end := time.Now().Add(d); time.Now().Before(end) && !t.Failed(); {
		seed := rand.Uint64N(1_000_000_000)
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			a := audit{seed: seed, kills: 30, brokerKills: 30, rate: 5_000}
			if address := os.Getenv("PAWL_TEST_KAFKA"); address != "" {
				a.brokerKills, a.broker = 0, []string{"--brokers", address}
			}
			if seed%3 == 0 {
				a.queue(t, whole.Events)
			} else {
				a.run(t, whole)
			}
		})
	}
}
