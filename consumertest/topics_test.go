package consumertest_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// echo passes on what it consumes.
type echo struct {
	from, to topic.Of[string]
	fail     func(topic.Envelope) error
}

func (e echo) Topics() []*topic.Description { return []*topic.Description{e.from.Description} }

func (e echo) Outputs() []*topic.Description { return []*topic.Description{e.to.Description} }

func (e echo) Consume(m topic.Envelope, _ consumer.Shard, p *topic.Publisher) error {
	if e.fail != nil {
		if err := e.fail(m); err != nil {
			return err
		}
	}
	msg, ok, err := e.from.Message(m)
	if err != nil {
		return err
	}
	if !ok {
		return e.to.PublishTombstone(p, string(m.Key))
	}
	return e.to.Publish(p, msg, topic.Key(m.Key), topic.Headers(m.Headers...), topic.Timestamp(m.Timestamp))
}

func (e echo) Flush(consumer.Shard, *topic.Publisher) error { return nil }

var (
	raw    = topic.String("raw")
	middle = topic.String("middle").With(topic.Partitions(3))
	final  = topic.String("final")
)

// Settle waits for messages that consumers pass on to each other, in one
// application and between two.
func TestSettleChain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := consumertest.StartWith(t, consumer.Config{CommitInterval: 50 * time.Millisecond},
			echo{from: raw, to: middle}, echo{from: middle, to: final})
		last := topic.String("last")
		c.StartApp("other", consumer.Config{Application: "other"}, echo{from: final, to: last})
		var want []string
		for i := range 100 {
			m := fmt.Sprint(i)
			want = append(want, m)
			c.Publish(raw, m)
		}
		c.Settle()
		got := consumertest.Committed(c, last)
		slices.Sort(got)
		slices.Sort(want)
		diff(t, "messages that came through", got, want)
		if n := c.Commits("raw-000"); n == 0 {
			t.Error("no commits of raw-000 are counted")
		}
	})
}

// A message is published with all that it can have, and read with it.
func TestPublish(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := consumertest.NewCluster(t)
		c.CreateTopic(middle, 0)
		c.Publish(middle, "a", "b", "c", "d") // without a key: spread
		at := time.UnixMilli(1234567890123).UTC()
		consumertest.PublishWith(c, middle, "e", topic.Key([]byte{}), topic.ToPartition(2), topic.Timestamp(at), topic.Headers(topic.Header{Key: "h", Value: nil}, topic.Header{Key: "h", Value: []byte{}}))
		consumertest.PublishKeyed(c, middle, "k", "f", "g")
		c.PublishTombstone(middle, "k")
		c.PublishRecord(topic.Out{Topic: middle.Description, Partition: 1, Value: []byte{0xff}})
		var got []string
		k := topic.PartitionFor([]byte("k"), 3)
		for _, e := range consumertest.CommittedEnvelopes(c, middle) {
			s := fmt.Sprintf("%d@%d %q=%q", e.Partition, e.Offset, e.Key, e.Value)
			if e.Value == nil {
				s += " tombstone"
			}
			if e.Key == nil {
				s += " nil key"
			}
			for _, h := range e.Headers {
				s += fmt.Sprintf(" %s:%v", h.Key, h.Value == nil)
			}
			if e.Timestamp.Equal(at) {
				s += " at"
			}
			if e.Partition == k && string(e.Key) == "k" {
				s = fmt.Sprintf("k %q %v", e.Value, e.Value == nil)
			}
			got = append(got, s)
		}
		slices.Sort(got)
		want := []string{
			`0@0 ""="a" nil key`, `0@1 ""="d" nil key`, `1@0 ""="b" nil key`, `2@0 ""="c" nil key`,
			`2@1 ""="e" h:true h:false at`, `k "" true`, `k "f" false`, `k "g" false`,
		}
		want = append(want, "")
		for _, s := range got { // where it lands depends on where k does
			if strings.HasPrefix(s, "1@") && strings.Contains(s, `"\xff"`) {
				want[len(want)-1] = s
			}
		}
		slices.Sort(want)
		diff(t, "messages", got, want)
	})
}

