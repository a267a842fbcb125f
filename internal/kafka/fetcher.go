package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fetchConfig says how a reading fetches. Zero fields mean the defaults below.
type fetchConfig struct {
	committed         bool
	maxWait           time.Duration
	maxBytes          int
	maxPartitionBytes int
	log               *slog.Logger
}

const (
	fetchMaxWait           = 500 * time.Millisecond
	fetchMaxBytes          = 16 << 20
	fetchMaxPartitionBytes = 1 << 20
)

func (c fetchConfig) withDefaults() fetchConfig {
	if c.maxWait <= 0 {
		c.maxWait = fetchMaxWait
	}
	if c.maxBytes <= 0 {
		c.maxBytes = fetchMaxBytes
	}
	if c.maxPartitionBytes <= 0 {
		c.maxPartitionBytes = fetchMaxPartitionBytes
	}
	c.maxPartitionBytes = min(c.maxPartitionBytes, c.maxBytes)
	return c
}

// fetcher fetches from one broker what that leads, on a goroutine of its own,
// as long as the reading lasts. What is not its goroutine's is the reading's, and
// under its lock.
//
//	┌──► fetch all that is not paused ──► unpack ──► ready ──┐
//	└────────────── Poll has taken all of it ◄───────────────┘
//
// There are no fetch sessions: with few partitions they save nothing, and a
// partition that is moved would have to be moved in them, too.
type fetcher struct {
	r      *reading
	broker int32
	wake   chan struct{} // has room for one: there may be something to do

	parts  []*consumed
	turn   int                // which of them comes first in the next fetch
	held   int                // how many have something for Poll
	live   int                // how many of the fetch under way are still its own
	cancel context.CancelFunc // of the fetch under way; nil if there is none
}

// fetcherLocked returns a broker's fetcher.
func (r *reading) fetcherLocked(broker int32) *fetcher {
	f := r.mu.leaders[broker]
	if f == nil {
		f = &fetcher{r: r, broker: broker, wake: make(chan struct{}, 1)}
		r.mu.leaders[broker] = f
		if !r.mu.ended {
			r.running.Go(f.run)
		}
	}
	return f
}

// joinLocked gives it a partition to fetch.
func (f *fetcher) joinLocked(c *consumed) {
	c.leader = f
	f.parts = append(f.parts, c)
	signal(f.wake)
}

// leaveLocked takes a partition away. A fetch under way is cut off, with its
// connection, if nothing else is waited for, or at once if the partition is
// wanted again elsewhere.
func (f *fetcher) leaveLocked(c *consumed, again bool) {
	f.parts = slices.DeleteFunc(f.parts, func(o *consumed) bool { return o == c })
	c.leader = nil
	if !c.asked {
		return
	}
	c.asked = false
	if f.live--; again || f.live == 0 {
		f.cancel()
	}
}

// takenLocked tells that Poll has all that came of a partition.
func (f *fetcher) takenLocked() {
	if f.held--; f.held == 0 {
		signal(f.wake)
	}
}

// readyLocked has something for Poll.
func (r *reading) readyLocked(c *consumed, a *arrival) {
	c.came = a
	r.mu.ready = append(r.mu.ready, c)
	if c.leader != nil {
		c.leader.held++
	}
	signal(r.arrived)
}

func (f *fetcher) run() {
	for f.r.life.Err() == nil {
		ctx, req, asked := f.next()
		if req == nil {
			select {
			case <-f.wake:
			case <-f.r.life.Done():
			}
			continue
		}
		resp, err := f.ask(ctx, req)
		f.hear(ctx, asked, resp, err)
	}
}

// asked is one partition of a fetch.
type asked struct {
	c     *consumed
	known *known
	at    int64
	found bool // it was answered
	answer
}

// answer is what becomes of it.
type answer struct {
	part     *kmsg.FetchResponseTopicPartition
	messages Messages
	next     int64
	epoch    int32
	err      error // what comes after the messages
	retry    bool  // which will be otherwise once the leader was looked up
}

// next makes the next request, if there is anything to ask for.
func (f *fetcher) next() (context.Context, kmsg.Request, []asked) {
	r := f.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.held > 0 || len(f.parts) == 0 {
		return nil, nil, nil
	}
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis = int32(r.config.maxWait.Milliseconds())
	req.MinBytes = 1
	req.MaxBytes = int32(r.config.maxBytes)
	req.SessionEpoch = -1 // no fetch session
	if r.config.committed {
		req.IsolationLevel = 1
	}
	// A broker fills the answer in the order of the request, up to the limit in
	// bytes: so each comes first in turn.
	f.turn++
	var all []asked
	named := false
	for i := range f.parts {
		c := f.parts[(f.turn+i)%len(f.parts)]
		if r.mu.paused[c.partition] {
			continue
		}
		k := r.mu.topics[c.partition.Topic]
		named = named || k.id == (topic.ID{})
		at := slices.IndexFunc(req.Topics, func(t kmsg.FetchRequestTopic) bool { return t.Topic == c.partition.Topic })
		if at < 0 {
			t := kmsg.NewFetchRequestTopic()
			t.Topic, t.TopicID = c.partition.Topic, k.id
			req.Topics, at = append(req.Topics, t), len(req.Topics)
		}
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition, p.FetchOffset, p.PartitionMaxBytes = c.partition.Number, c.next, int32(cmp.Or(r.mu.each, r.config.maxPartitionBytes))
		p.CurrentLeaderEpoch, p.LastFetchedEpoch = c.term, c.epoch
		req.Topics[at].Partitions = append(req.Topics[at].Partitions, p)
		c.asked = true
		all = append(all, asked{c: c, known: k, at: c.next})
	}
	if len(all) == 0 {
		return nil, nil, nil
	}
	f.live = len(all)
	var ctx context.Context
	ctx, f.cancel = context.WithCancel(r.life)
	if named {
		return ctx, &fetchRequest{FetchRequest: *req}, all
	}
	return ctx, req, all
}

