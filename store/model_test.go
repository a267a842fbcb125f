package store_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/pawlstream/pawl/store"
)

// machine runs an owner beside the state that it should hold. history holds
// what was applied under each position, and flushed the last position that no
// crash may take back.
type machine struct {
	t       *rapid.T
	fs      *vfs.MemFS
	o       *store.Owner
	now     state           // with the open transaction
	old     state           // as everyone sees it: committed, and written directly
	base    state           // committed
	own     map[string]bool // the raw keys and those of counts and timed that the transaction has written
	swept   map[string]bool // those that a sweep has: a direct write stands above
	clock   time.Time
	sweep   *store.Sweep
	history []state
	flushed int
	crashes int
}

func (m *machine) config() store.Config {
	c := memConfig(m.fs)
	c.Options.MemTableSize = 512 << 10
	c.Options.TableCache = 1 << 10
	c.Now = func() time.Time { return m.clock }
	c.Options.Merge = func(_, val, operand []byte) ([]byte, error) { return slices.Concat(val, operand), nil }
	return c
}

func (m *machine) reopen() {
	var err error
	if m.o, err = store.Open(m.config()); err != nil {
		m.t.Fatal(err)
	}
	m.sweep = m.o.NewSweep(m.filter)
}

func (m *machine) position() []byte { return fmt.Append(nil, len(m.history)-1) }

// sealed takes what is committed from here on as the state; applied makes it so.
func (m *machine) sealed() {
	m.base = m.now.clone()
	m.forget()
}

func (m *machine) applied() {
	m.old = m.now.clone()
	m.history = append(m.history, m.base)
}

func (m *machine) begin(committed state) {
	m.base, m.old, m.now = committed, committed.clone(), committed.clone()
	m.forget()
}

// forget ends the transaction.
func (m *machine) forget() { m.own, m.swept = map[string]bool{}, map[string]bool{} }

func (m *machine) ownRaw(k string)   { m.own["raw "+k] = true }
func (m *machine) ownCount(k string) { m.own["count "+k] = true }

// Direct writes are seen by everyone at once, except that the transaction sees
// its own value of what it has written.
func (m *machine) DirectPut(t *rapid.T) {
	m.directPut(genKey.Draw(t, "key"), genBytes.Draw(t, "val"))
}

func (m *machine) directPut(k, v string) {
	m.must(m.o.DB().Put([]byte(k), []byte(v), nil))
	m.old.Raw[k] = v
	if !m.own["raw "+k] {
		m.now.Raw[k] = v
	}
}

func (m *machine) DirectDelete(t *rapid.T) {
	k := genKey.Draw(t, "key")
	m.must(m.o.DB().Delete([]byte(k), nil))
	delete(m.old.Raw, k)
	if !m.own["raw "+k] {
		delete(m.now.Raw, k)
	}
}

func (m *machine) DirectDeleteRange(t *rapid.T) {
	lo, hi := genKey.Draw(t, "lo"), genKey.Draw(t, "hi")
	m.must(m.o.DB().DeleteRange([]byte(lo), []byte(hi), nil))
	for k := range m.old.Raw {
		if lo <= k && k < hi {
			delete(m.old.Raw, k)
			if !m.own["raw "+k] {
				delete(m.now.Raw, k)
			}
		}
	}
}

func (m *machine) DirectMerge(t *rapid.T) {
	k, v := genKey.Draw(t, "key"), genBytes.Draw(t, "operand")
	m.must(m.o.DB().Merge([]byte(k), []byte(v), nil))
	m.old.Raw[k] += v
	if !m.own["raw "+k] {
		m.now.Raw[k] = m.old.Raw[k]
	}
}

func (m *machine) DirectCount(t *rapid.T) {
	m.directCount(t, genKey.Draw(t, "key"), genInt.Draw(t, "n"))
}

