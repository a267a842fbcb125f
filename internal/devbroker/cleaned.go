package devbroker

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Clean makes a partition look as if compaction had left nothing of its
// messages from an offset up to another: whoever fetches there is answered with
// a batch that spans the offsets and holds no record, as Kafka keeps one for the
// end's sake. The topic must exist.
func (b *Broker) Clean(p topic.Partition, from, to int64) {
	info := b.cluster.TopicInfo(p.Topic)
	b.cluster.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		req, ok := r.(*kmsg.FetchRequest)
		if !ok || len(req.Topics) != 1 || len(req.Topics[0].Partitions) != 1 {
			return nil, nil, false
		}
		t := &req.Topics[0]
		at := t.Partitions[0].FetchOffset
		if t.Topic != p.Topic && t.TopicID != info.TopicID || t.Partitions[0].Partition != p.Number || at < from || at >= to {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		rp := kmsg.NewFetchResponseTopicPartition()
		rp.Partition, rp.HighWatermark, rp.LastStableOffset = p.Number, to, to
		rp.LogStartOffset = 0
		rp.RecordBatches = emptyBatch(from, to)
		rt := kmsg.NewFetchResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		rt.Partitions = append(rt.Partitions, rp)
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
}

// emptyBatch returns a record batch without records.
func emptyBatch(from, to int64) []byte {
	batch := kmsg.RecordBatch{
		FirstOffset: from, LastOffsetDelta: int32(to - from - 1), Magic: 2,
		PartitionLeaderEpoch: -1, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1,
	}
	raw := batch.AppendTo(nil)
	const length, crc, attributes = 8, 17, 21 // where they are in a batch
	binary.BigEndian.PutUint32(raw[length:], uint32(len(raw)-length-4))
	binary.BigEndian.PutUint32(raw[crc:], crc32.Checksum(raw[attributes:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}
