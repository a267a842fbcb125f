package consumer_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

var fires = store.NewTable("timer-fires", store.String, store.Int64)

// alarms sets a timer for each message, by what the message says, and counts what
// fires, in its state and by a line.
type alarms struct {
	program
	fail func(key string) error // of a timer
}

func (a *alarms) Consume(e topic.Envelope, s consumer.Shard, p *topic.Publisher) error {
	after, err := time.ParseDuration(string(e.Value))
	if err != nil {
		return err
	}
	if after < 0 {
		return s.Transaction().CancelTimer(e.Key)
	}
	return s.Transaction().SetTimer(e.Key, e.Timestamp.Add(after))
}

func (a *alarms) Fire(key []byte, at time.Time, s consumer.Shard, p *topic.Publisher) error {
	if a.fail != nil {
		if err := a.fail(string(key)); err != nil {
			return err
		}
	}
	n, err := fires.Update(s.Transaction(), string(key), func(n int64) int64 { return n + 1 })
	if err != nil {
		return err
	}
	late := time.Since(at)
	if late < 0 {
		return fmt.Errorf("fired %v early", -late)
	}
	return lines.Publish(p, fmt.Sprintf("%s=%d late %v", key, n, late.Round(time.Millisecond)), topic.Key(key))
}

// setTimer publishes a message that sets a timer.
func setTimer(c *consumertest.Cluster, key string, after time.Duration) {
	consumertest.PublishKeyed(c, words, key, after.String())
}

// fired returns how often each key has fired, by the committed output, and checks
// that each line is there once.
func fired(t *testing.T, c *consumertest.Cluster) map[string]int {
	t.Helper()
	n := make(map[string]int)
	for _, line := range consumertest.Committed(c, lines) {
		key, rest, _ := strings.Cut(line, "=")
		n[key]++
		if count, _, _ := strings.Cut(rest, " "); count != fmt.Sprint(n[key]) {
			t.Errorf("line %q is number %d of its key", line, n[key])
		}
	}
	return n
}

// Timers fire at or after their time, once, also without any message; those that
// were moved fire at the new time, and those that were cancelled not at all.
func TestTimers(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &alarms{}, consumer.Config{CreateTopics: 2})
		setTimer(c, "soon", time.Second)
		setTimer(c, "later", time.Minute)
		setTimer(c, "moved", 2*time.Second)
		setTimer(c, "moved", 30*time.Second)
		setTimer(c, "gone", 2*time.Second)
		setTimer(c, "gone", -1)
		setTimer(c, "long ago", 0)
		c.Settle()
		for _, step := range []struct {
			after time.Duration
			want  map[string]int
		}{
			{500 * time.Millisecond, map[string]int{"long ago": 1}},
			{time.Second, map[string]int{"long ago": 1, "soon": 1}},
			{10 * time.Second, map[string]int{"long ago": 1, "soon": 1}},
			{20 * time.Second, map[string]int{"long ago": 1, "soon": 1, "moved": 1}},
			{30 * time.Second, map[string]int{"long ago": 1, "soon": 1, "moved": 1, "later": 1}},
		} {
			c.Advance(step.after)
			if got := fired(t, c); !maps.Equal(got, step.want) {
				t.Errorf("%v later %v have fired, want %v", step.after, got, step.want)
			}
		}
		for _, line := range consumertest.Committed(c, lines) {
			if _, late, _ := strings.Cut(line, "late "); late != "0s" && !strings.HasPrefix(line, "long ago") {
				t.Errorf("%s: want at its time", line)
			}
		}
		if got := c.Metric("p1", "pawl_timers_total"); got != 4 {
			t.Errorf("%v timers are counted, want 4", got)
		}
		c.Advance(10 * time.Minute)
		if got := fired(t, c); len(got) != 4 {
			t.Errorf("nothing was due any more, and %v have fired", got)
		}
	})
}

