package broker

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// far fills a partition with more than one answer holds, that is not recent, and
// returns a connection to read it by.
func (k *kit) far(topic string) *connection {
	k.Helper()
	k.create(topic, 1)
	cl := k.client(kgo.ProducerBatchCompression(kgo.NoCompression()))
	for range 8 {
		k.produceTo(cl, topic, 0, string(make([]byte, aheadMin)))
	}
	k.restart()
	return &connection{b: k.Broker}
}

// fetchOf asks for a partition from its beginning on, and for the first batches.
func (k *kit) fetchOf(topic string, committed bool, partitions ...int32) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxBytes, req.MaxWaitMillis = 12, 1<<20, 1
	if committed {
		req.IsolationLevel = 1
	}
	ft := kmsg.NewFetchRequestTopic()
	ft.Topic = topic
	for _, n := range partitions {
		fp := kmsg.NewFetchRequestTopicPartition()
		fp.Partition, fp.PartitionMaxBytes, fp.CurrentLeaderEpoch = n, 3*aheadMin, -1
		ft.Partitions = append(ft.Partitions, fp)
	}
	req.Topics = append(req.Topics, ft)
	return req
}

// fetchFor fetches, gives the answer back and reads ahead, as a connection does.
func (k *kit) fetchFor(c *connection, req *kmsg.FetchRequest) []reading {
	k.Helper()
	f, all, err := k.fetchWithin(k.ctx, c, req)
	if err != nil {
		k.Fatal(err)
	}
	f.release()
	k.readAhead(k.ctx, c, all, req.IsolationLevel == 1)
	return all
}

// A fetch that named a partition twice took memory that was never given back.
func TestReadAheadOfPartitionTwice(t *testing.T) {
	k := start(t, quiet())
	c := k.far("t")
	k.fetchFor(c, k.fetchOf("t", false, 0, 0))
	if k.ahead.used() == 0 {
		t.Fatal("nothing was read ahead")
	}
	c.ahead.drop()
	if got := k.ahead.used(); got != 0 {
		t.Errorf("%d bytes are taken of what nobody has", got)
	}
}

// What was read ahead for a reader of all records was given to one of committed
// ones, after a fetch in between that had nothing but an error to answer.
func TestReadAheadIsForWhomItWasRead(t *testing.T) {
	k := start(t, quiet())
	c := k.far("t")
	all := k.fetchFor(c, k.fetchOf("t", false, 0))
	defer c.ahead.drop()
	k.fetchFor(c, k.fetchOf("t", true, 7))
	r := k.look("t", 0, all[0].last+1, k.answers)
	if c.ahead.take(r, r.max, true) {
		t.Error("a reader of committed records got what was read for one of all")
	}
	if !c.ahead.take(r, r.max, false) {
		t.Error("what was read ahead is not there any more")
	}
	r.records.release()
}

// A fetch that took what was read ahead, and waited for more, went on to take
// from the memory for reading ahead: where others have all of that, it hung.
func TestReadAheadGivenBack(t *testing.T) {
	k := start(t, quiet())
	c := k.far("t")
	all := k.fetchFor(c, k.fetchOf("t", false, 0))
	req := k.fetchOf("t", false, 0)
	req.Topics[0].Partitions[0].FetchOffset = all[0].last + 1
	req.MinBytes = 1 << 20
	f, _, err := k.fetchWithin(k.ctx, c, req)
	if err != nil {
		t.Fatal(err)
	}
	defer f.release()
	if size := f.records[0].size; size == 0 || k.answers.used() != size || k.ahead.used() != 0 {
		t.Errorf("an answer of %d bytes took %d of the answers' and %d of those for reading ahead", size, k.answers.used(), k.ahead.used())
	}
}
