package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
)

// life is a transaction over two topics with the same partition numbers, whose
// offsets differ, and over offsets of a group in both.
type life struct {
	p     *rawProducer
	steps []lifeStep
	done  int // steps that were acked
}

type lifeStep struct {
	what string
	do   func() error
}

var lifeTopics = map[string]int{"a": 0, "b": 3} // by how many messages the offsets are shifted

// newLife makes the steps of a transaction that ends as it says.
func newLife(k *kit, commit bool) *life {
	l := &life{p: &rawProducer{k: k, cl: k.client(), id: "x", seqs: make(map[offsetOf]int32)}}
	add := func(what string, do func() error) { l.steps = append(l.steps, lifeStep{what, do}) }
	add("init", l.p.init)
	for _, name := range []string{"a", "b"} {
		for part := range int32(2) {
			add(fmt.Sprintf("produce to %s-%d", name, part), func() error {
				_, err := l.p.produce(name, part, fmt.Sprint(name, part))
				return err
			})
			add(fmt.Sprintf("offset of %s-%d", name, part), func() error {
				return l.p.commitOffset("group", name, part, int64(10*lifeTopics[name])+int64(part)+1)
			})
		}
	}
	add("end", func() error {
		_, err := l.p.tryEnd(commit)
		return err
	})
	return l
}

func (l *life) run() error {
	for _, s := range l.steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
		l.done++
	}
	return nil
}

// lifeBefore is what each partition holds before the transaction.
func lifeBefore(name string) []string { return numbered(name+"-before-", lifeTopics[name]) }

// judgeLife compares what readers of committed messages and the group see with a
// transaction that is there whole or not at all, and says which.
func (k *kit) judgeLife(what string) (there bool) {
	k.Helper()
	cl := k.client()
	seen := make(map[bool]int)
	for name, shift := range lifeTopics {
		for part := range int32(2) {
			got := k.read(name, part, true)
			whole := append(lifeBefore(name), fmt.Sprint(name, part))
			switch {
			case slices.Equal(got, whole):
				seen[true]++
			case slices.Equal(got, lifeBefore(name)):
				seen[false]++
			default:
				k.Errorf("%s: %s-%d holds %q", what, name, part, got)
			}
			switch at := k.committedOffset(cl, "group", name, part); at {
			case int64(10*shift) + int64(part) + 1:
				seen[true]++
			case -1:
				seen[false]++
			default:
				k.Errorf("%s: the group is at %d in %s-%d", what, at, name, part)
			}
		}
	}
	if seen[true] != 0 && seen[false] != 0 {
		k.Errorf("%s: the transaction is there in %d places, and not in %d", what, seen[true], seen[false])
	}
	return seen[true] > 0
}

func (k *kit) beginLife() {
	k.Helper()
	cl := k.client(manual())
	defer cl.Close()
	for name := range lifeTopics {
		k.create(name, 2)
		for part := range int32(2) {
			k.produceTo(cl, name, part, lifeBefore(name)...)
		}
	}
	k.create("outside", 1)
}

// kill -9 at every boundary of a transaction's life, each write of it before it
// is written, before it is synced, before it is applied and before it is
// answered, and after a clean stop: messages and offsets are there together or
// not at all, the end may be asked for again and not the other way, and zombies
// stay out.
func TestB2KillAtEveryWrite(t *testing.T) {
	if !invariants.Enabled {
		t.Skip("needs the build tag invariants") // without it nothing to test is compiled in; make test sets it
	}
	dir := t.TempDir()
	for _, commit := range []bool{true, false} {
		boundaries := len(newLife(&kit{TB: t, child: &child{addr: "127.0.0.1:1"}}, commit).steps)
		for n := 1; n <= boundaries; n++ {
			if !commit && n < boundaries {
				continue // up to the end it is the same life
			}
			for _, point := range []string{"broker-write", "broker-sync", "broker-synced", "broker-applied"} {
				name := fmt.Sprintf("commit %t, %s of step %d", commit, point, n)
				settings := childSettings{Dir: fmt.Sprintf("%s/%t-%s-%d", dir, commit, point, n)}
				k := remote(t, settings, "")
				k.beginLife()
				k.child.kill()
				k = remote(t, settings, fmt.Sprintf("%s:%d", point, n))
				ctx, cancel := context.WithCancel(k.ctx)
				k.ctx = ctx
				gone := make(chan struct{})
				go func() {
					defer close(gone)
					_ = k.child.cmd.Wait() // it kills itself
					cancel()
				}()
				l := newLife(k, commit)
				err := l.run()
				if err == nil {
					t.Fatalf("%s: it came to its end", name)
				}
				<-gone
				k = remote(t, settings, "")
				l.p.k, l.p.cl = k, k.client()
				k.judgeAfterLife(name, l, commit)
				k.child.kill()
				if point == "broker-applied" { // what a new producer has aborted stays so, and nothing waits for it
					k = remote(t, settings, "")
					if got := k.judgeLife(name); got != (l.done == len(l.steps)-1 && commit) {
						t.Errorf("%s: after the abort and another kill the transaction is there: %t", name, got)
					}
					for topic := range lifeTopics {
						if stable, high := k.offset(topic, 0, listLatest, true), k.offset(topic, 0, listLatest, false); stable != high {
							t.Errorf("%s: %s-0 is stable up to %d of %d", name, topic, stable, high)
						}
					}
					k.child.kill()
				}
			}
		}
	}
}

