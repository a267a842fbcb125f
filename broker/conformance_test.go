package broker_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlstream/pawl/broker"
	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/devbroker"
	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The conformance suite is one code that runs on this broker, on the in-memory
// one of the tests, and, where PAWL_TEST_KAFKA names one, on a real Apache
// Kafka: what this broker answers is what Kafka does.
type suite struct {
	testing.TB
	target  string
	cluster cluster.Cluster
	ctx     context.Context
	prefix  string
}

var runs atomic.Int64

// deviations are the cases that another target is known to fail, and how.
var deviations = map[string]map[string]string{
	"kfake": {
		"TestConformBadBatches":         "it does not look into batches",
		"TestConformBadTopics":          "it takes settings, names and numbers as they are",
		"TestConformDeleteRecords":      "it refuses an offset below the start",
		"TestConformEmptyTransactionV1": "it takes the abort of nothing",
		"TestConformFencing":            "it gives a zombie that initialises itself a new epoch",
		"TestConformGroupRequests":      "it answers GROUP_ID_NOT_FOUND where Kafka knows no member",
		"TestConformInitProducer":       "it raises the epoch again for the same request",
		"TestConformLogAppendTime":      "it has no append time",
		"TestConformSequencesWrap":      "a producer it doesn't know must begin at sequence 0",
		"TestConformStaticMember":       "a member that was replaced can make the new one leave",
		"TestConformTransactionOffsets": "a group is not there before its first offset is committed",
		"TestConformTransactionTimeout": "a transaction of the second version of the protocol does not time out in this long",
		"TestConformTransactionsV2":     "it takes the commit of nothing",
	},
}

// conform runs a case on all targets.
func conform(t *testing.T, test func(s *suite)) {
	t.Parallel()
	run := func(target string, c func(t *testing.T) cluster.Cluster) {
		t.Run(target, func(t *testing.T) {
			if why := deviations[target][strings.SplitN(t.Name(), "/", 2)[0]]; why != "" {
				t.Skip(target + " deviates: " + why) // a fake is no reference: the test holds on the broker and on Kafka
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			t.Cleanup(cancel)
			test(&suite{TB: t, target: target, cluster: c(t), ctx: ctx, prefix: fmt.Sprintf("c%d-%d-", time.Now().UnixNano()%1e12, runs.Add(1))})
		})
	}
	run("broker", func(t *testing.T) cluster.Cluster {
		b, err := broker.Open(t.TempDir(), broker.Config{Logger: slog.New(slog.DiscardHandler), Memory: 64 << 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
		return b.Cluster()
	})
	run("kfake", func(t *testing.T) cluster.Cluster {
		b, err := devbroker.Start(devbroker.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		return b.Cluster()
	})
	if addr := os.Getenv("PAWL_TEST_KAFKA"); addr != "" {
		run("kafka", func(*testing.T) cluster.Cluster { return cluster.Cluster{Brokers: strings.Split(addr, ",")} })
	}
}

// wire is a connection on which requests go out as they are.
type wire struct {
	s    *suite
	conn net.Conn
	id   int32
}

func (s *suite) dial() *wire {
	s.Helper()
	dial := s.cluster.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	conn, err := dial(s.ctx, "tcp", s.cluster.Brokers[0])
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = conn.Close() })
	return &wire{s: s, conn: conn}
}

// write sends a request, which has the next number.
func (w *wire) write(req kmsg.Request) error {
	w.id++
	if err := w.conn.SetWriteDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	_, err := w.conn.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID("conformance")).AppendRequest(nil, req, w.id))
	return err
}

func (w *wire) send(req kmsg.Request) {
	w.s.Helper()
	if err := w.write(req); err != nil {
		w.s.Fatalf("send %s: %v", kmsg.NameForKey(req.Key()), err)
	}
}

// receive reads the answer to the next request that was sent and not answered.
func (w *wire) receive(req kmsg.Request) (kmsg.Response, error) {
	resp, _, _, err := w.read(req)
	return resp, err
}