func (m *machine) directCount(t *rapid.T, k string, n int64) {
	direct := modelCounts.In(m.o.DB())
	if got, ok, err := direct.Get(k); err != nil || got != m.old.Counts[k] {
		t.Fatalf("In(db).Get(%q) = %d, %v, %v, want %d", k, got, ok, err, m.old.Counts[k])
	}
	if n == 0 {
		m.must(direct.Delete(k))
		delete(m.old.Counts, k)
	} else {
		m.must(direct.Put(k, n))
		m.old.Counts[k] = n
	}
	if m.own["count "+k] {
		return
	}
	if v, ok := m.old.Counts[k]; ok {
		m.now.Counts[k] = v
	} else {
		delete(m.now.Counts, k)
	}
}

func (m *machine) Merge(t *rapid.T) {
	k, v := genKey.Draw(t, "key"), genBytes.Draw(t, "operand")
	m.must(m.o.Transaction().Merge([]byte(k), []byte(v)))
	m.now.Raw[k] += v
	m.ownRaw(k)
}

func (m *machine) must(err error) {
	if err != nil {
		m.t.Helper()
		m.t.Fatal(err)
	}
}

var (
	modelKeys = []string{"", "\x00", "a", "a\x00", "a\x00\xff", "aa", "ab", "b", "c", "\xff", "\xff\xff"}

	genKey   = rapid.SampledFrom(modelKeys)
	genInt   = rapid.Int64Range(-3, 3)
	genBytes = rapid.StringN(0, 8, 16)
)

func genPair(t *rapid.T) store.Pair[string, int64] {
	return store.Pair[string, int64]{First: genKey.Draw(t, "first"), Second: genInt.Draw(t, "second")}
}

func (m *machine) Put(t *rapid.T) {
	k, v := genKey.Draw(t, "key"), genBytes.Draw(t, "val")
	m.must(m.o.Transaction().Put([]byte(k), []byte(v)))
	m.now.Raw[k] = v
	m.ownRaw(k)
}

func (m *machine) Delete(t *rapid.T) {
	k := genKey.Draw(t, "key")
	m.must(m.o.Transaction().Delete([]byte(k)))
	delete(m.now.Raw, k)
	m.ownRaw(k)
}

func (m *machine) DeleteRange(t *rapid.T) {
	lo, hi := genKey.Draw(t, "lo"), genKey.Draw(t, "hi")
	m.must(m.o.Transaction().DeleteRange([]byte(lo), []byte(hi)))
	for k := range m.now.Raw {
		if lo <= k && k < hi {
			delete(m.now.Raw, k)
			m.ownRaw(k)
		}
	}
}

func (m *machine) Get(t *rapid.T) {
	k := genKey.Draw(t, "key")
	v, ok, err := m.o.Transaction().Get([]byte(k))
	m.must(err)
	if want, has := m.now.Raw[k]; ok != has || string(v) != want {
		t.Fatalf("Get(%q) = %q, %v, want %q, %v", k, v, ok, want, has)
	}
	v, ok, err = m.o.DB().Get([]byte(k))
	m.must(err)
	if want, has := m.old.Raw[k]; ok != has || string(v) != want {
		t.Fatalf("DB.Get(%q) = %q, %v, want %q, %v", k, v, ok, want, has)
	}
}

func (m *machine) Scan(t *rapid.T) {
	o := &store.ReadOptions{Reverse: rapid.Bool().Draw(t, "reverse"), Limit: rapid.IntRange(0, 4).Draw(t, "limit")}
	if rapid.Bool().Draw(t, "bounded") {
		o.Lower, o.Upper = []byte(genKey.Draw(t, "lower")), []byte(genKey.Draw(t, "upper"))
	}
	var want, got []string
	for k, v := range m.now.Raw {
		if k >= string(o.Lower) && (o.Upper == nil || k < string(o.Upper)) {
			want = append(want, fmt.Sprintf("%q=%q", k, v))
		}
	}
	slices.SortFunc(want, func(a, b string) int {
		ka, kb := unquoteKey(a), unquoteKey(b)
		if o.Reverse {
			ka, kb = kb, ka
		}
		return strings.Compare(ka, kb)
	})
	if o.Limit > 0 && len(want) > o.Limit {
		want = want[:o.Limit]
	}
	for k, v := range m.o.Transaction().Scan(o) {
		got = append(got, fmt.Sprintf("%q=%q", k, v))
	}
	if !slices.Equal(got, want) {
		t.Fatalf("Scan(%+v) = %v, want %v", o, got, want)
	}
	n, err := m.o.Transaction().Count(o)
	if err != nil || n != len(want) {
		t.Fatalf("Count(%+v) = %d, %v, want %d", o, n, err, len(want))
	}
}

