package consumer_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// The first hop counts increases per path, and publishes one for each message;
// the second counts the same per author. Together they are the program that
// the stories are about: each message leaves a trace on either hop that says
// which it was and what the total was then.
var (
	edits    = topic.JSON("edits", topic.KeyedBy(func(e edit) string { return e.Path }))
	byPath   = topic.JSON("by-path", topic.KeyedBy(func(i increase) string { return i.Author }))
	byAuthor = topic.JSON("by-author", topic.KeyedBy(func(i increase) string { return i.Author }))

	pathTotals   = store.NewTable("path-totals", store.String, store.Int64)
	authorTotals = store.NewTable("author-totals", store.String, store.Int64)
)

type edit struct {
	Path, Author string
	Lines        int64
}

// increase is an output: what the message at an offset added, and to what.
type increase struct {
	Path, Author string
	Lines, Total int64
	Partition    int32
	Offset       int64
}

// hop is a consumer that adds up lines, and publishes a total for each message.
type hop struct {
	in, out *topic.Description
	consume func(e topic.Envelope, s consumer.Shard, p *topic.Publisher) error
	fault   func(e topic.Envelope, s consumer.Shard) error // perhaps an error, at some time
}

func (h *hop) Topics() []*topic.Description                 { return []*topic.Description{h.in} }
func (h *hop) Outputs() []*topic.Description                { return []*topic.Description{h.out} }
func (h *hop) Flush(consumer.Shard, *topic.Publisher) error { return nil }
func (h *hop) Consume(e topic.Envelope, s consumer.Shard, p *topic.Publisher) error {
	if err := h.consume(e, s, p); err != nil {
		return err
	}
	return h.fault(e, s)
}

// InitShard and HaltShard check that they are paired, with nothing beside them.
func (h *hop) InitShard(s consumer.Shard) error {
	if s.Cache() != nil {
		return fmt.Errorf("a cache is there before InitShard: %v", s.Cache())
	}
	s.SetCache(h)
	return nil
}

func hops(fault func(e topic.Envelope, s consumer.Shard) error) []consumer.Consumer {
	return []consumer.Consumer{
		&hop{in: edits.Description, out: byPath.Description, fault: fault, consume: func(e topic.Envelope, s consumer.Shard, p *topic.Publisher) error {
			m, _, err := edits.Message(e)
			if err != nil {
				return err
			}
			n, err := pathTotals.Update(s.Transaction(), m.Path, func(n int64) int64 { return n + m.Lines })
			if err != nil {
				return err
			}
			return byPath.Publish(p, increase{m.Path, m.Author, m.Lines, n, e.Partition, e.Offset})
		}},
		&hop{in: byPath.Description, out: byAuthor.Description, fault: fault, consume: func(e topic.Envelope, s consumer.Shard, p *topic.Publisher) error {
			m, _, err := byPath.Message(e)
			if err != nil {
				return err
			}
			n, err := authorTotals.Update(s.Transaction(), m.Author, func(n int64) int64 { return n + m.Lines })
			if err != nil {
				return err
			}
			return byAuthor.Publish(p, increase{m.Path, m.Author, m.Lines, n, e.Partition, e.Offset})
		}},
	}
}

// Whatever happens to three processes, their network, the broker's answers, the
// topics and the user's code: of every message there is one trace on each hop,
// and every total is right. PAWL_SEED=N runs the Nth story alone, PAWL_SOAK=1
// hundreds of new ones.
func TestStories(t *testing.T) {
	first, count := uint64(1), uint64(10)
	if s := os.Getenv("PAWL_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		first, count = n, 1
	} else if os.Getenv("PAWL_SOAK") != "" {
		first, count = uint64(time.Now().Unix())*1000, 300
	}
	for seed := first; seed < first+count; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			virtually(t, func(t *testing.T) { newStory(t, seed).run() })
		})
	}
}

// story is a number of things that happen to a cluster, each at some time.
type story struct {
	t          *testing.T
	r          *rand.Rand
	c          *consumertest.Cluster
	state      map[string]string // of each process
	started    map[string]bool
	partitions map[string]int
	sent       []edit
	failing    atomic.Bool // user code fails now and then
}

const (
	storyRunning = "running"
	storyCrashed = "crashed"
	storyFrozen  = "frozen"
	storyCut     = "cut"
	storyStopped = "stopped"
)

var storyProcesses = []string{"p1", "p2", "p3"}