// The auditor's way: timers are set and fire while processes crash at any moment,
// and are taken over. Each has fired once, by output and by state.
func TestTimersFireOnceUnderCrashes(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &alarms{}, consumer.Config{CreateTopics: 2, CommitInterval: 7 * time.Millisecond, FlushInterval: time.Second, SessionTimeout: 6 * time.Second})
		want := make(map[string]int)
		for i := range 14 {
			for j := range 30 {
				key := fmt.Sprintf("k%d-%d", i, j)
				setTimer(c, key, time.Duration(j*17)*time.Millisecond)
				want[key] = 1
			}
			c.Advance(time.Duration(20+23*i) * time.Millisecond)
			if i%5 == 4 { // another takes over
				c.StartProcess(fmt.Sprintf("q%d", i))
				c.Advance(100 * time.Millisecond)
			}
			c.Crash("p1")
			c.Restart("p1")
		}
		c.Settle()
		c.Advance(time.Minute)
		c.Settle()
		if got := fired(t, c); !maps.Equal(got, want) {
			t.Errorf("%d timers have fired, want %d, each once", len(got), len(want))
		}
		got := make(map[string]int)
		for _, id := range []consumer.ShardID{"words-000", "words-001"} {
			c.View(id, func(tx *store.Transaction) {
				for k, n := range fires.All(tx) {
					got[k] += int(n)
				}
			})
		}
		if !maps.Equal(got, want) {
			t.Errorf("the state counts %d timers, want %d, each once", len(got), len(want))
		}
	})
}

// A timer that fails is treated as a message is: the policy is applied to it
// alone, and the others, and messages, go on.
func TestTimerThatFails(t *testing.T) {
	for policy, test := range map[consumer.OnFailure]struct{ dropped, dead float64 }{
		consumer.Skip: {1, 0}, consumer.DeadLetter: {0, 1},
	} {
		t.Run(string(policy), func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				a := &alarms{fail: func(key string) error {
					if key == "bad" {
						panic("refused")
					}
					return nil
				}}
				c := consumertest.Start(t, a, consumer.Config{OnFailure: policy})
				c.Settle()
				release := c.Hold("p1", "Fetch")
				for _, k := range []string{"a", "b", "bad", "c", "d"} {
					setTimer(c, k, time.Second)
				}
				release()
				c.Settle()
				c.Advance(5 * time.Second)
				if got, want := fired(t, c), map[string]int{"a": 1, "b": 1, "c": 1, "d": 1}; !maps.Equal(got, want) {
					t.Errorf("%v have fired, want %v", got, want)
				}
				if d, l := c.Metric("p1", "pawl_dropped_total"), c.Metric("p1", "pawl_dead_letters_total"); d != test.dropped || l != test.dead {
					t.Errorf("%v are dropped and %v dead-lettered, want %v and %v", d, l, test.dropped, test.dead)
				}
				if policy == consumer.DeadLetter {
					letters := consumertest.CommittedEnvelopes(c, topic.Bytes("test.words.dlq"))
					if len(letters) != 1 || string(letters[0].Key) != "bad" {
						t.Errorf("dead letters are %v", letters)
					}
				}
				c.Advance(time.Minute)
				if n := c.Metric("p1", "pawl_failed_messages_total"); n != 2 {
					t.Errorf("the timer has failed %v times, want 2: with others and alone", n)
				}
			})
		})
	}
}

// A timer whose error is transient is tried again, with longer and longer pauses,
// and messages are consumed meanwhile.
func TestTimerIsRetried(t *testing.T) {
	virtually(t, func(t *testing.T) {
		tries := 0
		a := &alarms{fail: func(string) error {
			if tries++; tries < 5 {
				return consumer.Transient(errors.New("not now"))
			}
			return nil
		}}
		c := consumertest.Start(t, a, consumer.Config{})
		setTimer(c, "k", time.Second)
		c.Settle()
		c.Advance(1100 * time.Millisecond)
		setTimer(c, "other", time.Hour) // in the back-off
		c.Settle()
		c.Advance(20 * time.Second)
		if got := fired(t, c); !maps.Equal(got, map[string]int{"k": 1}) || tries != 5 {
			t.Errorf("%v have fired after %d tries", got, tries)
		}
	})
}

