package consumer_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// I8: what a crash makes a process read again is bounded in bytes too, from one
// commit to the next, long before the first of it has the age of a flush.
func TestI8ReplayIsBoundedInBytes(t *testing.T) {
	virtually(t, func(t *testing.T) {
		const size, messages, limit = 100_000, 60, 1 << 20
		blobs := store.NewTable("blobs", store.String, store.Bytes)
		r := rand.NewChaCha8([32]byte{1})
		p := &program{consume: func(e topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
			blob := make([]byte, size)
			r.Read(blob)
			return blobs.Put(s.Transaction(), string(e.Key), blob)
		}}
		c := consumertest.Start(t, p, consumer.Config{FlushBytes: limit, FlushInterval: time.Hour})
		c.Settle()
		for i := range messages {
			send(c, fmt.Sprint(i))
			c.Settle()
		}
		c.Crash("p1")
		c.Restart("p1")
		c.Settle()
		// A change and an offsets record of each commit since the last flush, and
		// the records of the starts.
		got, most := c.Metric("p1", "pawl_restored_records_total"), float64(2*(limit/size+1)+4)
		if got > most {
			t.Errorf("%v records were restored after a crash, want %v at most, of %d transactions of %d bytes with a limit of %d", got, most, messages, size, limit)
		}
		n := 0
		c.View("words-000", func(tx *store.Transaction) {
			for range blobs.All(tx) {
				n++
			}
		})
		if n != messages {
			t.Errorf("%d values are stored, want %d", n, messages)
		}
	})
}
