package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Batches of a transaction are written like this: each leader is sent one
// request with the next batch of each of its partitions, and the next request
// when that is answered. A batch that was refused for a while, or whose answer
// was lost, is sent again as it was, with the same sequence, so that it is
// written once: that is what sequences are for.

// refusedBatch is a batch that was refused.
type refusedBatch struct {
	target *target
	batch  int
	record int32 // of the batch: the one that is to blame, if the broker says
	err    error
}

// leg is what one leader is asked, and what it answers.
type leg struct {
	leader  int32
	targets []*target
	bytes   int
	resp    *kmsg.ProduceResponse
	err     error // there is no answer
}

const (
	// requestTarget is from where on a request takes no more batches.
	requestTarget = 8 << 20

	// concurrentPause is before a batch is sent again that came too early
	// after the last transaction's end.
	concurrentPause = 5 * time.Millisecond

	// retryPauseMin and retryPauseMax are between two tries otherwise.
	retryPauseMin = 10 * time.Millisecond
	retryPauseMax = 250 * time.Millisecond
)

// write sends the transaction's batches until each is acknowledged, or refused.
// An error means that what is written is unknown, or that a broker says that
// the session is fenced.
func (s *Session) write(ctx context.Context) ([]refusedBatch, error) {
	begun := time.Now()
	if !s.implicit {
		if failed, err := s.addPartitions(ctx); err != nil || len(failed) > 0 {
			return failed, err
		}
	}
	wait := retryPauseMin
	for {
		var round round
		legs := s.legs(&round)
		s.exchange(ctx, legs)
		for i := range legs {
			if err := s.hear(&legs[i], &round); err != nil {
				return nil, err
			}
		}
		switch {
		case len(round.failed) > 0:
			return s.turnedDown(round.failed, round.again)
		case !round.left():
			return nil, nil
		case round.again == nil:
			wait = retryPauseMin
			continue // with the next batches
		case ctx.Err() != nil:
			return nil, s.lost("write", fmt.Errorf("%w (last: %w)", ctx.Err(), round.again), false)
		case time.Since(begun) > s.timeout:
			return nil, s.lost("write", fmt.Errorf("not taken within the transaction's timeout of %v: %w", s.timeout, round.again), false)
		}
		d := concurrentPause
		if round.look {
			d, wait = wait, min(2*wait, retryPauseMax)
		}
		if err := pause(ctx, s.life.Done(), d); err != nil {
			return nil, s.lost("write", fmt.Errorf("%w (last: %w)", err, round.again), false)
		}
		if !round.look {
			continue
		}
		if err := s.routes.ask(ctx, s.cl, round.unknown...); err != nil && (ctx.Err() != nil || !Transient(err)) {
			return nil, s.lost("write", err, isFence(err))
		}
		for _, t := range s.out.targets {
			if gone := t.route.gone; gone != nil && t.written < len(t.spans) {
				return s.turnedDown([]refusedBatch{{target: t, batch: t.written, err: gone}}, nil)
			}
		}
	}
}

// turnedDown is what write returns when batches were refused. Where the epoch
// stays, so would a doubt about a sequence: the next transaction's first batch
// would have that of one that may have been appended, and be taken for it.
func (s *Session) turnedDown(failed []refusedBatch, again error) ([]refusedBatch, error) {
	if s.implicit {
		return failed, nil
	}
	for _, t := range s.out.targets {
		if t.doubtful && again == nil {
			again = fmt.Errorf("whether a batch to %s was written is unknown", t.partition())
		}
	}
	if again != nil {
		return nil, s.lost("write", fmt.Errorf("%w, and: %w", failed[0].err, again), false)
	}
	return failed, nil
}

// round is what came of asking every leader once.
type round struct {
	failed  []refusedBatch
	out     *outgoing
	again   error    // why something is to be sent again
	look    bool     // and the leaders are to be looked up before
	unknown []string // topics that a leader does not know
}

func (r *round) left() bool {
	for _, t := range r.out.targets {
		if t.written < len(t.spans) {
			return true
		}
	}
	return false
}

// legs divides what is left among the leaders.
func (s *Session) legs(r *round) (legs []leg) {
	r.out = &s.out
	for _, t := range s.out.targets {
		switch {
		case t.written == len(t.spans):
			continue
		case t.leader < 0:
			r.again, r.look = fmt.Errorf("write to %s: %w", t.partition(), kerr.LeaderNotAvailable), true
			continue
		}
		i := 0
		for i < len(legs) && legs[i].leader != t.leader {
			i++
		}
		if i == len(legs) {
			legs = append(legs, leg{leader: t.leader})
		}
		l := &legs[i]
		size := t.spans[t.written].end - t.spans[t.written].start
		if l.bytes > 0 && l.bytes+size > requestTarget {
			continue // with the next request
		}
		l.targets = append(l.targets, t)
		l.bytes += size
	}
	return legs
}

// exchange asks the leaders, all at once.
func (s *Session) exchange(ctx context.Context, legs []leg) {
	ask := func(l *leg) {
		resp, err := s.cl.Broker(int(l.leader)).Request(ctx, s.produceRequest(l))
		if err != nil {
			l.err = err
			return
		}
		l.resp = resp.(*kmsg.ProduceResponse)
	}
	var others sync.WaitGroup
	for i := 1; i < len(legs); i++ {
		others.Go(func() { ask(&legs[i]) })
	}
	if len(legs) > 0 {
		ask(&legs[0])
	}
	others.Wait()
}