// A timer that fails for good stops its shard, which says so.
func TestTimerStopsTheShard(t *testing.T) {
	virtually(t, func(t *testing.T) {
		a := &alarms{fail: func(string) error { return errors.New("never") }}
		c := consumertest.Start(t, a, consumer.Config{})
		setTimer(c, "k", time.Second)
		c.Settle()
		c.Until("the shard to fail", func() bool { return c.Status("p1").Shards[0].Phase == consumer.Failed })
		if why := c.Status("p1").Shards[0].Reason; !strings.Contains(why, `timer of key "k"`) || !strings.Contains(why, "never") {
			t.Errorf("the reason is %q", why)
		}
	})
}

// Messages and timers take turns: a shard that always has messages fires its
// timers, and timers that set themselves anew at once do not keep messages out.
func TestTimersAndMessagesTakeTurns(t *testing.T) {
	virtually(t, func(t *testing.T) {
		a := &alarms{}
		b := &perpetual{alarms: a}
		c := consumertest.Start(t, b, consumer.Config{})
		setTimer(c, "again", 0)
		c.Settle()
		for range 50 {
			setTimer(c, "far", time.Hour)
			c.Advance(10 * time.Millisecond)
		}
		if got := c.Metric("p1", "pawl_messages_total"); got < 45 {
			t.Errorf("%v messages were consumed beside a timer that is always due, want 51", got)
		}
		if got := fired(t, c)["again"]; got < 20 {
			t.Errorf("the timer has fired %d times in half a second", got)
		}
	})
}

type perpetual struct{ *alarms }

func (p *perpetual) Fire(key []byte, at time.Time, s consumer.Shard, pub *topic.Publisher) error {
	if err := p.alarms.Fire(key, at, s, pub); err != nil {
		return err
	}
	return s.Transaction().SetTimer(key, at)
}

// Direct writes are seen at once, are committed without any message, survive
// crashes once Sync has returned, and are not lost with a transaction that aborts.
func TestDirectWrites(t *testing.T) {
	virtually(t, func(t *testing.T) {
		shards := make(chan consumer.Shard, 10)
		p := &program{init: func(s consumer.Shard) error { shards <- s; return nil }, before: func(e topic.Envelope, s consumer.Shard) error {
			if string(e.Key) == "bad" {
				if err := s.Database().Put([]byte("within"), []byte("w"), s.WriteOptions()); err != nil {
					return err
				}
				return errors.New("refused")
			}
			return nil
		}}
		c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.Skip})
		s := <-shards
		c.Settle()
		if err := s.Database().Put([]byte("k"), []byte("v"), nil); err != nil {
			t.Fatal(err)
		}
		if v, ok, err := s.Database().Get([]byte("k")); string(v) != "v" || !ok || err != nil {
			t.Errorf("a direct write is read as %q, %v, %v", v, ok, err)
		}
		if err := s.Database().Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		send(c, "a", "bad", "a")
		c.Settle()
		c.Advance(time.Second)
		c.Crash("p1")
		c.Restart("p1")
		c.Settle()
		checkExact(t, c, map[string]int{"a": 2})
		c.View("words-000", func(tx *store.Transaction) {
			for k, want := range map[string]string{"k": "v", "within": "w"} {
				if v, _, err := tx.Get([]byte(k)); string(v) != want || err != nil {
					t.Errorf("%s is %q, %v after a crash, want %q", k, v, err, want)
				}
			}
		})
		if err := s.Database().Put([]byte("x"), nil, nil); err == nil {
			t.Error("a direct write to a shard that has ended is taken")
		}
	})
}

