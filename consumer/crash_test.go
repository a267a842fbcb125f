package consumer_test

import (
	"testing"

	"github.com/pawlstream/pawl/internal/invariants"
)

// A process killed at any named point of its start, its commits or its stop
// goes on as if nothing had happened, once it is started again: every message
// has exactly one committed output, and the state is that of all messages.
func TestCrashAtEveryPoint(t *testing.T) {
	if !invariants.Enabled {
		t.Log("crash points are compiled in with the tag invariants")
		return
	}
	starting := []string{
		"heartbeat-before", "heartbeat-after", "fence-before", "fence-after",
		"start-record-before", "start-record-after", "restore-before", "restore-after", "resolve-after",
	}
	running := []string{
		"flush-before", "flush-after", "seal-before", "commit-before", "produce-before:8", "produce-after:8", "endtxn-sent:8", "endtxn-replied:8", "apply-before", "apply-after",
		"apply-after:5", "endtxn-sent:11", "database-flush-before", "database-flush-after",
	}
	stopping := []string{"drain-before", "drain-after", "close-before", "close-after", "leave-before", "leave-after"}

	onBrokers(t, func(t *testing.T, brokers string) {
		for _, points := range [][]string{starting, running, stopping} {
			for _, point := range points {
				t.Run(point, func(t *testing.T) {
					t.Parallel()
					s := newStage(t, brokers)
					spec := s.as(t, "a")
					s.publish(t, 200)
					p := startWitness(t, spec, point)
					if &points[0] == &stopping[0] {
						s.testimonies(t, s.total, processPatience)
						p.stdin.Close()
					}
					if &points[0] == &running[0] {
						s.publishUntil(t, p)
					}
					if err := p.wait(t); !killed(err) {
						t.Fatalf("the process was not killed at %s: %v", point, err)
					}
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
		p := startWitness(t, spec, "restore-batch:2")
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