// produceRequest is one of no later version than max.
type produceRequest struct {
	kmsg.ProduceRequest
	max int16
}

func (r *produceRequest) MaxVersion() int16 { return r.max }

const (
	produceExplicit = 11 // the last version for partitions that were added to the transaction before
	produceByName   = 12 // the last version that names topics
	produceByID     = 13
)

func (s *Session) produceRequest(l *leg) *produceRequest {
	req := &produceRequest{ProduceRequest: kmsg.NewProduceRequest(), max: produceByID}
	req.TransactionID = &s.id
	req.Acks = -1
	req.TimeoutMillis = int32(s.timeout.Milliseconds())
	var rt *kmsg.ProduceRequestTopic
	for _, t := range l.targets {
		if rt == nil || rt.Topic != t.route.name {
			req.Topics = append(req.Topics, kmsg.NewProduceRequestTopic())
			rt = &req.Topics[len(req.Topics)-1]
			rt.Topic, rt.TopicID = t.route.name, t.route.id
			if t.route.id == (topic.ID{}) {
				req.max = produceByName
			}
		}
		if t.epoch != s.identity {
			t.epoch, t.sequence = s.identity, 0
		}
		rp := kmsg.NewProduceRequestTopicPartition()
		rp.Partition = t.number
		rp.Records = t.seal(t.written, s.identity, t.sequence)
		rt.Partitions = append(rt.Partitions, rp)
	}
	if !s.implicit {
		req.max = produceExplicit
	}
	return req
}

// hear takes a leader's answer, or that there is none.
func (s *Session) hear(l *leg, r *round) error {
	if l.err != nil {
		if errors.Is(l.err, kgo.ErrClientClosed) || isUnauthorized(l.err) {
			return s.lost("write", l.err, false)
		}
		// Whether it was written is unknown, and will be known when it is sent
		// again.
		r.again, r.look = l.err, true
		for _, t := range l.targets {
			t.doubtful = true
		}
		return nil
	}
	answered := 0
	for i := range l.resp.Topics {
		at := &l.resp.Topics[i]
		for j := range at.Partitions {
			ap := &at.Partitions[j]
			t := l.find(at, ap.Partition, l.resp.Version)
			if t == nil {
				return s.lost("write", fmt.Errorf("broker %d answered for partition %d of topic %q %v, which it was not asked", l.leader, ap.Partition, at.Topic, at.TopicID), false)
			}
			answered++
			if err := s.settle(t, ap, r); err != nil {
				return err
			}
		}
	}
	if answered != len(l.targets) {
		return s.lost("write", fmt.Errorf("broker %d answered for %d partitions of %d", l.leader, answered, len(l.targets)), false)
	}
	return nil
}

// find returns the target that an answer is about.
func (l *leg) find(at *kmsg.ProduceResponseTopic, number int32, version int16) *target {
	for _, t := range l.targets {
		if t.number == number && (version >= produceByID && t.route.id == at.TopicID || version < produceByID && t.route.name == at.Topic) {
			return t
		}
	}
	return nil
}

// settle takes what became of one batch.
func (s *Session) settle(t *target, a *kmsg.ProduceResponseTopicPartition, r *round) error {
	err := kerr.ErrorForCode(a.ErrorCode)
	switch {
	case err == nil:
		// An offset that was given before is no proof of having been written.
		if a.BaseOffset < t.reached {
			return s.lost("write", fmt.Errorf("a batch to %s was acknowledged with offset %d, and those before reached %d", t.partition(), a.BaseOffset, t.reached), false)
		}
		n := t.spans[t.written].records
		t.reached = a.BaseOffset + int64(n)
		t.sequence = sequenceAfter(t.sequence, n)
		t.written++
		t.doubtful = false
		return nil
	case errors.Is(err, kerr.ConcurrentTransactions):
		r.again = fmt.Errorf("write to %s: %w", t.partition(), err)
		return nil
	case isFence(err):
		return s.lost("write", fmt.Errorf("%s: %w", t.partition(), err), true)
	case isUnknownTopic(err):
		// The cluster is asked: this broker may not have heard of it yet.
		r.unknown = append(r.unknown, t.route.name)
		r.again, r.look = fmt.Errorf("write to %s: %w", t.partition(), err), true
		return nil
	case isRefusal(err):
		f := refusedBatch{target: t, batch: t.written, err: err}
		if len(a.ErrorRecords) > 0 {
			f.record = a.ErrorRecords[0].RelativeOffset
		}
		if a.ErrorMessage != nil && *a.ErrorMessage != "" {
			f.err = fmt.Errorf("%w (%s)", err, *a.ErrorMessage)
		}
		r.failed = append(r.failed, f)
		return nil
	case !kerr.IsRetriable(err):
		// Among them duplicate and out-of-order sequences: somebody has written
		// something, and it is unknown what.
		return s.lost("write", fmt.Errorf("%s: %w", t.partition(), err), false)
	}
	// Some of these say that it was not appended, and some do not.
	r.again, r.look, t.doubtful = fmt.Errorf("write to %s: %w", t.partition(), err), true, true
	return nil
}
