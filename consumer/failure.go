package consumer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// failures is what a shard knows of the messages that fail.
//
//	a transaction of several fails ──► aborted; its messages are consumed
//	                                   again, one per transaction
//	one fails alone                ──► the policy is applied to it
//	none fails alone               ──► goes on; the third such round in a row
//	                                   counts as a failure of its last message
type failures struct {
	attempts  int // of the next message, which has failed alone so many times
	rounds    int // transactions in a row that failed together, and whose messages did not fail alone
	condemned *condemned
}

// condemned is a message that the policy is applied to without another try.
type condemned struct {
	topic     string
	partition int32
	offset    int64
	err       error
}

// roundsMax is the number of rounds after which a message counts as failed
// that does not fail alone.
const roundsMax = 3

func (f *failures) isCondemned(e topic.Envelope) bool {
	c := f.condemned
	return c != nil && c.topic == e.TopicName() && c.partition == e.Partition && c.offset == e.Offset
}

// fail handles the failure of a transaction of n messages, which was met at
// the message e.
func (r *incarnation) fail(ctx context.Context, e topic.Envelope, n int, err error) error {
	alone := n == 1
	r.log.Warn("a message failed", "partition", topic.Partition{Topic: e.TopicName(), Number: e.Partition}.String(), "offset", e.Offset, "key", fmt.Sprintf("%.60q", e.Key),
		"alone", alone, "messages in the transaction", n, "attempt", r.attempts+1, "error", err, "stack", stack(err))
	r.s.app.metrics.failed.WithLabelValues(reason(err)).Inc()
	if err := r.abort(ctx); err != nil {
		return err
	}
	if r.pace.draining {
		r.backlog.rewind()
		return nil // whoever has the shard next consumes them
	}
	r.refetch()
	if alone {
		return r.judge(e, err)
	}
	r.pace.alone = n
	r.rounds++
	if r.rounds >= roundsMax {
		r.rounds = 0
		r.condemn(e, err)
	}
	return nil
}

// abort drops everything that the open transaction has done: writes, output,
// what tables remember of it, and the cache. Nothing of it was on the wire, or
// it was aborted there. Nothing is restored, since the database holds only
// what was committed.
func (r *incarnation) abort(ctx context.Context) error {
	r.busy(false)
	r.db.Abort()
	r.handle.reset()
	r.pace.reset()
	r.s.app.metrics.aborts.Inc()
	r.inited = false
	if res, err := r.callAndWait(ctx, call{name: callHalt}); err != nil {
		return err
	} else if res.err != nil {
		r.log.Error("HaltShard failed", "error", res.err, "stack", stack(res.err))
		r.s.app.metrics.haltFailed.Inc()
	}
	r.handle.cache = nil
	return r.init(ctx)
}

// policy returns what is to become of a message that fails with err.
func (r *incarnation) policy(err error) OnFailure {
	if IsTransient(err) {
		return Retry
	}
	return r.s.app.cfg.OnFailure
}

// judge decides about the message e, which has failed alone and comes again
// next.
func (r *incarnation) judge(e topic.Envelope, err error) error {
	r.condemned, r.rounds = nil, 0
	switch r.policy(err) {
	case Retry:
		r.holdBack(newMessageError(r.s.id, e, err))
		return nil
	case DeadLetter, Skip:
		r.condemn(e, err)
		return nil
	}
	return newMessageError(r.s.id, e, err)
}

// condemn notes that the message is not to be tried again when it comes.
func (r *incarnation) condemn(e topic.Envelope, err error) {
	r.condemned = &condemned{topic: e.TopicName(), partition: e.Partition, offset: e.Offset, err: err}
}

