package consumer_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// prefetching is a program that reads ahead, and whose tables keep next to nothing
// at hand.
type prefetching struct {
	program
	fail func(n int) error // at the call of Prefetch with this number

	mu struct {
		sync.Mutex
		calls, least, messages int
	}
}

func (p *prefetching) InitOptions(o *store.Options) { o.TableCache = 1 << 10 }

func (p *prefetching) Prefetch(es []topic.Envelope, s consumer.Shard) error {
	p.mu.Lock()
	p.mu.calls++
	n := p.mu.calls
	p.mu.messages += len(es)
	if p.mu.least == 0 || len(es) < p.mu.least {
		p.mu.least = len(es)
	}
	p.mu.Unlock()
	keys := make([]string, len(es))
	for i, e := range es {
		if e.Partition != es[0].Partition || i > 0 && e.Offset <= es[i-1].Offset {
			return fmt.Errorf("message %d is %d@%d, after %d@%d", i, e.Partition, e.Offset, es[0].Partition, es[0].Offset)
		}
		keys[i] = string(e.Key)
	}
	if err := counts.Prefetch(s.Transaction(), keys); err != nil {
		return err
	}
	if p.fail != nil {
		return p.fail(n)
	}
	return nil
}

func (p *prefetching) seen() (calls, least, messages int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.calls, p.mu.least, p.mu.messages
}

// manyWords returns words of which many differ, and some come again.
func manyWords(r *rand.Rand, n int) []string {
	msgs := make([]string, n)
	for i := range msgs {
		msgs[i] = fmt.Sprintf("w%03d", r.IntN(400))
	}
	return msgs
}

// With reading ahead and without, with errors and panics of it, and crashes at any
// moment: the state is the same, and so is the output, which is that of each
// message once.
func TestPrefetchChangesNothing(t *testing.T) {
	for _, seed := range []uint64{1, 2, 3} {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			states := make(map[string]map[string]int)
			for name, p := range map[string]*prefetching{
				"ahead": {},
				"fails": {fail: func(n int) error {
					switch n % 4 {
					case 1:
						return errors.New("no keys")
					case 2:
						panic("no keys")
					}
					return nil
				}},
				"plain": nil,
			} {
				t.Run(name, func(t *testing.T) {
					virtually(t, func(t *testing.T) {
						var app consumer.Consumer = &program{}
						if p != nil {
							app = p
						}
						r := rand.New(rand.NewPCG(seed, 0))
						c := consumertest.Start(t, app, consumer.Config{CreateTopics: 2, CommitInterval: 7 * time.Millisecond, FlushInterval: time.Second})
						var sent []string
						for range 10 {
							msgs := manyWords(r, 150)
							send(c, msgs...)
							sent = append(sent, msgs...)
							c.Advance(time.Duration(1+r.IntN(80)) * time.Millisecond)
							c.Crash("p1")
							c.Restart("p1")
						}
						c.Settle()
						checkExact(t, c, countOf(sent))
						all := stored(c, "words-000")
						for k, n := range stored(c, "words-001") {
							all[k] += n
						}
						states[name] = all
						if p == nil {
							return
						}
						if calls, least, messages := p.seen(); calls == 0 || least < 2 || messages == 0 {
							t.Errorf("seed %d: Prefetch was called %d times, with %d messages at least", seed, calls, least)
						}
					})
				})
			}
			for _, name := range []string{"ahead", "fails"} {
				if d := cmp.Diff(states["plain"], states[name]); d != "" {
					t.Errorf("seed %d: the state of %q differs from the plain one (-plain +%[2]s):\n%s", seed, name, d)
				}
			}
		})
	}
}

