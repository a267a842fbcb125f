package broker

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/twmb/franz-go/pkg/kerr"
)

// boundaryFS calls hook before and after each write, sync, rename and remove:
// the moments between which a power cut can fall.
type boundaryFS struct {
	vfs.FS
	hook func()
}

func (f *boundaryFS) Unwrap() vfs.FS { return f.FS }

func (f *boundaryFS) wrap(file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &boundaryFile{file, f.hook}, nil
}

func (f *boundaryFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f.hook()
	return f.wrap(f.FS.Create(name, c))
}

func (f *boundaryFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return f.wrap(f.FS.OpenReadWrite(name, c, opts...))
}

func (f *boundaryFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f.hook()
	return f.wrap(f.FS.ReuseForWrite(old, name, c))
}

func (f *boundaryFS) OpenDir(name string) (vfs.File, error) { return f.wrap(f.FS.OpenDir(name)) }

func (f *boundaryFS) Rename(old, name string) error {
	f.hook()
	return f.FS.Rename(old, name)
}

func (f *boundaryFS) Remove(name string) error {
	f.hook()
	return f.FS.Remove(name)
}

type boundaryFile struct {
	vfs.File
	hook func()
}

func (f *boundaryFile) Write(p []byte) (int, error) {
	f.hook()
	return f.File.Write(p)
}

func (f *boundaryFile) Sync() error {
	f.hook()
	err := f.File.Sync()
	f.hook()
	return err
}

func (f *boundaryFile) SyncData() error {
	f.hook()
	err := f.File.SyncData()
	f.hook()
	return err
}

// A story is what producers did up to some moment. Each step is noted before it
// is sent and after it was answered, so that at any moment it is known what
// must be there, what may be, and what can't be.
type story struct {
	mu           sync.Mutex
	transactions []*told
	plain        [2][]saying // by partition
	committed    int64       // a plain offset that was acked
	committing   int64       // one that was sent
}

// told is a transaction of a story.
type told struct {
	id       string
	n        int
	pid      int64
	epoch    int16
	values   [2][]string // that were acked, by partition
	sent     [2][]string // that were sent
	offset   int64       // that was acked as part of it
	offering int64       // that was sent as part of it
	ending   bool        // the end was sent
	commit   bool
	ended    bool // the end was acked
}

type saying struct {
	value string
	acked bool
}

// copy is the story as it is now.
func (s *story) copy() *story {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &story{committed: s.committed, committing: s.committing}
	for _, t := range s.transactions {
		u := *t
		for p := range 2 {
			u.values[p], u.sent[p] = slices.Clone(t.values[p]), slices.Clone(t.sent[p])
		}
		c.transactions = append(c.transactions, &u)
	}
	for p := range 2 {
		c.plain[p] = slices.Clone(s.plain[p])
	}
	return c
}

func (s *story) note(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn()
}

// tell makes producers do what the story is about. It ends at the first error,
// which is for the caller to judge: the broker may have been killed.
func (k *kit) tell(s *story, transactions int) error {
	errs := make(chan error, 4)
	for _, id := range []string{"x", "y"} {
		go func() { errs <- k.tellTransactions(s, id, transactions) }()
	}
	go func() { errs <- k.tellPlain(s, transactions*3) }()
	go func() { errs <- k.tellOffsets(s, transactions*2) }()
	return errors.Join(<-errs, <-errs, <-errs, <-errs)
}

