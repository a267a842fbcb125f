package messaging_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/topic"
)

// onKafka is a topic on a real Kafka, and workers on it. What runs on it is what
// a broker decides: groups, commits with metadata, transactions, moves. What
// runs in virtual time alone is delays of minutes and clocks that are set, which
// no test waits for, and faults of single requests, which a real broker does not
// make to order.
type onKafka struct {
	t     *testing.T
	cl    cluster.Cluster
	admin *kafka.Admin
	topic *topic.Description
	app   string

	mu    sync.Mutex
	calls []handled
}

// newOnKafka makes a topic. It skips the test where there is no Kafka.
func newOnKafka(t *testing.T, partitions int) *onKafka {
	t.Helper()
	addr := os.Getenv("PAWL_TEST_KAFKA")
	if addr == "" {
		t.Skip("PAWL_TEST_KAFKA names no Kafka to test on")
	}
	k := &onKafka{t: t, cl: cluster.Cluster{Brokers: strings.Split(addr, ",")}}
	k.app = fmt.Sprintf("m%d", time.Now().UnixNano())
	k.topic = topic.String(k.app + ".work").Description
	admin, err := kafka.NewAdmin(kafka.Config{Cluster: k.cl})
	if err != nil {
		t.Fatal(err)
	}
	k.admin = admin
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		all, err := admin.Topics(ctx)
		if err != nil {
			t.Error(err)
		}
		var mine []string
		for name := range all {
			if strings.HasPrefix(name, k.app+".") {
				mine = append(mine, name)
			}
		}
		if err := admin.DeleteTopics(ctx, mine...); err != nil {
			t.Error(err)
		}
		if err := admin.DeleteGroup(ctx, k.app+".worker"); err != nil {
			t.Error(err)
		}
		admin.Close()
	})
	if _, err := admin.CreateTopic(context.Background(), kafka.TopicSpec{Name: k.topic.Name(), Partitions: partitions}); err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *onKafka) publish(partition int32, key string, values ...string) {
	k.t.Helper()
	p, err := kafka.NewProducer(kafka.Config{Cluster: k.cl})
	if err != nil {
		k.t.Fatal(err)
	}
	defer p.Close()
	recs := make([]kafka.Record, len(values))
	for i, v := range values {
		recs[i] = kafka.Record{Topic: k.topic.Name(), Partition: partition, Key: []byte(key), Value: []byte(v)}
	}
	if err := p.Publish(context.Background(), recs...); err != nil {
		k.t.Fatal(err)
	}
}

// program is a worker that runs and can be stopped, or cut off.
type program struct {
	w    *messaging.Worker
	stop func() error
	cut  func()
}

func (k *onKafka) run(name string, cfg messaging.Config, h messaging.Handler) *program {
	k.t.Helper()
	var gone atomic.Bool
	var mu sync.Mutex
	var conns []net.Conn
	cfg.Cluster = k.cl
	cfg.Cluster.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if gone.Load() {
			return nil, errors.New("cut off")
		}
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, c)
		return c, err
	}
	cfg.Application, cfg.Consumer, cfg.Topic = k.app, "worker", k.topic.Name()
	cfg.Logger = slog.New(slog.DiscardHandler)
	w, err := messaging.New(cfg, func(ctx context.Context, d messaging.Delivery) error {
		k.mu.Lock()
		k.calls = append(k.calls, handled{name, string(d.Value()), string(d.Key()), d.Partition(), d.Offset(), d.Attempt(), time.Now()})
		k.mu.Unlock()
		return h(ctx, d)
	})
	if err != nil {
		k.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	p := &program{w: w}
	p.stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	p.cut = func() {
		gone.Store(true)
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	}
	k.t.Cleanup(func() {
		if err := p.stop(); err != nil && !gone.Load() {
			k.t.Errorf("%s: %v", name, err)
		}
	})
	return p
}

func (k *onKafka) values() map[string]int {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := make(map[string]int)
	for _, c := range k.calls {
		n[c.value]++
	}
	return n
}

// until waits, for a minute at most, asking the broker or the worker each time.
func (k *onKafka) until(what string, holds func() bool) {
	k.t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for !holds() {
		select {
		case <-again.C:
		case <-deadline.C:
			k.t.Fatalf("waited a minute for %s; handled %d", what, len(k.values()))
		}
	}
}

