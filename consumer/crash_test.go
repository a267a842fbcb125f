package consumer_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pawlstream/pawl/internal/invariants"
)

// The named points of a process's life, as PAWL_CRASH takes them, by the part of
// it in which they are passed.
var (
	startingPoints = []string{
		"heartbeat-before", "heartbeat-after", "fence-before", "fence-after",
		"start-record-before", "start-record-after", "restore-before", "restore-after", "resolve-after",
	}
	restoringPoints = []string{"restore-batch:2"}
	runningPoints   = []string{
		"flush-before", "flush-after", "seal-before", "commit-before", "produce-before:8", "produce-after:8", "endtxn-sent:8", "endtxn-replied:8", "apply-before", "store-apply:5", "apply-after",
		"apply-after:5", "endtxn-sent:11", "database-flush-before", "database-flush-after",
	}
	stoppingPoints = []string{"drain-before", "drain-after", "close-before", "close-after", "leave-before", "leave-after"}
)

// A process killed at any named point of its start, its commits or its stop
// goes on as if nothing had happened, once it is started again: every message
// has exactly one committed output, and the state is that of all messages. A
// start is also killed where there is something to start from: state, and a
// predecessor whose transaction is open.
func TestCrashAtEveryPoint(t *testing.T) {
	if !invariants.Enabled {
		t.Log("crash points are compiled in with the tag invariants")
		return
	}
	onBrokers(t, func(t *testing.T, brokers string) {
		for kind, points := range map[string][]string{"start": startingPoints, "start after a kill": startingPoints, "run": runningPoints, "stop": stoppingPoints} {
			for _, point := range points {
				t.Run(kind+"/"+point, func(t *testing.T) {
					t.Parallel()
					s := newStage(t, brokers)
					spec := s.as(t, "a")
					s.publish(t, 200)
					killedAt := func(p *process, point string) {
						t.Helper()
						if err := p.wait(t); !killed(err) {
							t.Fatalf("the process was not killed at %s: %v", point, err)
						}
					}
					if kind == "start after a kill" {
						const open = "produce-after:8"
						p := startWitness(t, spec, open)
						s.publishUntil(t, p)
						killedAt(p, open)
					}
					p := startWitness(t, spec, point)
					switch kind {
					case "run":
						s.publishUntil(t, p)
					case "stop":
						s.testimonies(t, s.total, processPatience)
						p.stdin.Close()
					}
					killedAt(p, point)
					s.publish(t, 100)
					p = startWitness(t, spec, "")
					s.verify(t)
					p.drain(t)
					s.verifyStores(t, spec)
				})
			}
		}
	})
}

// Every point that the code names is one at which a process is killed here, and
// one of which the documentation says what comes of it; and the other way round.
func TestCrashPointsAreKnown(t *testing.T) {
	tested := make(map[string]bool)
	for _, point := range slices.Concat(startingPoints, restoringPoints, runningPoints, stoppingPoints) {
		name, _, _ := strings.Cut(point, ":")
		tested[name] = true
	}
	inCode := make(map[string]bool)
	point := regexp.MustCompile(`invariants\.Crash\("([^"]*)"\)`)
	for _, dir := range []string{".", "../store", "../internal/kafka", "../internal/changelog"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range point.FindAllSubmatch(text, -1) {
				inCode[string(m[1])] = true
			}
		}
	}
	text, err := os.ReadFile("../docs/exactly-once.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| point | what is there |")
	table, _, _ = strings.Cut(table, "\n\n")
	documented := make(map[string]bool)
	for row := range strings.Lines(table) {
		cells := strings.Split(row, "|")
		if len(cells) < 2 {
			continue
		}
		for _, m := range regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(cells[1], -1) {
			documented[m[1]] = true
		}
	}
	code := slices.Sorted(maps.Keys(inCode))
	if got := slices.Sorted(maps.Keys(tested)); !slices.Equal(got, code) {
		t.Errorf("processes are killed at\n%q\nand the code names\n%q", got, code)
	}
	if got := slices.Sorted(maps.Keys(documented)); !slices.Equal(got, code) {
		t.Errorf("docs/exactly-once.md tells of\n%q\nand the code names\n%q", got, code)
	}
}

// A restore that is killed half-way, after it has stored a part, goes on.
func TestCrashInRestore(t *testing.T) {
	if !invariants.Enabled {
		t.Log("crash points are compiled in with the tag invariants")
		return
	}
	onBrokers(t, func(t *testing.T, brokers string) {
		s := newStage(t, brokers)
		spec := s.as(t, "a")
		spec.Padding = 60_000
		s.keys = 300
		s.publish(t, 300)
		first := startWitness(t, spec, "")
		s.verify(t)
		first.drain(t)

		spec.Dir += "-new" // the state has to come from the changelog
		p := startWitness(t, spec, restoringPoints[0])
		if err := p.wait(t); !killed(err) {
			t.Fatalf("the process was not killed while it restored: %v", err)
		}
		s.publish(t, 30)
		p = startWitness(t, spec, "")
		s.verify(t)
		p.drain(t)
		s.verifyStores(t, spec)
	})
}