// read reads an answer, whose request's number and bytes it tells.
func (w *wire) read(req kmsg.Request) (resp kmsg.Response, id int32, body []byte, err error) {
	var head [8]byte
	if err := w.conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return nil, 0, nil, err
	}
	if _, err := io.ReadFull(w.conn, head[:]); err != nil {
		return nil, 0, nil, err
	}
	body = make([]byte, int(binary.BigEndian.Uint32(head[:]))-4)
	if _, err := io.ReadFull(w.conn, body); err != nil {
		return nil, 0, nil, err
	}
	resp = req.ResponseKind()
	r := kbin.Reader{Src: body}
	if resp.IsFlexible() && req.Key() != int16(kmsg.ApiVersions) {
		kmsg.SkipTags(&r)
	}
	return resp, int32(binary.BigEndian.Uint32(head[4:])), r.Src, resp.ReadFrom(r.Src)
}

// query sends a request and waits for its answer.
func query[R kmsg.Response](w *wire, req kmsg.Request) R {
	w.s.Helper()
	w.send(req)
	resp, err := w.receive(req)
	if err != nil {
		w.s.Fatalf("answer to %s v%d: %v", kmsg.NameForKey(req.Key()), req.GetVersion(), err)
	}
	return resp.(R)
}

// again asks until the answer is not that something is still going on: Kafka
// does asynchronously what this broker does at once.
func again(s *suite, fn func() int16) error {
	s.Helper()
	for range 200 {
		code := fn()
		switch err := kerr.ErrorForCode(code); {
		case errors.Is(err, kerr.ConcurrentTransactions), errors.Is(err, kerr.CoordinatorNotAvailable), errors.Is(err, kerr.NotCoordinator),
			errors.Is(err, kerr.CoordinatorLoadInProgress), errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID), errors.Is(err, kerr.NotLeaderForPartition):
			pause(s.ctx, 20*time.Millisecond)
		default:
			return err
		}
	}
	s.Fatal("it does not come to an end")
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

// want compares the error of a code.
func (s *suite) want(what string, code int16, want error) {
	s.Helper()
	if got := kerr.ErrorForCode(code); !errors.Is(got, want) {
		s.Errorf("%s: %v, want %v", what, got, want)
	}
}

// topic creates a topic, and returns its name and ID.
func (s *suite) topic(partitions int32, settings ...string) (name string, id [16]byte) {
	s.Helper()
	name = fmt.Sprintf("%st%d", s.prefix, runs.Add(1))
	w := s.dial()
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.TimeoutMillis = 7, 10_000
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, partitions, 1
	for i := 0; i < len(settings); i += 2 {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = settings[i], kmsg.StringPtr(settings[i+1])
		t.Configs = append(t.Configs, c)
	}
	req.Topics = append(req.Topics, t)
	resp := query[*kmsg.CreateTopicsResponse](w, req)
	s.want("create "+name, resp.Topics[0].ErrorCode, nil)
	// A broker of many nodes knows of it a little later.
	if err := again(s, func() int16 { return s.listOffset(w, name, partitions-1, -1, 7).ErrorCode }); err != nil {
		s.Fatalf("topic %s: %v", name, err)
	}
	return name, resp.Topics[0].TopicID
}

func (s *suite) listOffset(w *wire, topic string, partition int32, at int64, version int16) kmsg.ListOffsetsResponseTopicPartition {
	s.Helper()
	return s.listOffsetAt(w, topic, partition, at, version, 0)
}

func (s *suite) listOffsetAt(w *wire, topic string, partition int32, at int64, version int16, isolation int8) kmsg.ListOffsetsResponseTopicPartition {
	s.Helper()
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version, req.ReplicaID, req.IsolationLevel, req.TimeoutMillis = version, -1, isolation, 10_000
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = topic
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Partition, p.Timestamp, p.CurrentLeaderEpoch = partition, at, -1
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return query[*kmsg.ListOffsetsResponse](w, req).Topics[0].Partitions[0]
}

// sent is a batch of records as a client sends it.
type sent struct {
	pid           int64
	epoch         int16
	seq           int32
	transactional bool
	control       bool
	firstTime     int64
	times         []int64 // deltas
	keyless       bool
	values        []string
	records       int32 // if not as many as there are values
	crc           uint32
}

