package consumer_test

import (
	"context"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// awaitStop waits until the process is stopped by a signal. Meanwhile, it
// publishes a few messages at a time.
func (s *stage) awaitStop(t *testing.T, p *process) {
	t.Helper()
	stopped := make(chan error, 1)
	go func() {
		stopped <- unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WSTOPPED|unix.WNOWAIT|unix.WEXITED, nil)
	}()
	for range 1000 {
		select {
		case err := <-stopped:
			if err != nil {
				t.Fatalf("wait for the process to stop: %v", err)
			}
			return
		default:
			s.publish(t, 7)
		}
	}
	select {
	case err := <-stopped:
		if err != nil {
			t.Fatalf("wait for the process to stop: %v", err)
		}
	case <-time.After(processPatience):
		t.Fatalf("process %d does not stop", p.cmd.Process.Pid)
	}
}

func (p *process) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// starts reads how many start records each shard's changelog holds: each is an
// initialisation of the shard's producer.
func (s *stage) starts(t *testing.T) map[int32]int {
	t.Helper()
	r, err := kafka.NewReader(s.config(), kafka.ReaderConfig{Committed: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	d := topic.Bytes(consumer.ChangelogTopic(s.spec.Application, s.w.in.Name())).Description
	admin := s.admin(t)
	next := make(map[topic.Partition]int64)
	var parts []topic.Partition
	for p := range int32(witnessPartitions) {
		parts = append(parts, topic.Partition{Topic: d.Name(), Number: p})
		r.Consume(d, p, 0)
	}
	ends, err := admin.Offsets(t.Context(), kafka.StableEnd, parts...)
	if err != nil {
		t.Fatal(err)
	}
	starts := make(map[int32]int)
	ctx, cancel := context.WithTimeout(t.Context(), processPatience)
	defer cancel()
	behind := func() bool {
		for p, end := range ends {
			if next[p] < end {
				return true
			}
		}
		return false
	}
	var batch kafka.Batch
	for behind() {
		batch.Reset()
		if err := r.Poll(ctx, 1000, &batch); err != nil {
			t.Fatal(err)
		}
		for _, e := range batch.Envelopes {
			if string(e.Key) == string(changelog.StartKey) {
				starts[e.Partition]++
			}
		}
		for _, p := range batch.Parts {
			next[p.Partition] = p.Next
		}
	}
	return starts
}

// A process that is frozen past its session and then goes on is fenced:
// nothing it does is visible, the one that took over is not disturbed, and
// neither fences the other again and again.
func TestZombie(t *testing.T) {
	onBrokers(t, func(t *testing.T, brokers string) {
		zombie := func(at string) {
			t.Run(at, func(t *testing.T) {
				if at != "at a random time" && !invariants.Enabled {
					t.Log("crash points are compiled in with the tag invariants")
					return
				}
				s := newStage(t, brokers)
				s.publish(t, 200)
				var a *process
				switch at {
				case "at a random time":
					a = startWitness(t, s.as(t, "a"), "")
					s.testimonies(t, s.total, processPatience)
					a.signal(t, syscall.SIGSTOP)
				case "fence-after":
					a = startWitness(t, s.as(t, "a"), "stop="+at+":2")
				default:
					a = startWitness(t, s.as(t, "a"), "stop="+at+":9")
				}
				s.awaitStop(t, a)

				b := startWitness(t, s.as(t, "b"), "")
				s.publish(t, 200)
				s.verify(t) // b has taken over
				before := s.starts(t)

				a.signal(t, syscall.SIGCONT)
				for range 20 {
					s.publish(t, 20)
					s.verify(t)
				}
				a.drain(t)
				after := s.starts(t)
				b.drain(t)
				for p, n := range after {
					if again := n - before[p]; again > 3 {
						t.Errorf("shard %d was initialised %d times after the zombie woke, want at most once more by each, and once when it left", p, again)
					}
				}
				s.verify(t)
			})
		}
		// All at once, however few processors there are: they wait for sessions to lapse.
		var all sync.WaitGroup
		for _, at := range []string{"at a random time", "endtxn-sent", "produce-after", "apply-before", "fence-after"} {
			all.Go(func() { zombie(at) })
		}
		all.Wait()
	})
}

// A transaction that times out while its owner stalls is aborted by the
// coordinator, which raises the epoch. The shard comes back by itself.
func TestTransactionTimesOutWhileItsOwnerStalls(t *testing.T) {
	if !invariants.Enabled {
		t.Log("crash points are compiled in with the tag invariants")
		return
	}
	onBrokers(t, func(t *testing.T, brokers string) {
		s := newStage(t, brokers)
		s.publish(t, 200)
		spec := s.as(t, "a")
		spec.Transaction, spec.Session = time.Second, 5*time.Minute // the group is patient, the coordinator is not
		a := startWitness(t, spec, "stop=produce-after:9")
		s.awaitStop(t, a)
		admin := s.admin(t)
		open := func() (n int) {
			all, err := admin.Transactions(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, tx := range all {
				for p := range int32(witnessPartitions) {
					if tx.ID == consumer.TransactionalID(s.spec.Application, consumer.ShardID(s.w.in.Name()+"-00"+string('0'+rune(p)))) && tx.State == "Ongoing" {
						n++
					}
				}
			}
			return n
		}
		if open() == 0 {
			t.Fatal("no transaction is open while its owner stalls")
		}
		deadline := time.Now().Add(processPatience)
		for open() > 0 { // each look is a request
			if time.Now().After(deadline) {
				t.Fatal("the coordinator does not abort the transaction")
			}
		}
		a.signal(t, syscall.SIGCONT)
		s.publish(t, 100)
		s.verify(t)
		a.drain(t)
		s.verifyStores(t, spec)
	})
}
