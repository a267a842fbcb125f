package broker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// deleteBelow asks that what is below an offset be deleted.
func (k *kit) deleteBelow(cl *kgo.Client, topic string, offset int64) {
	k.Helper()
	if err := k.askToDelete(cl, topic, offset); err != nil {
		k.Fatal(err)
	}
}

func (k *kit) askToDelete(cl *kgo.Client, topic string, offset int64) error {
	req := kmsg.NewPtrDeleteRecordsRequest()
	rt := kmsg.NewDeleteRecordsRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewDeleteRecordsRequestTopicPartition()
	rp.Offset = offset
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := cl.Request(k.ctx, req)
	if err != nil {
		return err
	}
	got := resp.(*kmsg.DeleteRecordsResponse).Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(got.ErrorCode); err != nil || got.LowWatermark != offset {
		return fmt.Errorf("delete below %d: start %d, %w", offset, got.LowWatermark, err)
	}
	return nil
}

// Wherever the power is cut while retention and DeleteRecords delete: what was
// acked as deleted stays so, what is kept is whole, and deleting goes on.
func TestB5DeletingSurvivesPowerCuts(t *testing.T) {
	s := seed(t)
	rng := rand.New(rand.NewPCG(s, 6))
	mem := vfs.NewCrashableMem()
	type cut struct {
		fs           *vfs.MemFS
		deleted, end int64 // that were acked, and the records that were
	}
	var mu sync.Mutex
	var cuts []cut
	var acked cut
	cutting := false
	note := func(fn func()) {
		mu.Lock()
		defer mu.Unlock()
		fn()
	}
	c := quiet()
	c.fs = &boundaryFS{mem, func() {
		note(func() {
			if cutting && rng.IntN(2) == 0 {
				fs := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[rng.IntN(3)], RNG: rand.New(rand.NewPCG(rng.Uint64(), 2))})
				cuts = append(cuts, cut{fs, acked.deleted, acked.end})
			}
		})
	}}
	c.janitor = func(_ *Broker, stop chan struct{}) { <-stop } // the test is the janitor
	k := start(t, c)
	k.create("asked", 1, "segment.bytes", "500")
	k.create("kept", 1, "segment.bytes", "500", "retention.bytes", "2000")
	cl := k.client(manual())
	const each, steps = 10, 6
	write := func() {
		for _, name := range []string{"asked", "kept"} {
			for i := range each {
				k.produceTo(cl, name, 0, fmt.Sprint(acked.end+int64(i)))
			}
		}
		note(func() { acked.end += each })
	}
	for range steps {
		write()
		note(func() { cutting = true })
		next := acked.deleted + 1 + rng.Int64N(each)
		k.deleteBelow(cl, "asked", next)
		note(func() { acked.deleted = next })
		k.retain(now())
		k.reclaimNow(k.ctx)
		note(func() { cutting = false })
	}
	if len(cuts) < 10 {
		t.Fatalf("only %d power cuts", len(cuts))
	}
	whole := func(k *kit, name string, end int64) (start int64) {
		t.Helper()
		start = k.offset(name, 0, listEarliest, false)
		recs := k.records(name, 0, true)
		if int64(len(recs)) < end-start || len(recs) > 0 && recs[0].Offset != start {
			t.Errorf("%s holds %d records from %d on, and %d were acked", name, len(recs), start, end)
		}
		for i, r := range recs {
			if want := start + int64(i); r.Offset != want || string(r.Value) != fmt.Sprint(want) {
				t.Errorf("%s: record %q at %d, want %d", name, r.Value, r.Offset, want)
			}
		}
		return start
	}
	started := make(map[int64]bool)
	for i, cut := range cuts {
		c := quiet()
		c.fs, c.janitor = cut.fs, k.config.janitor
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			k := start(t, c)
			if got := whole(k, "asked", cut.end); got < cut.deleted {
				t.Errorf("start %d, and what is below %d was acked as deleted", got, cut.deleted)
			}
			before := whole(k, "kept", cut.end)
			started[before] = true
			k.retain(now())
			k.reclaimNow(k.ctx)
			if after := whole(k, "kept", cut.end); after < before {
				t.Errorf("start %d after retention went on, %d before", after, before)
			}
			end := k.offset("asked", 0, listLatest, false)
			k.deleteBelow(k.client(), "asked", end)
			if got := k.read("asked", 0, true); !slices.Equal(got, nil) {
				t.Errorf("%q is left of what is deleted", got)
			}
		})
	}
	if len(started) < 3 {
		t.Errorf("retention had come to %d points at the cuts, want more", len(started))
	}
	t.Logf("%d power cuts, PAWL_SEED=%d", len(cuts), s)
}