// A flood of direct writes delays neither messages, nor timers, nor a drain.
func TestFloodOfDirectWrites(t *testing.T) {
	virtually(t, func(t *testing.T) {
		shards := make(chan consumer.Shard, 10)
		a := &alarms{program: program{init: func(s consumer.Shard) error { shards <- s; return nil }}}
		c := consumertest.Start(t, a, consumer.Config{})
		s := <-shards
		c.Settle()
		c.Delay("p1", time.Millisecond) // so that some come while others are committed
		ended := make(chan error, 1)
		go func() {
			for i := 0; ; i++ {
				if err := s.Database().Put(fmt.Append(nil, "direct-", i%100), fmt.Append(nil, i), nil); err != nil {
					ended <- err
					return
				}
				time.Sleep(500 * time.Microsecond) // virtual, and less than any pause between commits
			}
		}()
		want := make(map[string]int)
		for i := range 20 {
			key := fmt.Sprint("timer-", i)
			setTimer(c, key, time.Duration(i%2)*50*time.Millisecond)
			want[key] = 1
			c.Advance(20 * time.Millisecond)
		}
		c.Advance(200 * time.Millisecond)
		if got := fired(t, c); !maps.Equal(got, want) {
			t.Errorf("%d timers of %d have fired", len(got), len(want))
		}
		for _, line := range consumertest.Committed(c, lines) {
			_, late, _ := strings.Cut(line, "late ")
			if d, err := time.ParseDuration(late); err != nil || d > 100*time.Millisecond {
				t.Errorf("%s (%v): want at most 100ms", line, err)
			}
		}
		begun := time.Now()
		if err := c.Stop("p1"); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("the drain takes %v, want at most 1s", took)
		}
		if err := <-ended; !errors.Is(err, store.ErrFenced) {
			t.Errorf("the direct writes end with %v, want %v", err, store.ErrFenced)
		}
	})
}

// A direct write that the broker refuses harms no message: the shard says so, and
// goes on without it; whoever waits for it is told.
func TestDirectWriteThatIsRefused(t *testing.T) {
	virtually(t, func(t *testing.T) {
		shards := make(chan consumer.Shard, 10)
		c := consumertest.Start(t, &program{init: func(s consumer.Shard) error { shards <- s; return nil }}, consumer.Config{OnFailure: consumer.DeadLetter})
		s := <-shards
		c.Settle()
		c.SetTopic("test.words.changelog", "max.message.bytes", "5000")
		if err := s.Database().Put([]byte("k"), make([]byte, 10_000), nil); err != nil {
			t.Fatal(err)
		}
		if err := s.Database().Sync(t.Context()); err == nil {
			t.Error("a write that is refused is synced")
		}
		send(c, "a", "b", "a")
		c.Settle()
		checkExact(t, c, map[string]int{"a": 2, "b": 1})
		if got := c.Metric("p1", "pawl_dead_letters_total"); got != 0 {
			t.Errorf("%v messages are dead-lettered for it", got)
		}
	})
}

var sessions = store.NewTable("ttl-sessions", store.String, store.Int64, store.TTL(10*time.Minute))