func unquoteKey(s string) (k string) {
	if _, err := fmt.Sscanf(s, "%q", &k); err != nil {
		panic(err)
	}
	return k
}

func (m *machine) UpdateCount(t *rapid.T) {
	k, n := genKey.Draw(t, "key"), genInt.Draw(t, "n")
	got, err := modelCounts.Update(m.o.Transaction(), k, add(n))
	m.must(err)
	m.ownCount(k)
	if m.now.Counts[k] += n; got != m.now.Counts[k] {
		t.Fatalf("Update(%q) = %d, want %d", k, got, m.now.Counts[k])
	}
}

func (m *machine) PutCount(t *rapid.T) {
	k, n := genKey.Draw(t, "key"), genInt.Draw(t, "n")
	m.must(modelCounts.Put(m.o.Transaction(), k, n))
	m.ownCount(k)
	m.now.Counts[k] = n
}

func (m *machine) DeleteCount(t *rapid.T) {
	k := genKey.Draw(t, "key")
	m.must(modelCounts.Delete(m.o.Transaction(), k))
	m.ownCount(k)
	delete(m.now.Counts, k)
}

func (m *machine) GetCount(t *rapid.T) {
	k := genKey.Draw(t, "key")
	v, ok, err := modelCounts.Get(m.o.Transaction(), k)
	m.must(err)
	if want, has := m.now.Counts[k]; v != want || ok != has {
		t.Fatalf("counts.Get(%q) = %d, %v, want %d, %v", k, v, ok, want, has)
	}
}

// Prefetch changes nothing that anyone sees.
func (m *machine) Prefetch(t *rapid.T) {
	m.must(modelCounts.Prefetch(m.o.Transaction(), rapid.SliceOf(genKey).Draw(t, "keys")))
	m.must(modelTimed.Prefetch(m.o.Transaction(), rapid.SliceOf(genKey).Draw(t, "keys")))
}

func (m *machine) RangeCounts(t *rapid.T) {
	lo, hi := genKey.Draw(t, "lo"), genKey.Draw(t, "hi")
	got := maps.Collect(modelCounts.Range(m.o.Transaction(), lo, hi))
	want := maps.Clone(m.now.Counts)
	maps.DeleteFunc(want, func(k string, _ int64) bool { return k < lo || k >= hi })
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Fatalf("Range(%q, %q): %s", lo, hi, d)
	}
}

// AppendList changes a value in place where it can.
func (m *machine) AppendList(t *rapid.T) {
	k, v := genPair(t), rapid.StringMatching("[a-z]{1,3}").Draw(t, "val")
	l, err := modelLists.Update(m.o.Transaction(), k, func(l []string) []string {
		if len(l) > 3 {
			l[0] = v
			return l
		}
		return append(l, v)
	})
	m.must(err)
	m.now.Lists[k] = strings.Join(l, ",")
}

func (m *machine) GetList(t *rapid.T) {
	k := genPair(t)
	l, ok, err := modelLists.Get(m.o.Transaction(), k)
	m.must(err)
	if want, has := m.now.Lists[k]; strings.Join(l, ",") != want || ok != has {
		t.Fatalf("lists.Get(%v) = %v, %v, want %v, %v", k, l, ok, want, has)
	}
}

// PutTime uses keys that differ and stand for the same instant.
func (m *machine) PutTime(t *rapid.T) {
	at := time.Unix(genInt.Draw(t, "sec"), 0)
	if zone := rapid.IntRange(0, 2).Draw(t, "zone"); zone > 0 {
		at = at.In(time.FixedZone("", zone*3600))
	}
	v := genBytes.Draw(t, "val")
	m.must(modelTimes.Put(m.o.Transaction(), at, v))
	m.now.Times[at.UnixNano()] = v
}