func (b sent) encode() []byte {
	var records []byte
	top := int64(0)
	for i, v := range b.values {
		delta := int64(0)
		if i < len(b.times) {
			delta = b.times[i]
		}
		top = max(top, delta)
		r := []byte{0}
		r = kbin.AppendVarlong(r, delta)
		r = kbin.AppendVarint(r, int32(i))
		if b.keyless {
			r = kbin.AppendVarint(r, -1)
		} else {
			r = kbin.AppendVarintBytes(r, []byte("k-"+v))
		}
		r = kbin.AppendVarintBytes(r, []byte(v))
		r = kbin.AppendVarint(r, 0)
		records = kbin.AppendVarint(records, int32(len(r)))
		records = append(records, r...)
	}
	if b.firstTime == 0 {
		b.firstTime = time.Now().UnixMilli()
	}
	var attributes int16
	if b.transactional {
		attributes |= 0x10
	}
	if b.control {
		attributes |= 0x20
	}
	if b.records == 0 {
		b.records = int32(len(b.values))
	}
	rb := kmsg.RecordBatch{
		Length: int32(49 + len(records)), PartitionLeaderEpoch: -1, Magic: 2, Attributes: attributes,
		LastOffsetDelta: b.records - 1, FirstTimestamp: b.firstTime, MaxTimestamp: b.firstTime + top,
		ProducerID: b.pid, ProducerEpoch: b.epoch, FirstSequence: b.seq, NumRecords: b.records, Records: records,
	}
	raw := rb.AppendTo(nil)
	crc := crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli))
	binary.BigEndian.PutUint32(raw[17:], crc^b.crc)
	return raw
}

// plain is a batch without a producer.
func plain(values ...string) sent { return sent{pid: -1, epoch: -1, seq: -1, values: values} }

// produce sends a batch, and returns the answer for it.
func (s *suite) produce(w *wire, version int16, txn, topic string, id [16]byte, partition int32, b sent) kmsg.ProduceResponseTopicPartition {
	s.Helper()
	return s.produceBytes(w, version, txn, topic, id, partition, b.encode())
}

func (s *suite) produceBytes(w *wire, version int16, txn, topic string, id [16]byte, partition int32, raw []byte) kmsg.ProduceResponseTopicPartition {
	s.Helper()
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = version, -1, 10_000
	if txn != "" {
		req.TransactionID = kmsg.StringPtr(txn)
	}
	t := kmsg.NewProduceRequestTopic()
	t.Topic, t.TopicID = topic, id
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = partition, raw
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return query[*kmsg.ProduceResponse](w, req).Topics[0].Partitions[0]
}

// fetch asks for one partition from an offset on, and does not wait.
func (s *suite) fetch(w *wire, version int16, topic string, id [16]byte, partition int32, offset int64, isolation int8) kmsg.FetchResponseTopicPartition {
	s.Helper()
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.IsolationLevel = version, 0, 1, 1<<20, isolation
	req.SessionID, req.SessionEpoch = 0, -1
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = topic, id
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes, p.CurrentLeaderEpoch, p.LogStartOffset = partition, offset, 1<<20, -1, -1
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp := query[*kmsg.FetchResponse](w, req)
	s.want("fetch", resp.ErrorCode, nil)
	return resp.Topics[0].Partitions[0]
}

// client is a kgo client of the target.
func (s *suite) client(opts ...kgo.Opt) *kgo.Client {
	s.Helper()
	all := []kgo.Opt{kgo.SeedBrokers(s.cluster.Brokers...), kgo.MetadataMinAge(20 * time.Millisecond), kgo.DisableClientMetrics(), kgo.RecordPartitioner(kgo.ManualPartitioner())}
	if s.cluster.Dial != nil {
		all = append(all, kgo.Dialer(s.cluster.Dial))
	}
	cl, err := kgo.NewClient(append(all, opts...)...)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(cl.Close)
	return cl
}

// read reads a partition up to its end with a client.
func (s *suite) read(topic string, partition int32, isolation int8) (values []string) {
	s.Helper()
	level := kgo.ReadUncommitted()
	if isolation == 1 {
		level = kgo.ReadCommitted()
	}
	w := s.dial()
	next, end := s.listOffset(w, topic, partition, -2, 7).Offset, s.listOffsetAt(w, topic, partition, -1, 7, isolation).Offset
	cl := s.client(kgo.FetchIsolationLevel(level), kgo.KeepControlRecords(), kgo.FetchMaxWait(100*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().At(next)}}))
	defer cl.Close()
	for next < end {
		fs := cl.PollFetches(s.ctx)
		if err := fs.Err(); err != nil {
			s.Fatalf("read %s-%d at %d below %d: %v", topic, partition, next, end, err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			if !r.Attrs.IsControl() {
				values = append(values, string(r.Value))
			}
		})
	}
	return values
}
