package messaging

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// What becomes of a message after each attempt.
func TestJudge(t *testing.T) {
	r := Config{Retry: Retry{InPlace: 2, Tiers: []time.Duration{10 * time.Second, time.Minute}}}.withDefaults().Retry
	random := rand.New(rand.NewPCG(1, 2))
	fail := errors.New("no")
	for _, tt := range []struct {
		attempt int
		err     error
		order   Order
		want    string
	}{
		{1, nil, ByKey, "ack"},
		{9, nil, ByKey, "ack"},
		{1, Later, ByKey, "later"},
		{1, fmt.Errorf("x: %w", Later), ByKey, "later"},
		{2, fail, ByKey, "tier 1 for 10s"},
		{3, fail, ByKey, "tier 2 for 1m0s"},
		{4, fail, ByKey, "dead letter: failed"},
		{5, fail, ByKey, "dead letter: failed"},
		{2, fail, ByPartition, "again after 10s"},
		{3, fail, ByPartition, "again after 1m0s"},
		{4, fail, ByPartition, "dead letter: failed"},
		{1, DeadLetter(fail), ByKey, "dead letter: rejected"},
		{1, fmt.Errorf("x: %w", DeadLetter(nil)), ByKey, "dead letter: rejected"},
		{1, RetryAfter(3*time.Second, fail), ByKey, "again after 3s"},
		{1, RetryAfter(-time.Second, nil), ByKey, "again after 0s"},
		{1, RetryAfter(7*time.Second, fail), ByKey, "tier 1 for 7s"},
		{1, RetryAfter(11*time.Second, fail), ByKey, "tier 2 for 11s"},
		{1, RetryAfter(time.Hour, fail), ByKey, "tier 2 for 1h0m0s"},
		{1, RetryAfter(time.Hour, fail), ByPartition, "again after 1h0m0s"},
		{4, RetryAfter(time.Second, fail), ByKey, "dead letter: failed"},
	} {
		if got := r.judge(tt.attempt, tt.err, tt.order, random).String(); got != tt.want {
			t.Errorf("attempt %d, %v, order %s: %s, want %s", tt.attempt, tt.err, tt.order, got, tt.want)
		}
	}
	for failed := range 100 {
		d := r.backoff(failed+1, random)
		if most := min(r.BackoffMax, r.BackoffMin<<min(failed, 30)); d > most || d < most/2 {
			t.Errorf("back-off after %d failures: %v, want %v to %v", failed+1, d, most/2, most)
		}
	}
}

// Assignments converge, are even, move no more than they must, and never give a
// partition to two, however members come and go.
func TestAssignProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions := rapid.Int32Range(0, 40).Draw(t, "partitions")
		owned := map[string][]int32{}
		next := 0
		steps := rapid.IntRange(1, 8).Draw(t, "steps")
		for range steps {
			if len(owned) == 0 || rapid.Bool().Draw(t, "join") {
				owned[fmt.Sprint("m", next)] = nil
				next++
			} else {
				var ids []string
				for id := range owned {
					ids = append(ids, id)
				}
				slices.Sort(ids)
				delete(owned, rapid.SampledFrom(ids).Draw(t, "leaves"))
			}
			if len(owned) == 0 {
				continue
			}
			moved := 0
			for round := 0; ; round++ {
				if round > 3 {
					t.Fatalf("not settled after %d rounds: %v", round, owned)
				}
				var members []kafka.MemberInfo
				for id, parts := range owned {
					members = append(members, kafka.MemberInfo{ID: id, Topics: []string{"t"}, Metadata: claims{V: claimsFormat, ID: id, Owned: parts}.marshal()})
				}
				slices.SortFunc(members, func(a, b kafka.MemberInfo) int { return strings.Compare(a.ID, b.ID) })
				got, err := assign("t", members, partitions)
				if err != nil {
					t.Fatal(err)
				}
				owner := make(map[int32]string)
				for id, parts := range owned {
					for _, n := range parts {
						owner[n] = id
					}
				}
				released := false
				after := make(map[string][]int32)
				seen := make(map[int32]bool)
				for id := range owned {
					for _, p := range got[id] {
						if seen[p.Number] {
							t.Fatalf("partition %d is given to two", p.Number)
						}
						seen[p.Number] = true
						if o := owner[p.Number]; o != "" && o != id {
							t.Fatalf("partition %d is given to %s while %s has it", p.Number, id, o)
						}
						after[id] = append(after[id], p.Number)
					}
				}
				for id, parts := range owned {
					for _, n := range parts {
						if !slices.Contains(after[id], n) {
							released = true
							moved++
						}
					}
				}
				for id := range owned {
					owned[id] = after[id]
				}
				if !released {
					if len(seen) != int(partitions) {
						t.Fatalf("%d of %d partitions are given out", len(seen), partitions)
					}
					break
				}
			}
			for id, parts := range owned {
				if n, even := len(parts), int(partitions)/len(owned); n != even && n != even+1 {
					t.Fatalf("%s has %d of %d partitions among %d", id, n, partitions, len(owned))
				}
			}
			if most := int(partitions)/len(owned) + 1; moved > most {
				t.Fatalf("%d partitions moved for one member that came or went, want at most %d", moved, most)
			}
		}
	})
}