// An entry that has outlived its TTL is gone from reads at once, and from the
// changelog and from restored copies soon.
func TestTTL(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := &program{
			consume: func(e topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
				_, err := sessions.Update(s.Transaction(), string(e.Key), func(n int64) int64 { return n + 1 })
				return err
			},
		}
		c := consumertest.Start(t, p, consumer.Config{})
		send(c, "a", "b")
		c.Settle()
		c.Advance(6 * time.Minute)
		send(c, "b")
		c.Settle()
		held := func() map[string]int {
			got := make(map[string]int)
			c.View("words-000", func(tx *store.Transaction) {
				for k, n := range sessions.All(tx) {
					got[k] = int(n)
				}
			})
			return got
		}
		if got, want := held(), map[string]int{"a": 1, "b": 2}; !maps.Equal(got, want) {
			t.Errorf("the table holds %v, want %v", got, want)
		}
		c.Advance(5 * time.Minute)
		if got, want := held(), map[string]int{"b": 2}; !maps.Equal(got, want) {
			t.Errorf("after the TTL of a the table holds %v, want %v", got, want)
		}
		c.Advance(2 * time.Minute)    // a sweep's interval
		last := make(map[string]bool) // of the changelog: whether a key's last record is one that is there
		for _, e := range consumertest.CommittedEnvelopes(c, topic.Bytes("test.words.changelog")) {
			last[string(e.Key)] = e.Value != nil
		}
		for k, there := range last {
			if strings.Contains(k, "ttl-sessions") && there != strings.HasSuffix(k, "b") {
				t.Errorf("key %q of the changelog: there %v", k, there)
			}
		}
		c.Advance(20 * time.Minute)
		if got := held(); len(got) != 0 {
			t.Errorf("the table holds %v, want nothing", got)
		}
	})
}

// sweeper removes raw keys that begin with x, and rewrites those that begin with y.
type sweeper struct{ program }

func (*sweeper) Consume(e topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
	return s.Transaction().Put(e.Key, e.Value)
}

func (*sweeper) Filter(_ int, key, val []byte) (bool, []byte) {
	if key[0] == 'y' && string(val) != "new" {
		return false, []byte("new")
	}
	return key[0] == 'x', nil
}

// What a Filter removes or rewrites leaves reads, changelog and restored copies.
func TestFilter(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &sweeper{}, consumer.Config{})
		var keys []string
		for i := range 1200 {
			keys = append(keys, fmt.Sprintf("%c%d", "wxy"[i%3], i))
		}
		send(c, keys...)
		c.Settle()
		c.Advance(3 * time.Minute)
		c.Settle()
		check := func(id consumer.ShardID) {
			n := 0
			c.View(id, func(tx *store.Transaction) {
				for k, v := range tx.Scan(nil) {
					n++
					if want := map[bool]string{true: "new", false: string(k)}[k[0] == 'y']; k[0] == 'x' || string(v) != want {
						t.Errorf("key %q is %q", k, v)
					}
				}
			})
			if n != 800 {
				t.Errorf("%d keys are there, want 800", n)
			}
		}
		check("words-000")
		c.Crash("p1")
		c.StartProcess("p2") // from the changelog alone
		c.Until("the other to take over", func() bool { return len(runningIn(c, "p2")) == 1 })
		check("words-000")
		commits := c.Status("p2").Shards[0].Commits
		c.Advance(10 * time.Minute)
		if got := c.Status("p2").Shards[0].Commits; got != commits {
			t.Errorf("sweeps that change nothing have committed %d times", got-commits)
		}
	})
}

// A unit test moves the clock by itself.
func TestShardKitAdvance(t *testing.T) {
	s := consumertest.NewShard(t, &kitAlarms{})
	s.Consume(words, "k", "1h")
	s.Advance(59 * time.Minute)
	if got := consumertest.Published(s, lines); len(got) != 0 {
		t.Errorf("after 59m %q is published", got)
	}
	s.Advance(2 * time.Minute)
	if got := consumertest.Published(s, lines); len(got) != 1 || got[0] != "k" {
		t.Errorf("after 61m %q is published, want k", got)
	}
	s.Consume(words, "bad", "1m")
	var failed *consumer.TimerError
	if err := s.TryAdvance(time.Hour); !errors.As(err, &failed) || string(failed.Key) != "bad" {
		t.Errorf("a timer that fails: %v", err)
	}
}

type kitAlarms struct{ alarms }

func (*kitAlarms) Fire(key []byte, _ time.Time, _ consumer.Shard, p *topic.Publisher) error {
	if string(key) == "bad" {
		return errors.New("refused")
	}
	return lines.Publish(p, string(key))
}

