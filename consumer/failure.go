package consumer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
		"alone", alone, "messages in the transaction", n, "attempt", r.attempts+1, "error", err, stack(err))
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
		r.log.Error("HaltShard failed", "error", res.err, stack(res.err))
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
// condemned, once what InitShard has written is committed.
func (r *incarnation) execute(ctx context.Context, e topic.Envelope) error {
	if r.openAside() {
		return nil
	}
	err := r.condemned.err
	failed := newMessageError(r.s.id, e, err)
	r.condemned = nil
	switch r.policy(err) {
	case Retry:
		r.holdBack(failed)
		return nil
	case DeadLetter:
		return r.pass(ctx, failed, deadLetters(r.s, e, err)...)
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
// with the first of the given letters that its topic takes.
func (r *incarnation) pass(ctx context.Context, failed *MessageError, letters ...kafka.Record) error {
	r.backlog.advance(1)
	r.pace.consumed = 1
	err := r.commitLetter(ctx, letters)
	if err != nil {
		return errors.Join(err, failed)
	}
	why := reason(failed.Err)
	if len(letters) > 0 {
		r.s.app.metrics.deadLetters.WithLabelValues(why).Inc()
		r.log.Error("a message was dead-lettered", "topic", letters[0].Topic, "error", failed)
		return nil
	}
	r.s.app.metrics.dropped.WithLabelValues(why).Inc()
	r.log.Error("a message was skipped", "error", failed)
	return nil
}

// commitLetter commits with the first of the letters that is not too large, or
// without any if there is none.
func (r *incarnation) commitLetter(ctx context.Context, letters []kafka.Record) error {
	if len(letters) == 0 {
		return r.commit(ctx)
	}
	for i, letter := range letters {
		err := r.commit(ctx, letter)
		var refused *kafka.RecordError
		if i == len(letters)-1 || !errors.Is(err, kafka.ErrTooLarge) || !errors.As(err, &refused) || refused.Topic != letter.Topic {
			return err
		}
		r.log.Warn("a dead letter is too large: it is written with less", "error", err)
		// Nothing but the letter was in the transaction, and direct writes, which stay.
		r.db.Abort()
		r.handle.reset()
	}
	return nil
}

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
