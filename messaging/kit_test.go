package messaging_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/topic"
)

var (
	work    = topic.String("work")
	letters = topic.Bytes("test.worker.dlq")
)

// bench is a cluster with workers in it and a record of what they handled.
type bench struct {
	*consumertest.Cluster
	t *testing.T

	mu struct {
		sync.Mutex
		workers map[string]*messaging.Worker
		handled []handled
	}
}

// handled is one call of a handler.
type handled struct {
	process   string
	value     string
	key       string
	partition int32
	offset    int64
	attempt   int
	at        time.Time
}

func newBench(t *testing.T, partitions int) *bench {
	b := &bench{Cluster: consumertest.NewCluster(t), t: t}
	b.mu.workers = make(map[string]*messaging.Worker)
	b.CreateTopic(work, partitions)
	return b
}

// config fills in what tests share.
func config(t *testing.T, cl cluster.Cluster, cfg messaging.Config) messaging.Config {
	cfg.Cluster, cfg.Topic, cfg.Application, cfg.Consumer = cl, "work", "test", "worker"
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	return cfg
}

// testWriter writes to the log of a test that has not ended.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(b), "\n"))
	return len(b), nil
}

// work starts a process with a worker. The bench records each call of h, which
// may be nil to ack everything.
func (b *bench) work(process string, cfg messaging.Config, h messaging.Handler) {
	b.t.Helper()
	b.Run(process, func(ctx context.Context, cl cluster.Cluster, _ string) error {
		w, err := messaging.New(config(b.t, cl, cfg), func(ctx context.Context, d messaging.Delivery) error {
			b.record(process, d)
			if h == nil {
				return nil
			}
			return h(ctx, d)
		})
		if err != nil {
			return err
		}
		b.mu.Lock()
		b.mu.workers[process] = w
		b.mu.Unlock()
		return w.Run(ctx)
	})
}

func (b *bench) record(process string, d messaging.Delivery) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.handled = append(b.mu.handled, handled{process, string(d.Value()), string(d.Key()), d.Partition(), d.Offset(), d.Attempt(), time.Now()})
}

// calls returns the calls of handlers so far.
func (b *bench) calls() []handled {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.mu.handled)
}

// forget forgets the calls so far.
func (b *bench) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.handled = nil
}

// values returns how often each value was handled.
func (b *bench) values() map[string]int {
	n := make(map[string]int)
	for _, h := range b.calls() {
		n[h.value]++
	}
	return n
}

// order returns the values that were handled, in order.
func (b *bench) order() (vs []string) {
	for _, h := range b.calls() {
		vs = append(vs, h.value)
	}
	return vs
}

func (b *bench) worker(process string) *messaging.Worker {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.workers[process]
}

func (b *bench) stats(process string) messaging.Stats {
	w := b.worker(process)
	if w == nil {
		return messaging.Stats{}
	}
	return w.Stats()
}

// running waits until the processes have all partitions of the topic.
func (b *bench) running(partitions int, processes ...string) {
	b.t.Helper()
	b.Until(fmt.Sprintf("%d partitions to run in %v", partitions, processes), func() bool {
		n := 0
		for _, p := range processes {
			for _, st := range b.stats(p).Partitions {
				if st.Phase == "running" {
					n++
				}
			}
		}
		return n == partitions
	})
}

// committed returns what the group has committed for the input.
func (b *bench) committed() map[int32]int64 {
	b.t.Helper()
	out := make(map[int32]int64)
	for p, o := range consumertest.GroupOffsets(b.Cluster, "test.worker") {
		if p.Topic == "work" {
			out[p.Number] = o
		}
	}
	return out
}

// idle waits until everything that was published is settled, retries and all,
// and committed.
func (b *bench) idle(processes ...string) {
	b.t.Helper()
	ends := consumertest.EndOffsets(b.Cluster, work)
	defer func() {
		if b.t.Failed() {
			for _, p := range processes {
				b.t.Logf("%s: %+v, health %v, committed %v, ends %v", p, b.stats(p), b.worker(p).Health(), b.committed(), ends)
			}
		}
	}()
	b.Until("everything to be settled", func() bool {
		for _, p := range processes {
			for _, st := range b.stats(p).Partitions {
				if st.Backlog > 0 || st.InFlight > 0 || st.Held > 0 || st.Phase != "running" {
					return false
				}
			}
		}
		return maps.Equal(b.committed(), ends)
	})
}

// publish publishes values with a key to a partition.
func (b *bench) publish(partition int32, key string, values ...string) {
	b.t.Helper()
	outs := make([]topic.Out, len(values))
	for i, v := range values {
		outs[i] = topic.Out{Topic: work.Description, Partition: partition, Key: []byte(key), Value: []byte(v)}
	}
	b.PublishRecord(outs...)
}

// numbers returns n values from prefix0 on.
func numbers(prefix string, n int) (vs []string) {
	for i := range n {
		vs = append(vs, fmt.Sprintf("%s%d", prefix, i))
	}
	return vs
}

func header(e topic.Envelope, key string) string {
	for _, h := range e.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

// batch starts a process with a handler of batches.
func (b *bench) batch(process string, cfg messaging.Config, h messaging.BatchHandler) {
	b.t.Helper()
	b.Run(process, func(ctx context.Context, cl cluster.Cluster, _ string) error {
		w, err := messaging.NewBatch(config(b.t, cl, cfg), func(ctx context.Context, ds []messaging.Delivery) []error {
			for _, d := range ds {
				b.record(process, d)
			}
			return h(ctx, ds)
		})
		if err != nil {
			return err
		}
		b.mu.Lock()
		b.mu.workers[process] = w
		b.mu.Unlock()
		return w.Run(ctx)
	})
}

// openLetters opens the dead letters of the worker, from a host of their own.
func openLetters(t *testing.T, b *bench) *messaging.Letters {
	t.Helper()
	l, err := messaging.OpenLetters(messaging.LettersConfig{Cluster: b.Host("letters"), Application: "test", Consumer: "worker",
		Logger: slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}
