package devbroker_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/devbroker"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

const (
	produce = 0
	endTxn  = 26
)

// bubble runs a test in virtual time if the client library was built for it.
func bubble(t *testing.T, test func(t *testing.T)) {
	if virtual {
		synctest.Test(t, test)
		return
	}
	test(t)
}

func start(t *testing.T, cfg devbroker.Config) *devbroker.Broker {
	t.Helper()
	b, err := devbroker.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func config(c cluster.Cluster) kafka.Config {
	return kafka.Config{Cluster: c, Logger: slog.New(slog.DiscardHandler)}
}

func session(t *testing.T, c cluster.Cluster, id string) *kafka.Session {
	t.Helper()
	s, err := kafka.NewSession(config(c), kafka.SessionConfig{TransactionalID: id})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if _, err := s.Fence(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func create(t *testing.T, c cluster.Cluster, spec kafka.TopicSpec) {
	t.Helper()
	a, err := kafka.NewAdmin(config(c))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if _, err := a.CreateTopic(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
}

var words = topic.String("words")

func record(v string) []kafka.Record {
	return []kafka.Record{{Topic: "words", Key: []byte("k"), Value: []byte(v)}}
}

// read returns the committed messages of partition 0, up to n of them.
func read(t *testing.T, c cluster.Cluster, n int) (got []string) {
	t.Helper()
	r, err := kafka.NewReader(config(c), kafka.ReaderConfig{Committed: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.Consume(words.Description, 0, 0)
	var b kafka.Batch
	for len(got) < n {
		if err := r.Poll(t.Context(), n-len(got), &b); err != nil {
			t.Fatal(err)
		}
		for _, m := range b.Envelopes {
			got = append(got, string(m.Value))
		}
	}
	return got
}

func want(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
}

// A transaction, a read and a group are over in a moment of real time, and
// nothing is left running.
func TestRoundTrip(t *testing.T) {
	before := runtime.NumGoroutine()
	begun := time.Now()
	t.Run("run", func(t *testing.T) { bubble(t, roundTrip) })
	// It takes 10 ms. What the slack is for is a busy machine.
	if took := time.Since(begun); virtual && took > 5*time.Second {
		t.Errorf("the round trip took %v of real time", took)
	}
	for range 1000 { // goroutines of a closed broker end on their own time
		if runtime.NumGoroutine() <= before {
			return
		}
		runtime.Gosched()
		time.Sleep(time.Millisecond) // real time: nothing tells when a goroutine of the broker is gone
	}
	t.Errorf("%d goroutines after the broker was closed, %d before", runtime.NumGoroutine(), before)
}

func roundTrip(t *testing.T) {
	b := start(t, devbroker.Config{})
	c := b.Cluster()
	create(t, c, kafka.TopicSpec{Name: "words", Partitions: 1})
	a, err := kafka.NewAdmin(config(c))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := a.Check(t.Context(), false); err != nil {
		t.Errorf("the broker does not pass for a new one: %v", err)
	}
	s := session(t, c, "a")
	for _, v := range []string{"one", "two"} {
		if _, err := s.Commit(t.Context(), record(v)); err != nil {
			t.Fatal(err)
		}
	}
	want(t, read(t, c, 2), "one", "two")
	m, err := kafka.NewMember(config(c), kafka.MemberConfig{
		Group: "g", Instance: "i", Topics: []string{"words"},
		Assign: func(ms []kafka.MemberInfo, _ map[string]int32) (map[string][]topic.Partition, error) {
			return map[string][]topic.Partition{ms[0].ID: {{Topic: "words"}}}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	assigned := make(chan kafka.Assignment, 1)
	ended := make(chan error, 1)
	go func() { ended <- m.Run(t.Context(), func(a kafka.Assignment) { assigned <- a }) }()
	if got := (<-assigned).Partitions; len(got) != 1 {
		t.Errorf("assigned %v, want one partition", got)
	}
	if err := m.Leave(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	m.Close()
}

func TestCutAndHeal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := start(t, devbroker.Config{})
		create(t, b.Cluster(), kafka.TopicSpec{Name: "words", Partitions: 1})
		s := session(t, b.Host("one"), "a")
		other := session(t, b.Host("two"), "b")
		b.Cut("one")
		result := make(chan error, 1)
		go func() {
			_, err := s.Commit(t.Context(), record("late"))
			result <- err
		}()
		if _, err := other.Commit(t.Context(), record("other")); err != nil {
			t.Errorf("another host's commit: %v", err)
		}
		b.Heal("one")
		if err := <-result; err != nil {
			t.Errorf("commit over a cut that healed: %v", err)
		}
		want(t, read(t, b.Cluster(), 2), "other", "late")
	})
}

func TestFreezeAndThaw(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := start(t, devbroker.Config{})
		create(t, b.Cluster(), kafka.TopicSpec{Name: "words", Partitions: 1})
		s := session(t, b.Host("one"), "a")
		if _, err := s.Commit(t.Context(), record("before")); err != nil {
			t.Fatal(err)
		}
		b.Freeze("one")
		result := make(chan error, 1)
		go func() {
			_, err := s.Commit(t.Context(), record("held"))
			result <- err
		}()
		if virtual {
			time.Sleep(2 * time.Second) // virtual time
		}
		select {
		case err := <-result:
			t.Errorf("a frozen host's commit ended: %v", err)
		default:
		}
		b.Thaw("one")
		if err := <-result; err != nil {
			t.Errorf("commit after the thaw: %v", err)
		}
		want(t, read(t, b.Cluster(), 2), "before", "held")
	})
}

func TestDelay(t *testing.T) {
	if !virtual { // it is about time passing
		return
	}
	bubble(t, func(t *testing.T) {
		b := start(t, devbroker.Config{})
		create(t, b.Cluster(), kafka.TopicSpec{Name: "words", Partitions: 1})
		s := session(t, b.Host("far"), "a")
		if _, err := s.Commit(t.Context(), record("warm")); err != nil {
			t.Fatal(err)
		}
		b.Delay("far", 50*time.Millisecond)
		at := time.Now()
		if _, err := s.Commit(t.Context(), record("slow")); err != nil {
			t.Fatal(err)
		}
		// A produce and an end, there and back.
		if took := time.Since(at); took < 200*time.Millisecond || took > 300*time.Millisecond {
			t.Errorf("a commit over 50 ms took %v, want four times that", took)
		}
	})
}

// The request acts, its reply is lost.
func TestDropReply(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := start(t, devbroker.Config{})
		create(t, b.Cluster(), kafka.TopicSpec{Name: "words", Partitions: 1})
		s := session(t, b.Host("one"), "a")
		remove := b.DropReply(devbroker.Fault{Host: "one", Key: endTxn, Times: -1})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if _, err := s.Commit(ctx, record("x")); !errors.Is(err, kafka.ErrUnknownOutcome) {
			t.Errorf("commit whose end is never answered: %v, want ErrUnknownOutcome", err)
		}
		want(t, read(t, b.Cluster(), 1), "x")
		remove()
		session(t, b.Host("one"), "a")
	})
}

func TestHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := start(t, devbroker.Config{})
		create(t, b.Cluster(), kafka.TopicSpec{Name: "words", Partitions: 1})
		s := session(t, b.Host("one"), "a")
		seen := make(chan struct{}, 10)
		b.OnRequest(func(host string, key int16) {
			if host == "one" && key == endTxn {
				seen <- struct{}{}
			}
		})
		release := b.Hold(devbroker.Fault{Host: "one", Key: endTxn})
		result := make(chan error, 1)
		go func() {
			_, err := s.Commit(t.Context(), record("held"))
			result <- err
		}()
		<-seen
		if next, err := session(t, b.Host("two"), "b").Commit(t.Context(), record("other")); err != nil {
			t.Errorf("another's commit: %v, %v", next, err)
		}
		select {
		case err := <-result:
			t.Errorf("a held commit ended: %v", err)
		default:
		}
		release()
		if err := <-result; err != nil {
			t.Errorf("commit once released: %v", err)
		}
		want(t, read(t, b.Cluster(), 2), "held", "other")
	})
}

