package broker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// look begins to read a partition from an offset on, as a fetch of committed
// records does.
func (k *kit) look(topic string, partition int32, offset int64, from *budget) *reading {
	k.Helper()
	k.mu.Lock()
	p := k.mu.topics[topic].partitions[partition]
	k.mu.Unlock()
	all := []reading{{resp: &kmsg.FetchResponseTopicPartition{}, records: &blocks{from: from}, p: p, offset: offset, max: math.MaxInt64}}
	if !k.lookLocked(all, true) || all[0].resp.ErrorCode != 0 {
		k.Fatalf("%s can't be read at %d: error %d", p, offset, all[0].resp.ErrorCode)
	}
	return &all[0]
}

// abort writes one batch for each value to a partition, in a transaction that is
// aborted, and returns the size of a batch.
func (k *kit) abort(topic string, partition int32, values ...string) (size int64) {
	k.Helper()
	p := k.rawProducer("aborts")
	for _, v := range values {
		if _, err := p.produce(topic, partition, v); err != nil {
			k.Fatal(err)
		}
	}
	if err := p.end(false); err != nil {
		k.Fatal(err)
	}
	return int64(len(rawBatch(p.pid, p.epoch, 0, true, values[0])))
}

// An answer that ends in the middle of what is recent, because the answers'
// memory is used up, had aborted records without saying that they are.
func TestAbortedInRecentCutShort(t *testing.T) {
	k := start(t, quiet())
	k.create("t", 1)
	size := k.abort("t", 0, "a", "b")
	r := k.look("t", 0, 0, newBudget(size))
	if err := k.readPartition(k.ctx, r, r.max, true); err != nil {
		t.Fatal(err)
	}
	if r.last != 0 || r.records.size != size {
		t.Fatalf("read %d bytes up to offset %d, want %d up to 0", r.records.size, r.last, size)
	}
	if n := len(r.resp.AbortedTransactions); n != 1 {
		t.Errorf("the answer names %d aborted transactions, want 1", n)
	}
}

// What is known of aborted transactions goes with their records: of records that
// were found before they were deleted, the answer said that they are committed.
func TestAbortedWhileDeleted(t *testing.T) {
	for name, del := range map[string]func(*kit){
		"records": func(k *kit) { k.deleteBelow(k.client(), "t", k.offset("t", 0, listLatest, true)) },
		"topic":   func(k *kit) { k.deleteTopic("t") },
	} {
		for _, recent := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, recent %t", name, recent), func(t *testing.T) {
				k := start(t, quiet())
				k.create("t", 1)
				size := k.abort("t", 0, "a")
				if !recent {
					k.restart()
				}
				// Between looking and reading: there is nothing, or nothing but aborted.
				r := k.look("t", 0, 0, newBudget(1<<20))
				while := k.look("t", 0, 0, newBudget(size))
				if err := while.records.from.take(k.ctx, size); err != nil {
					t.Fatal(err)
				}
				// Between finding and reading, which waits for memory.
				if err := k.readPartition(&asked{k.ctx, sync.OnceFunc(func() {
					del(k)
					while.records.from.give(size)
				})}, while, while.max, true); err != nil {
					t.Fatal(err)
				}
				if while.records.size == 0 || len(while.resp.AbortedTransactions) != 1 {
					t.Errorf("deleted while it is read: %d bytes and %d aborted transactions, want some and 1", while.records.size, len(while.resp.AbortedTransactions))
				}
				if err := k.readPartition(k.ctx, r, r.max, true); err != nil {
					t.Fatal(err)
				}
				if r.records.size != 0 && len(r.resp.AbortedTransactions) == 0 {
					t.Errorf("deleted before it is read: %d bytes and no aborted transactions", r.records.size)
				}
			})
		}
	}
}

func (k *kit) deleteTopic(name string) {
	k.Helper()
	id, err := k.topicID(k.client(), name)
	if err != nil {
		k.Fatal(err)
	}
	req := kmsg.NewPtrDeleteTopicsRequest()
	rt := kmsg.NewDeleteTopicsRequestTopic()
	rt.Topic, rt.TopicID = kmsg.StringPtr(name), id
	req.TopicNames, req.Topics = []string{name}, append(req.Topics, rt)
	if code := ask[*kmsg.DeleteTopicsResponse](k, k.client(), req).Topics[0].ErrorCode; code != 0 {
		k.Fatalf("delete topic %s: %v", name, kerr.ErrorForCode(code))
	}
}

// asked is a context that says when somebody begins to wait for its end.
type asked struct {
	context.Context
	waiting func()
}

func (a *asked) Done() <-chan struct{} {
	a.waiting()
	return a.Context.Done()
}

// unreadable is entries that lie in a damaged block: the storage finds none, and
// tells why only when it is asked.
type unreadable struct{ entries }

func (unreadable) First() bool  { return false }
func (unreadable) Error() error { return errors.New("checksum mismatch") }

// What is known of a partition's aborted transactions can't be read: that is an
// error of that partition, not the end of the connection, and none of its records
// is answered without.
func TestAbortedThatCantBeRead(t *testing.T) {
	k := start(t, quiet())
	k.create("t", 1)
	k.abort("t", 0, "a", "b")
	r := k.look("t", 0, 0, newBudget(1<<20))
	if err := k.readPartition(k.ctx, r, r.max, true); err != nil || r.records.size == 0 {
		t.Fatalf("read %d bytes, %v", r.records.size, err)
	}
	k.readAborted(r, unreadable{})
	if r.resp.ErrorCode != kerr.KafkaStorageError.Code || r.records.size != 0 {
		t.Errorf("error %d and %d bytes, want %d and none", r.resp.ErrorCode, r.records.size, kerr.KafkaStorageError.Code)
	}
}