func newStory(t *testing.T, seed uint64) *story {
	s := &story{
		t: t, r: rand.New(rand.NewPCG(seed, 7)), started: map[string]bool{"p1": true}, partitions: map[string]int{"edits": 3, "by-path": 3},
		state: map[string]string{"p1": storyRunning, "p2": storyStopped, "p3": storyStopped},
	}
	fail := rand.New(rand.NewPCG(seed, 8))
	cfg := consumer.Config{
		CreateTopics: 3, OnFailure: []consumer.OnFailure{consumer.Retry, consumer.StopShard}[s.r.IntN(2)],
		CommitInterval: time.Duration(1+s.r.IntN(100)) * time.Millisecond,
		FlushInterval:  time.Duration(1+s.r.IntN(5)) * time.Second,
		TopicsInterval: time.Duration(1+s.r.IntN(10)) * time.Second,
		DrainTimeout:   time.Duration(1+s.r.IntN(30)) * time.Second,
		BackoffMax:     5 * time.Second,
		KeepMembership: s.r.IntN(3) == 0,
	}
	slow := s.r.IntN(3) == 0
	var mu sync.Mutex // user code of all shards draws
	s.c = consumertest.StartWith(t, cfg, hops(func(e topic.Envelope, sh consumer.Shard) error {
		mu.Lock()
		n := fail.IntN(200)
		mu.Unlock()
		switch {
		case slow && n < 20:
			time.Sleep(time.Duration(n) * 20 * time.Millisecond) // virtual time
		case !s.failing.Load():
		case n == 100:
			return errors.New("by chance")
		case n == 101:
			panic("by chance")
		case n == 102:
			return consumer.Transient(errors.New("by chance"))
		}
		return nil
	})...)
	return s
}

func (s *story) run() {
	for range 14 {
		s.publish()
		s.happen(storyProcesses[s.r.IntN(len(storyProcesses))])
		s.c.Advance(s.pause())
	}
	s.end()
	s.check()
}

func (s *story) publish() {
	var outs []topic.Out
	p := topic.NewPublisher(func(o topic.Out) error { outs = append(outs, o); return nil })
	for range 1 + s.r.IntN(60) {
		e := edit{Path: fmt.Sprintf("path-%d", s.r.IntN(12)), Author: fmt.Sprintf("author-%d", s.r.IntN(5)), Lines: 1 + s.r.Int64N(9)}
		if err := edits.Publish(p, e); err != nil {
			s.t.Fatal(err)
		}
		s.sent = append(s.sent, e)
	}
	s.c.PublishRecord(outs...)
}

func (s *story) pause() time.Duration {
	switch s.r.IntN(3) {
	case 0:
		return time.Duration(s.r.IntN(20)) * time.Millisecond
	case 1:
		return time.Duration(s.r.IntN(1000)) * time.Millisecond
	}
	return time.Duration(s.r.IntN(20)) * time.Second
}

