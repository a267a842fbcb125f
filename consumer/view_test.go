package consumer_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// I10: a query is never answered from a state that is older than what another
// process has committed, however late this one learns that its shard has moved.
func TestI10NoAnswerFromAnOlderState(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{CreateTopics: 6})
		want := make(map[string]int)
		publish := func() {
			for n := range int32(6) { // each partition has a key of its own
				key := fmt.Sprintf("k%d", n)
				c.PublishRecord(topic.Out{Topic: words.Description, Partition: n, Key: []byte(key), Value: []byte("x")})
				want[key]++
			}
		}
		publish()
		c.StartProcess("p2")
		c.Settle()
		// What comes to p1 is late, so p3 has a shard, and commits, while p1 still
		// takes it for its own.
		c.Delay("p1", time.Second)
		c.StartProcess("p3")
		moved := 0
		for range 1500 {
			c.Advance(10 * time.Millisecond)
			publish()
			for _, s := range c.Status("p3").Shards {
				if s.Phase != consumer.Running || s.Commits == 0 {
					continue
				}
				moved++
				if err := c.App("p1").View(s.ID, func(*store.Transaction) error { return nil }); err == nil {
					t.Fatalf("p1 answers for %s, in which p3 has committed %d times", s.ID, s.Commits)
				}
			}
		}
		c.Delay("p1", 0)
		if moved == 0 {
			t.Error("p3 has no shard that was another's")
		}
		c.Settle()
		checkExact(t, c, want)
	})
}
