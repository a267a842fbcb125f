package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/topic"
)

// remade deletes the input and makes it anew.
func (b *bench) remade(partitions int) {
	b.t.Helper()
	b.DeleteTopic("work")
	b.CreateTopic(work, partitions)
}

// An input that is deleted and made anew while the queue runs is read from its
// beginning, by itself, however much was settled of the one before and in what
// order; a late ack is refused, and it is said once.
func TestInputMadeAnew(t *testing.T) {
	for _, away := range []time.Duration{0, time.Minute} { // for longer than it takes the group to see that the topic is not there
		t.Run(fmt.Sprint("away for ", away), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 3)
				log, k := newLogged(t), newKeep()
				b.work("p1", messaging.Config{Order: messaging.Unordered, Logger: log.logger}, func(ctx context.Context, d messaging.Delivery) error {
					if strings.HasPrefix(string(d.Value()), "held") {
						return k.handle(ctx, d)
					}
					return nil
				})
				b.running(3, "p1")
				for p := range int32(3) {
					b.publish(p, "k", numbers(fmt.Sprintf("old%d-", p), 10)...)
				}
				b.publish(0, "k", "held")
				b.publish(0, "k", numbers("out of order", 10)...)
				b.Advance(5 * time.Second)
				b.forget()
				if away == 0 {
					b.remade(3)
				} else {
					b.DeleteTopic("work")
					b.Advance(away)
					b.CreateTopic(work, 3)
				}
				var want []string
				for p := range int32(3) {
					vs := numbers(fmt.Sprintf("new%d-", p), 30)
					b.publish(p, "k", vs...)
					want = append(want, vs...)
				}
				b.Advance(time.Minute)
				b.idle("p1")
				got := b.order()
				slices.Sort(got)
				slices.Sort(want)
				if !slices.Equal(got, want) {
					t.Errorf("handled %d messages %q, want the %d of the new topic, once each", len(got), got, len(want))
				}
				if err := k.get("held").Ack(); !errors.Is(err, messaging.ErrFenced) {
					t.Errorf("ack of a message of the topic that is gone: %v, want ErrFenced", err)
				}
				b.unready("p1")
				b.Advance(5 * time.Second)
				if c := b.committed(); c[0] != 30 || c[1] != 30 || c[2] != 30 {
					t.Errorf("committed %v, want 30 of each partition", c)
				}
				if away > 0 {
					return // the partitions were revoked and assigned again
				}
				if n := b.stats("p1").Recreated; n != 3 || !log.has("deleted, and made anew", "topics=[work]", "partitions=3") {
					t.Errorf("%d partitions are counted to have begun anew, want 3, with a line in the log", n)
				}
			})
		})
	}
}

