package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
)

func due(t *testing.T, o *Owner, now time.Time) (out []string) {
	t.Helper()
	timers, err := o.DueTimers(now, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range timers {
		out = append(out, fmt.Sprintf("%s@%d", x.Key, x.At.Unix()))
	}
	return out
}

func next(t *testing.T, o *Owner) string {
	t.Helper()
	at, ok, err := o.NextTimer()
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		return "none"
	}
	return fmt.Sprint(at.Unix())
}

func sealAndApply(t *testing.T, o *Owner) (changes []Change) {
	t.Helper()
	sealed, err := o.Seal()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range sealed {
		changes = append(changes, Change{append([]byte(nil), c.Key...), append([]byte(nil), c.Value...)})
		if c.Value == nil {
			changes[len(changes)-1].Value = nil
		}
	}
	if err := o.Apply([]byte("p")); err != nil {
		t.Fatal(err)
	}
	return changes
}

// A key has one timer: set again it moves. What is due comes in the order of
// time; a timer that was taken is gone, and back after an abort; one that moved
// in between isn't taken.
func TestTimers(t *testing.T) {
	o := memOwner(t, vfs.NewMem(), Options{})
	defer func() { closeOwner(t, o) }()
	tx := o.Transaction()
	at := func(sec int64) time.Time { return time.Unix(sec, 0) }
	set := func(key string, sec int64) {
		t.Helper()
		if err := tx.SetTimer([]byte(key), at(sec)); err != nil {
			t.Fatal(err)
		}
	}
	check := func(when, wantNext string, want ...string) {
		t.Helper()
		if got := next(t, o); got != wantNext {
			t.Errorf("%s: the next timer is at %s, want %s", when, got, wantNext)
		}
		if d := cmp.Diff(want, due(t, o, at(100))); d != "" {
			t.Errorf("%s: due (-want +got): %s", when, d)
		}
	}
	check("at first", "none")
	set("b", 20)
	set("a", 10)
	set("c", 1000)
	check("set", "10", "a@10", "b@20")
	set("a", 30)
	check("moved", "20", "b@20", "a@30")
	sealAndApply(t, o)
	check("committed", "20", "b@20", "a@30")

	take := func(key string, sec int64) bool {
		t.Helper()
		ok, err := o.TakeTimer(Timer{[]byte(key), at(sec)})
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if take("a", 10) {
		t.Error("a timer is taken at a time that it was moved from")
	}
	if !take("b", 20) || take("b", 20) {
		t.Error("a due timer is taken once, and not twice")
	}
	check("taken", "30", "a@30")
	o.Abort()
	check("aborted", "20", "b@20", "a@30")
	if err := tx.CancelTimer([]byte("b")); err != nil {
		t.Fatal(err)
	}
	set("d", 5)
	check("cancelled", "5", "d@5", "a@30")
	if got, ok, err := tx.Timer([]byte("b")); ok || err != nil {
		t.Errorf("the cancelled timer is at %v, %v, %v", got, ok, err)
	}
	changes := sealAndApply(t, o)
	for _, c := range changes {
		if err := CheckRecord(c.Key, c.Value); err != nil {
			t.Error(err)
		}
	}
	if !take("d", 5) || !take("a", 30) {
		t.Error("due timers are not taken")
	}
	sealAndApply(t, o)
	check("all fired", "1000")
	set("e", 3)
	check("one before those that have fired", "3", "e@3")
}

// The stored form of timers is frozen, and a changelog of it restores them.
func TestTimerFormatIsFrozen(t *testing.T) {
	o := memOwner(t, vfs.NewMem(), Options{})
	if err := o.Transaction().SetTimer([]byte("k"), time.Unix(258, 7)); err != nil {
		t.Fatal(err)
	}
	const stamp = "\x80\x00\x00\x00\x00\x00\x01\x02\x00\x00\x00\x07"
	want := []Change{
		{[]byte("\x03\x01k"), []byte("\x03" + stamp)},
		{[]byte("\x03\x02" + stamp + "k"), []byte("\x03")},
	}
	got := sealAndApply(t, o)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("records of a timer (-want +got): %s", d)
	}
	closeOwner(t, o)

	r := memOwner(t, vfs.NewMem(), Options{})
	defer closeOwner(t, r)
	if got := next(t, r); got != "none" {
		t.Errorf("an empty database has a timer at %s", got)
	}
	l := r.NewLoader()
	for _, c := range got {
		if err := l.Set(c.Key, c.Value); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Commit(nil); err != nil {
		t.Fatal(err)
	}
	if got := next(t, r); got != "258" {
		t.Errorf("the restored timer is at %s, want 258", got)
	}
	for _, bad := range []Change{
		{[]byte("\x03"), nil}, {[]byte("\x03\x03k"), nil}, {[]byte("\x03\x01k"), []byte("\x03short")},
		{[]byte("\x03\x02short"), []byte("\x03")}, {[]byte("\x03\x02" + stamp + "k"), []byte("\x03x")},
	} {
		if err := l.Set(bad.Key, bad.Value); err == nil {
			t.Errorf("record %x, %x is accepted", bad.Key, bad.Value)
		}
	}
}