// judgeAfterLife judges what a kill left of a life, and what follows.
func (k *kit) judgeAfterLife(name string, l *life, commit bool) {
	k.Helper()
	there := k.judgeLife(name)
	ending := l.done == len(l.steps)-1
	if there && !(ending && commit) {
		k.Errorf("%s: the transaction is there, and no commit was sent", name)
	}
	if ending {
		if _, err := l.p.tryEnd(commit); err != nil {
			k.Errorf("%s: the end again: %v", name, err)
		}
		if _, err := l.p.tryEnd(!commit); err == nil {
			k.Errorf("%s: the opposite end is taken", name)
		}
		if got := k.judgeLife(name); got != commit {
			k.Errorf("%s: after the end was asked for again the transaction is there: %t", name, got)
		}
	}
	zombie := *l.p
	if err := l.p.init(); err != nil { // which ends what is open
		k.Errorf("%s: init: %v", name, err)
	}
	if got := k.judgeLife(name); got != (ending && commit) {
		k.Errorf("%s: after a new producer came the transaction is there: %t", name, got)
	}
	if l.done > 0 {
		for _, topic := range []string{"a", "b", "outside"} {
			if _, err := zombie.produceAt(topic, 0, 7, "zombie"); !errors.Is(err, kerr.InvalidProducerEpoch) && !errors.Is(err, kerr.InvalidProducerIDMapping) {
				k.Errorf("%s: a zombie's produce to %s: %v", name, topic, err)
			}
		}
	}
}

// The same with a clean stop after each step, after which the transaction goes
// on where it was, and nothing gets into it that was not added.
func TestB3CleanRestartAtEveryStep(t *testing.T) {
	for _, commit := range []bool{true, false} {
		n := len(newLife(start(t, quiet()), commit).steps)
		for stop := range n + 1 {
			k := start(t, quiet())
			k.beginLife()
			l := newLife(k, commit)
			for i, s := range l.steps {
				if i == stop {
					k.restart()
					l.p.cl = k.client()
				}
				if err := s.do(); err != nil {
					t.Fatalf("restart before step %d: %s: %v", stop, s.what, err)
				}
				if i == len(l.steps)-2 {
					k.wantOutside(l.p, stop)
				}
				if i < len(l.steps)-1 && k.judgeLife(fmt.Sprintf("restart before step %d, after step %d", stop, i)) {
					t.Errorf("restart before step %d: the transaction is there after step %d", stop, i)
				}
			}
			if stop == n {
				k.restart()
			}
			if got := k.judgeLife(fmt.Sprintf("restart before step %d", stop)); got != commit {
				t.Errorf("restart before step %d: the transaction is there: %t, want %t", stop, got, commit)
			}
			if got := k.read("outside", 0, false); len(got) != 0 {
				t.Errorf("restart before step %d: %q was written outside", stop, got)
			}
		}
	}
}

// wantOutside produces, in the first version of the protocol, to a partition
// that is not in the transaction.
func (k *kit) wantOutside(p *rawProducer, stop int) {
	k.Helper()
	cl := k.client(kgo.MaxVersions(kversion.V3_5_0()))
	defer cl.Close()
	_, err := k.produceRaw(cl, p.id, "outside", 0, rawBatch(p.pid, p.epoch, 0, true, "outside"))
	wantError(k, fmt.Sprintf("restart before step %d: produce to a partition that is not in the transaction", stop), err, kerr.InvalidTxnState)
}
