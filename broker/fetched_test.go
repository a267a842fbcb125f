package broker

import (
	"bytes"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"
)

// The answer to a fetch is encoded as the library encodes it.
func TestFetchedEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		req := kmsg.NewPtrFetchRequest()
		req.Version = rapid.Int16Range(apis[int16(kmsg.Fetch)].min, apis[int16(kmsg.Fetch)].max).Draw(t, "version")
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		f := &fetched{FetchResponse: resp}
		resp.ErrorCode = rapid.Int16().Draw(t, "error")
		for range rapid.IntRange(0, 3).Draw(t, "topics") {
			rt := kmsg.NewFetchResponseTopic()
			rt.Topic, rt.TopicID = rapid.StringMatching("[a-z]{0,9}").Draw(t, "topic"), randomID()
			for range rapid.IntRange(0, 3).Draw(t, "partitions") {
				rp := kmsg.NewFetchResponseTopicPartition()
				rp.Partition, rp.HighWatermark, rp.LastStableOffset, rp.LogStartOffset = rapid.Int32().Draw(t, "partition"), rapid.Int64().Draw(t, "high"), rapid.Int64().Draw(t, "stable"), rapid.Int64().Draw(t, "start")
				if rapid.Bool().Draw(t, "committed") {
					rp.AbortedTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{}
					for range rapid.IntRange(0, 3).Draw(t, "aborted") {
						ra := kmsg.NewFetchResponseTopicPartitionAbortedTransaction()
						ra.ProducerID, ra.FirstOffset = rapid.Int64().Draw(t, "producer"), rapid.Int64().Draw(t, "first")
						rp.AbortedTransactions = append(rp.AbortedTransactions, ra)
					}
				}
				b := blocks{from: newBudget(1 << 30)}
				rp.RecordBatches = []byte{}
				for range rapid.IntRange(0, 3).Draw(t, "batches") {
					batch := bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, rapid.SampledFrom([]int{1, 100, blockSize - 1, blockSize, blockSize + 1, blockSizeMax + 1}).Draw(t, "size"))
					switch rapid.SampledFrom([]string{"append", "refer", "keep", "give up"}).Draw(t, "how") {
					case "append":
						b.append(batch)
					case "refer":
						b.refer(batch)
					case "keep": // it lies within something bigger
						room := b.room(len(batch) + 20)
						clear(room)
						b.keep(room, room[9:9+copy(room[9:], batch)])
					case "give up":
						clear(b.room(len(batch)))
						b.append(batch)
					}
					rp.RecordBatches = append(rp.RecordBatches, batch...)
				}
				f.records = append(f.records, b)
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		var got []byte
		rest := f.encode(nil, func(dst []byte, b *blocks) []byte {
			got = append(got, dst...)
			for _, p := range b.pieces {
				got = append(got, p...)
			}
			return dst[:0]
		})
		got = append(got, rest...)
		if want := resp.AppendTo(nil); !bytes.Equal(got, want) {
			t.Errorf("encoded %d bytes, want %d", len(got), len(want))
		}
		f.release()
	})
}