func (m *machine) UpdateTime(t *rapid.T) {
	at := time.Unix(genInt.Draw(t, "sec"), 0).In(time.FixedZone("", 3600))
	v, err := modelTimes.Update(m.o.Transaction(), at, func(s string) string { return s + "+" })
	m.must(err)
	if m.now.Times[at.UnixNano()] += "+"; v != m.now.Times[at.UnixNano()] {
		t.Fatalf("times.Update(%v) = %q, want %q", at, v, m.now.Times[at.UnixNano()])
	}
}

// Pass lets time pass, in which values expire.
func (m *machine) Pass(t *rapid.T) {
	m.clock = m.clock.Add(time.Duration(rapid.IntRange(1, 8).Draw(t, "seconds")) * time.Second)
}

func (m *machine) UpdateTimed(t *rapid.T) {
	k, n := genKey.Draw(t, "key"), genInt.Draw(t, "n")
	got, err := modelTimed.Update(m.o.Transaction(), k, add(n))
	m.must(err)
	v := m.now.Timed[k]
	if v.expired(m.clock) {
		v.Val = 0
	}
	v = timed{v.Val + n, m.clock}
	if m.now.Timed[k] = v; got != v.Val {
		t.Fatalf("timed.Update(%q) = %d, want %d", k, got, v.Val)
	}
	m.own["timed "+k] = true
}

func (m *machine) PutTimed(t *rapid.T) {
	k, n := genKey.Draw(t, "key"), genInt.Draw(t, "n")
	m.must(modelTimed.Put(m.o.Transaction(), k, n))
	m.now.Timed[k] = timed{n, m.clock}
	m.own["timed "+k] = true
}

func (m *machine) DirectPutTimed(t *rapid.T) {
	m.directPutTimed(genKey.Draw(t, "key"), genInt.Draw(t, "n"))
}

func (m *machine) directPutTimed(k string, n int64) {
	m.must(modelTimed.In(m.o.DB()).Put(k, n))
	m.old.Timed[k] = timed{n, m.clock}
	if !m.own["timed "+k] {
		m.now.Timed[k] = m.old.Timed[k]
	}
}

func (m *machine) DeleteTimed(t *rapid.T) {
	k := genKey.Draw(t, "key")
	m.must(modelTimed.Delete(m.o.Transaction(), k))
	delete(m.now.Timed, k)
	m.own["timed "+k] = true
}

func (m *machine) GetTimed(t *rapid.T) {
	k := genKey.Draw(t, "key")
	v, ok, err := modelTimed.Get(m.o.Transaction(), k)
	m.must(err)
	want, has := m.now.Timed[k]
	if want.expired(m.clock) {
		want, has = timed{}, false
	}
	if v != want.Val || ok != has {
		t.Fatalf("timed.Get(%q) = %d, %v, want %d, %v", k, v, ok, want.Val, has)
	}
}

// filter removes and rewrites some of what a sweep shows it, and checks that it
// is what everyone sees.
func (m *machine) filter(k store.SweptKey, val []byte) (remove bool, newVal []byte) {
	key := string(k.Key)
	defer m.beside(key)
	switch k.Table {
	case "":
		if m.own["raw "+key] || m.swept["raw "+key] || string(val) != m.old.Raw[key] {
			m.t.Fatalf("swept %q = %q, want %q, not written by the transaction", key, val, m.old.Raw[key])
		}
		switch len(val) {
		case 1:
			m.swept["raw "+key] = true
			delete(m.now.Raw, key)
			return true, nil
		case 2:
			m.swept["raw "+key] = true
			m.now.Raw[key] = "rewritten"
			return false, []byte("rewritten")
		}
	case "model/counts":
		n, err := store.Int64.Decode(val)
		if m.own["count "+key] || m.swept["count "+key] || n != m.old.Counts[key] || err != nil {
			m.t.Fatalf("swept count %q = %d, %v, want %d, not written by the transaction", key, n, err, m.old.Counts[key])
		}
		switch n {
		case 3:
			m.swept["count "+key] = true
			delete(m.now.Counts, key)
			return true, nil
		case -3:
			m.swept["count "+key] = true
			m.now.Counts[key] = 7
			b, err := store.Int64.Append(nil, 7)
			m.must(err)
			return false, b
		}
	}
	return false, nil
}

