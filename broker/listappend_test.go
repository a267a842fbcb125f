package broker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A list-append history: transactions append unique elements to lists, which
// are partitions, and readers of committed messages read the lists.
type appended struct {
	worker, n int
	elements  map[int32]string // by list
	outcome   string           // "committed", "aborted" or "unknown"
}

// observed is what one reader saw of a list, in the order in which it did.
type observed struct {
	list     int32
	offsets  []int64
	elements []string
}

// checkHistory says what is wrong with a history whose lists hold, at the end,
// what final says.
func checkHistory(txns []appended, readers []observed, final map[int32][]string) (wrong []string) {
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	at := make(map[string]int)
	of := make(map[string]bool)
	for list, elements := range final {
		for i, e := range elements {
			key := fmt.Sprint(list, "/", e)
			if _, twice := at[key]; twice {
				say("list %d holds %s twice", list, e)
			}
			at[key] = i
		}
	}
	last := make(map[string]int) // of a worker in a list
	for _, x := range txns {
		there := 0
		for list, e := range x.elements {
			key := fmt.Sprint(list, "/", e)
			of[key] = true
			i, ok := at[key]
			if !ok {
				continue
			}
			there++
			who := fmt.Sprint(x.worker, "/", list)
			if before, ok := last[who]; ok && before > i {
				say("list %d: %s of worker %d stands before its earlier one", list, e, x.worker)
			}
			last[who] = i
		}
		switch {
		case there != 0 && there != len(x.elements):
			say("transaction %d of worker %d is torn: %d of %d elements are there", x.n, x.worker, there, len(x.elements))
		case x.outcome == "committed" && there == 0:
			say("transaction %d of worker %d was committed and is lost", x.n, x.worker)
		case x.outcome == "aborted" && there != 0:
			say("transaction %d of worker %d was aborted and is there", x.n, x.worker)
		}
	}
	for key := range at {
		if !of[key] {
			say("%s was never appended", key)
		}
	}
	for _, r := range readers {
		for i := 1; i < len(r.offsets); i++ {
			if r.offsets[i] <= r.offsets[i-1] {
				say("a reader of list %d went from offset %d to %d", r.list, r.offsets[i-1], r.offsets[i])
			}
		}
		if len(r.elements) > len(final[r.list]) || !slices.Equal(r.elements, final[r.list][:len(r.elements)]) {
			say("a reader of list %d saw %q, and it holds %q", r.list, r.elements, final[r.list])
		}
	}
	return wrong
}

// The checker finds each kind of fault.
func TestHistoryChecker(t *testing.T) {
	txns := func(outcome string) []appended {
		return []appended{
			{0, 0, map[int32]string{0: "a", 1: "a"}, "committed"},
			{0, 1, map[int32]string{0: "b", 1: "b"}, outcome},
		}
	}
	for name, tt := range map[string]struct {
		outcome string
		final   map[int32][]string
		seen    observed
		want    string
	}{
		"all is well":       {"committed", map[int32][]string{0: {"a", "b"}, 1: {"a", "b"}}, observed{0, []int64{0, 2}, []string{"a", "b"}}, ""},
		"unknown, there":    {"unknown", map[int32][]string{0: {"a", "b"}, 1: {"a", "b"}}, observed{}, ""},
		"unknown, not":      {"unknown", map[int32][]string{0: {"a"}, 1: {"a"}}, observed{}, ""},
		"lost":              {"committed", map[int32][]string{0: {"a"}, 1: {"a"}}, observed{}, "is lost"},
		"torn":              {"unknown", map[int32][]string{0: {"a", "b"}, 1: {"a"}}, observed{}, "is torn"},
		"aborted":           {"aborted", map[int32][]string{0: {"a", "b"}, 1: {"a", "b"}}, observed{}, "was aborted"},
		"twice":             {"committed", map[int32][]string{0: {"a", "b", "b"}, 1: {"a", "b"}}, observed{}, "twice"},
		"out of order":      {"committed", map[int32][]string{0: {"b", "a"}, 1: {"a", "b"}}, observed{}, "earlier one"},
		"out of thin air":   {"committed", map[int32][]string{0: {"a", "b", "c"}, 1: {"a", "b"}}, observed{}, "never appended"},
		"not monotonic":     {"committed", map[int32][]string{0: {"a", "b"}, 1: {"a", "b"}}, observed{0, []int64{2, 0}, []string{"a", "b"}}, "went from"},
		"seen and gone":     {"committed", map[int32][]string{0: {"a", "b"}, 1: {"a", "b"}}, observed{0, []int64{0, 1}, []string{"x", "a"}}, "saw"},
		"skipped by reader": {"committed", map[int32][]string{0: {"a", "b"}, 1: {"a", "b"}}, observed{0, []int64{2}, []string{"b"}}, "saw"},
	} {
		got := strings.Join(checkHistory(txns(tt.outcome), []observed{tt.seen}, tt.final), "; ")
		if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// Workers append and readers read while the broker is killed and started again.
func TestListAppend(t *testing.T) {
	h := listAppend{settings: childSettings{Dir: t.TempDir()}, seed: seed(t), lists: 3, more: rounds(t, 4)}
	wrong, committed := h.run(t)
	for _, w := range wrong {
		t.Error(w)
	}
	if committed < 10 {
		t.Errorf("only %d transactions were committed", committed)
	}
	t.Logf("%d kills, %d transactions committed, PAWL_SEED=%d", h.kills, committed, h.seed)
}

// listAppend is a workload of which a history is taken.
type listAppend struct {
	settings childSettings
	seed     uint64
	lists    int
	more     func() bool // whether another kill is to come
	aimed    bool        // all kills are at ends of transactions, not every other
	kills    int         // that there were
}

// run runs the workload, and says what the checker finds in its history and how
// many transactions were committed.
func (h *listAppend) run(t testing.TB) (wrong []string, committed int) {
	t.Helper()
	const workers = 3
	rng := rand.New(rand.NewPCG(h.seed, 7))
	k := remote(t, h.settings, "")
	k.create("lists", int32(h.lists))
	var addr atomic.Value
	addr.Store(k.child.addr)
	dial := kgo.Dialer(func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", addr.Load().(string))
	})
	ctx, stop := context.WithCancel(k.ctx)
	defer stop()
	ending := make(chan struct{}) // somebody who waits hears of an end that is about to be asked for
	var mu sync.Mutex
	var txns []appended
	var readers []observed
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			mine := appendLists(ctx, k, w, h.lists, rand.New(rand.NewPCG(h.seed, uint64(100+w))), dial, ending)
			mu.Lock()
			defer mu.Unlock()
			txns = append(txns, mine...)
		})
	}
	for list := range int32(h.lists) {
		all.Go(func() {
			o := readList(ctx, k, list, dial)
			mu.Lock()
			defer mu.Unlock()
			readers = append(readers, o)
		})
	}
	child := k.child
	for ; h.more(); h.kills++ {
		waitFor(ctx, time.Duration(100+rng.IntN(300))*time.Millisecond)
		if h.aimed || h.kills%2 == 1 {
			select {
			case <-ending:
			case <-ctx.Done():
			}
			waitFor(ctx, time.Duration(rng.IntN(10_000))*time.Microsecond)
		}
		child.kill()
		child = startChild(t, h.settings, "")
		addr.Store(child.addr)
	}
	waitFor(ctx, 300*time.Millisecond)
	stop()
	all.Wait()
	k.child = child          // which those who ran until now also read
	for w := range workers { // what is open is aborted
		cl := k.client(dial, kgo.TransactionalID(fmt.Sprint("worker-", w)))
		if _, _, err := cl.ProducerID(k.ctx); err != nil {
			t.Fatal(err)
		}
		cl.Close()
	}
	final := make(map[int32][]string)
	for list := range int32(h.lists) {
		end := k.offset("lists", list, listLatest, true)
		all.Go(func() {
			elements, at := k.readUpTo(list, end)
			mu.Lock()
			defer mu.Unlock()
			if final[list] = elements; at < end {
				wrong = append(wrong, fmt.Sprintf("list %d ends at %d, and a reader comes to %d", list, end, at))
			}
		})
	}
	all.Wait()
	for _, x := range txns {
		if x.outcome == "committed" {
			committed++
		}
	}
	return append(wrong, checkHistory(txns, readers, final)...), committed
}