func (k *kit) tellTransactions(s *story, id string, n int) error {
	p := &rawProducer{k: k, cl: k.client(), id: id, seqs: make(map[offsetOf]int32)}
	if err := p.init(); err != nil {
		return err
	}
	for i := range n {
		t := &told{id: id, n: i, pid: p.pid, epoch: p.epoch, commit: i%3 != 2}
		s.note(func() { s.transactions = append(s.transactions, t) })
		for round := range 2 {
			for part := range int32(2) {
				v := fmt.Sprintf("%s-%d-%d-%d", id, i, part, round)
				s.note(func() { t.sent[part] = append(t.sent[part], v) })
				if _, err := p.produce("out", part, v); err != nil {
					return err
				}
				s.note(func() { t.values[part] = append(t.values[part], v) })
			}
		}
		s.note(func() { t.offering = int64(i + 1) })
		if err := p.commitOffset("group-"+id, "in", 0, int64(i+1)); err != nil {
			return err
		}
		s.note(func() { t.offset = int64(i + 1) })
		s.note(func() { t.ending = true })
		if err := p.end(t.commit); err != nil {
			return err
		}
		s.note(func() { t.ended = true })
	}
	return nil
}

func (k *kit) tellPlain(s *story, n int) error {
	p := &rawProducer{k: k, cl: k.client(), seqs: make(map[offsetOf]int32)}
	if err := p.init(); err != nil {
		return err
	}
	for i := range n {
		part := int32(i % 2)
		v := fmt.Sprintf("plain-%d", i)
		s.note(func() { s.plain[part] = append(s.plain[part], saying{v, false}) })
		if _, err := p.produce("plain", part, v); err != nil {
			return err
		}
		s.note(func() { s.plain[part][len(s.plain[part])-1].acked = true })
	}
	return nil
}

func (k *kit) tellOffsets(s *story, n int) error {
	cl := k.client()
	for i := range n {
		s.note(func() { s.committing = int64(i + 1) })
		if err := k.commitPlain(cl, "group", "in", 0, int64(i+1)); err != nil {
			return err
		}
		s.note(func() { s.committed = int64(i + 1) })
	}
	return nil
}

// judge opens what a crash has left and compares it with the story: before is
// what was known to be done before the crash, after what was begun by then.
func (k *kit) judge(before, after *story) {
	k.Helper()
	cl := k.client()
	open := make(map[string]*told) // the last transaction of each producer
	for i, t := range after.transactions {
		open[t.id] = t
		if i < len(before.transactions) {
			b := before.transactions[i]
			b.ending, b.sent, b.offering = t.ending, t.sent, t.offering // what was sent by then may have been done
		} else {
			before.transactions = append(before.transactions, &told{id: t.id, n: t.n, pid: t.pid, epoch: t.epoch, commit: t.commit, ending: t.ending, sent: t.sent, offering: t.offering})
		}
	}
	// Ends that were sent are sent again: each is what happened, or happens now.
	outcome := make(map[*told]bool)
	for _, t := range before.transactions {
		last := open[t.id]
		if t.n < last.n {
			outcome[t] = t.commit // another one followed it
			continue
		}
		p := &rawProducer{k: k, cl: cl, id: t.id, pid: t.pid, epoch: t.epoch, seqs: make(map[offsetOf]int32)}
		complete := true
		for part := range 2 {
			complete = complete && len(t.sent[part]) == 2
		}
		if t.ending && complete {
			if _, err := p.tryEnd(t.commit); err != nil {
				k.Errorf("transaction %s-%d: its end, commit %t, sent again: %v", t.id, t.n, t.commit, err)
			}
			if _, err := p.tryEnd(!t.commit); err == nil {
				k.Errorf("transaction %s-%d: after commit %t the opposite is taken", t.id, t.n, t.commit)
			}
			outcome[t] = t.commit
		}
		// A new producer with the ID ends what is open, and the old one is out.
		q := &rawProducer{k: k, cl: cl, id: t.id, seqs: make(map[offsetOf]int32)}
		if err := q.init(); err != nil {
			k.Errorf("init %s: %v", t.id, err)
		}
		for part := range int32(2) {
			if _, err := p.produceAt("out", part, 100, "zombie"); !errors.Is(err, kerr.InvalidProducerEpoch) && !errors.Is(err, kerr.InvalidProducerIDMapping) {
				k.Errorf("a zombie of %s produces to %d: %v, want INVALID_PRODUCER_EPOCH", t.id, part, err)
			}
		}
	}
	for part := range int32(2) {
		got := k.read("out", part, true)
		var want []string
		for _, t := range before.transactions {
			if outcome[t] {
				want = append(want, t.sent[part]...)
			}
		}
		slices.Sort(want)
		sorted := slices.Sorted(slices.Values(got))
		if !slices.Equal(sorted, want) {
			k.Errorf("committed in out-%d: %q, want %q", part, sorted, want)
		}
		k.judgePlain(after, before, part)
	}
	for _, id := range []string{"x", "y"} {
		want := int64(-1)
		for _, t := range before.transactions {
			if t.id == id && outcome[t] {
				want = t.offering
			}
		}
		if got := k.committedOffset(cl, "group-"+id, "in", 0); got != want && !(want == 0 && got == -1) {
			k.Errorf("offset of group-%s: %d, want %d", id, got, want)
		}
	}
	got := k.committedOffset(cl, "group", "in", 0)
	if got == -1 {
		got = 0
	}
	if got < before.committed || got > after.committing {
		k.Errorf("offset of group: %d, want between %d and %d", got, before.committed, after.committing)
	}
	// It goes on.
	p := k.rawProducer("x")
	if _, err := p.produce("out", 0, "afterwards"); err != nil {
		k.Errorf("produce afterwards: %v", err)
	}
	if err := p.end(true); err != nil {
		k.Errorf("commit afterwards: %v", err)
	}
	if got := k.read("out", 0, true); len(got) == 0 || got[len(got)-1] != "afterwards" {
		k.Errorf("committed afterwards: %q, want the last one to be it", got)
	}
}

