package broker

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// syncGate is a file system whose syncs wait while it is shut.
type syncGate struct {
	vfs.FS
	mu   sync.Mutex
	shut chan struct{} // nil while open
}

func (g *syncGate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = make(chan struct{})
}

func (g *syncGate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		close(g.shut)
		g.shut = nil
	}
}

func (g *syncGate) wait() {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut != nil {
		<-shut
	}
}

func (g *syncGate) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := g.FS.Create(name, c)
	if err != nil {
		return nil, err
	}
	return &gatedFile{f, g}, nil
}

func (g *syncGate) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := g.FS.ReuseForWrite(old, name, c)
	if err != nil {
		return nil, err
	}
	return &gatedFile{f, g}, nil
}

func (g *syncGate) Unwrap() vfs.FS { return g.FS }

type gatedFile struct {
	vfs.File
	g *syncGate
}

func (f *gatedFile) Sync() error     { f.g.wait(); return f.File.Sync() }
func (f *gatedFile) SyncData() error { f.g.wait(); return f.File.SyncData() }

// What is not on disk is neither acked nor shown, and a duplicate that arrives
// before the original is on disk is not acked either.
func TestB1NothingBeforeItsSync(t *testing.T) {
	gate := &syncGate{FS: vfs.NewMem()}
	c := quiet()
	c.fs = gate
	synctest.Test(t, func(t *testing.T) {
		if !virtual {
			t.Skip("needs the build tag synctests") // without it locks are not ones of virtual time; make test sets it
		}
		k := start(t, c)
		k.create("out", 1)
		p := k.rawProducer("x")
		if _, err := p.produce("out", 0, "before"); err != nil {
			t.Fatal(err)
		}
		if err := p.end(true); err != nil {
			t.Fatal(err)
		}
		reader := k.client(kgo.ConsumeTopics("out"), kgo.ConsumeResetOffset(kgo.NewOffset().At(2)))
		acked := make(chan string, 9)
		send := func(what string, fn func() error) {
			go func() {
				if err := fn(); err != nil {
					what = fmt.Sprintf("%s: %v", what, err)
				}
				acked <- what
			}()
			synctest.Wait()
		}
		gate.close()
		seen := make(chan int, 1)
		go func() { seen <- reader.PollFetches(k.ctx).NumRecords() }()
		second := *p
		second.cl = k.client()
		if _, err := k.topicID(second.cl, "out"); err == nil { // and its connections are there
			send("original", func() error { _, err := p.produceAt("out", 0, 0, "v"); return err })
			send("duplicate", func() error { _, err := second.produceAt("out", 0, 0, "v"); return err })
		}
		time.Sleep(time.Second) // virtual time
		synctest.Wait()
		select {
		case what := <-acked:
			t.Errorf("%s is answered, and nothing is on disk", what)
		case n := <-seen:
			t.Errorf("%d messages are shown that are not on disk", n)
		default:
		}
		if got := k.offset("out", 0, listLatest, false); got != 2 {
			t.Errorf("high watermark %d before the sync, want 2", got)
		}
		gate.open()
		for range 2 {
			if what := <-acked; what != "original" && what != "duplicate" {
				t.Error(what)
			}
		}
		if n := <-seen; n != 1 {
			t.Errorf("%d messages, want 1", n)
		}
	})
}

// Sequences, fencing and open transactions go on after a restart.
func TestB3ProducersSurvive(t *testing.T) {
	k := start(t, quiet())
	k.create("out", 2)
	idem := k.rawProducer("")
	first, err := idem.produce("out", 1, "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := idem.produce("out", 1, "c"); err != nil {
		t.Fatal(err)
	}
	x := k.rawProducer("x")
	old := *x
	if _, err := x.produce("out", 0, "committed"); err != nil {
		t.Fatal(err)
	}
	if err := x.end(true); err != nil {
		t.Fatal(err)
	}
	if _, err := x.produce("out", 0, "open"); err != nil {
		t.Fatal(err)
	}
	k.restart()
	for _, p := range []*rawProducer{idem, x, &old} {
		p.cl = k.client()
	}
	if again, err := idem.produceAt("out", 1, 0, "a", "b"); err != nil || again != first {
		t.Errorf("a batch from before the restart, again: offset %d, %v, want %d", again, err, first)
	}
	_, err = idem.produceAt("out", 1, 5, "gap")
	wantError(t, "a gap", err, kerr.OutOfOrderSequenceNumber)
	if _, err := idem.produce("out", 1, "d"); err != nil {
		t.Errorf("the next batch: %v", err)
	}
	for part := range int32(2) {
		_, err = old.produceAt("out", part, 0, "zombie")
		wantError(t, "a zombie's produce", err, kerr.InvalidProducerEpoch)
	}
	if got := k.read("out", 0, true); !slices.Equal(got, []string{"committed"}) {
		t.Errorf("committed %q while a transaction is open", got)
	}
	if _, err := x.produce("out", 0, "goes on"); err != nil {
		t.Errorf("the open transaction goes on: %v", err)
	}
	if err := x.end(true); err != nil {
		t.Errorf("commit: %v", err)
	}
	if got, want := k.read("out", 0, true), []string{"committed", "open", "goes on"}; !slices.Equal(got, want) {
		t.Errorf("committed %q, want %q", got, want)
	}
	if got, want := k.read("out", 1, true), []string{"a", "b", "c", "d"}; !slices.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
	next := k.rawProducer("")
	if next.pid <= max(idem.pid, x.pid) {
		t.Errorf("producer %d after the restart, and there were %d and %d before", next.pid, idem.pid, x.pid)
	}
}