// readUpTo reads a list up to its end, or as far as a reader of committed
// messages comes.
func (k *kit) readUpTo(list int32, end int64) (elements []string, at int64) {
	cl := k.client(kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxWait(50*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"lists": {list: kgo.NewOffset().AtStart()}}))
	defer cl.Close()
	for at < end {
		ctx, cancel := context.WithTimeout(k.ctx, 10*time.Second)
		fs := cl.PollFetches(ctx)
		cancel()
		if fs.Err() != nil {
			return elements, at
		}
		fs.EachRecord(func(r *kgo.Record) {
			at = r.Offset + 1
			if !r.Attrs.IsControl() {
				elements = append(elements, string(r.Value))
			}
		})
	}
	return elements, at
}

// appendLists runs transactions until ctx ends.
func appendLists(ctx context.Context, k *kit, w, lists int, rng *rand.Rand, dial kgo.Opt, ending chan<- struct{}) (mine []appended) {
	var cl *kgo.Client
	for n := 0; ctx.Err() == nil; n++ {
		if cl == nil {
			cl = k.client(dial, manual(), kgo.TransactionalID(fmt.Sprint("worker-", w)), kgo.RetryTimeout(5*time.Second), kgo.ProducerLinger(0))
		}
		x := appended{worker: w, n: n, elements: make(map[int32]string), outcome: "aborted"}
		var recs []*kgo.Record
		for _, list := range rng.Perm(lists)[:1+rng.IntN(lists)] {
			e := fmt.Sprintf("%d.%d", w, n)
			x.elements[int32(list)] = e
			recs = append(recs, &kgo.Record{Topic: "lists", Partition: int32(list), Value: []byte(e)})
		}
		err := cl.BeginTransaction()
		if err == nil {
			err = cl.ProduceSync(ctx, recs...).FirstErr()
		}
		if err == nil {
			commit := rng.IntN(4) > 0
			if commit {
				x.outcome = "unknown"
				select {
				case ending <- struct{}{}:
				default:
				}
			}
			if err = cl.EndTransaction(ctx, kgo.TransactionEndTry(commit)); err == nil && commit {
				x.outcome = "committed"
			}
		}
		mine = append(mine, x)
		if err != nil { // a new producer ends what the old one left
			cl.Close()
			cl = nil
		}
	}
	return mine
}

func readList(ctx context.Context, k *kit, list int32, dial kgo.Opt) observed {
	o := observed{list: list}
	cl := k.client(dial, kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(50*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"lists": {list: kgo.NewOffset().AtStart()}}))
	for ctx.Err() == nil {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			o.offsets = append(o.offsets, r.Offset)
			o.elements = append(o.elements, string(r.Value))
		})
	}
	return o
}