// beside writes directly while the sweep is at a key, as another goroutine may: to
// that key, or to one that the sweep has still to look at.
func (m *machine) beside(key string) {
	t := m.t
	switch rapid.IntRange(0, 11).Draw(t, "beside") {
	case 0:
		m.directPut(key, genBytes.Draw(t, "val"))
	case 1:
		m.directCount(t, key, genInt.Draw(t, "n"))
	case 2:
		m.directPutTimed(key, genInt.Draw(t, "n"))
	case 3:
		m.DirectPut(t)
	case 4:
		m.DirectCount(t)
	case 5:
		m.DirectPutTimed(t)
	}
}

func (m *machine) Sweep(t *rapid.T) {
	_, err := m.sweep.Step(rapid.IntRange(1, 30).Draw(t, "keys"))
	m.must(err)
}

func (m *machine) SetTimer(t *rapid.T) {
	k, at := genKey.Draw(t, "key"), rapid.Int64Range(0, 60).Draw(t, "at")
	m.must(m.o.Transaction().SetTimer([]byte(k), time.Unix(at, 0)))
	m.now.Timers[k] = at
}

func (m *machine) CancelTimer(t *rapid.T) {
	k := genKey.Draw(t, "key")
	m.must(m.o.Transaction().CancelTimer([]byte(k)))
	delete(m.now.Timers, k)
}

// FireTimers takes some of those that are due, and moves one on the way.
func (m *machine) FireTimers(t *rapid.T) {
	now := rapid.Int64Range(0, 60).Draw(t, "now")
	limit := rapid.IntRange(1, 4).Draw(t, "max")
	due, err := m.o.DueTimers(time.Unix(now, 0), limit)
	m.must(err)
	var want, got []string
	for k, at := range m.now.Timers {
		if at <= now {
			want = append(want, fmt.Sprintf("%02d %q", at, k))
		}
	}
	slices.SortFunc(want, func(a, b string) int {
		if c := strings.Compare(a[:2], b[:2]); c != 0 {
			return c
		}
		return strings.Compare(unquoteKey(a[3:]), unquoteKey(b[3:]))
	})
	want = want[:min(len(want), limit)]
	for _, x := range due {
		got = append(got, fmt.Sprintf("%02d %q", x.At.Unix(), x.Key))
	}
	if !slices.Equal(got, want) {
		t.Fatalf("due at %d: %v, want %v", now, got, want)
	}
	for i, x := range due {
		if i == 1 {
			m.must(m.o.Transaction().SetTimer(x.Key, time.Unix(61, 0)))
			m.now.Timers[string(x.Key)] = 61
		}
		ok, err := m.o.TakeTimer(x)
		m.must(err)
		if ok == (i == 1) {
			t.Fatalf("TakeTimer of the %dth = %v", i, ok)
		}
		if ok {
			delete(m.now.Timers, string(x.Key))
		}
	}
}

func (m *machine) NextTimer(t *rapid.T) {
	at, ok, err := m.o.NextTimer()
	m.must(err)
	if len(m.now.Timers) == 0 {
		if ok {
			t.Fatalf("NextTimer = %v, want none", at)
		}
		return
	}
	if want := slices.Min(slices.Collect(maps.Values(m.now.Timers))); !ok || at.Unix() != want {
		t.Fatalf("NextTimer = %v, %v, want second %d", at, ok, want)
	}
}

func (m *machine) Everything(t *rapid.T) {
	got, err := readAll(m.o.Transaction())
	m.must(err)
	if d := m.now.diff(m.clock, got); d != "" {
		t.Fatalf("the transaction's state (-want +got): %s", d)
	}
	m.Committed(t)
}

// Committed checks I1: nothing of the open transaction is in the database.
func (m *machine) Committed(t *rapid.T) {
	got, err := readCommitted(m.o)
	m.must(err)
	if d := m.old.diff(m.clock, got); d != "" {
		t.Fatalf("the committed state (-want +got): %s", d)
	}
}

