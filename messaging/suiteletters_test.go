package messaging_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/topic"
)

// A message that fails is handled again in its place, then after the delay of
// each tier, and is a dead letter then. Later ones of its key wait for that, and
// others don't.
func inPlaceTierDeadLetter(s *stage) {
	cfg := messaging.Config{Retry: messaging.Retry{InPlace: 2, BackoffMin: time.Millisecond, BackoffMax: 10 * time.Millisecond, Tiers: []time.Duration{200 * time.Millisecond, 400 * time.Millisecond}}}
	s.start("p1", cfg, func(_ context.Context, d messaging.Delivery) error {
		if strings.HasPrefix(string(d.Value()), "bad") {
			return errNo
		}
		return nil
	})
	s.publish(0, "k", "a", "bad1", "b", "c")
	s.publish(1, "l", "bad2", "d")
	s.publish(0, "other", numbers("m", 200)...)
	s.idle()
	n := s.values()
	for _, v := range []string{"bad1", "bad2"} {
		if n[v] < 4 || n[v] > 4 && s.calm {
			s.t.Errorf("%s was handled %d times, want 4", v, n[v])
		}
		n[v] = 1
	}
	if s.calm && (len(n) != 206 || slices.Max(slices.Collect(maps.Values(n))) > 1) {
		s.t.Errorf("handled %v, want 206 values, and all but the bad ones once", n)
	}
	var order []string // by when they were handled first
	bad := 0           // calls before the next of the key
	at := make(map[int]time.Time)
	for _, c := range s.calls() {
		if c.key != "k" {
			continue
		}
		if !slices.Contains(order, c.value) {
			order = append(order, c.value)
		}
		if c.value == "bad1" {
			if !slices.Contains(order, "b") {
				bad++
			}
			if tier := c.attempt - cfg.Retry.InPlace; tier > 0 && s.calm {
				if got, want := c.handled.at.Sub(at[c.attempt-1]), cfg.Retry.Tiers[tier-1]; got < want {
					s.t.Errorf("the delay of tier %d was %v, want %v", tier, got, want)
				}
			}
			at[c.attempt] = c.handled.at
		}
	}
	if want := []string{"a", "bad1", "b", "c"}; !slices.Equal(order, want) || bad < 4 {
		s.t.Errorf("the key was handled in order %v, with %d attempts before the next; want %v and 4", order, bad, want)
	}
	s.areLetters("failed", "bad1", "bad2")
}

// areLetters checks which values are dead letters, and why.
func (s *stage) areLetters(reason string, want ...string) {
	s.t.Helper()
	n := make(map[string]int)
	for _, e := range s.read(s.letterTopic()) {
		n[string(e.Value)]++
		if got := header(e, "pawl-reason"); got != reason {
			s.t.Errorf("%.40q is a dead letter since %q, want %q", e.Value, got, reason)
		}
	}
	for _, v := range want {
		if n[v] == 0 || n[v] > 1 && s.calm {
			s.t.Errorf("%.40q is %d dead letters, want 1", v, n[v])
		}
		delete(n, v)
	}
	if len(n) > 0 {
		s.t.Errorf("%d others are dead letters: %.200q", len(n), slices.Collect(maps.Keys(n)))
	}
}

// In key order a message that is to be retried holds back later ones of its
// key; others of the partition go on.
func keyOrder(s *stage) { keyOrderThrough(s, false) }

// And so it does across a crash.
func keyOrderAndACrash(s *stage) { keyOrderThrough(s, true) }