var (
	storyRequests = []string{"Produce", "EndTxn", "InitProducerID", "Fetch", "Heartbeat", "JoinGroup", "SyncGroup", "LeaveGroup", "OffsetCommit", "OffsetFetch", "FindCoordinator",
		"Metadata", "ListOffsets", "DescribeConfigs", "AddPartitionsToTxn", "ApiVersions"}
	// What brokers answer to these, now and then, and what none may answer is
	// not among them.
	storyErrors = map[string][]string{
		"Produce":         {"NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS", "INVALID_PRODUCER_EPOCH", "KAFKA_STORAGE_ERROR", "CONCURRENT_TRANSACTIONS"},
		"EndTxn":          {"NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "CONCURRENT_TRANSACTIONS", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "INVALID_TXN_STATE", "UNKNOWN_SERVER_ERROR"},
		"InitProducerID":  {"NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "CONCURRENT_TRANSACTIONS", "PRODUCER_FENCED", "UNKNOWN_SERVER_ERROR"},
		"Fetch":           {"NOT_LEADER_OR_FOLLOWER", "LEADER_NOT_AVAILABLE", "KAFKA_STORAGE_ERROR", "UNKNOWN_SERVER_ERROR"},
		"Heartbeat":       {"NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS"},
		"JoinGroup":       {"NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "UNKNOWN_MEMBER_ID"},
		"SyncGroup":       {"NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS"},
		"OffsetCommit":    {"NOT_COORDINATOR", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID"},
		"FindCoordinator": {"COORDINATOR_NOT_AVAILABLE"},
		"ListOffsets":     {"NOT_LEADER_OR_FOLLOWER", "LEADER_NOT_AVAILABLE"},
		"Metadata":        {"LEADER_NOT_AVAILABLE"},
	}
)

// happen lets something happen to a process.
func (s *story) happen(p string) {
	switch was := s.state[p]; was {
	case storyRunning:
		s.disturb(p)
	case storyFrozen, storyCut:
		if s.r.IntN(4) == 0 {
			s.t.Logf("crash %s, which is %s", p, was)
			s.crash(p)
			return
		}
		s.reach(p)
	default:
		s.start(p)
	}
}

// disturb lets something happen to a process that runs.
func (s *story) disturb(p string) {
	request := storyRequests[s.r.IntN(len(storyRequests))]
	switch s.r.IntN(11) {
	case 0, 1:
		s.t.Logf("crash %s", p)
		s.crash(p)
	case 2:
		s.t.Logf("freeze %s", p)
		s.c.Freeze(p)
		s.state[p] = storyFrozen
	case 3:
		s.t.Logf("cut %s", p)
		s.c.Cut(p)
		s.state[p] = storyCut
	case 4:
		s.t.Logf("stop %s", p)
		if err := s.c.Stop(p); err != nil {
			s.t.Errorf("stop %s: %v", p, err)
		}
		s.state[p] = storyStopped
	case 5, 6:
		nth := 1 + s.r.IntN(4)
		s.t.Logf("drop reply %d to %s of %s", nth, request, p)
		s.c.DropReply(p, request, nth)
	case 7, 8:
		if codes := storyErrors[request]; len(codes) > 0 {
			code, times := codes[s.r.IntN(len(codes))], 1+s.r.IntN(3)
			s.t.Logf("answer %s of %s with %s, %d times", request, p, code, times)
			s.c.Fail(p, request, code, times)
			return
		}
		s.t.Logf("break the connection at %s of %s", request, p)
		s.c.Fail(p, request, "", 1)
	case 9:
		name := []string{"edits", "by-path"}[s.r.IntN(2)]
		if s.partitions[name] < 6 {
			s.partitions[name]++
			s.t.Logf("%s has %d partitions", name, s.partitions[name])
			s.c.AddPartitions(name, s.partitions[name])
		}
	case 10:
		s.failing.Store(!s.failing.Load())
		s.t.Logf("user code fails: %v", s.failing.Load())
	}
}

func (s *story) crash(p string) {
	s.c.Crash(p)
	s.state[p] = storyCrashed
}

func (s *story) start(p string) {
	s.t.Logf("start %s, which has %s", p, s.state[p])
	if s.started[p] {
		s.c.Restart(p)
	} else {
		s.c.StartProcess(p)
	}
	s.started[p] = true
	s.state[p] = storyRunning
}

func (s *story) reach(p string) {
	s.t.Logf("reach %s, which is %s", p, s.state[p])
	if s.state[p] == storyFrozen {
		s.c.Thaw(p)
	} else {
		s.c.Heal(p)
	}
	s.state[p] = storyRunning
}

// end makes the world whole again.
func (s *story) end() {
	s.failing.Store(false)
	for i, p := range storyProcesses {
		switch s.state[p] {
		case storyFrozen, storyCut:
			s.reach(p)
		case storyRunning:
		default:
			if i == 0 || s.r.IntN(2) == 0 {
				s.start(p)
			}
		}
	}
	s.t.Log("settle")
	s.c.Settle()
}

// check reads what is committed, and the stores, and compares them with what
// was sent, counted without any of the code above.
func (s *story) check() {
	s.t.Helper()
	paths, authors := make(map[string]int64), make(map[string]int64)
	var lines int64
	for _, e := range s.sent {
		paths[e.Path] += e.Lines
		authors[e.Author] += e.Lines
		lines += e.Lines
	}
	s.checkHop(byPath, len(s.sent), lines)
	s.checkHop(byAuthor, len(s.sent), lines)
	s.checkTotals("edits", pathTotals, paths)
	s.checkTotals("by-path", authorTotals, authors)
}

// checkHop checks that each message has one trace in the output of a hop.
func (s *story) checkHop(of topic.Of[increase], want int, lines int64) {
	s.t.Helper()
	type position struct {
		partition int32
		offset    int64
	}
	seen := make(map[position]int)
	var sum int64
	for _, i := range consumertest.Committed(s.c, of) {
		seen[position{i.Partition, i.Offset}]++
		sum += i.Lines
	}
	for p, n := range seen {
		if n != 1 {
			s.t.Errorf("%s: the message at %d/%d has %d increases", of.Name(), p.partition, p.offset, n)
		}
	}
	if len(seen) != want || sum != lines {
		s.t.Errorf("%s: %d messages with %d lines have an increase, want %d with %d", of.Name(), len(seen), sum, want, lines)
	}
}

// checkTotals checks the totals in the stores. A key may have two, one before and
// one after its topic grew: they add up.
func (s *story) checkTotals(name string, table *store.Table[string, int64], want map[string]int64) {
	s.t.Helper()
	got := make(map[string]int64)
	for n := range s.partitions[name] {
		s.c.View(consumer.ShardID(fmt.Sprintf("%s-%03d", name, n)), func(tx *store.Transaction) {
			for k, v := range table.All(tx) {
				got[k] += v
			}
		})
	}
	for k, n := range want {
		if got[k] != n {
			s.t.Errorf("total of %s in %s is %d, want %d", k, name, got[k], n)
		}
	}
	if len(got) != len(want) {
		s.t.Errorf("%s has %d totals, want %d: %v", name, len(got), len(want), got)
	}
}
