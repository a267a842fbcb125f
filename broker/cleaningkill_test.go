package broker

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kgo"
)

// housekeeping is what clients of a broker know while it compacts and deletes:
// what was acked, and what was sent and may have been done.
type housekeeping struct {
	sync.Mutex
	rng *rand.Rand

	latest, maybe        map[string]string // of each key of the compacted topic
	txnOffset, txnSent   int64             // committed by the transactions that write it
	written              int64             // messages of the others
	deleted, deletedSent int64             // below which those of one were deleted by request
	offset, offsetSent   int64             // of a group, without a transaction
}

func (h *housekeeping) note(fn func()) {
	h.Lock()
	defer h.Unlock()
	fn()
}

// keep works until the broker is gone.
func (h *housekeeping) keep(k *kit) {
	h.Lock()
	seeds := [2]uint64{h.rng.Uint64(), h.rng.Uint64()}
	h.Unlock()
	var all sync.WaitGroup
	all.Go(func() { h.keepLog(k, rand.New(rand.NewPCG(seeds[0], 1))) })
	all.Go(func() { h.keepOthers(k, rand.New(rand.NewPCG(seeds[1], 2))) })
	all.Go(func() {
		cl := k.client()
		for {
			var next int64
			h.note(func() { h.offsetSent = h.offset + 1; next = h.offsetSent })
			if k.commitPlain(cl, "group", "kept", 0, next) != nil {
				return
			}
			h.note(func() { h.offset = next })
		}
	})
	all.Wait()
}

// keepLog writes keys by transactions, with tombstones, of which some abort.
func (h *housekeeping) keepLog(k *kit, rng *rand.Rand) {
	p := &rawProducer{k: k, cl: k.client(), id: "keeper", seqs: make(map[offsetOf]int32)}
	if p.init() != nil {
		return
	}
	for {
		var next map[string]string
		var offset int64
		h.note(func() { next, offset = maps.Clone(h.latest), h.txnOffset+1 })
		for range 1 + rng.IntN(4) {
			key, val := fmt.Sprint("key-", rng.IntN(15)), fmt.Sprintf("%d-%x", offset, rng.Uint64())
			if rng.IntN(5) == 0 {
				val = ""
				delete(next, key)
			} else {
				next[key] = val
			}
			if p.produceKeyed("log", 0, key, val) != nil {
				return
			}
		}
		if p.commitOffset("txns", "kept", 0, offset) != nil {
			return
		}
		commit := rng.IntN(4) > 0
		if commit {
			h.note(func() { h.maybe, h.txnSent = next, offset })
		}
		if p.end(commit) != nil {
			return
		}
		if commit {
			h.note(func() { h.latest, h.maybe, h.txnOffset = next, nil, offset })
		}
	}
}

// produceKeyed writes a message with a key; an empty value is a tombstone.
func (p *rawProducer) produceKeyed(topic string, partition int32, key, val string) error {
	r := append([]byte{0}, 0, 0)
	r = kbin.AppendVarintBytes(r, []byte(key))
	if val == "" {
		r = kbin.AppendVarint(r, -1)
	} else {
		r = kbin.AppendVarintBytes(r, []byte(val))
	}
	r = kbin.AppendVarint(r, 0)
	of := offsetOf{topic, partition}
	h := batch{attributes: attrTransactional, records: 1, firstTime: now(), producer: p.pid, epoch: p.epoch, firstSeq: p.seqs[of]}
	h.maxTime = h.firstTime
	raw := appendBatch(nil, 0, h, append(kbin.AppendVarint(nil, int32(len(r))), r...)).raw
	if _, err := p.k.produceRaw(p.cl, p.id, topic, partition, raw); err != nil {
		return err
	}
	p.seqs[of]++
	return nil
}

// keepOthers writes to topics of which the first messages go, by retention and
// by request.
func (h *housekeeping) keepOthers(k *kit, rng *rand.Rand) {
	cl := k.client()
	for {
		var n int64
		h.note(func() { n = h.written })
		for _, name := range []string{"kept", "asked"} {
			at, err := k.produceRaw(cl, "", name, 0, rawBatch(0, 0, -1, false, fmt.Sprint(n)))
			if err != nil {
				return
			}
			if at != n {
				k.Errorf("message %d of %s has the offset %d", n, name, at)
			}
		}
		h.note(func() { h.written++ })
		if rng.IntN(5) == 0 {
			var to int64
			h.note(func() { h.deletedSent = h.deleted + rng.Int64N(h.written-h.deleted+1); to = h.deletedSent })
			if k.askToDelete(cl, "asked", to) != nil {
				return
			}
			h.note(func() { h.deleted = to })
		}
	}
}

