package consumertest_test

import (
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/internal/kafka"
)

// The broker answers as it is told to, so many times, and only that process.
func TestFail(t *testing.T) {
	for _, tt := range []struct {
		request, code string
	}{
		{"EndTxn", "NOT_COORDINATOR"},
		{"EndTxn", "PRODUCER_FENCED"},
		{"EndTxn", "UNKNOWN_SERVER_ERROR"},
		{"EndTxn", ""},
		{"Produce", "NOT_LEADER_OR_FOLLOWER"},
		{"Produce", "INVALID_PRODUCER_EPOCH"},
		{"Produce", ""},
		{"InitProducerID", "CONCURRENT_TRANSACTIONS"},
		{"Heartbeat", "REBALANCE_IN_PROGRESS"},
		{"Heartbeat", "UNKNOWN_MEMBER_ID"},
		{"FindCoordinator", "COORDINATOR_NOT_AVAILABLE"},
	} {
		t.Run(tt.request+"/"+tt.code, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := consumertest.Start(t, counter{}, consumer.Config{CreateTopics: 2})
				c.Settle()
				before := c.Requests("p1", tt.request)
				c.Fail("p1", tt.request, tt.code, 2)
				if tt.request == "InitProducerID" || tt.request == "FindCoordinator" { // sent at a start
					if err := c.Stop("p1"); err != nil {
						t.Fatal(err)
					}
					c.Restart("p1")
				}
				all := letters(100, 7)
				publishWords(c, all...)
				c.Advance(time.Second)
				c.Settle()
				checkCounts(t, c, 2, all)
				if c.Requests("p1", tt.request) == before {
					t.Errorf("no %s was sent", tt.request)
				}
			})
		})
	}
}

// A fault that is taken away is gone, and one that is for another process is
// not this one's.
func TestFailRemoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := consumertest.Start(t, counter{}, consumer.Config{})
		c.Settle()
		c.Fail("p2", "EndTxn", "PRODUCER_FENCED", -1)
		remove := c.Fail("p1", "EndTxn", "PRODUCER_FENCED", -1)
		publishWords(c, "a")
		c.Until("a failure", func() bool { return c.Metric("p1", "pawl_shard_failures_total") > 0 })
		if got := consumertest.Committed(c, totals); got != nil {
			t.Errorf("committed %v while commits fail", got)
		}
		remove()
		c.Settle()
		checkCounts(t, c, 1, []string{"a"})
	})
}

// What is held arrives when it is released.
func TestHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := consumertest.Start(t, counter{}, consumer.Config{})
		c.Settle()
		release := c.Hold("p1", "EndTxn")
		publishWords(c, "a")
		c.Advance(time.Second)
		if got := consumertest.Committed(c, totals); got != nil {
			t.Errorf("committed %v while the commit is held", got)
		}
		if got := consumertest.WrittenEnvelopes(c, totals); len(got) != 1 {
			t.Errorf("%d messages written, want 1", len(got))
		}
		release()
		c.Settle()
		checkCounts(t, c, 1, []string{"a"})
	})
}

// A slow network makes everything late and nothing wrong. The group's offsets
// come last.
func TestDelay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := consumertest.NewCluster(t)
		c.Delay("p1", 40*time.Millisecond)
		c.StartApp("p1", consumer.Config{CreateTopics: 2}, counter{})
		all := letters(100, 7)
		publishWords(c, all...)
		begun := time.Now()
		c.Settle()
		if took := time.Since(begun); took < 500*time.Millisecond || took > 10*time.Second {
			t.Errorf("settled after %v, want some dozens of round trips of 80 ms", took)
		}
		checkCounts(t, c, 2, all)
		c.SettleGroup("test", words)
		admin, err := kafka.NewAdmin(kafka.Config{Cluster: c.Host("tool")})
		if err != nil {
			t.Fatal(err)
		}
		defer admin.Close()
		offsets, err := admin.Committed(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		sum := int64(0)
		for _, o := range offsets {
			sum += o.Offset
		}
		if sum != int64(len(all)) {
			t.Errorf("the group has committed %v, want %d messages in all", offsets, len(all))
		}
	})
}