// Claims of a member that was taken for gone, and has joined anew, are void.
func TestAssignVoidClaims(t *testing.T) {
	got, err := assign("t", []kafka.MemberInfo{
		{ID: "new", Topics: []string{"t"}, Metadata: claims{V: 1, ID: "old", Owned: []int32{0, 1}}.marshal()},
		{ID: "other", Topics: []string{"t"}, Metadata: claims{V: 1, ID: "other", Owned: []int32{0, 1}}.marshal()},
	}, 2)
	if err != nil {
		t.Fatal(err)
	}
	if len(got["new"]) != 0 || len(got["other"]) != 1 {
		t.Errorf("assigned %v, want one to keep one, and none to go to who has claimed it before it was gone", got)
	}
	if _, err := assign("t", []kafka.MemberInfo{{ID: "m", Topics: []string{"t"}, Metadata: []byte(`{"v":2}`)}}, 2); err == nil {
		t.Error("claims of a newer format were read")
	}
}

// Pawl's headers come back as they were, in any surroundings.
func TestHistoryRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := history{
			topic: "work", topicID: topic.ID{1}, partition: rapid.Int32Min(0).Draw(t, "partition"), offset: rapid.Int64Range(0, offsetMax).Draw(t, "offset"),
			timestamp: rapid.Int64().Draw(t, "timestamp"), group: "a.b", hop: rapid.IntRange(0, 99).Draw(t, "hop"), due: rapid.Int64Min(0).Draw(t, "due"), delay: rapid.Int64Min(0).Draw(t, "delay"),
			reason: "failed", redrives: rapid.IntRange(0, 99).Draw(t, "redrives"),
		}
		for range rapid.IntRange(0, 20).Draw(t, "failures") {
			h.fail(h.attempts+1, time.UnixMilli(rapid.Int64Range(1, 1<<40).Draw(t, "at")), errors.New(rapid.StringN(0, 5000, 20_000).Draw(t, "error")))
		}
		hs := []topic.Header{{Key: "a", Value: nil}, {Key: "pawl-offset", Value: []byte("7")}, {Key: "a", Value: []byte{}}}
		out := h.headers(hs)
		got, ok := parseHistory(out)
		if !ok {
			t.Fatal("the origin is not there")
		}
		// Round trips do not wear it down.
		again, _ := parseHistory(got.headers(own(out)))
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", h) || fmt.Sprintf("%+v", again) != fmt.Sprintf("%+v", h) {
			t.Fatalf("came back as %+v\nthen        %+v\nwant        %+v", got, again, h)
		}
		size := 0
		for _, hd := range out {
			size += len(hd.Key) + len(hd.Value) + 10
		}
		if size > 8<<10 {
			t.Fatalf("%d bytes of headers", size)
		}
		if mine := own(out); len(mine) != 2 || mine[0].Value != nil || mine[1].Value == nil {
			t.Fatalf("the message's own headers are %v", mine)
		}
	})
}

func FuzzHistory(f *testing.F) {
	f.Add("pawl-offset", []byte("7"), "pawl-history", []byte("1 2 x\n3 4 y"))
	f.Add("pawl-topic-id", []byte("AAAA"), "pawl-due", []byte("-1"))
	f.Add("pawl-timestamp", []byte("-9223372036854775808"), "pawl-history", []byte("1 9223372036854775807 x"))
	f.Add("pawl-timestamp", []byte("1755933141855875"), "pawl-due", []byte("9223372036854775807"))
	f.Add("pawl-attempts", []byte("99999999999999999999"), "pawl-error", []byte("\xff\x00"))
	f.Fuzz(func(t *testing.T, k1 string, v1 []byte, k2 string, v2 []byte) {
		hs := []topic.Header{{Key: k1, Value: v1}, {Key: k2, Value: v2}}
		h, ok := parseHistory(hs)
		if h.attempts < 0 || h.hop < 0 || h.offset < 0 || h.partition < 0 || h.redrives < 0 || h.due < 0 || h.delay < 0 || h.waits(time.Now()) < 0 || h.waits(time.Now()) > tierMax {
			t.Fatalf("%+v", h)
		}
		if ok {
			t.Fatal("two headers name topic, partition and offset")
		}
		again, _ := parseHistory(h.headers(hs))
		if again.attempts != h.attempts || again.err != h.err && h.failed > 0 || len(again.past) != len(h.past) {
			t.Fatalf("%+v came back as %+v", h, again)
		}
		if _, err := newLetter(topic.Envelope{Headers: hs, Timestamp: time.UnixMilli(h.timestamp)}).MarshalJSON(); err != nil {
			t.Fatal(err) // also C44: years that JSON can't say
		}
	})
}

