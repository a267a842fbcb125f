package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/devbroker"
	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// devFault is a fault of every request of a kind.
func devFault(key, code int16) devbroker.Fault {
	return devbroker.Fault{Key: key, Code: code, Times: -1}
}

// env is a cluster that a test runs on, with names of its own.
type env struct {
	testing.TB
	cluster cluster.Cluster
	dev     *devbroker.Broker // nil on a real cluster
	ctx     context.Context
	prefix  string
}

var run atomic.Int64

// brokers runs the test on the in-process broker, in virtual time where the
// build allows that, and, where PAWL_TEST_KAFKA names one, on a real Kafka.
func brokers(t *testing.T, test func(e *env)) {
	t.Run("dev", func(t *testing.T) { bubble(t, func(t *testing.T) { dev(t, test) }) })
	if addr := os.Getenv("PAWL_TEST_KAFKA"); addr != "" {
		t.Run("kafka", func(t *testing.T) { test(newEnv(t, cluster.Cluster{Brokers: strings.Split(addr, ",")}, nil)) })
	}
}

// bubble runs the test in virtual time if the client library was built for it.
func bubble(t *testing.T, test func(t *testing.T)) {
	if virtual {
		synctest.Test(t, test)
		return
	}
	test(t)
}

func dev(t testing.TB, test func(e *env)) {
	b, err := devbroker.Start(devbroker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	test(newEnv(t, b.Cluster(), b))
}

func newEnv(t testing.TB, c cluster.Cluster, b *devbroker.Broker) *env {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return &env{TB: t, cluster: c, dev: b, ctx: ctx, prefix: fmt.Sprintf("t%d-%d-", time.Now().UnixNano()%1e12, run.Add(1))}
}

func (e *env) config() Config {
	return Config{Cluster: e.cluster, Logger: slog.New(slog.DiscardHandler)}
}

func (e *env) name(s string) string { return e.prefix + s }

func (e *env) admin() *Admin {
	e.Helper()
	a, err := NewAdmin(e.config())
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(a.Close)
	return a
}

func (e *env) topic(name string, partitions int, settings map[string]string) *topic.Description {
	e.Helper()
	d := topic.Bytes(e.name(name)).Description
	if settings == nil {
		// Kafka looks for old messages now and then, and some are old on purpose.
		settings = map[string]string{"retention.ms": "-1"}
	}
	created, err := e.admin().CreateTopic(e.ctx, TopicSpec{Name: d.Name(), Partitions: partitions, Settings: settings})
	if err != nil || !created {
		e.Fatalf("create topic %s: created %v, %v", d.Name(), created, err)
	}
	return d
}

// setTopic changes a setting of a topic.
func (e *env) setTopic(d *topic.Description, name, value string) {
	e.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, d.Name()
	c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	c.Name, c.Value = name, kmsg.StringPtr(value)
	r.Configs = append(r.Configs, c)
	req.Resources = append(req.Resources, r)
	a := e.admin()
	resp, err := req.RequestWith(e.ctx, a.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.Resources[0].ErrorCode)
	}
	if err == nil {
		err = a.agree(e.ctx, func() (bool, error) {
			have, err := a.TopicSettings(e.ctx, d.Name())
			return have[name] == value, err
		})
	}
	if err != nil {
		e.Fatalf("set %s of %s to %s: %v", name, d, value, err)
	}
}

// benchmark runs on the in-process broker, or on a real Kafka if
// PAWL_TEST_KAFKA names one.
func benchmark(b *testing.B, run func(e *env, d *topic.Description)) {
	start := func(e *env) { run(e, e.topic("bench", 4, nil)) }
	if addr := os.Getenv("PAWL_TEST_KAFKA"); addr != "" {
		start(newEnv(b, cluster.Cluster{Brokers: strings.Split(addr, ",")}, nil))
		return
	}
	dev(b, start)
}

func (e *env) session(id string) *Session {
	e.Helper()
	s, err := NewSession(e.config(), SessionConfig{TransactionalID: e.name(id)})
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(s.Close)
	if _, err := s.Fence(e.ctx); err != nil {
		e.Fatalf("fence %s: %v", id, err)
	}
	return s
}

// committed reads everything that a reader of committed messages sees of a
// partition, up to its stable end.
func (e *env) committed(d *topic.Description, p int32) (values []string) {
	e.Helper()
	for _, m := range e.read(d, p) {
		values = append(values, string(m.Value))
	}
	return values
}

func (e *env) read(d *topic.Description, p int32) (all []topic.Envelope) {
	e.Helper()
	part := topic.Partition{Topic: d.Name(), Number: p}
	ends, err := e.admin().Offsets(e.ctx, StableEnd, part)
	if err != nil {
		e.Fatal(err)
	}
	r, err := NewReader(e.config(), ReaderConfig{Committed: true})
	if err != nil {
		e.Fatal(err)
	}
	defer r.Close()
	r.Consume(d, p, 0)
	var b Batch
	for next := int64(0); next < ends[part]; {
		if err := r.Poll(e.ctx, 1000, &b); err != nil {
			e.Fatalf("poll %s below %d at %d: %v", part, ends[part], next, err)
		}
		all = append(all, b.Envelopes...)
		for _, p := range b.Parts {
			next = p.Next
		}
	}
	return all
}