func keyOrderThrough(s *stage, crash bool) {
	cfg := messaging.Config{Instance: "one", Retry: messaging.Retry{InPlace: 2, BackoffMin: time.Millisecond, BackoffMax: 10 * time.Millisecond,
		Tiers: []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 200 * time.Millisecond, 2 * time.Second}}}
	var mu sync.Mutex
	var acked []string
	others := make(map[string]bool)
	h := func(_ context.Context, d messaging.Delivery) error {
		v := string(d.Value())
		mu.Lock()
		defer mu.Unlock()
		switch {
		case string(d.Key()) == "other":
			others[v] = true
		case v[0] == 'x' && (d.Attempt() <= 4 || len(others) < 10):
			return errNo // twice in place, in the first two tiers, and until the others have gone on
		case !slices.Contains(acked, v):
			acked = append(acked, v)
		}
		return nil
	}
	p := s.start("p1", cfg, h)
	var want []string
	for i := range 15 {
		name := "a"
		if i == 0 || i == 4 {
			name = "x"
		}
		want = append(want, fmt.Sprint(name, i))
	}
	s.publish(0, "k", want[:10]...)
	s.publish(0, "other", numbers("o", 10)...)
	if crash {
		s.until("the first to be in a delay topic", func() bool { return p.w.Stats().RetriedLater > 0 })
		p.crash()
		s.start("p2", cfg, h)
	}
	s.publish(0, "k", want[10:]...)
	s.idle()
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(acked, want) {
		s.t.Errorf("acked in order %v\nwant %v", acked, want)
	}
	for _, c := range s.calls() {
		if c.key == "k" && c.value[0] == 'a' && c.attempt != 1 {
			s.t.Errorf("%s was only held back, and has attempt %d", c.value, c.attempt)
		}
	}
}

// With the dead letters unwritable, messages that failed or were nacked stay
// unsettled, the partition stops at its limit and health says so; when they can
// be written again, all are delivered.
func deadLettersUnwritable(s *stage) {
	cfg := messaging.Config{Order: messaging.Unordered, MaxUnsettled: 50, WriteTimeout: time.Second, Retry: messaging.Retry{InPlace: 1, Tiers: []time.Duration{}}, Breaker: messaging.Breaker{Failures: -1}}
	p := s.start("p1", cfg, func(_ context.Context, d messaging.Delivery) error {
		if d.Offset()%2 == 0 {
			return errNo
		}
		go func() {
			if err := d.Nack(); err != nil {
				_ = d.Nack() // again, beside the worker, which writes it until it can
			}
		}()
		return messaging.Later
	})
	s.publish(0, "k", "bad-first") // so that the producer knows the topic
	s.saved(0, 1, func(int64) bool { return true })
	again := s.refuse(s, "p1", s.letterTopic())
	var want []string
	for i := range 10 {
		vs := numbers(fmt.Sprint("bad", i, "-"), 40)
		s.publish(0, "k", vs...)
		want = append(want, vs...)
	}
	s.until("the partition to stop at its limit, and health to say so", func() bool {
		ps, err := p.w.Stats().Partitions, p.w.Health()
		return len(ps) == 1 && ps[0].Full && ps[0].Backlog >= 50 &&
			(!s.calm || err != nil && strings.Contains(err.Error(), "dead letters can't be written"))
	})
	if got := s.settled(0); got.below != 1 || len(got.above) > 0 {
		s.t.Errorf("%+v is settled, want the first alone", got)
	}
	again()
	s.idle()
	n := make(map[string]bool)
	for _, e := range s.read(s.letterTopic()) {
		n[string(e.Value)] = true
	}
	for _, v := range want {
		if !n[v] {
			s.t.Errorf("%s is no dead letter", v)
		}
	}
	s.until("health to be good", func() bool { return p.w.Health() == nil })
}

// C42: one dead letter that is too large for a topic that somebody has made
// stays unsettled, and is named with what there is room for; those around it are
// written once each. It follows when the topic takes it.
func oneTooLarge(s *stage) {
	s.create(s.letterTopic(), 1)
	again := s.change(s.letterTopic(), "max.message.bytes", "4000", "100000")
	p := s.start("p1", messaging.Config{Order: messaging.Unordered, Retry: messaging.Retry{InPlace: 1, Tiers: []time.Duration{}}},
		func(context.Context, messaging.Delivery) error { return messaging.DeadLetter(errNo) })
	guilty := strings.Repeat("x", 4000)
	want := numbers("a", 200)
	s.publish(0, "before", want[:100]...)
	s.publish(0, "guilty", guilty)
	s.publish(0, "after", want[100:]...)
	s.saved(0, 201, func(o int64) bool { return o != 100 })
	s.areLetters("rejected", want...)
	s.until("health to name it", func() bool {
		if !s.calm {
			return true // it takes five seconds
		}
		err := p.w.Health()
		for _, want := range []string{s.letterTopic(), "guilty", "4000", "too large"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				return false
			}
		}
		return true
	})
	again()
	s.idle()
	s.areLetters("rejected", append(want, guilty)...)
}

