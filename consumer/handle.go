package consumer

import (
	"context"
	"sync/atomic"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// handle is a shard as user code sees it, for one incarnation of the shard:
// once it is fenced, it answers nothing but ErrFenced.
type handle struct {
	id         ShardID
	partition  topic.Partition
	ctx        context.Context
	db         *store.DB
	tx         *store.Transaction
	cache      any
	publisher  *topic.Publisher
	publishing atomic.Bool // a call runs that may publish
	fenced     atomic.Bool

	// The output of the open transaction.
	out      []kafka.Record
	outBytes int64

	outputs outputs
}

// outputs are the topics that an incarnation has published to.
type outputs struct {
	last    *topic.Description
	all     map[*topic.Description]bool
	unknown []*topic.Description // those that were not looked up yet
}

func (o *outputs) add(d *topic.Description) {
	if d == o.last {
		return
	}
	o.last = d
	if !o.all[d] {
		if o.all == nil {
			o.all = make(map[*topic.Description]bool)
		}
		o.all[d] = true
		o.unknown = append(o.unknown, d)
	}
}

var _ Shard = (*handle)(nil)

func newHandle(ctx context.Context, id ShardID, p topic.Partition, owner *store.Owner) *handle {
	h := &handle{id: id, partition: p, ctx: ctx, db: owner.DB(), tx: owner.Transaction()}
	h.publisher = topic.NewPublisher(h.publish)
	return h
}

func (h *handle) ID() ShardID                       { return h.id }
func (h *handle) Partition() topic.Partition        { return h.partition }
func (h *handle) Cache() any                        { return h.cache }
func (h *handle) SetCache(v any)                    { h.cache = v }
func (h *handle) Database() *store.DB               { return h.db }
func (h *handle) Transaction() *store.Transaction   { return h.tx }
func (h *handle) ReadOptions() *store.ReadOptions   { return new(store.ReadOptions) }
func (h *handle) WriteOptions() *store.WriteOptions { return new(store.WriteOptions) }
func (h *handle) Context() context.Context          { return h.ctx }

// recordOverhead is what a record takes in memory besides its bytes.
const recordOverhead = 128

// publish takes a message that user code publishes.
func (h *handle) publish(o topic.Out) error {
	if h.fenced.Load() {
		return ErrFenced
	}
	if !h.publishing.Load() {
		return ErrOutsideCall
	}
	h.out = append(h.out, kafka.Record{Topic: o.Topic.Name(), Partition: o.Partition, Key: o.Key, Value: o.Value, Headers: o.Headers, Timestamp: o.Timestamp})
	h.outBytes += int64(len(o.Key)+len(o.Value)) + recordOverhead
	h.outputs.add(o.Topic)
	return nil
}

// reset forgets what was published: the transaction has ended.
func (h *handle) reset() {
	clear(h.out)
	h.out, h.outBytes = h.out[:0], 0
}