// What fails is the message, not those that were read ahead with it: it is found
// as without, and never read ahead for by itself. What Prefetch fails with is
// counted, and no message's.
func TestPrefetchBeforeAMessageThatFails(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := &prefetching{fail: func(n int) error {
			if n%2 == 1 {
				return errors.New("no keys")
			}
			return nil
		}}
		p.after = func(e topic.Envelope, _ consumer.Shard) error {
			if string(e.Key) == "bad" {
				return errors.New("refused")
			}
			return nil
		}
		c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.DeadLetter})
		release := c.Hold("p1", "Fetch")
		msgs := append(append(repeated(20, "a", "b", "c"), "bad"), repeated(20, "a", "b", "c")...)
		send(c, msgs...)
		release()
		c.Settle()
		want := countOf(msgs)
		delete(want, "bad")
		checkExact(t, c, want)
		checkStored(t, c, "words-000", want)
		if letters := consumertest.CommittedEnvelopes(c, topic.Bytes("test.words.dlq")); len(letters) != 1 || string(letters[0].Key) != "bad" {
			t.Errorf("%d dead letters, want one, of the message that fails", len(letters))
		}
		calls, least, _ := p.seen()
		if calls == 0 || least < 2 {
			t.Errorf("Prefetch was called %d times, with %d messages at least, want 2", calls, least)
		}
		if got := c.Metric("p1", "pawl_prefetch_failures_total"); got < 1 {
			t.Errorf("%v failures of Prefetch are counted, want 1 at least", got)
		}
	})
}

// Prefetch can write nothing and publish nothing, and what it tried leaves no
// trace.
func TestPrefetchOnlyReads(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := &prefetching{}
		var mu sync.Mutex
		var pub *topic.Publisher
		var sh consumer.Shard
		var got []error
		p.consume = func(e topic.Envelope, s consumer.Shard, pb *topic.Publisher) error {
			mu.Lock()
			pub, sh = pb, s
			mu.Unlock()
			return countLine(e, s, pb)
		}
		p.fail = func(int) error {
			mu.Lock()
			defer mu.Unlock()
			if pub == nil {
				return nil
			}
			_, update := counts.Update(sh.Transaction(), "x", func(int64) int64 { return 99 })
			got = []error{update, counts.Put(sh.Transaction(), "x", 99), sh.Transaction().Put([]byte("x"), nil),
				sh.Transaction().SetTimer([]byte("x"), time.Now()), lines.Publish(pub, "x=1@0/0")}
			return nil
		}
		c := consumertest.Start(t, p, consumer.Config{})
		sent := sendTwenties(c, 2)
		checkExact(t, c, countOf(sent))
		checkStored(t, c, "words-000", countOf(sent))
		mu.Lock()
		defer mu.Unlock()
		if len(got) != 5 {
			t.Fatalf("Prefetch tried %d writes, want 5", len(got))
		}
		for i, err := range got[:4] {
			if !errors.Is(err, store.ErrReadOnly) {
				t.Errorf("write %d of Prefetch = %v, want ErrReadOnly", i, err)
			}
		}
		if !errors.Is(got[4], consumer.ErrOutsideCall) {
			t.Errorf("Publish of Prefetch = %v, want ErrOutsideCall", got[4])
		}
	})
}

// A Prefetch that ends its goroutine fails what it was called for, which comes
// again message by message, and does not come to it again at once.
func TestPrefetchThatEndsItsGoroutine(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := &prefetching{fail: func(int) error { runtime.Goexit(); return nil }}
		c := consumertest.Start(t, p, consumer.Config{OnFailure: consumer.DeadLetter})
		sent := sendTwenties(c, 6)
		checkExact(t, c, countOf(sent))
		if calls, _, _ := p.seen(); calls < 1 || calls > 3 {
			t.Errorf("Prefetch was called %d times, want it to rest", calls)
		}
	})
}

// A stop waits for a Prefetch, like for any call, and commits what came before it.
func TestStopWaitsForPrefetch(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := &prefetching{fail: func(int) error { time.Sleep(2 * time.Second); return nil }} // virtual time
		c := consumertest.Start(t, p, consumer.Config{})
		c.Settle()
		release := c.Hold("p1", "Fetch")
		send(c, repeated(20, "a", "b")...)
		release()
		c.Advance(time.Second)
		if err := c.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		c.Restart("p1")
		c.Settle()
		checkExact(t, c, map[string]int{"a": 10, "b": 10})
	})
}

// sendTwenties sends messages that are fetched twenty at a time, so many times, and
// returns what was sent.
func sendTwenties(c *consumertest.Cluster, times int) (sent []string) {
	for range times {
		msgs := repeated(20, "a", "b", "c")
		sendTogether(c, msgs...)
		sent = append(append(sent, "decoy"), msgs...)
	}
	return sent
}
