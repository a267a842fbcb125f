package messaging

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/pawlstream/pawl/topic"
)

// delivery is one message of a stream, from when it was read until it is
// settled. It belongs to the assignment of its partition: when that ends, the
// delivery is void. There are as many as messages that were read and are not
// settled, so it is kept small: what few messages have is behind a pointer.
type delivery struct {
	s   *stream
	seq uint64 // in the stream's window

	key, value []byte // as they were read
	headers    []topic.Header
	stamp      int64    // milliseconds
	at         int64    // the offset in the stream
	order      int64    // the place in the lane
	past       *history // of one that was retried or redriven; else nil

	attempt int32 // of the next or the present call of the handler
	hop     int32
	state   atomic.Int32

	// partition.mu guards these.
	waits   bool       // until it is due
	chained bool       // given to a handler together with the one before it in its lane
	logged  bool       // that it is stuck
	lane    *lane      // nil for a message that is in no order
	handed  *time.Time // when the handler got it; nil before
	nacked  *nack

	call   *call  // of the handler, where it needs more than the partition's context
	copied []byte // what Value returned
}

// call is a call of the handler whose context is its own.
type call struct {
	ctx context.Context
	end func(error) // with what the handler returned
}

// The states of a delivery, as far as whoever settles it is concerned.
const (
	pending int32 = iota
	settled       // acked, or on its way to a retry or the dead letters
)

// nack is a call of Nack that waits.
type nack struct{ outcome chan error }

// again returns a delivery of the same message for the next attempt. What
// holds the old one gets ErrSettled of it.
func (d *delivery) again(past *history) *delivery {
	return &delivery{
		s: d.s, seq: d.seq, key: d.key, value: d.value, headers: d.headers, stamp: d.stamp, at: d.at,
		order: d.order, past: past, attempt: d.attempt + 1, hop: d.hop, lane: d.lane,
	}
}

// origin is the offset in the input.
func (d *delivery) origin() int64 {
	if d.past != nil {
		return d.past.offset
	}
	return d.at
}

// size is what the message counts for in limits of bytes.
func (d *delivery) size() int64 {
	n := len(d.key) + len(d.value)
	for _, h := range d.headers {
		n += len(h.Key) + len(h.Value)
	}
	return int64(n) + deliveryOverhead
}

// deliveryOverhead is what a message takes beside its bytes.
const deliveryOverhead = 256

func (d *delivery) Value() []byte {
	if d.copied == nil && d.value != nil {
		d.copied = append(make([]byte, 0, len(d.value)), d.value...)
	}
	return d.copied
}

func (d *delivery) Key() []byte             { return d.key }
func (d *delivery) Headers() []topic.Header { return own(d.headers) }
func (d *delivery) Topic() string           { return d.s.p.id.Topic }
func (d *delivery) Partition() int32        { return d.s.p.id.Number }
func (d *delivery) Offset() int64           { return d.origin() }
func (d *delivery) Attempt() int            { return int(d.attempt) }

func (d *delivery) Timestamp() time.Time {
	if d.past != nil {
		return time.UnixMilli(d.past.timestamp)
	}
	return time.UnixMilli(d.stamp)
}

// Context returns the context that the handler was given.
func (d *delivery) Context() context.Context {
	if d.call == nil {
		return d.s.p.ctx
	}
	return d.call.ctx
}

func (d *delivery) Ack() error { return d.s.p.ack(d) }

func (d *delivery) Nack() error { return d.s.p.nack(d, errNacked) }

var _ Delivery = (*delivery)(nil)
