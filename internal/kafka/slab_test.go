package kafka

import (
	"testing"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"
)

// The size that is compared with a topic's limit is that of the batch as it is
// written.
func TestWireSize(t *testing.T) {
	genBytes := rapid.Custom(func(t *rapid.T) []byte {
		if rapid.Bool().Draw(t, "null") {
			return nil
		}
		return make([]byte, rapid.IntRange(0, 1<<17).Draw(t, "size"))
	})
	rapid.Check(t, func(t *rapid.T) {
		r := Record{Key: genBytes.Draw(t, "key"), Value: genBytes.Draw(t, "value")}
		rec := kmsg.NewRecord()
		rec.Key, rec.Value = r.Key, r.Value
		for range rapid.IntRange(0, 70).Draw(t, "headers") {
			h := topic.Header{Key: rapid.String().Draw(t, "name"), Value: genBytes.Draw(t, "header")}
			r.Headers = append(r.Headers, h)
			rec.Headers = append(rec.Headers, kmsg.Header{Key: h.Key, Value: h.Value})
		}
		body := len(rec.AppendTo(nil)) - 1 // without its length, which is 0 and takes a byte
		rec.Length = int32(body)
		batch := kmsg.NewRecordBatch()
		batch.Records = rec.AppendTo(nil)
		if got, want := wireSize(&r), len(batch.AppendTo(nil)); got != want {
			t.Errorf("size %d, want %d", got, want)
		}
	})
}
