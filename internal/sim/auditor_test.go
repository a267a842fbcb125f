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
	seed   uint64
	kills  int
	rate   int
	input  string   // a file; empty for all of the real input
	broker []string // flags that say where
}

// result is what the run prints.
type result struct {
	Events, Added, Deleted             int64
	Paths, Authors, Days               int
	AuthorDays                         int `json:"author_days"`
	Kills, Takeovers, Lost, Duplicated int
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
	again := fmt.Sprintf("seed %d, %d kills", a.seed, a.kills)
	dir := t.TempDir()
	args := []string{"demo", "-o", "json", "--dir", dir, "--seed", strconv.FormatUint(a.seed, 10), "--kills", strconv.Itoa(a.kills), "--rate", strconv.Itoa(a.rate)}
	if a.input != "" {
		args = append(args, "--input", a.input)
	}
	args = append(args, a.broker...)
	var stdout, stderr bytes.Buffer
	status := cli.Run(args, strings.NewReader(""), &stdout, &stderr)
	var got result
	if err := json.Unmarshal(stdout.Bytes(), &got); status != 0 || err != nil || !got.Verified {
		t.Fatalf("%s: status %d, printed %q (%v)\n%s\n%s", again, status, stdout.String(), err, stderr.String(), logs(dir))
	}
	middle := strings.Count(stderr.String(), "in the middle of a transaction")
	t.Logf("%s: %d in the middle of a transaction, %d takeovers, %.1f s", again, middle, got.Takeovers, got.Seconds)
	// On a busy machine not every kill finds a transaction open; but if few do,
	// the test is about little. That every third victim is taken over is what
	// the other process is there for.
	if middle < a.kills/3 {
		t.Errorf("%s: %d kills in the middle of a transaction, want at least a third\n%s", again, middle, stderr.String())
	}
	if got.Takeovers < a.kills/3 {
		t.Errorf("%s: %d takeovers, want %d\n%s\n%s", again, got.Takeovers, a.kills/3, stderr.String(), logs(dir))
	}
	got.Takeovers, got.Seconds = 0, 0
	want.Kills, want.Verified = a.kills, true
	if got != want {
		t.Errorf("%s:\n%+v, want\n%+v", again, got, want)
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

// The whole of it, on a real Kafka.
func TestAuditorOnKafka(t *testing.T) {
	address := os.Getenv("PAWL_TEST_KAFKA")
	if address == "" {
		t.Skip("PAWL_TEST_KAFKA names no Kafka to run on")
	}
	audit{seed: 11, kills: 30, rate: 5_000, broker: []string{"--brokers", address}}.run(t, whole)
}

// For as long as PAWL_SOAK says, the whole of it, with a new seed each time.
func TestAuditorSoak(t *testing.T) {
	soak := os.Getenv("PAWL_SOAK")
	if soak == "" {
		t.Skip("PAWL_SOAK names no time to run for")
	}
	d, err := time.ParseDuration(soak)
	if err != nil {
		t.Fatalf("PAWL_SOAK: %v", err)
	}
	for end := time.Now().Add(d); time.Now().Before(end) && !t.Failed(); {
		seed := rand.Uint64N(1_000_000_000)
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			a := audit{seed: seed, kills: 30, rate: 5_000}
			if address := os.Getenv("PAWL_TEST_KAFKA"); address != "" {
				a.broker = []string{"--brokers", address}
			}
			a.run(t, whole)
		})
	}
}
