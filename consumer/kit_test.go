package consumer_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// virtually runs a test in virtual time.
func virtually(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

var (
	words  = topic.String("words")
	lines  = topic.String("lines") // an output: "key=count@partition/offset"
	counts = store.NewTable("counts", store.String, store.Int64)
)

// program is a consumer made of functions: what a test does not set counts
// messages by key and publishes a line for each.
type program struct {
	topics  []*topic.Description
	consume func(e topic.Envelope, s consumer.Shard, p *topic.Publisher) error
	before  func(e topic.Envelope, s consumer.Shard) error // before what consume does by default
	after   func(e topic.Envelope, s consumer.Shard) error // and after it
	flush   func(s consumer.Shard, p *topic.Publisher) error
	init    func(s consumer.Shard) error
	halt    func(s consumer.Shard)
	outputs []*topic.Description
}

func (p *program) Topics() []*topic.Description {
	if p.topics != nil {
		return p.topics
	}
	return []*topic.Description{words.Description}
}

func (p *program) Outputs() []*topic.Description {
	if p.outputs != nil {
		return p.outputs
	}
	return []*topic.Description{lines.Description}
}

func (p *program) Consume(e topic.Envelope, s consumer.Shard, pub *topic.Publisher) error {
	if p.consume != nil {
		return p.consume(e, s, pub)
	}
	if p.before != nil {
		if err := p.before(e, s); err != nil {
			return err
		}
	}
	if err := countLine(e, s, pub); err != nil {
		return err
	}
	if p.after != nil {
		return p.after(e, s)
	}
	return nil
}

// countLine counts the message's key and publishes a line about it.
func countLine(e topic.Envelope, s consumer.Shard, pub *topic.Publisher) error {
	n, err := counts.Update(s.Transaction(), string(e.Key), func(n int64) int64 { return n + 1 })
	if err != nil {
		return err
	}
	return lines.Publish(pub, fmt.Sprintf("%s=%d@%d/%d", e.Key, n, e.Partition, e.Offset), topic.Key(e.Key))
}

func (p *program) Flush(s consumer.Shard, pub *topic.Publisher) error {
	if p.flush != nil {
		return p.flush(s, pub)
	}
	return nil
}

func (p *program) InitShard(s consumer.Shard) error {
	if p.init != nil {
		return p.init(s)
	}
	return nil
}

func (p *program) HaltShard(s consumer.Shard) {
	if p.halt != nil {
		p.halt(s)
	}
}

// send publishes messages whose key and value are the given words.
func send(c *consumertest.Cluster, msgs ...string) {
	for _, m := range msgs {
		consumertest.PublishKeyed(c, words, m, m)
	}
}

// repeated returns n words, taken in turn.
func repeated(n int, from ...string) []string {
	msgs := make([]string, n)
	for i := range msgs {
		msgs[i] = from[i%len(from)]
	}
	return msgs
}

// checkExact checks that the committed output is that of each message once:
// want says how often each key was published. skipped messages have none.
func checkExact(t *testing.T, c *consumertest.Cluster, want map[string]int) {
	t.Helper()
	seenAt := make(map[string]int)
	last := make(map[string]int)
	for _, line := range consumertest.Committed(c, lines) {
		key, rest, _ := strings.Cut(line, "=")
		count, at, _ := strings.Cut(rest, "@")
		n, err := strconv.Atoi(count)
		if err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		seenAt[at]++
		if seenAt[at] > 1 {
			t.Errorf("message %s has %d lines", at, seenAt[at])
		}
		if n != last[key]+1 {
			t.Errorf("key %s: count %d comes after %d", key, n, last[key])
		}
		last[key] = n
	}
	if !maps.Equal(last, want) {
		t.Errorf("counts in the output are %v, want %v", last, want)
	}
}

// countOf returns how often each word is among the messages.
func countOf(msgs []string) map[string]int {
	n := make(map[string]int)
	for _, m := range msgs {
		n[m]++
	}
	return n
}

// stored returns the counts in a shard's committed state.
func stored(c *consumertest.Cluster, id consumer.ShardID) map[string]int {
	got := make(map[string]int)
	c.View(id, func(tx *store.Transaction) {
		for k, n := range counts.All(tx) {
			got[k] = int(n)
		}
	})
	return got
}

// checkStored checks a shard's committed state.
func checkStored(t *testing.T, c *consumertest.Cluster, id consumer.ShardID, want map[string]int) {
	t.Helper()
	if got := stored(c, id); !maps.Equal(got, want) {
		t.Errorf("stored counts of %s are %v, want %v", id, got, want)
	}
}

// ledger notes events from the calls of shards.
type ledger struct {
	mu struct {
		sync.Mutex
		events []string
	}
}

func (l *ledger) note(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.events = append(l.mu.events, fmt.Sprintf(format, args...))
}

func (l *ledger) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.mu.events)
}

func (l *ledger) count(event string) int {
	n := 0
	for _, e := range l.all() {
		if e == event {
			n++
		}
	}
	return n
}
