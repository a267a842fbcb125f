package cli

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/pawlstream/pawl/internal/kafka"
)

// hang opens a transaction that writes "hidden" to partition 0. Unless it is an
// orphan, which only a broker that does not check makes, its coordinator knows
// it.
func hang(t *testing.T, o *operated, name, id string, orphan bool) (done func()) {
	t.Helper()
	opts := []kgo.Opt{kgo.SeedBrokers(o.brokers), kgo.TransactionalID(o.name(id)), kgo.TransactionTimeout(time.Minute)}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	if orphan {
		defer cl.Close()
		o.orphan(cl, name)
		return func() {}
	}
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: name, Value: []byte("hidden")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	return cl.Close
}

// orphan writes a transactional batch that no coordinator has heard of, as
// brokers took it before they checked.
func (o *operated) orphan(cl *kgo.Client, name string) {
	o.Helper()
	check := func(value string) {
		rs, err := kadm.NewClient(cl).AlterBrokerConfigs(o.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "transaction.partition.verification.enable", Value: &value}})
		if err == nil && len(rs) > 0 {
			err = rs[0].Err
		}
		if err != nil {
			o.Fatal(err)
		}
	}
	check("false")
	defer check("true")
	id, epoch, err := cl.ProducerID(o.Context())
	if err != nil {
		o.Fatal(err)
	}
	rec := kmsg.Record{Value: []byte("hidden")}
	rec.Length = int32(len(rec.AppendTo(nil)) - 1) // without the length itself, which is one byte
	const transactional = 1 << 4
	now := time.Now().UnixMilli()
	batch := kmsg.RecordBatch{PartitionLeaderEpoch: -1, Magic: 2, Attributes: transactional, FirstTimestamp: now, MaxTimestamp: now, ProducerID: id, ProducerEpoch: epoch, NumRecords: 1, Records: rec.AppendTo(nil)}
	raw := batch.AppendTo(nil)
	batch.Length = int32(len(raw) - 12)
	raw = batch.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	deadline := time.Now().Add(servedTime)
	for {
		req := kmsg.NewPtrProduceRequest()
		req.Version = 11 // the last one with which a broker adds no partitions by itself
		req.Acks, req.TimeoutMillis = -1, 10_000
		txn := o.name("orphan")
		req.TransactionID = &txn
		rt := kmsg.NewProduceRequestTopic()
		rt.Topic = name
		rp := kmsg.NewProduceRequestTopicPartition()
		rp.Records = raw
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
		capped, err := kgo.NewClient(kgo.SeedBrokers(o.brokers), kgo.MaxVersions(versionsWith(11)))
		if err != nil {
			o.Fatal(err)
		}
		resp, err := req.RequestWith(o.Context(), capped)
		capped.Close()
		if err == nil {
			err = kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
		}
		if err == nil {
			return
		}
		// The setting takes a moment.
		if time.Now().After(deadline) {
			o.Fatalf("write a transaction that hangs: %v", err)
		}
	}
}

// An open transaction is listed, found in its partition, and aborted by its ID;
// by its place it is not, since its coordinator has it.
func TestTxnOpen(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		name := o.create("written", 1, nil)
		defer hang(t, o, name, "writer", false)()
		id := o.name("writer")
		if out := o.run("", "txn", "list", "--open", "-o", "json"); !strings.Contains(out, `"transactional_id": "`+id+`"`) {
			t.Errorf("txn list --open: %s, want %s in it", out, id)
		}
		if out := o.run("", "txn", "producers", name, "--open"); !strings.Contains(out, " open ") || !strings.Contains(out, id) {
			t.Errorf("txn producers: %s, want %s", out, id)
		}
		if out := o.run("", "txn", "list", "--hanging", "--older", "0s", "--topic", name); out != "no transaction hangs\n" {
			t.Errorf("txn list --hanging: %s", out)
		}
		status, _, stderr := o.try("", "txn", "abort", "--topic", name, "--partition", "0", "--start-offset", "0", "--older", "0s", "--yes")
		if status != exitError || !strings.Contains(stderr, "whose coordinator will end it") {
			t.Errorf("abort by place: status %d, %q", status, stderr)
		}
		if out := o.run("", "txn", "abort", "--transactional-id", id, "--dry-run"); !strings.Contains(out, "would be aborted") {
			t.Errorf("a dry run: %s", out)
		}
		if status, _, stderr := o.try("", "txn", "abort", "--transactional-id", id); status != exitUsage || !strings.Contains(stderr, "no terminal") {
			t.Errorf("without --yes: status %d, %q", status, stderr)
		}
		o.run("", "txn", "abort", "--transactional-id", id, "--yes")
		if got := o.read(name)[0]; len(got) != 0 {
			t.Errorf("aborted, and %d messages are there", len(got))
		}
		d, err := o.admin.DescribeTopic(t.Context(), name)
		if err != nil || d.Parts[0].StableEnd != d.Parts[0].End {
			t.Errorf("aborted, and still open: %+v, %v", d.Parts, err)
		}
		for args, want := range map[string]string{id: "no transaction is open", o.name("nobody"): "no coordinator knows it"} {
			if status, _, stderr := o.try("", "txn", "abort", "--transactional-id", args, "--yes"); status != exitError || !strings.Contains(stderr, want) {
				t.Errorf("abort %s: status %d, %q, want %q", args, status, stderr, want)
			}
		}
	})
}

// A transaction that no coordinator knows is found, and ended by hand. The
// embedded broker has none: it checks.
func TestTxnHanging(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		if !o.real {
			return
		}
		name := o.create("hung", 1, nil)
		hang(t, o, name, "orphan", true)
		o.publish(record(name, "behind"))
		if out := o.run("", "consume", name, "--until", "end"); out != "" {
			t.Fatalf("consumed %q behind an open transaction", out)
		}
		if out := o.run("", "txn", "list", "--hanging", "--topic", name); out != "no transaction hangs\n" {
			t.Errorf("a young one is listed: %s", out)
		}
		out := o.run("", "txn", "list", "--hanging", "--older", "0s", "--topic", name)
		if !strings.Contains(out, "hanging") {
			t.Fatalf("txn list --hanging: %s", out)
		}
		args := []string{"txn", "abort", "--topic", name, "--partition", "0", "--start-offset", "0", "--yes"}
		if status, _, stderr := o.try("", args...); status != exitError || !strings.Contains(stderr, "set --older") {
			t.Errorf("abort of a young one: status %d, %q", status, stderr)
		}
		o.run("", append(args, "--older", "0s")...)
		if got := o.read(name)[0]; len(got) != 1 || string(got[0].Value) != "behind" {
			t.Errorf("after the abort %v can be read", fmt.Sprint(got))
		}
	})
}

func record(name, value string) kafka.Record { return kafka.Record{Topic: name, Value: []byte(value)} }

// versionsWith are the versions of a client that produces with no later one.
func versionsWith(produce int16) *kversion.Versions {
	v := kversion.Stable()
	v.SetMaxKeyVersion(int16(kmsg.Produce), produce)
	return v
}