// The dead letter of a timer that can't be written stops the shard, which backs
// off, and says both: it is not tried again and again at once.
func TestDeadLetterOfATimerIsRefused(t *testing.T) {
	virtually(t, func(t *testing.T) {
		a := &alarms{fail: func(string) error { return errors.New("refused") }}
		c := consumertest.Start(t, a, consumer.Config{OnFailure: consumer.DeadLetter})
		setTimer(c, "k", time.Second)
		c.Settle()
		c.DeleteTopic("test.words.dlq")
		c.Until("the shard to fail", func() bool { return c.Status("p1").Shards[0].Phase == consumer.Failed })
		if why := c.Status("p1").Shards[0].Reason; !strings.Contains(why, "test.words.dlq") || !strings.Contains(why, `timer of key "k"`) {
			t.Errorf("the reason is %q", why)
		}
		c.Until("the timer to be dead-lettered, to a topic made anew", func() bool { return c.Metric("p1", "pawl_dead_letters_total") == 1 })
	})
}

// A timer that failed, and is cancelled before the policy is applied to it, is
// gone, and no other in its place.
func TestFailedTimerIsCancelled(t *testing.T) {
	virtually(t, func(t *testing.T) {
		a := &alarms{}
		started, held := make(chan struct{}, 10), make(chan struct{})
		a.fail = func(key string) error {
			if key == "bad" {
				started <- struct{}{}
				<-held
				return errors.New("refused")
			}
			return nil
		}
		c := consumertest.Start(t, a, consumer.Config{OnFailure: consumer.Skip})
		setTimer(c, "bad", time.Second)
		c.Settle()
		<-started
		setTimer(c, "bad", -1) // is consumed before the timer is skipped, or after
		setTimer(c, "good", 0)
		c.Advance(time.Second)
		close(held)
		c.Settle()
		c.Advance(time.Minute)
		if got := fired(t, c); !maps.Equal(got, map[string]int{"good": 1}) {
			t.Errorf("%v have fired, want good once", got)
		}
	})
}

// adder adds up numbers by Merge.
type adder struct{ program }

func (*adder) InitOptions(o *store.Options) {
	o.Merge = func(_, val, operand []byte) ([]byte, error) {
		return fmt.Appendf(nil, "%d", atoi(val)+atoi(operand)), nil
	}
}

func atoi(b []byte) (n int) {
	for _, c := range b {
		n = n*10 + int(c-'0')
	}
	return n
}

func (*adder) Consume(e topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
	return s.Transaction().Merge(e.Key, e.Value)
}

// What Merge adds is added once, under crashes, and what is logged is the value.
func TestMergeUnderCrashes(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &adder{}, consumer.Config{CommitInterval: 7 * time.Millisecond, FlushInterval: time.Second})
		want := make(map[string]int)
		for i := range 8 {
			for j := range 25 {
				key := fmt.Sprintf("k%d", j%4)
				consumertest.PublishKeyed(c, words, key, fmt.Sprint(i+j))
				want[key] += i + j
			}
			c.Advance(time.Duration(3+5*i) * time.Millisecond)
			c.Crash("p1")
			c.Restart("p1")
		}
		c.Settle()
		got := make(map[string]int)
		c.View("words-000", func(tx *store.Transaction) {
			for k, v := range tx.Scan(nil) {
				got[string(k)] = atoi(v)
			}
		})
		if !maps.Equal(got, want) {
			t.Errorf("sums are %v, want %v", got, want)
		}
	})
}

// The program of the example, tested without a broker and without a day's wait.
func TestReminder(t *testing.T) {
	s := consumertest.NewShard(t, reminder{})
	s.Consume(words, "milk", "")
	s.Advance(23 * time.Hour)
	if got := consumertest.Published(s, lines); len(got) != 0 {
		t.Errorf("an hour early it published %q", got)
	}
	s.Advance(time.Hour)
	if got, want := consumertest.Published(s, lines), []string{"remember milk"}; !slices.Equal(got, want) {
		t.Errorf("a day later it has published %q, want %q", got, want)
	}
}