func (m *machine) Changes(t *rapid.T) {
	type change = store.TableChange[int64]
	want := map[string]change{}
	for k, v := range m.now.Counts {
		if old, had := m.old.Counts[k]; !had || old != v {
			want[k] = change{old, v, had, false}
		}
	}
	for k, old := range m.old.Counts {
		if _, has := m.now.Counts[k]; !has {
			want[k] = change{old, 0, true, true}
		}
	}
	got := map[string]change{}
	last := ""
	for k, c := range modelCounts.Changes(m.o.Transaction()) {
		if len(got) > 0 && k <= last {
			t.Fatalf("Changes: %q after %q", k, last)
		}
		last = k
		if c.HadOld && !c.Deleted && c.Old == c.New {
			continue // changed and changed back
		}
		got[k] = c
	}
	m.must(m.o.Transaction().Err())
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Fatalf("Changes (-want +got): %s", d)
	}
}

func (m *machine) Commit(t *rapid.T) {
	changes, err := m.o.Seal()
	m.must(err)
	for i, c := range changes {
		m.must(store.CheckRecord(c.Key, c.Value))
		if i > 0 && bytes.Compare(changes[i-1].Key, c.Key) >= 0 {
			t.Fatalf("sealed %x, then %x", changes[i-1].Key, c.Key)
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "outcome") == 0 {
		m.Abort(t)
		return
	}
	m.sealed()
	m.afterSeal(t)
	m.applied()
	m.must(m.o.Apply(m.position()))
	if got, want := m.o.Meta(), m.position(); !bytes.Equal(got, want) {
		t.Fatalf("Meta = %q, want %q", got, want)
	}
}

// afterSeal writes directly what the sealed transaction can't have in it: once
// that is committed it stands above.
func (m *machine) afterSeal(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "late") != 0 {
		return
	}
	k, v := genKey.Draw(t, "key"), genBytes.Draw(t, "val")
	m.must(m.o.DB().Put([]byte(k), []byte(v), nil))
	m.now.Raw[k] = v
	c, n := genKey.Draw(t, "count"), genInt.Draw(t, "n")
	m.must(modelCounts.In(m.o.DB()).Put(c, n))
	m.now.Counts[c] = n
}

func (m *machine) Abort(*rapid.T) {
	m.o.Abort()
	m.now = m.old.clone()
	m.forget()
}

func (m *machine) SetMeta(t *rapid.T) {
	m.history = append(m.history, m.base)
	m.must(m.o.SetMeta(m.position()))
}

func (m *machine) Flush(*rapid.T) {
	m.must(m.o.Flush())
	m.flushed = len(m.history) - 1
}

func (m *machine) Reopen(*rapid.T) {
	m.must(m.o.Close())
	m.reopen()
	m.begin(m.base)
	m.flushed = len(m.history) - 1
	m.at(m.flushed)
}

// Crash cuts the power and opens what is left.
func (m *machine) Crash(t *rapid.T) {
	seed := rapid.Int64().Draw(t, "seed")
	clone := m.fs.CrashClone(vfs.CrashCloneCfg{
		UnsyncedDataPercent: rapid.SampledFrom([]int{0, 50, 100}).Draw(t, "kept"),
		RNG:                 rand.New(rand.NewPCG(uint64(seed), 0)),
	})
	m.must(m.o.CloseWithoutFlush())
	m.fs = clone
	m.reopen()
	m.crashes++
	at := 0
	if meta := m.o.Meta(); meta != nil {
		if _, err := fmt.Sscan(string(meta), &at); err != nil {
			t.Fatal(err)
		}
	}
	if at < m.flushed {
		t.Fatalf("position %d after the crash, %d was flushed", at, m.flushed)
	}
	m.history = m.history[:at+1]
	m.begin(m.history[at])
	m.flushed = at
	m.at(at)
}

// at checks that the database is in the state of its position.
func (m *machine) at(position int) {
	got, err := readCommitted(m.o)
	m.must(err)
	if d := m.history[position].diff(m.clock, got); d != "" {
		m.t.Fatalf("the state at position %d (-want +got): %s", position, d)
	}
}