// settled says whether everything that was published is settled and committed.
func (k *onKafka) settled(ps ...*program) bool {
	for _, p := range ps {
		for _, st := range p.w.Stats().Partitions {
			if st.Backlog > 0 || st.Held > 0 || st.Phase != "running" {
				return false
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	committed, err := k.admin.Committed(ctx, k.app+".worker")
	if err != nil {
		k.t.Fatal(err)
	}
	infos, err := k.admin.Topics(ctx, k.topic.Name())
	if err != nil {
		k.t.Fatal(err)
	}
	var parts []topic.Partition
	for i := range infos[k.topic.Name()].Partitions {
		parts = append(parts, topic.Partition{Topic: k.topic.Name(), Number: int32(i)})
	}
	ends, err := k.admin.Offsets(ctx, kafka.End, parts...)
	if err != nil {
		k.t.Fatal(err)
	}
	for p, end := range ends {
		if committed[p].Offset != end {
			return false
		}
	}
	return true
}

// On a real Kafka: retries by tiers, in key order, dead letters, a redrive.
func TestKafkaRetryDeadLetterRedrive(t *testing.T) {
	k := newOnKafka(t, 2)
	cfg := messaging.Config{Retry: messaging.Retry{InPlace: 2, BackoffMin: time.Millisecond, BackoffMax: 10 * time.Millisecond, Tiers: []time.Duration{200 * time.Millisecond, 400 * time.Millisecond}}}
	var healed atomic.Bool
	p := k.run("p1", cfg, func(_ context.Context, d messaging.Delivery) error {
		if strings.HasPrefix(string(d.Value()), "bad") && !healed.Load() {
			return errNo
		}
		return nil
	})
	k.publish(0, "k", "a", "bad1", "b", "c")
	k.publish(1, "l", "bad2", "d")
	k.publish(0, "other", numbers("m", 200)...)
	k.until("everything to be settled", func() bool { return p.w.Stats().DeadLetters["failed"] == 2 && k.settled(p) })
	n := k.values()
	if n["bad1"] != 4 || n["bad2"] != 4 || n["b"] != 1 || n["d"] != 1 || n["m199"] != 1 {
		t.Errorf("handled %v", n)
	}
	var order []string
	k.mu.Lock()
	for _, c := range k.calls {
		if c.key == "k" {
			order = append(order, c.value)
		}
	}
	k.calls = nil
	k.mu.Unlock()
	if want := []string{"a", "bad1", "bad1", "bad1", "bad1", "b", "c"}; !slices.Equal(order, want) {
		t.Errorf("the key was handled in order %v, want %v", order, want)
	}
	healed.Store(true)
	l, err := messaging.OpenLetters(messaging.LettersConfig{Cluster: k.cl, Application: k.app, Consumer: "worker", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if res, err := l.Redrive(context.Background(), messaging.Query{}, messaging.Options{}); err != nil || res.Moved != 2 {
		t.Fatalf("redrive: %+v, %v; want 2 moved", res, err)
	}
	if res, err := l.Redrive(context.Background(), messaging.Query{}, messaging.Options{}); err != nil || res.Moved != 0 {
		t.Fatalf("a second redrive: %+v, %v; want none moved", res, err)
	}
	k.until("the letters to come back", func() bool { return len(k.values()) == 2 && k.settled(p) })
}

// On a real Kafka: a process that is cut off with acks out of order; only what
// was not settled at the last commit comes again.
func TestKafkaOutOfOrderAcksSurviveCrash(t *testing.T) {
	k := newOnKafka(t, 1)
	const n = 20_000
	held := newKeep()
	cfg := messaging.Config{Order: messaging.Unordered, MaxUnsettled: 2 * n, SessionTimeout: 6 * time.Second, DrainTimeout: 100 * time.Millisecond}
	p := k.run("p1", cfg, held.handle)
	k.publish(0, "k", numbers("m", n)...)
	k.until("all to be handed out", func() bool { return held.len() == n })
	want := make(map[string]int)
	for i := range n {
		v := fmt.Sprint("m", i)
		if i == 0 || i*7919%13 < 6 {
			want[v] = 1
			continue
		}
		if err := held.get(v).Ack(); err != nil {
			t.Fatal(err)
		}
	}
	k.until("a commit", func() bool {
		st := p.w.Stats().Partitions[0]
		all, err := k.admin.Committed(context.Background(), k.app+".worker")
		if err != nil {
			t.Fatal(err)
		}
		return st.Unsaved == 0 && len(all[topic.Partition{Topic: k.topic.Name()}].Metadata) > 3000
	})
	p.cut()
	if err := p.stop(); err != nil {
		t.Log(err)
	}
	k.mu.Lock()
	k.calls = nil
	k.mu.Unlock()
	p2 := k.run("p2", cfg, func(context.Context, messaging.Delivery) error { return nil })
	k.until("the rest to be handled", func() bool { return k.settled(p2) })
	if got := k.values(); !maps.Equal(got, want) {
		t.Errorf("%d messages came again, want %d", len(got), len(want))
	}
}

// On a real Kafka: members that join and leave under load redeliver nothing
// that was settled.
func TestKafkaMoves(t *testing.T) {
	k := newOnKafka(t, 4)
	ack := func(context.Context, messaging.Delivery) error { return nil }
	cfg := messaging.Config{DrainTimeout: time.Second}
	p1 := k.run("p1", cfg, ack)
	sent := 0
	for round := range 4 {
		for n := range int32(4) {
			k.publish(n, "k", numbers(fmt.Sprint("r", round, "p", n, "-"), 500)...)
			sent += 500
		}
		p2 := k.run("p2", cfg, ack)
		k.until("the partitions to be shared", func() bool {
			return len(p1.w.Stats().Partitions) == 2 && len(p2.w.Stats().Partitions) == 2
		})
		if err := p2.stop(); err != nil {
			t.Fatal(err)
		}
	}
	k.until("everything to be settled", func() bool { return k.settled(p1) })
	n := k.values()
	if len(n) != sent {
		t.Errorf("%d messages were handled, want %d", len(n), sent)
	}
	for v, times := range n {
		if times != 1 {
			t.Errorf("%s was handled %d times", v, times)
		}
	}
}

// On a real Kafka, C19 and C08: the first message of a partition acked after the
// second, by a process that is cut off; acks that come after the partition has
// moved; a member that joins beside a handler that is stuck for ever.
func TestKafkaLateAcks(t *testing.T) {
	k := newOnKafka(t, 1)
	held := newKeep()
	cfg := messaging.Config{Order: messaging.Unordered, SessionTimeout: 6 * time.Second, DrainTimeout: 500 * time.Millisecond}
	p1 := k.run("p1", cfg, held.handle)
	k.publish(0, "k", "first", "second", "third")
	k.until("all to be handed out", func() bool { return held.len() == 3 })
	if err := held.get("second").Ack(); err != nil {
		t.Fatal(err)
	}
	k.until("a commit of the second", func() bool {
		all, err := k.admin.Committed(context.Background(), k.app+".worker")
		if err != nil {
			t.Fatal(err)
		}
		c := all[topic.Partition{Topic: k.topic.Name()}]
		// The fifth byte says in which form settled offsets are; 0: there are none.
		b, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(c.Metadata, "pawl1."))
		return err == nil && c.Offset == 0 && len(b) > 4 && b[4] != 0
	})
	p1.cut()
	p2 := k.run("p2", cfg, func(context.Context, messaging.Delivery) error { return nil })
	k.until("the rest to be handled elsewhere", func() bool { return k.settled(p2) })
	if err := p1.stop(); err != nil {
		t.Log(err)
	}
	for _, v := range []string{"first", "third"} {
		if err := held.get(v).Ack(); !errors.Is(err, messaging.ErrFenced) {
			t.Errorf("a late ack of the %s: %v, want %v", v, err, messaging.ErrFenced)
		}
	}
	if got, want := k.values(), map[string]int{"first": 2, "second": 1, "third": 2}; !maps.Equal(got, want) {
		t.Errorf("handled %v, want %v", got, want)
	}
}

// On a real Kafka: Stop returns within its deadline beside a handler that is
// stuck for ever, and a member that joins beside one has its partitions.
func TestKafkaStuckHandlers(t *testing.T) {
	k := newOnKafka(t, 2)
	never := make(chan struct{})
	cfg := messaging.Config{DrainTimeout: 500 * time.Millisecond}
	p1 := k.run("p1", cfg, func(context.Context, messaging.Delivery) error {
		<-never
		return nil
	})
	t.Cleanup(func() { close(never) })
	k.publish(0, "a", "stuck0")
	k.publish(1, "b", "stuck1")
	k.until("both to be stuck", func() bool { return len(k.values()) == 2 })
	start := time.Now()
	p2 := k.run("p2", cfg, func(context.Context, messaging.Delivery) error { return nil })
	k.until("the partitions to be shared", func() bool { return len(p2.w.Stats().Partitions) == 1 })
	// The deadline of the drain and a second, and a start with its topics.
	if took := time.Since(start); took > cfg.DrainTimeout+5*time.Second {
		t.Errorf("the one that joined had its partition after %v", took)
	}
	start = time.Now()
	if err := p1.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > cfg.DrainTimeout+3*time.Second {
		t.Errorf("Stop returned after %v", took)
	}
	k.until("all to be handled by the other", func() bool { return k.settled(p2) })
}