// published publishes messages of odd bytes, and waits until all are settled.
func (s *stage) published(outs []topic.Out) {
	s.t.Helper()
	for i := range outs {
		outs[i].Timestamp = time.UnixMilli(int64(1000 * i)) // long expired
	}
	s.publishRecords(outs...)
	s.idle()
}

// same checks that each of the messages is in a topic, but for Pawl's headers.
func (s *stage) same(name string, outs []topic.Out) {
	s.t.Helper()
	all := s.read(name)
	n := make(map[int64]bool)
	for _, e := range all {
		var o int64
		if _, err := fmt.Sscan(header(e, "pawl-offset"), &o); err != nil {
			s.t.Fatal(err)
		}
		n[o] = true
		if err := sameMessage(e, outs[o]); err != nil {
			s.t.Errorf("in %s: %v", name, err)
		}
		if age := time.Since(e.Timestamp); age > s.patience || age < 0 {
			s.t.Errorf("in %s: a message has a timestamp %v ago: it would expire at once", name, age)
		}
	}
	if len(n) != len(outs) || s.calm && len(all) != len(outs) {
		s.t.Errorf("%d messages, of %d, in %s; want each of %d", len(all), len(n), name, len(outs))
	}
}

// C40 and bad input: what can't be decoded is dead-lettered whole, at once, and
// what is around it is handled.
func poison(s *stage) {
	outs := oddRecords(s.t)
	good := 0
	var mu sync.Mutex
	s.start("p1", messaging.Config{Order: messaging.Unordered}, messaging.JSON(func(_ context.Context, n int, _ messaging.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		good += n
		return nil
	}))
	odd := len(outs)
	s.published(append(outs, topic.Out{Value: []byte("7")}))
	s.same(s.letterTopic(), outs[:odd])
	for _, e := range s.read(s.letterTopic()) {
		if got := header(e, "pawl-reason"); got != "decode" {
			s.t.Errorf("%.40q is a dead letter since %q, want decode", e.Value, got)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if good < 7 || good > 7 && s.calm {
		s.t.Errorf("the good one was handled, in sum, with %d, want 7", good)
	}
}

// C30: key, value and headers go through a tier, the dead letters and a redrive
// byte for byte; a handler that writes to the value changes nothing.
func bytesAreKept(s *stage) {
	cfg := messaging.Config{Order: messaging.Unordered, Retry: messaging.Retry{InPlace: 1, Tiers: []time.Duration{200 * time.Millisecond}}, Breaker: messaging.Breaker{Failures: -1}}
	var mu sync.Mutex
	seen := make(map[int64]topic.Envelope)
	healed := false
	s.start("p1", cfg, func(_ context.Context, d messaging.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if healed {
			seen[d.Offset()] = topic.Envelope{Key: d.Key(), Value: d.Value(), Headers: d.Headers(), Timestamp: d.Timestamp()}
			return nil
		}
		clear(d.Value())
		return errNo
	})
	outs := oddRecords(s.t)
	s.published(outs)
	s.same(messaging.RetryTopic(s.app, "worker", 1), outs)
	s.same(s.letterTopic(), outs)
	mu.Lock()
	healed = true
	mu.Unlock()
	s.redriveAll(s.letters(s.cluster("letters")))
	s.until("all to come back", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(seen) == len(outs)
	})
	s.idle()
	for o, e := range seen {
		if err := sameMessage(e, outs[o]); err != nil {
			s.t.Errorf("redriven: %v", err)
		}
		if !e.Timestamp.Equal(outs[o].Timestamp) {
			s.t.Errorf("redriven: timestamp %v, want %v", e.Timestamp, outs[o].Timestamp)
		}
	}
}

// redriveAll redrives letters, begun again where brokers are killed, until none
// is left. It returns how many were moved.
func (s *stage) redriveAll(l *messaging.Letters) (moved int) {
	s.t.Helper()
	s.ask("redrive", func(ctx context.Context) error {
		res, err := l.Redrive(ctx, messaging.Query{}, messaging.Options{})
		moved += res.Moved
		return err
	})
	return moved
}

// A redrive that is ended at any moment, and begun again, sends every letter
// exactly once: marking and publishing are one. Then they come back to the
// consumer, in which they fail again.
func redriveExactlyOnce(s *stage) {
	const n = 250
	ends := []string{""} // between two transactions
	if invariants.Enabled {
		ends = append(ends, "redrive-before", "redrive-after", "produce-before", "produce-after", "endtxn-sent", "endtxn-replied")
	}
	cfg := once
	cfg.MaxUnsettled = 2 * n
	p := s.start("p1", cfg, func(context.Context, messaging.Delivery) error { return errNo })
	all := numbers("bad", n)
	s.publish(0, "k", all...)
	s.idle()
	for _, end := range ends {
		p.w.Pause() // what comes back is not to fail before all of it is there
		s.forget()
		s.redriveAndDie(end)
		if moved := s.redriveAll(s.letters(s.cluster("letters again"))); s.calm && (moved >= n || moved == 0) {
			s.t.Errorf("%q: the second redrive moved %d of %d: want the rest", end, moved, n)
		}
		letters, redriven := s.redrives(s.letterTopic()), s.redrives(messaging.RedriveTopic(s.app, "worker"))
		for l, times := range letters {
			l.redrives++
			if redriven[l] != times {
				s.t.Errorf("%q: %+v was redriven %d times, want %d", end, l, redriven[l], times)
			}
		}
		if len(redriven) != len(letters) {
			s.t.Errorf("%q: %d different messages were redriven, of %d", end, len(redriven), len(letters))
		}
		p.w.Resume()
		s.until("all to come back", func() bool { return len(s.values()) == n })
		s.came(all)
		s.until("all to be dead letters again", func() bool { return len(s.redrives(s.letterTopic())) == len(letters)+n })
		s.idle()
	}
}

// letterRound is a dead letter or a redriven message: how often it has come back.
type letterRound struct {
	value    string
	redrives int
}

// redrives counts what is in a topic.
func (s *stage) redrives(name string) map[letterRound]int {
	s.t.Helper()
	n := make(map[letterRound]int)
	for _, e := range s.read(name) {
		l := letterRound{value: string(e.Value)}
		if text := header(e, "pawl-redrives"); text != "" {
			var err error
			if l.redrives, err = strconv.Atoi(text); err != nil {
				s.t.Fatal(err)
			}
		}
		n[l]++
	}
	return n
}

// redriveAndDie redrives letters in a process that crashes amid that: when it
// passes a crash point for the second time or, for none, after its second
// transaction.
func (s *stage) redriveAndDie(point string) {
	s.t.Helper()
	p := &program{name: "letters"}
	cl, cut := s.mortal(p)
	l := s.letters(cl)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	die := func() {
		cut()
		cancel()
	}
	o := messaging.Options{}
	var passes atomic.Int32
	if point == "" {
		o.Progress = func(pr messaging.Progress) {
			if pr.Moved >= 200 {
				die()
			}
		}
	} else {
		disarm := invariants.Arm(point, func() {
			if passes.Add(1) == 2 {
				die()
			}
		})
		defer disarm()
	}
	if res, err := l.Redrive(ctx, messaging.Query{}, o); err == nil {
		s.t.Errorf("%q: the redrive was not ended: %+v", point, res)
	}
}