func TestFail(t *testing.T) {
	const notLeader, fenced, transactionalIDAuthorization = 6, 90, 53
	for _, tc := range []struct {
		name  string
		fault devbroker.Fault
		want  error // nil: the client gets over it
	}{
		{"a code that is retried", devbroker.Fault{Key: produce, Code: notLeader}, nil},
		{"a code that is final", devbroker.Fault{Key: endTxn, Code: fenced}, kafka.ErrFenced},
		{"a final code for another host", devbroker.Fault{Host: "two", Key: endTxn, Code: fenced, Times: -1}, nil},
		{"the second only", devbroker.Fault{Key: endTxn, Nth: 2, Code: fenced}, nil},
		{"a connection that closes", devbroker.Fault{Key: produce}, nil},
		{"any key", devbroker.Fault{Key: -1, Code: transactionalIDAuthorization, Times: -1}, kafka.ErrUnauthorized},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := start(t, devbroker.Config{})
				create(t, b.Cluster(), kafka.TopicSpec{Name: "words", Partitions: 1})
				s := session(t, b.Host("one"), "a")
				remove := b.Fail(tc.fault)
				_, err := s.Commit(t.Context(), record("x"))
				if !errors.Is(err, tc.want) && (tc.want != kafka.ErrUnauthorized || err == nil) {
					t.Errorf("commit: %v, want %v", err, tc.want)
				}
				remove()
				if _, err := session(t, b.Host("one"), "a").Commit(t.Context(), record("y")); err != nil {
					t.Errorf("commit once the fault is gone: %v", err)
				}
				if tc.want == nil {
					want(t, read(t, b.Cluster(), 2), "x", "y")
				} else {
					want(t, read(t, b.Cluster(), 1), "y")
				}
			})
		})
	}
}