// Readers of committed messages see nothing of a load that is aborted only,
// without any crash and after a clean restart.
func TestAbortsOnly(t *testing.T) {
	k := start(t, quiet())
	k.create("out", 3)
	var wg sync.WaitGroup
	for i := range 3 {
		p := k.rawProducer(fmt.Sprint("x", i))
		wg.Go(func() {
			for n := range 20 {
				for part := range int32(3) {
					if _, err := p.produce("out", part, numbered("v", n%4+1)...); err != nil {
						t.Error(err)
					}
				}
				if err := p.end(false); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for range 2 {
		for part := range int32(3) {
			if got := k.read("out", part, true); len(got) != 0 {
				t.Errorf("%d aborted messages are seen in %d", len(got), part)
			}
			if got := len(k.read("out", part, false)); got != 3*20*10/4 {
				t.Errorf("%d messages were written to %d, want %d", got, part, 3*20*10/4)
			}
		}
		k.restart()
	}
}

// A restart of the broker is no rebalance: members go on in their generation.
func TestGroupsSurvive(t *testing.T) {
	k := start(t, quiet())
	k.create("in", 2)
	w := k.client(manual())
	k.produceTo(w, "in", 0, "a", "b")
	var mu sync.Mutex
	assigned := 0
	cl := k.client(kgo.ConsumerGroup("g"), kgo.ConsumeTopics("in"), kgo.InstanceID("i"), kgo.FetchMaxWait(50*time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.Dialer(k.dial), kgo.HeartbeatInterval(20*time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ ctx, _ *kgo.Client, _ map[string][]int32) { mu.Lock(); assigned++; mu.Unlock() }))
	got := 0
	for got < 2 {
		got += cl.PollFetches(k.ctx).NumRecords()
	}
	if err := cl.CommitUncommittedOffsets(k.ctx); err != nil {
		t.Fatal(err)
	}
	before := k.Snapshot().Groups[0]
	k.restart()
	after := k.Snapshot().Groups[0]
	if after.State != "Stable" || after.Generation != before.Generation || len(after.Members) != 1 || after.Members[0] != before.Members[0] {
		t.Errorf("the group is %+v after the restart, was %+v", after, before)
	}
	k.produceTo(k.client(manual()), "in", 1, "c")
	for got < 3 {
		got += cl.PollFetches(k.ctx).NumRecords()
	}
	if err := cl.CommitUncommittedOffsets(k.ctx); err != nil {
		t.Errorf("commit after the restart: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if assigned != 1 {
		t.Errorf("partitions were assigned %d times, want once", assigned)
	}
}

func TestTransactionTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if !virtual {
			t.Skip("needs the build tag synctests") // without it locks are not ones of virtual time; make test sets it
		}
		k := start(t, quiet())
		k.create("out", 1)
		p := k.rawProducer("x") // 60 s
		if _, err := p.produce("out", 0, "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Second) // virtual time
		synctest.Wait()
		if got := k.offset("out", 0, listLatest, true); got != 0 {
			t.Errorf("last stable offset %d before the timeout, want 0", got)
		}
		time.Sleep(3 * time.Second) // virtual time
		synctest.Wait()
		if got := k.offset("out", 0, listLatest, true); got != 2 {
			t.Errorf("last stable offset %d after the timeout, want 2", got)
		}
		_, err := p.tryEnd(true)
		wantError(t, "a late commit", err, kerr.ProducerFenced)
		_, err = p.produce("out", 0, "b")
		wantError(t, "a late produce", err, kerr.InvalidProducerEpoch)
	})
}

func TestEpochsRunOut(t *testing.T) {
	k := start(t, quiet())
	k.create("out", 1)
	p := k.rawProducer("x")
	k.mu.Lock()
	k.mu.transactions["x"].epoch = epochMax - 1
	k.mu.Unlock()
	p.epoch = epochMax - 1
	for i := range 4 {
		before := *p
		if _, err := p.produce("out", 0, fmt.Sprint(i)); err != nil {
			t.Fatalf("produce at producer %d, epoch %d: %v", p.pid, p.epoch, err)
		}
		if err := p.end(true); err != nil {
			t.Fatal(err)
		}
		if _, err := before.tryEnd(true); err != nil {
			t.Errorf("commit at epoch %d again: %v", before.epoch, err)
		}
		if _, err := before.produceAt("out", 0, 9, "zombie"); !errors.Is(err, kerr.InvalidProducerEpoch) && !errors.Is(err, kerr.InvalidProducerIDMapping) {
			t.Errorf("a zombie's produce at epoch %d: %v", before.epoch, err)
		}
	}
	if p.epoch > 5 {
		t.Errorf("epoch %d: there is no new producer", p.epoch)
	}
	if got, want := k.read("out", 0, true), numbered("", 4); !slices.Equal(got, want) {
		t.Errorf("committed %q, want %q", got, want)
	}
}

func TestOffsetsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if !virtual {
			t.Skip("needs the build tag synctests") // without it locks are not ones of virtual time; make test sets it
		}
		c := quiet()
		c.Settings = map[string]string{"offsets.retention.minutes": "60", "offsets.retention.check.interval.ms": "60000"}
		k := start(t, c)
		k.create("in", 1)
		cl := k.client()
		if err := k.commitPlain(cl, "g", "in", 0, 5); err != nil {
			t.Fatal(err)
		}
		k.ctx = t.Context()
		time.Sleep(58 * time.Minute) // virtual time
		if got := k.committedOffset(cl, "g", "in", 0); got != 5 {
			t.Errorf("offset %d after 58 minutes, want 5", got)
		}
		time.Sleep(5 * time.Minute) // virtual time
		if got := k.committedOffset(cl, "g", "in", 0); got != -1 {
			t.Errorf("offset %d after 63 minutes, want none", got)
		}
		if groups := k.Snapshot().Groups; len(groups) != 0 {
			t.Errorf("groups %v, want none", groups)
		}
	})
}