// Topics come, grow, are trimmed and go while processes run.
func TestTopics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := consumertest.Start(t, echo{from: raw, to: final}, consumer.Config{OnOffsetOutOfRange: consumer.GoToEarliest})
		c.Publish(raw, "a", "b")
		c.Settle()
		c.AddPartitions("raw", 2)
		c.Publish(raw, "c", "d") // one to each
		c.Settle()
		if got, want := consumertest.Committed(c, final), []string{"a", "b", "c", "d"}; !slices.Equal(got, want) {
			t.Errorf("passed on %v, want %v", got, want)
		}
		if got, want := owners(c, "p1"), []int{2}; !slices.Equal(got, want) {
			t.Errorf("%v shards, want %v", got, want)
		}
		c.Trim("final", 0, 1)
		if got, want := consumertest.Committed(c, final), []string{"b", "c", "d"}; !slices.Equal(got, want) {
			t.Errorf("the trimmed topic has %v, want %v", got, want)
		}
		c.SetTopic("final", "max.message.bytes", "100")
		c.DeleteTopic("final")
		c.CreateTopic(final, 1)
		if got := consumertest.Committed(c, final); got != nil {
			t.Errorf("the new topic has %v, want nothing", got)
		}
		c.Publish(final, "new")
		if got, want := consumertest.Committed(c, final), []string{"new"}; !slices.Equal(got, want) {
			t.Errorf("the new topic has %v, want %v", got, want)
		}
	})
}

// A process that ends by itself fails the test that does not expect it.
func TestProcessError(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := consumertest.Start(t, counter{}, consumer.Config{Instance: "same"})
		c.Settle()
		c.StartProcess("p2") // takes the instance of p1, as one that was not stopped first
		if err := c.Wait("p1"); err == nil || !strings.Contains(err.Error(), `instance "same" of application test runs elsewhere`) {
			t.Errorf("p1 ended with %v, want that its instance runs elsewhere", err)
		}
		publishWords(c, "a")
		c.Settle()
		checkCounts(t, c, 1, []string{"a"})
	})
}

// What can't settle fails the test, and says why.
func TestSettleFails(t *testing.T) {
	const mode = "PAWL_TEST_FAILING"
	if os.Getenv(mode) == "" {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(exe, "-test.v", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), mode+"=1")
		out, err := cmd.CombinedOutput()
		if strings.Contains(string(out), "needs the build tag") {
			t.Skip("in a bubble the kit needs the build tag synctests") // without it locks are not ones of virtual time; make test sets it
		}
		for _, want := range []string{
			"not settled after 5m0s: shard raw-000 in process p1 is failed",
			"process p1: joined true",
			"shard raw-000: failed since",
			"consume message raw-0 at offset 1 with key \"\": not this one",
		} {
			if err == nil || !strings.Contains(string(out), want) {
				t.Errorf("got %v and:\n%s\nwant a failure with %q", err, out, want)
			}
		}
		return
	}
	bubble(t, func(t *testing.T) {
		c := consumertest.Start(t, echo{from: raw, to: final, fail: func(e topic.Envelope) error {
			if e.Offset == 1 {
				return errors.New("not this one")
			}
			return nil
		}}, consumer.Config{})
		c.Publish(raw, "a", "b")
		c.Settle()
	})
}

// View reads the state that is committed, with the tables of the consumer.
func TestView(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := consumertest.Start(t, counter{}, consumer.Config{})
		publishWords(c, "a", "b", "a")
		c.Settle()
		var got []string
		c.View("words-000", func(tx *store.Transaction) {
			for w, n := range counts.All(tx) {
				got = append(got, fmt.Sprint(w, n))
			}
		})
		diff(t, "state", got, []string{"a2", "b1"})
	})
}