// judge compares what a kill left with what is known, and takes what was in
// doubt as it is.
func (h *housekeeping) judge(k *kit) {
	k.Helper()
	cl := k.client(kgo.TransactionalID("keeper"))
	if _, _, err := cl.ProducerID(k.ctx); err != nil { // what is open is aborted
		k.Fatalf("init: %v", err)
	}
	recs := k.records("log", 0, true)
	got, offset := latestOf(recs), k.committedOffset(cl, "txns", "kept", 0)
	offset = max(offset, 0)
	switch {
	case maps.Equal(got, h.latest) && offset == h.txnOffset:
	case h.maybe != nil && maps.Equal(got, h.maybe) && offset == h.txnSent:
		h.latest, h.txnOffset = h.maybe, h.txnSent
	default:
		k.Errorf("the log holds %v and the group is at %d, want %v and %d, or %v and %d", got, offset, h.latest, h.txnOffset, h.maybe, h.txnSent)
	}
	h.maybe = nil
	for i := 1; i < len(recs); i++ {
		if recs[i].Offset <= recs[i-1].Offset {
			k.Errorf("offset %d after %d", recs[i].Offset, recs[i-1].Offset)
		}
	}
	if at := max(0, k.committedOffset(cl, "group", "kept", 0)); at < h.offset || at > h.offsetSent {
		k.Errorf("the group is at %d, want from %d to %d", at, h.offset, h.offsetSent)
	} else {
		h.offset = at
	}
	ends := make(map[string]int64)
	for _, name := range []string{"kept", "asked"} {
		start, end := k.offset(name, 0, listEarliest, false), k.offset(name, 0, listLatest, false)
		recs := k.records(name, 0, false)
		for i, r := range recs {
			if want := start + int64(i); r.Offset != want || string(r.Value) != fmt.Sprint(want) {
				k.Errorf("%s holds %q at %d, want %d", name, r.Value, r.Offset, want)
			}
		}
		if int64(len(recs)) != end-start {
			k.Errorf("%s goes from %d to %d and holds %d messages", name, start, end, len(recs))
		}
		if end < h.written || end > h.written+1 {
			k.Errorf("%s ends at %d, and %d were acked", name, end, h.written)
		}
		if name == "asked" && (start < h.deleted || start > max(h.deleted, h.deletedSent)) {
			k.Errorf("%s begins at %d, and what is below %d was deleted, or %d", name, start, h.deleted, h.deletedSent)
		}
		if name == "asked" {
			h.deleted, h.deletedSent = start, start
		}
		ends[name] = end
	}
	// Both go on from the same offset.
	for h.written = max(ends["kept"], ends["asked"]); ; {
		var short []string
		for name, end := range ends {
			if end < h.written {
				short = append(short, name)
			}
		}
		if len(short) == 0 {
			return
		}
		for _, name := range short {
			if _, err := k.produceRaw(cl, "", name, 0, rawBatch(0, 0, -1, false, fmt.Sprint(ends[name]))); err != nil {
				k.Fatalf("produce: %v", err)
			}
			ends[name]++
		}
	}
}

// kill -9 again and again while the broker compacts, deletes by retention and
// by request, at random moments and between the writes of it: what was acked is
// there, nothing that was deleted comes back, and it goes on.
func TestB5KillWhileCleaning(t *testing.T) {
	s := seed(t)
	h := &housekeeping{rng: rand.New(rand.NewPCG(s, 9)), latest: make(map[string]string)}
	settings := childSettings{Dir: t.TempDir(), Settings: map[string]string{
		"log.retention.check.interval.ms": "10", "log.cleaner.backoff.ms": "10",
	}}
	still := childSettings{Dir: settings.Dir} // nothing is cleaned while it is looked at
	k := remote(t, still, "")
	k.create("log", 1, "cleanup.policy", "compact", "segment.bytes", "2000", "min.cleanable.dirty.ratio", "0.01", "delete.retention.ms", "100")
	k.create("kept", 1, "segment.bytes", "500", "retention.bytes", "3000")
	k.create("asked", 1, "segment.bytes", "500")
	k.child.kill()
	points := []string{"", "broker-compacted", "broker-write", "broker-sync", "broker-synced", "broker-applied"}
	if !invariants.Enabled {
		points = points[:1]
	}
	first := k.ctx
	n, kept := 0, int64(0)
	for more := rounds(t, 12); more(); n++ {
		crash := points[n%len(points)]
		if crash == "broker-compacted" {
			crash += fmt.Sprint(":", 1+h.rng.IntN(40))
		} else if crash != "" {
			crash += fmt.Sprint(":", 1+h.rng.IntN(400))
		}
		wait := 20 * time.Second // for it to come to the point
		if crash == "" {
			wait = time.Duration(50+h.rng.IntN(300)) * time.Millisecond
		}
		k := remote(t, settings, crash)
		ctx, cancel := context.WithCancel(first)
		k.ctx = ctx
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_ = k.child.cmd.Wait() // by a signal
		}()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			h.keep(k)
		}()
		timer := time.NewTimer(wait)
		select {
		case <-gone:
		case <-timer.C:
			_ = k.child.cmd.Process.Kill() // it may be gone by itself
			<-gone
		}
		cancel()
		<-ended
		k = remote(t, still, "")
		h.judge(k)
		kept = k.offset("kept", 0, listEarliest, false)
		k.child.kill()
		if t.Failed() {
			t.Fatalf("kill %d, %q, PAWL_SEED=%d", n, crash, s)
		}
	}
	k = remote(t, still, "")
	h.judge(k)
	if kept == 0 || h.deleted == 0 || h.txnOffset < 10 {
		t.Errorf("retention came to %d, deletion to %d, and there were %d transactions: the test is about little", kept, h.deleted, h.txnOffset)
	}
	log := k.records("log", 0, true)
	if all := k.offset("log", 0, listLatest, true); int64(len(log)) > all/2 {
		t.Errorf("%d records are left of %d", len(log), all)
	}
	if i := slices.IndexFunc(log, func(r *kgo.Record) bool { return r.Offset > 0 }); i != 0 {
		t.Errorf("the first record is there still")
	}
	t.Logf("%d kills, %d transactions, %d messages, retention came to %d and deletion to %d, PAWL_SEED=%d", n, h.txnOffset, h.written, kept, h.deleted, s)
}
