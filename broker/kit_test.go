package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	runChild() // a process that a test kills
	runCrowd() // or one of many clients
	// The storage library leaves this one behind when it fails late in opening.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/cockroachdb/pebble/v2.(*ConcurrencyLimitScheduler).periodicGranter"))
}

// kit is a broker that a test runs.
type kit struct {
	testing.TB
	*Broker
	ctx    context.Context
	config Config
	dir    string
	child  *child // in place of the broker

	current atomic.Pointer[Broker] // the broker, for clients that outlive one
}

// quiet is a broker on a disk in memory, for tests that look at neither.
func quiet() Config {
	return Config{Logger: slog.New(slog.DiscardHandler), fs: vfs.NewMem(), Memory: memoryMin}
}

func start(t testing.TB, c Config) *kit {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	k := &kit{TB: t, ctx: ctx, config: c, dir: "broker"}
	if c.fs == nil {
		k.dir = t.TempDir()
	}
	k.open()
	t.Cleanup(func() {
		if err := k.Broker.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return k
}

func (k *kit) open() {
	k.Helper()
	b, err := Open(k.dir, k.config)
	if err != nil {
		k.Fatalf("open: %v", err)
	}
	k.Broker = b
	k.current.Store(b)
}

// restart closes the broker in good order and opens it again.
func (k *kit) restart() {
	k.Helper()
	if err := k.Broker.Close(); err != nil {
		k.Fatalf("close: %v", err)
	}
	k.open()
}

func (k *kit) client(opts ...kgo.Opt) *kgo.Client {
	k.Helper()
	var where []kgo.Opt
	if k.child != nil {
		where = []kgo.Opt{kgo.SeedBrokers(k.child.addr)}
	} else {
		c := k.Cluster()
		where = []kgo.Opt{kgo.SeedBrokers(c.Brokers...), kgo.Dialer(c.Dial)}
	}
	cl, err := kgo.NewClient(append(append(where, []kgo.Opt{
		kgo.MetadataMinAge(10 * time.Millisecond),
		kgo.DisableClientMetrics(), kgo.RetryTimeout(20 * time.Second),
	}...), opts...)...)
	if err != nil {
		k.Fatal(err)
	}
	k.Cleanup(cl.Close)
	return cl
}

// ask sends a request as it is, and returns the answer.
func ask[R kmsg.Response](k *kit, cl *kgo.Client, req kmsg.Request) R {
	k.Helper()
	resp, err := cl.Request(k.ctx, req)
	if err != nil {
		k.Fatalf("%s: %v", kmsg.NameForKey(req.Key()), err)
	}
	return resp.(R)
}

func (k *kit) create(name string, partitions int32, settings ...string) {
	k.Helper()
	cl := k.client()
	defer cl.Close()
	req := kmsg.NewPtrCreateTopicsRequest()
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, partitions, 1
	for i := 0; i < len(settings); i += 2 {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = settings[i], kmsg.StringPtr(settings[i+1])
		t.Configs = append(t.Configs, c)
	}
	req.Topics = append(req.Topics, t)
	resp := ask[*kmsg.CreateTopicsResponse](k, cl, req)
	if err := kerr.ErrorForCode(resp.Topics[0].ErrorCode); err != nil {
		k.Fatalf("create %s: %v: %s", name, err, *resp.Topics[0].ErrorMessage)
	}
}

// produce writes values to a partition, one batch each, and returns their
// offsets.
func (k *kit) produceTo(cl *kgo.Client, topic string, partition int32, values ...string) (offsets []int64) {
	k.Helper()
	for _, v := range values {
		r := &kgo.Record{Topic: topic, Partition: partition, Key: []byte("k" + v), Value: []byte(v)}
		if err := cl.ProduceSync(k.ctx, r).FirstErr(); err != nil {
			k.Fatalf("produce %q: %v", v, err)
		}
		offsets = append(offsets, r.Offset)
	}
	return offsets
}

// read reads a partition up to its end, by a client of its own.
func (k *kit) read(topic string, partition int32, committed bool) (values []string) {
	k.Helper()
	for _, r := range k.records(topic, partition, committed) {
		values = append(values, string(r.Value))
	}
	return values
}

func (k *kit) records(topic string, partition int32, committed bool) (all []*kgo.Record) {
	k.Helper()
	level := kgo.ReadUncommitted()
	if committed {
		level = kgo.ReadCommitted()
	}
	start, end := k.offset(topic, partition, listEarliest, committed), k.offset(topic, partition, listLatest, committed)
	cl := k.client(kgo.FetchIsolationLevel(level), kgo.KeepControlRecords(), kgo.FetchMaxWait(100*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().At(start)}}))
	defer cl.Close()
	for next := start; next < end; {
		fs := cl.PollFetches(k.ctx)
		if err := fs.Err(); err != nil {
			k.Fatalf("read %s-%d at %d below %d: %v", topic, partition, next, end, err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			if !r.Attrs.IsControl() {
				all = append(all, r)
			}
		})
	}
	return all
}

// offset asks for an offset of a partition.
func (k *kit) offset(topic string, partition int32, at int64, committed bool) int64 {
	k.Helper()
	cl := k.client()
	defer cl.Close()
	o, err := k.listOffset(cl, topic, partition, at, committed)
	if err != nil {
		k.Fatalf("offset %d of %s-%d: %v", at, topic, partition, err)
	}
	return o.Offset
}

func (k *kit) listOffset(cl *kgo.Client, topic string, partition int32, at int64, committed bool) (kmsg.ListOffsetsResponseTopicPartition, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	if committed {
		req.IsolationLevel = 1
	}
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = topic
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Partition, p.Timestamp, p.CurrentLeaderEpoch = partition, at, -1
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := cl.Request(k.ctx, req)
	if err != nil {
		return kmsg.ListOffsetsResponseTopicPartition{}, err
	}
	got := resp.(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0]
	return got, kerr.ErrorForCode(got.ErrorCode)
}

func manual() kgo.Opt { return kgo.RecordPartitioner(kgo.ManualPartitioner()) }

func wantError(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func numbered(prefix string, n int) (values []string) {
	for i := range n {
		values = append(values, fmt.Sprintf("%s%d", prefix, i))
	}
	return values
}

type ctx = context.Context

// dial connects to the broker that the kit has now.
func (k *kit) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return k.current.Load().Cluster().Dial(ctx, network, addr)
}