// fetchRequest is one of no later version than the last that names topics.
type fetchRequest struct{ kmsg.FetchRequest }

const fetchByName = 12

func (*fetchRequest) MaxVersion() int16 { return fetchByName }

// ask sends the request.
func (f *fetcher) ask(ctx context.Context, req kmsg.Request) (*kmsg.FetchResponse, error) {
	kresp, err := f.r.cl.Broker(int(f.broker)).Request(ctx, req)
	if err != nil {
		return nil, err
	}
	resp, ok := kresp.(*kmsg.FetchResponse)
	if !ok {
		return nil, fmt.Errorf("a fetch was answered with %T", kresp)
	}
	return resp, kerr.ErrorForCode(resp.ErrorCode)
}

// hear takes the answer, or that there is none.
func (f *fetcher) hear(ctx context.Context, all []asked, resp *kmsg.FetchResponse, err error) {
	if err == nil {
		from := 0
		for i := range resp.Topics {
			t := &resp.Topics[i]
			for j := range t.Partitions {
				if from = find(all, from, t, t.Partitions[j].Partition, resp.Version); from < len(all) && !all[from].found {
					all[from].found = true
					all[from].unpack(&t.Partitions[j], f.r.config.committed)
				}
			}
		}
	}
	r := f.r
	r.mu.Lock()
	defer r.mu.Unlock()
	cut := ctx.Err() != nil
	f.cancel()
	f.cancel = nil
	for i := range all {
		a := &all[i]
		wanted := a.c.asked // and it still is this fetcher's
		a.c.asked = false
		switch {
		case !wanted || r.mu.paused[a.c.partition]:
			a.messages.Recycle()
		case err != nil && cut:
		case err != nil:
			r.failLocked(a.c, fmt.Errorf("fetch from broker %d: %w", f.broker, err))
		case !a.found && resp.ThrottleMillis > 0: // a quota is used up: nothing is answered
		case !a.found:
			r.failLocked(a.c, fmt.Errorf("broker %d has not answered for it", f.broker))
		default:
			r.settleLocked(a)
		}
	}
}

// find returns which of the partitions an answer is about, looking from one on,
// or how many there are. Answers come in the order of the request.
func find(all []asked, from int, t *kmsg.FetchResponseTopic, number int32, version int16) int {
	for i := range all {
		at := (from + i) % len(all)
		a := &all[at]
		if a.c.partition.Number == number && (version > fetchByName && a.known.id == t.TopicID || version <= fetchByName && a.c.partition.Topic == t.Topic) {
			return at
		}
	}
	return len(all)
}

// lostEndError says that a partition has lost its end, up to an offset: its
// leader has not written what was read behind it.
type lostEndError struct{ end int64 }

func (e *lostEndError) Error() string {
	return fmt.Sprintf("the leader's log and what was read of it part at offset %d", e.end)
}

var errNoProgress = errors.New("the answer holds no whole batch")

// unpack takes the answer apart.
func (a *asked) unpack(p *kmsg.FetchResponseTopicPartition, committed bool) {
	a.part, a.next, a.epoch = p, a.at, -1
	if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
		a.err, a.retry = err, kerr.IsRetriable(err)
		return
	}
	if d := p.DivergingEpoch; d.EndOffset >= 0 {
		// Where the logs part after the position, what is read next is what
		// comes next there.
		if d.EndOffset < a.at {
			a.err = &lostEndError{d.EndOffset}
		}
		return
	}
	var aborted []abortedFrom
	if committed && len(p.AbortedTransactions) > 0 {
		aborted = abortedIn(p.AbortedTransactions)
	}
	var u unpacking
	a.messages, u, a.err = unpack(a.c.topic, p.Partition, a.at, p.RecordBatches, aborted)
	a.next, a.epoch = u.next, u.epoch
	if a.err == nil && a.next == a.at && len(p.RecordBatches) > 0 {
		a.err, a.retry = errNoProgress, true
	}
}

// settleLocked takes what became of a partition.
func (r *reading) settleLocked(a *asked) {
	c, p := a.c, a.part
	if a.retry {
		a.messages.Recycle()
		r.failLocked(c, a.err)
		return
	}
	if a.err == nil {
		c.fails, c.unknown = 0, 0
		delete(r.mu.failing, c.partition)
	}
	if a.next == a.at && a.err == nil {
		a.messages.Recycle()
		if p.DivergingEpoch.EndOffset >= 0 {
			c.epoch = -1
		}
		return
	}
	came := &arrival{messages: a.messages, epoch: a.epoch, err: a.err}
	came.Partition, came.Next = c.partition, a.next
	came.HighWatermark, came.StableEnd, came.LogStart = p.HighWatermark, p.LastStableOffset, p.LogStartOffset
	r.readyLocked(c, came)
}
