package messaging

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/pawlstream/pawl/topic"
)

// delivery is one message of a stream, from when it was read until it is
// settled. It belongs to the assignment of its partition: when that ends, the
// delivery is void.
type delivery struct {
	p   *partition
	s   *stream
	seq uint64 // in the stream's window

	key, value []byte // as they were read
	headers    []topic.Header
	stamp      time.Time
	at         int64 // the offset in the stream

	origin int64    // the offset in the input
	order  int64    // the place in the lane
	past   *history // of one that was retried or redriven; else nil

	attempt int // of the next or the present call of the handler
	hop     int
	due     time.Time // not before; zero: at once

	lane    *lane // nil for a message that is in no order
	chained bool  // given to a handler together with the one before it in its lane. partition.mu guards it
	hash    uint64
	handed  time.Time // when the handler got it; zero before. partition.mu guards it
	logged  bool      // that it is stuck. partition.mu guards it
	ctx     context.Context
	endCall context.CancelFunc // of ctx, if it has a time limit
	copied  []byte             // what Value returned
	state   atomic.Int32
	nacked  *nack // partition.mu guards it
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
		p: d.p, s: d.s, seq: d.seq, key: d.key, value: d.value, headers: d.headers, stamp: d.stamp, at: d.at,
		origin: d.origin, order: d.order, past: past, attempt: d.attempt + 1, hop: d.hop, lane: d.lane, hash: d.hash,
	}
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
func (d *delivery) Topic() string           { return d.p.id.Topic }
func (d *delivery) Partition() int32        { return d.p.id.Number }
func (d *delivery) Offset() int64           { return d.origin }
func (d *delivery) Attempt() int            { return d.attempt }

func (d *delivery) Timestamp() time.Time {
	if d.past != nil {
		return time.UnixMilli(d.past.timestamp)
	}
	return d.stamp
}

// Context returns the context that the handler was given.
func (d *delivery) Context() context.Context {
	if d.ctx == nil {
		return d.p.ctx
	}
	return d.ctx
}

func (d *delivery) Ack() error { return d.p.ack(d) }

func (d *delivery) Nack() error { return d.p.nack(d, errNacked) }

var _ Delivery = (*delivery)(nil)