// execute does what was decided about the message e, the next one, which is
// condemned.
func (r *incarnation) execute(ctx context.Context, e topic.Envelope) error {
	err := r.condemned.err
	failed := newMessageError(r.s.id, e, err)
	r.condemned = nil
	switch r.policy(err) {
	case Retry:
		r.holdBack(failed)
		return nil
	case DeadLetter:
		return r.pass(ctx, failed, deadLetter(r.s, e, err))
	case Skip:
		return r.pass(ctx, failed)
	}
	return failed
}

// holdBack makes the next message wait before it is tried again, alone.
func (r *incarnation) holdBack(failed *MessageError) {
	r.attempts++
	r.pace.alone = max(r.pace.alone, 1)
	wait := r.s.app.backoff(r.attempts)
	r.pace.hold = time.Now().Add(wait)
	r.s.note(fmt.Sprintf("attempt %d in %v: %v", r.attempts+1, wait.Round(time.Millisecond), failed))
}

// pass commits a transaction that does nothing but go past the next message,
// with the given records.
func (r *incarnation) pass(ctx context.Context, failed *MessageError, recs ...kafka.Record) error {
	r.backlog.advance(1)
	r.pace.consumed = 1
	if err := r.commit(ctx, recs...); err != nil {
		return errors.Join(err, failed)
	}
	why := reason(failed.Err)
	if len(recs) > 0 {
		r.s.app.metrics.deadLetters.WithLabelValues(why).Inc()
		r.log.Error("a message was dead-lettered", "topic", DeadLetterTopic(r.s.app.cfg.Application, r.s.set.name), "error", failed)
		return nil
	}
	r.s.app.metrics.dropped.WithLabelValues(why).Inc()
	r.log.Error("a message was skipped", "error", failed)
	return nil
}

// errorMax is how much of an error's text a dead letter carries.
const errorMax = 4 << 10

// deadLetter returns the dead letter of a message: the message as it was, and
// in headers where it was and why it failed.
func deadLetter(s *shard, e topic.Envelope, err error) kafka.Record {
	text := strings.ToValidUTF8(err.Error(), "\uFFFD")
	if len(text) > errorMax {
		text = strings.ToValidUTF8(text[:errorMax], "") + "…"
	}
	header := func(name, value string) topic.Header { return topic.Header{Key: name, Value: []byte(value)} }
	return kafka.Record{
		Topic:     DeadLetterTopic(s.app.cfg.Application, s.set.name),
		Partition: e.Partition,
		Key:       e.Key,
		Value:     e.Value,
		Headers: append(append([]topic.Header(nil), e.Headers...),
			header(HeaderTopic, e.TopicName()),
			header(HeaderPartition, fmt.Sprint(e.Partition)),
			header(HeaderOffset, fmt.Sprint(e.Offset)),
			header(HeaderTimestamp, fmt.Sprint(e.Timestamp.UnixMilli())),
			header(HeaderReason, reason(err)),
			header(HeaderError, text),
			header(HeaderFailedAt, time.Now().UTC().Format(time.RFC3339Nano)),
		),
	}
}

// The headers of a dead letter, which come after those of the message.
const (
	HeaderTopic     = "pawl-topic"     // where the message was: the topic,
	HeaderPartition = "pawl-partition" // the partition,
	HeaderOffset    = "pawl-offset"    // and the offset, in decimal
	HeaderTimestamp = "pawl-timestamp" // its timestamp, in milliseconds since 1970
	HeaderReason    = "pawl-reason"    // error, decode or panic
	HeaderError     = "pawl-error"     // the error's text, at most 4 KiB of it
	HeaderFailedAt  = "pawl-failed-at" // when it failed, as RFC 3339 writes it
)

// backoff returns how long to wait before the attempt after n that failed: it
// doubles from the shortest to the longest, less up to a quarter at random.
func (a *App) backoff(n int) time.Duration {
	d := a.cfg.BackoffMax
	if n < 32 {
		if shifted := a.cfg.BackoffMin << (n - 1); shifted > 0 {
			d = min(d, shifted)
		}
	}
	return d - time.Duration(rand.Int64N(int64(d)/4+1))
}