// Programs outside reach the same broker, at the address that it gives them.
func TestListen(t *testing.T) {
	b := start(t, devbroker.Config{Listen: "127.0.0.1:0"})
	create(t, b.Cluster(), kafka.TopicSpec{Name: "words", Partitions: 1})
	outside := cluster.Cluster{Brokers: []string{b.Addr()}}
	if _, err := session(t, outside, "a").Commit(t.Context(), record("from outside")); err != nil {
		t.Fatal(err)
	}
	if _, err := session(t, b.Cluster(), "b").Commit(t.Context(), record("from inside")); err != nil {
		t.Fatal(err)
	}
	want(t, read(t, outside, 2), "from outside", "from inside")
	want(t, read(t, b.Cluster(), 2), "from outside", "from inside")

	if _, err := devbroker.Start(devbroker.Config{Listen: b.Addr()}); err == nil || !strings.Contains(err.Error(), b.Addr()) {
		t.Errorf("a second broker on the same address: %v, want an error that names it", err)
	}
}

// What is no request of Kafka's costs its connection and nothing else.
func TestHostileBytes(t *testing.T) {
	b := start(t, devbroker.Config{Listen: "127.0.0.1:0"})
	frame := func(size uint32, key uint16, rest ...byte) []byte {
		f := binary.BigEndian.AppendUint32(nil, size)
		f = binary.BigEndian.AppendUint16(f, key)
		return append(f, rest...)
	}
	for name, bytes := range map[string][]byte{
		"an API key that nobody knows": frame(10, 9999, 0, 0, 0, 0, 0, 1, 0, 0),
		"a negative API key":           frame(10, 0xffff, 0, 0, 0, 0, 0, 1, 0, 0),
		"a frame of 2 GB":              frame(1<<31, 0),
		"a frame of nothing":           frame(0, 0),
		"a TLS handshake":              {0x16, 3, 1, 0, 0xf0, 1, 0, 0, 0xec, 3, 3, 0},
		"HTTP":                         []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"a version of the future":      frame(10, 18, 0x7f, 0xff, 0, 0, 0, 1, 0, 0),
		"a body that is cut short":     frame(10, 3, 0, 9, 0, 0, 0, 1, 0, 0),
	} {
		c, err := net.Dial("tcp", b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(bytes); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// It is closed, or answered, and never hangs.
		if err := c.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: neither closed nor answered", name)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	create(t, b.Cluster(), kafka.TopicSpec{Name: "words", Partitions: 1}) // it lives
}

// A compacted topic keeps all that was ever written: the broker's compaction
// drops committed values.
func TestNeverCompacts(t *testing.T) {
	if !virtual { // it takes days
		return
	}
	bubble(t, func(t *testing.T) {
		b := start(t, devbroker.Config{})
		create(t, b.Cluster(), kafka.TopicSpec{Name: "words", Partitions: 1, Settings: map[string]string{
			"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "1000", "retention.ms": "1000",
		}})
		s := session(t, b.Cluster(), "a")
		for range 3 {
			if _, err := s.Commit(t.Context(), record("v")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(24 * time.Hour) // virtual time
		}
		want(t, read(t, b.Cluster(), 3), "v", "v", "v")
	})
}

// A connection is what net.Conn says that one is.
func TestConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := start(t, devbroker.Config{})
		dial := func() net.Conn {
			c, err := b.Host("one").Dial(t.Context(), "tcp", "in-process:9092")
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		c := dial()
		if err := c.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read beyond its deadline: %v", err)
		}
		if err := c.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("read of a connection closed on this side: %v", err)
			}
		})
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if _, err := c.Write([]byte{0}); err == nil {
			t.Error("a closed connection was written to")
		}

		c = dial()
		wg.Go(func() {
			if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
				t.Errorf("read of a connection that was cut: %v, want a reset", err)
			}
		})
		b.Cut("one")
		wg.Wait()
		if _, err := b.Host("one").Dial(t.Context(), "tcp", "in-process:9092"); err == nil {
			t.Error("a host that is cut off got a connection")
		}
		b.Heal("one")
		b.Freeze("one")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := b.Host("one").Dial(ctx, "tcp", "in-process:9092"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a frozen host's dial: %v, want its context's error", err)
		}
		b.Thaw("one")
		c = dial()
		b.Close()
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a connection outlived its broker")
		}
		if _, err := b.Host("one").Dial(t.Context(), "tcp", "in-process:9092"); err == nil {
			t.Error("a closed broker took a connection")
		}
	})
}
