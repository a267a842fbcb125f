package consumertest

import (
	"context"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// handle is the shard as user code sees it. After the shard's end it answers
// nothing but consumer.ErrFenced.
type handle struct {
	s          *Shard
	ctx        context.Context
	cancel     context.CancelFunc
	db         *store.DB
	tx         *store.Transaction
	cache      any
	publisher  *topic.Publisher
	publishing bool // a call runs that may publish
	fenced     bool
	out        []topic.Envelope // of the open transaction
}

var _ consumer.Shard = (*handle)(nil)

func newHandle(s *Shard) *handle {
	h := &handle{s: s, db: s.db.DB(), tx: s.db.Transaction()}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.publisher = topic.NewPublisher(h.publish)
	return h
}

func (h *handle) ID() consumer.ShardID              { return h.s.id }
func (h *handle) Partition() topic.Partition        { return h.s.partition }
func (h *handle) Cache() any                        { return h.cache }
func (h *handle) SetCache(v any)                    { h.cache = v }
func (h *handle) Database() *store.DB               { return h.db }
func (h *handle) Transaction() *store.Transaction   { return h.tx }
func (h *handle) ReadOptions() *store.ReadOptions   { return new(store.ReadOptions) }
func (h *handle) WriteOptions() *store.WriteOptions { return new(store.WriteOptions) }
func (h *handle) Context() context.Context          { return h.ctx }

func (h *handle) publish(o topic.Out) error {
	switch {
	case h.fenced:
		return consumer.ErrFenced
	case !h.publishing:
		return consumer.ErrOutsideCall
	}
	h.out = append(h.out, topic.Envelope{Topic: o.Topic, Partition: o.Partition, Key: o.Key, Value: o.Value, Headers: o.Headers, Timestamp: o.Timestamp})
	return nil
}