func (k *kit) judgePlain(after, before *story, part int32) {
	k.Helper()
	got := k.read("plain", part, false)
	acked := 0
	for _, s := range before.plain[part] {
		if s.acked {
			acked++
		}
	}
	all := after.plain[part]
	if len(got) < acked || len(got) > len(all) {
		k.Errorf("plain-%d holds %d messages, want between %d and %d", part, len(got), acked, len(all))
		return
	}
	for i, v := range got {
		if v != all[i].value {
			k.Errorf("message %d of plain-%d is %q, want %q", i, part, v, all[i].value)
		}
	}
}

// seed is that of a test, from PAWL_SEED or by chance.
func seed(t testing.TB) uint64 {
	if s := os.Getenv("PAWL_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return rand.Uint64()
}

// A power cut at every boundary between writes of transactions' lives: each
// clone of the disk is opened, and holds all that was acked, nothing twice, no
// part of a transaction, and answers a repeated end by what happened.
func TestB2PowerCutAtEveryWrite(t *testing.T) {
	s := seed(t)
	rng := rand.New(rand.NewPCG(s, 1))
	mem := vfs.NewCrashableMem()
	type cut struct {
		fs     *vfs.MemFS
		before *story
		after  *story
	}
	var mu sync.Mutex
	var cuts []cut
	var cutting bool
	var whole story
	hook := func() {
		mu.Lock()
		defer mu.Unlock()
		if !cutting {
			return
		}
		before := whole.copy()
		keep := []int{0, 0, 50, 100}[rng.IntN(4)]
		fs := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: keep, RNG: rand.New(rand.NewPCG(rng.Uint64(), 2))})
		cuts = append(cuts, cut{fs, before, whole.copy()})
	}
	c := quiet()
	c.fs = &boundaryFS{mem, hook}
	k := start(t, c)
	k.create("out", 2)
	k.create("plain", 2)
	k.create("in", 1)
	mu.Lock()
	cutting = true
	mu.Unlock()
	if err := k.tell(&whole, 6); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	cutting = false
	mu.Unlock()
	if len(cuts) < 10 {
		t.Fatalf("only %d power cuts", len(cuts))
	}
	for i, cut := range cuts {
		c := quiet()
		c.fs = cut.fs
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			start(t, c).judge(cut.before, cut.after)
		})
	}
	t.Logf("%d power cuts, seed %d", len(cuts), s)
	if t.Failed() {
		t.Logf("PAWL_SEED=%d", s)
	}
}