// What was committed of a topic that was deleted and made anew while no process
// ran settles nothing of the new one, where brokers keep it. Of what is gone the
// decision about offsets out of range holds. What has no ID in it is trusted, as
// is what a tool has set.
func TestInputMadeAnewWhileNobodyRuns(t *testing.T) {
	p := topic.Partition{Topic: "work"}
	for _, tt := range []struct {
		name  string
		cfg   messaging.Config
		reset bool
		want  []string // nil: an error
	}{
		{"earliest", messaging.Config{}, false, numbers("new", 30)},
		{"latest", messaging.Config{OnOffsetOutOfRange: messaging.GoToLatest}, false, []string{"last"}},
		{"fail", messaging.Config{OnOffsetOutOfRange: messaging.Fail}, false, nil},
		{"reset by a tool", messaging.Config{}, true, numbers("new", 30)[11:]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1)
				log, k := newLogged(t), newKeep()
				b.work("p1", messaging.Config{Order: messaging.Unordered}, func(ctx context.Context, d messaging.Delivery) error {
					if string(d.Value()) == "old11" {
						return k.handle(ctx, d)
					}
					return nil
				})
				b.publish(0, "k", numbers("old", 20)...)
				b.Until("a commit", func() bool { return b.committed()[0] == 11 })
				b.Advance(time.Second)
				offset, text := b.committed()[0], consumertest.GroupMetadata(b.Cluster, "test.worker")[p]
				if err := b.Stop("p1"); err != nil {
					t.Fatal(err)
				}
				b.remade(1)
				b.publish(0, "k", numbers("new", 30)...)
				if tt.reset {
					text = ""
				}
				consumertest.SetGroupOffset(b.Cluster, "test.worker", p, offset, text)
				b.forget()
				tt.cfg.Order, tt.cfg.Logger = messaging.ByPartition, log.logger
				b.work("p2", tt.cfg, nil)
				if tt.want == nil {
					if err := b.Wait("p2"); err == nil || !strings.Contains(err.Error(), "topic work was deleted, and made anew") {
						t.Errorf("run: %v, want an error that says that the topic was made anew", err)
					}
					return
				}
				b.running(1, "p2")
				if tt.want[0] == "last" {
					b.publish(0, "k", "last")
				}
				b.idle("p2")
				if got := b.order(); !slices.Equal(got, tt.want) {
					t.Errorf("handled %q, want %q", got, tt.want)
				}
				said := log.has("what was committed is of a topic that was deleted", "offset=11", "partition=work-0")
				if n := b.stats("p2").Recreated; said == tt.reset || n == 1 == tt.reset {
					t.Errorf("said %v, and %d partitions counted", said, n)
				}
			})
		})
	}
}

// A delay topic that is deleted and made anew while messages wait in it: those
// that were read of it are written to the new one, and handled when they are due;
// those that were not are gone, and hold back nothing; and retries go on.
func TestDelayTopicMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		cfg := messaging.Config{Retry: messaging.Retry{InPlace: 1, Tiers: []time.Duration{2 * time.Minute}}}
		b.work("p1", cfg, failing(b, "bad", 1))
		b.running(1, "p1")
		for i := range 5 {
			b.publish(0, fmt.Sprint("k", i), fmt.Sprint("bad", i), fmt.Sprint("behind", i))
		}
		b.Advance(20 * time.Second)
		b.DeleteTopic("test.worker.retry.1")
		b.Advance(5 * time.Second)
		b.publish(0, "k0", "amid")
		b.publish(0, "other", "bad5")
		b.Advance(5 * time.Second)
		b.CreateTopic(topic.Bytes("test.worker.retry.1").With(topic.Configured("retention.ms", "604800000")), 1)
		b.Advance(10 * time.Minute)
		b.idle("p1")
		got := b.values()
		for i := range 6 {
			if got[fmt.Sprint("bad", i)] != 2 {
				t.Errorf("bad%d was handled %d times, want 2", i, got[fmt.Sprint("bad", i)])
			}
		}
		for _, v := range append(numbers("behind", 5), "amid") {
			if got[v] != 1 {
				t.Errorf("%s was handled %d times, want once", v, got[v])
			}
		}
		order := b.order()
		if slices.Index(order, "behind0") < lastIndex(order, "bad0") || slices.Index(order, "amid") < slices.Index(order, "behind0") {
			t.Errorf("handled %q, want the messages of k0 in their order", order)
		}
		b.unready("p1")
		if n := b.stats("p1").Recreated; n != 1 {
			t.Errorf("%d partitions are counted to have begun anew, want 1", n)
		}
	})
}

func lastIndex(vs []string, v string) int {
	for i := len(vs) - 1; i >= 0; i-- {
		if vs[i] == v {
			return i
		}
	}
	return -1
}

