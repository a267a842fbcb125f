package consumer

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sort"

	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// ahead lets a Prefetcher read ahead, while that pays.
//
//	chunk of messages ──► Prefetch, if cold ──► Consume … Consume
//	                            ▲                      │
//	                            └── lookups a message ◄┘
//
// How many keys a chunk makes the database look up is the same whether Prefetch or
// Consume looks them up. So nothing need be tried to know whether it would pay:
// where all keys are at hand, or new, which the filter of absent keys tells,
// Prefetch is not called, and each chunk costs a comparison.
type ahead struct {
	h          *handle
	prefetcher Prefetcher
	owner      *store.Owner
	batch      []topic.Envelope

	// The chunk. A call that ends in the midst of it leaves the rest to the next.
	topic       string
	first, next int64 // its offsets: from first on, below next
	consumed    int
	lookups     int64
	begun       int64 // lookups of the shard when the call came to it

	always   bool // and not only while it pays
	cold     bool // as the last chunk was
	failures int  // of Prefetch in a row
	rest     int  // chunks that it is not called for, because it failed
}

const (
	// prefetchMost bounds a chunk. What a key takes less the more are read at once
	// is little from there on, and a stop waits for it.
	prefetchMost = 2_000

	// prefetchLeast is the number of messages from which on it pays.
	prefetchLeast = 16

	// prefetchShare is the part of its messages that a chunk has to look keys up
	// for, to be called cold: with less, telling the keys takes more than is saved.
	prefetchShare = 8
)

// newAhead returns nil for a consumer that does not read ahead.
func newAhead(h *handle, c Consumer, owner *store.Owner) *ahead {
	p, ok := c.(Prefetcher)
	if !ok {
		return nil
	}
	// Builds that check invariants read ahead for any messages that come together,
	// so that all tests of shards do.
	return &ahead{h: h, prefetcher: p, owner: owner, always: invariants.Enabled}
}

// begin returns where the chunk ends in which one of the messages is. If it is
// the first of a new one, it reads ahead where that one is likely to be cold. The
// error is Prefetch's, and fails nothing.
func (a *ahead) begin(msgs kafka.Messages, from int) (until int, err error) {
	name, offset := msgs.At(from).TopicName(), msgs.Offset(from)
	if name != a.topic || offset < a.first || offset >= a.next {
		until = min(from+prefetchMost, msgs.Len())
		a.learn()
		a.topic, a.first, a.next = name, offset, msgs.Offset(until-1)+1
		a.begun = a.owner.Lookups()
		return until, a.read(msgs.Slice(from, until))
	}
	a.begun = a.owner.Lookups()
	return from + sort.Search(msgs.Len()-from, func(i int) bool { return msgs.Offset(from+i) >= a.next }), nil
}

// end tells that so many messages of the chunk were consumed.
func (a *ahead) end(messages int) {
	a.consumed += messages
	a.lookups += a.owner.Lookups() - a.begun
}

// learn ends a chunk. One of a few messages tells nothing.
func (a *ahead) learn() {
	if a.consumed >= prefetchLeast {
		a.cold = a.lookups*prefetchShare >= int64(a.consumed)
	}
	a.consumed, a.lookups = 0, 0
}

// read reads ahead for messages, if that is due.
func (a *ahead) read(msgs kafka.Messages) error {
	if !a.due(msgs.Len()) {
		return nil
	}
	for i := range msgs.Len() {
		a.batch = append(a.batch, msgs.At(i))
	}
	defer func() {
		clear(a.batch)
		a.batch = a.batch[:0]
	}()
	a.failed() // until it has returned, which it may not
	a.h.publishing.Store(false)
	err := a.owner.ReadAhead(a.call)
	if err == nil {
		a.failures, a.rest = 0, 0
		return nil
	}
	if a.h.fenced.Load() || errors.Is(err, store.ErrFenced) {
		return nil // Consume is told so as well
	}
	e := msgs.At(0)
	return fmt.Errorf("read ahead for %d messages from %s-%d at offset %d on: %w", msgs.Len(), e.TopicName(), e.Partition, e.Offset, err)
}

// due says whether to read ahead for so many messages.
func (a *ahead) due(messages int) bool {
	due := a.cold && messages >= prefetchLeast || a.always && messages > 1
	if due && a.rest > 0 {
		a.rest--
		return false
	}
	return due
}

// failed makes Prefetch rest, longer each time: what fails for each chunk would
// else fill the log.
func (a *ahead) failed() {
	a.failures = min(a.failures+1, 10)
	a.rest = 1<<a.failures - 1
}

func (a *ahead) call() (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return a.prefetcher.Prefetch(a.batch, a.h)
}