// actions are the machine's methods, with an overall check after none of them:
// checking is one of them, so that what it may hide is tried without.
func actions(m *machine) map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"put": m.Put, "delete": m.Delete, "deleteRange": m.DeleteRange, "get": m.Get, "scan": m.Scan,
		"updateCount": m.UpdateCount, "putCount": m.PutCount, "deleteCount": m.DeleteCount, "getCount": m.GetCount, "rangeCounts": m.RangeCounts,
		"appendList": m.AppendList, "getList": m.GetList, "putTime": m.PutTime, "updateTime": m.UpdateTime,
		"prefetch": m.Prefetch, "merge": m.Merge, "directPut": m.DirectPut, "directDelete": m.DirectDelete, "directDeleteRange": m.DirectDeleteRange,
		"directMerge": m.DirectMerge, "directCount": m.DirectCount,
		"pass": m.Pass, "updateTimed": m.UpdateTimed, "putTimed": m.PutTimed, "directPutTimed": m.DirectPutTimed, "deleteTimed": m.DeleteTimed,
		"getTimed": m.GetTimed, "sweep": m.Sweep,
		"setTimer": m.SetTimer, "cancelTimer": m.CancelTimer, "fireTimers": m.FireTimers, "nextTimer": m.NextTimer,
		"more1": m.UpdateCount, "more2": m.AppendList, "more3": m.GetList, "more4": m.GetCount,
		"everything": m.Everything, "committed": m.Committed, "changes": m.Changes,
		"commit": m.Commit, "abort": m.Abort, "setMeta": m.SetMeta, "flush": m.Flush, "reopen": m.Reopen, "crash": m.Crash,
	}
}

// Whatever is done in whatever order, a database holds what was committed and a
// transaction sees that and its own, before and after power cuts.
func TestAnyOrderOfOperations(t *testing.T) {
	crashes := 0
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{t: t, fs: vfs.NewCrashableMem(), history: []state{newState()}, clock: time.Unix(1000, 0)}
		m.begin(newState())
		m.reopen()
		defer func() { m.must(m.o.Close()) }()
		t.Repeat(actions(m))
		crashes += m.crashes
	})
	if crashes < 30 {
		t.Errorf("%d power cuts, want at least 30", crashes)
	}
}

// The changelog alone brings back the database: what Seal returned, loaded in
// order, is the state.
func TestChangelogRestores(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{t: t, fs: vfs.NewCrashableMem(), history: []state{newState()}, clock: time.Unix(1000, 0)}
		m.begin(newState())
		m.reopen()
		defer func() { m.must(m.o.Close()) }()
		var log []store.Change
		for range rapid.IntRange(1, 10).Draw(t, "transactions") {
			for range rapid.IntRange(0, 6).Draw(t, "operations") {
				rapid.SampledFrom([]func(*rapid.T){m.Put, m.Delete, m.DeleteRange, m.UpdateCount, m.DeleteCount, m.AppendList, m.PutTime, m.Merge, m.DirectPut, m.DirectDelete, m.DirectCount, m.PutTimed, m.Pass, m.Sweep, m.SetTimer, m.CancelTimer, m.FireTimers}).Draw(t, "op")(t)
			}
			changes, err := m.o.Seal()
			m.must(err)
			for _, c := range changes {
				log = append(log, store.Change{Key: bytes.Clone(c.Key), Value: bytes.Clone(c.Value)})
			}
			m.sealed()
			m.applied()
			m.must(m.o.Apply(m.position()))
		}
		c := memConfig(vfs.NewMem())
		c.Now = func() time.Time { return m.clock }
		r, err := store.Open(c)
		m.must(err)
		defer func() { m.must(r.Close()) }()
		l := r.NewLoader()
		for _, c := range log {
			m.must(l.Set(c.Key, c.Value))
			if l.Size() > 100 {
				m.must(l.Commit(nil))
			}
		}
		m.must(l.Commit(m.position()))
		got, err := readCommitted(r)
		m.must(err)
		if d := m.old.diff(m.clock, got); d != "" {
			t.Fatalf("the restored state (-want +got): %s", d)
		}
		if got, want := r.Meta(), m.position(); !bytes.Equal(got, want) {
			t.Fatalf("Meta = %q, want %q", got, want)
		}
	})
}