// inputMadeAnew has the input deleted and made anew under two programs.
func inputMadeAnew(s *stage) {
	k := s.desk()
	handle := func(ctx context.Context, d messaging.Delivery) error {
		if strings.HasPrefix(string(d.Value()), "held") {
			return k.handle(ctx, d)
		}
		return nil
	}
	cfg := messaging.Config{Order: messaging.Unordered, TopicsInterval: 500 * time.Millisecond}
	for n := range s.partitions {
		s.publish(n, "k", fmt.Sprint("held", n))
		s.publish(n, "k", numbers(fmt.Sprintf("old%d-", n), 20)...)
	}
	s.start("p1", cfg, handle)
	s.start("p2", cfg, handle)
	s.until("the old ones to be handled", func() bool { return len(s.values()) == 21*int(s.partitions) })
	s.forget()
	s.ask("delete the input", func(ctx context.Context) error { return s.admin.DeleteTopics(ctx, s.work.Name()) })
	s.until("the input to be gone", func() bool {
		there := true
		s.ask("look up the input", func(ctx context.Context) error {
			infos, err := s.admin.Topics(ctx, s.work.Name())
			_, there = infos[s.work.Name()]
			return err
		})
		return !there
	})
	s.create(s.work.Name(), int(s.partitions))
	var want []string
	for n := range s.partitions {
		vs := numbers(fmt.Sprintf("new%d-", n), 30)
		s.publish(n, "k", vs...)
		want = append(want, vs...)
	}
	s.idle()
	s.came(want)
	for n := range s.partitions {
		if err := k.get(fmt.Sprint("held", n)).Ack(); !errors.Is(err, messaging.ErrFenced) {
			s.t.Errorf("ack of a message of the topic that is gone: %v, want ErrFenced", err)
		}
	}
}

// What is committed goes back with a topic that is made anew: so no account of it
// is kept.
func TestInputMadeAnewOnKafka(t *testing.T) {
	if os.Getenv("PAWL_TEST_KAFKA") == "" {
		t.Skip("PAWL_TEST_KAFKA names no Kafka to test on") // make kafka-test starts one
	}
	brokers := strings.Split(os.Getenv("PAWL_TEST_KAFKA"), ",")
	inputMadeAnew(newStage(t, place{
		cluster: func(string) cluster.Cluster { return cluster.Cluster{Brokers: brokers} },
		calm:    true, shared: true, patience: time.Minute, slack: time.Second, look: time.Second,
	}, 4))
}

func TestInputMadeAnewUnderTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := consumertest.NewCluster(t)
		inputMadeAnew(newStage(t, place{cluster: c.Host, calm: true, patience: 5 * time.Minute, slack: time.Second, look: time.Second}, 4))
	})
}

// With all topics of a queue made anew at once, in whatever order it is found
// out, retries and dead letters go on with the new ones.
func TestAllTopicsMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		cfg := messaging.Config{Retry: messaging.Retry{InPlace: 1, Tiers: []time.Duration{20 * time.Second}}}
		b.work("p1", cfg, failing(b, "bad", 2))
		b.running(2, "p1")
		for p := range int32(2) {
			b.publish(p, "k", "bad", "m", "last")
			b.publish(p, "o", "o")
		}
		b.Advance(time.Minute)
		b.publish(0, "k", "bad") // which waits in the delay topic as it goes
		b.Advance(5 * time.Second)
		if n := b.stats("p1").DeadLetters[messaging.ReasonFailed]; n != 2 {
			t.Fatalf("%d dead letters, want 2", n)
		}
		b.forget()
		names := []string{"work", "test.worker.retry.1", "test.worker.redrive", "test.worker.dlq"}
		for _, name := range names {
			b.DeleteTopic(name)
		}
		for _, name := range names {
			b.CreateTopic(topic.Bytes(name).With(topic.Configured("retention.ms", "2592000000")), 2)
		}
		for p := range int32(2) {
			b.publish(p, "n", "bad-new", "behind", "end")
		}
		b.Advance(3 * time.Minute)
		b.idle("p1")
		b.unready("p1")
		got := b.values()
		if got["bad-new"] != 4 || got["behind"] != 2 || got["end"] != 2 || got["bad"] != 1 {
			t.Errorf("handled %v, want each of the new topic, two attempts at bad-new, and the last attempt at the one that waited", got)
		}
		if ls := consumertest.CommittedEnvelopes(b.Cluster, letters); len(ls) != 3 {
			t.Errorf("%d dead letters in the topic that was made anew, want 3", len(ls))
		}
	})
}
