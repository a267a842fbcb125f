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

// outputs are the topics that an incarnation has published to, by name: whatever
// description a message came with, the topic is the same.
type outputs struct {
	last    string
	seen    map[string]bool
	fresh   []*topic.Description // those that the open transaction is the first to publish to
	asked   int                  // of fresh: so many were looked up
	missing map[string]error     // of fresh: why they can't be created
}

func (o *outputs) add(d *topic.Description) {
	name := d.Name()
	if name == o.last {
		return
	}
	o.last = name
	if !o.seen[name] {
		if o.seen == nil {
			o.seen = make(map[string]bool)
		}
		o.seen[name] = true
		o.fresh = append(o.fresh, d)
	}
}

// committed tells that the open transaction has committed: its topics are there.
func (o *outputs) committed() { o.fresh, o.asked, o.missing = nil, 0, nil }

// reset tells that the open transaction has ended. What it was the first to
// publish to, and did not commit, is looked up by the next that does.
func (o *outputs) reset() {
	for _, d := range o.fresh {
		delete(o.seen, d.Name())
	}
	o.last, o.fresh, o.asked, o.missing = "", nil, 0, nil
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

// headerOverhead is what one of its headers does.
const headerOverhead = 48

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
	for i := range o.Headers {
		h.outBytes += int64(len(o.Headers[i].Key)+len(o.Headers[i].Value)) + headerOverhead
	}
	h.outputs.add(o.Topic)
	return nil
}

// committed forgets what was published: it is visible.
func (h *handle) committed() {
	h.outputs.committed()
	h.reset()
}

// reset forgets what was published: the transaction has ended.
func (h *handle) reset() {
	clear(h.out)
	h.out, h.outBytes = h.out[:0], 0
	h.outputs.reset()
}