func FuzzOutcome(f *testing.F) {
	id := topic.ID{1, 2}
	f.Add(string(outcomeKey(id, letterID{3, 4})), []byte(`{"v":1,"action":"redriven","at":5}`))
	f.Add(id.String()+"/03/4", []byte(`{}`))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		at, o, ok := parseOutcome(id, []byte(key), value)
		if ok && string(outcomeKey(id, at)) != key {
			t.Fatalf("key %q was read as %v", key, at)
		}
		if ok && value != nil && o.Action == "" {
			t.Fatalf("an outcome without an action from %q", value)
		}
	})
}

func FuzzClaims(f *testing.F) {
	f.Add([]byte(`{"v":1,"id":"m","owned":[1,2,-3,99]}`))
	f.Add([]byte(`{"v":2}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := assign("t", []kafka.MemberInfo{{ID: "m", Topics: []string{"t"}, Metadata: b}}, 3)
		if err == nil && len(got["m"]) != 3 {
			t.Fatalf("the only member is assigned %v", got)
		}
	})
}

// laneModel is a lane as anyone can see that it is right: the messages of a key
// by offset, each in the input or in a topic.
//
// Whatever order messages are read in, however often they are retried, and
// whatever joins them: they are settled in the order of their offsets, each
// once, and none is forgotten.
func TestLaneProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		input := &stream{tier: streamInput}
		tiers := []*stream{nil, nil, {tier: 2}, {tier: 3}}
		n := rapid.IntRange(1, 30).Draw(t, "messages")
		l := &lane{}
		next := 0
		var waiting []*delivery // written to delay topics, and not read there
		var handling *delivery
		var joins []*delivery
		joinTier := 0
		var settled []int64
		step := func() {
			d, join, tier := l.step()
			if d != nil {
				if handling != nil {
					t.Fatalf("%d is handled beside %d", d.order, handling.order)
				}
				handling = d
			}
			for _, j := range join {
				joins, joinTier = append(joins, j), tier
			}
		}
		write := func(d *delivery, tier int) {
			waiting = append(waiting, &delivery{s: tiers[tier], order: d.order, hop: d.hop + 1})
		}
		for len(settled) < n {
			can := []string{}
			if next < n {
				can = append(can, "read")
			}
			if len(waiting) > 0 {
				can = append(can, "read back")
			}
			if handling != nil {
				can = append(can, "ack", "retry")
			}
			if len(joins) > 0 {
				can = append(can, "join")
			}
			if len(can) == 0 {
				t.Fatalf("stuck: settled %v, lane %+v", settled, l)
			}
			switch rapid.SampledFrom(can).Draw(t, "do") {
			case "read":
				d := &delivery{s: input, order: int64(next)}
				next++
				if ok, _ := l.insert(d); !ok {
					t.Fatalf("%d does not count", d.order)
				}
			case "read back":
				i := rapid.IntRange(0, len(waiting)-1).Draw(t, "which")
				d := waiting[i]
				waiting = slices.Delete(waiting, i, i+1)
				if ok, void := l.insert(d); !ok || void != nil {
					t.Fatalf("%d does not count", d.order)
				}
			case "ack":
				settled = append(settled, handling.order)
				l.done(handling)
				handling = nil
			case "retry":
				d := handling
				handling = nil
				tier := rapid.IntRange(2, 3).Draw(t, "tier")
				write(d, tier)
				early := rapid.Bool().Draw(t, "read before it is confirmed")
				if early {
					back := waiting[len(waiting)-1]
					waiting = waiting[:len(waiting)-1]
					if ok, _ := l.insert(back); !ok {
						t.Fatalf("%d does not count", back.order)
					}
				}
				l.moved(d, int(d.hop)+1, tier)
			case "join":
				d := joins[0]
				joins = joins[1:]
				write(d, joinTier)
				l.moved(d, int(d.hop)+1, joinTier)
			}
			step()
		}
		if !slices.IsSorted(settled) {
			t.Fatalf("settled in order %v", settled)
		}
		if len(l.items) != 0 || l.active != nil {
			t.Fatalf("the lane still holds %+v", l)
		}
	})
}

// A message that is not due holds back its lane, wherever it was read.
func TestLaneWaits(t *testing.T) {
	for _, tier := range []int{streamInput, streamRedrive, streamTiers} {
		l := &lane{}
		d := &delivery{s: &stream{tier: tier}, order: 1, waits: true}
		l.insert(d)
		l.insert(&delivery{s: &stream{tier: streamInput}, order: 2})
		if got, _, _ := l.step(); got != nil {
			t.Errorf("tier %d: offset %d is handled before the first is due", tier, got.order)
		}
		d.waits = false
		if got, _, _ := l.step(); got != d {
			t.Errorf("tier %d: the first is due and is not handled", tier)
		}
	}
}

// C32: what is said to be due in an hour, and was to wait for ten seconds, waits
// for ten seconds: some clock was set.
func TestWaits(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	ms := func(d time.Duration) int64 { return now.Add(d).UnixMilli() }
	for _, tt := range []struct {
		h    history
		want time.Duration
	}{
		{history{}, 0},
		{history{due: ms(4 * time.Second), delay: 10_000}, 4 * time.Second},
		{history{due: ms(-time.Second), delay: 10_000}, 0},
		{history{due: ms(time.Hour), delay: 10_000}, 10 * time.Second},
		{history{due: ms(time.Hour)}, time.Hour},
		{history{due: math.MaxInt64}, tierMax},
		{history{due: math.MaxInt64, delay: math.MaxInt64}, tierMax},
		{history{due: 1, delay: 1}, 0},
	} {
		if got := tt.h.waits(now); got != tt.want {
			t.Errorf("due %d, delay %d: waits %v, want %v", tt.h.due, tt.h.delay, got, tt.want)
		}
	}
}

// C46: a stream that stands below its end and brings nothing is asked what there
// is, once in a while, and goes past what holds no message: while it is read,
// and while it is scanned.
func TestPassed(t *testing.T) {
	w, err := New(Config{Topic: "t", Application: "a", Cluster: cluster.Cluster{Brokers: []string{"127.0.0.1:9"}}}, func(context.Context, Delivery) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	p := newPartition(w, topic.Partition{Topic: "t"}, "m")
	s := newStream(p, streamInput, "t", topic.ID{1})
	p.mu.phase, p.mu.streams = phaseRunning, []*stream{s}
	s.begin(12, snapshot{suspect: -1})
	s.highWater = 20
	looks := func(after time.Duration) int {
		w.fetch.mu.orders = nil
		p.mu.Lock()
		p.choresLocked(s.brought.Add(after))
		p.mu.Unlock()
		return len(w.fetch.mu.orders)
	}
	s.brought = time.Now()
	if n := looks(quietLimit - 1); n != 0 {
		t.Errorf("asked %d times before it was quiet for %v", n, quietLimit)
	}
	if n := looks(quietLimit); n != 1 {
		t.Errorf("asked %d times after %v, want once", n, quietLimit)
	}
	if n := looks(quietLimit - 1); n != 0 {
		t.Errorf("asked %d times again at once", n)
	}
	for _, tt := range []struct{ from, to, want int64 }{
		{12, 12, 12}, // there is a message
		{11, 20, 12}, // something was read meanwhile
		{12, 20, 20},
	} {
		if p.passed(s, tt.from, tt.to); s.next != tt.want || s.position() != tt.want {
			t.Errorf("after %d to %d it stands at %d, want %d", tt.from, tt.to, s.next, tt.want)
		}
	}
	if n := looks(quietLimit); n != 0 {
		t.Errorf("asked %d times at the end", n)
	}
	scan := newStream(p, streamTiers, "t.retry.1", topic.ID{2})
	scan.begin(3, snapshot{suspect: -1})
	scan.scanEnd, scan.scanned = 9, 3
	p.mu.streams, p.mu.scanned = append(p.mu.streams, newStream(p, streamRedrive, "t.redrive", topic.ID{3}), scan), make(chan struct{})
	if p.passed(scan, 3, 7) || scan.scanned != 7 || scan.next != 3 {
		t.Errorf("scanned to %d of 9, and stands at %d; want 7 and 3", scan.scanned, scan.next)
	}
	if !p.passed(scan, 7, 9) || scan.scanEnd != -1 {
		t.Error("a scan that has passed the last offset goes on")
	}
	select {
	case <-p.mu.scanned:
	default:
		t.Error("nobody is told that the scan has ended")
	}
}
