package consumertest

import (
	"fmt"
	"path/filepath"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// Topic is a topic of messages of any type: a [topic.Of] or a
// *[topic.Description].
type Topic interface {
	Describe() *topic.Description
}

// Shard is one shard of a consumer, for a unit test: a real store and no
// broker. The test gives it messages and says when the transaction commits. It
// belongs to the goroutine of the test.
//
//	Consume … Consume ──► Commit    Flush; what was stored and published is there
//	                └───► Abort     none of it ever was
//
// HaltShard is called, and the store closed, when the test ends.
type Shard struct {
	t         testing.TB
	consumer  consumer.Consumer
	topics    map[string]*topic.Description // those that the shard consumes
	id        consumer.ShardID
	partition topic.Partition
	dir       string
	options   store.Options

	db     *store.Owner
	handle *handle
	late   time.Duration // how far Advance has moved the shard's clock
	inited bool          // InitShard was called and HaltShard was not

	open      int              // messages in the open transaction
	positions map[string]int64 // of each topic: the next message's offset
	committed map[string]int64 // and as of the last commit
	commits   int
	published []topic.Envelope // by transactions that committed
}

// A ShardOption says which shard NewShard makes.
type ShardOption func(*Shard)

// OfTopic makes the shard one that consumes the topic, where the consumer
// consumes topics that are not co-partitioned. Without it, it is the topic that
// the consumer names first.
func OfTopic(t Topic) ShardOption {
	return func(s *Shard) { s.partition.Topic = t.Describe().Name() }
}

// OfPartition makes the shard that of the given partition, in place of 0.
func OfPartition(n int32) ShardOption { return func(s *Shard) { s.partition.Number = n } }

// NewShard returns a new shard of the consumer, in an empty directory, with
// InitShard called.
func NewShard(t testing.TB, c consumer.Consumer, opts ...ShardOption) *Shard {
	t.Helper()
	topics := c.Topics()
	if len(topics) == 0 {
		t.Fatalf("consumer %T names no topics", c)
	}
	if err := store.CheckTables(); err != nil {
		t.Fatal(err)
	}
	s := &Shard{t: t, consumer: c, partition: topic.Partition{Topic: topics[0].Name()}, positions: make(map[string]int64), committed: make(map[string]int64)}
	for _, opt := range opts {
		opt(s)
	}
	i := slices.IndexFunc(topics, func(d *topic.Description) bool { return d.Name() == s.partition.Topic })
	if i < 0 {
		t.Fatalf("consumer %T does not consume topic %s", c, s.partition.Topic)
	}
	set := topics[i].Set()
	s.topics = make(map[string]*topic.Description)
	for _, d := range topics {
		if d.Set() == set {
			s.topics[d.Name()] = d
			s.partition.Topic = min(s.partition.Topic, d.Name())
		}
	}
	s.id = shardID(set, s.partition.Number)
	s.dir = filepath.Join(t.TempDir(), string(s.id))
	if o, ok := c.(consumer.OptionsIniter); ok {
		o.InitOptions(&s.options)
	}
	// Registered before the store is open, so that it closes whatever fails.
	t.Cleanup(func() {
		if err := s.end(); err != nil {
			t.Errorf("end shard %s: %v", s.id, err)
		}
	})
	s.begin()
	return s
}

func shardID(set string, partition int32) consumer.ShardID {
	return consumer.ShardID(fmt.Sprintf("%s-%03d", set, partition))
}

// begin opens the store and calls InitShard.
func (s *Shard) begin() {
	s.t.Helper()
	db, err := store.Open(store.Config{Dir: s.dir, Options: s.options, Logger: logger(s.t), Now: s.now})
	if err != nil {
		s.t.Fatalf("shard %s: %v", s.id, err)
	}
	s.db = db
	s.handle = newHandle(s)
	s.init()
}

// end calls HaltShard, and closes the store.
func (s *Shard) end() error {
	if s.db == nil {
		return nil
	}
	s.drop()
	s.handle.cancel()
	s.handle.fenced = true
	s.db.Fence()
	err := s.halt()
	s.handle.cache = nil
	closeErr := s.db.Close()
	s.db = nil
	if err == nil {
		err = closeErr
	}
	return err
}

func (s *Shard) init() {
	s.t.Helper()
	i, ok := s.consumer.(consumer.ShardIniter)
	s.inited = true
	if !ok {
		return
	}
	if err := call(func() error { return i.InitShard(s.handle) }); err != nil {
		s.t.Fatalf("InitShard of shard %s: %v%s", s.id, err, stack(err))
	}
}

func (s *Shard) halt() error {
	h, ok := s.consumer.(consumer.ShardHalter)
	if !s.inited || !ok {
		return nil
	}
	s.inited = false
	err := call(func() error { h.HaltShard(s.handle); return nil })
	if err != nil {
		return fmt.Errorf("HaltShard: %w%s", err, stack(err))
	}
	return nil
}

// Shard returns what the consumer is given: state, cache, transaction. It is
// another one after Reopen.
func (s *Shard) Shard() consumer.Shard { return s.handle }

// Consume gives the consumer one message. With an empty key the message has
// the key that the topic's [topic.KeyedBy] says, or else a null key. The offset
// counts up for each topic, from 0. An error fails the test: see TryConsume.
func (s *Shard) Consume(from Topic, key string, msg any) {
	s.t.Helper()
	if err := s.TryConsume(from, key, msg); err != nil {
		s.t.Fatalf("shard %s: %v%s", s.id, err, stack(err))
	}
}

// TryConsume is Consume for a message that may fail. An error, or a panic,
// which is a *consumer.PanicError, has aborted the transaction, as Abort does.
func (s *Shard) TryConsume(from Topic, key string, msg any) error {
	s.t.Helper()
	e := topic.Envelope{Topic: from.Describe(), Partition: s.partition.Number}
	p := topic.NewPublisher(func(o topic.Out) error {
		e.Key, e.Value, e.Headers = o.Key, o.Value, o.Headers
		return nil
	})
	var opts []topic.PublishOption
	if key != "" {
		opts = append(opts, topic.Key([]byte(key)))
	}
	if err := p.Publish(msg, from.Describe(), opts...); err != nil {
		s.t.Fatalf("shard %s: %v", s.id, err)
	}
	return s.ConsumeEnvelope(e)
}

// ConsumeEnvelope is TryConsume for a message whole: raw bytes, headers, a
// tombstone. An offset that is not above those before becomes the next one,
// and a zero timestamp the current time.
func (s *Shard) ConsumeEnvelope(e topic.Envelope) error {
	s.t.Helper()
	return s.ConsumeEnvelopes(e)
}

// ConsumeEnvelopes is ConsumeEnvelope for messages of one topic that are fetched
// together: a [consumer.BatchConsumer] is given them as one batch, and another
// one after the other. A [consumer.Prefetcher] is called before, if there is more
// than one, each time. Its failure fails the test, unless a message fails as well:
// an application would only log it.
func (s *Shard) ConsumeEnvelopes(es ...topic.Envelope) error {
	s.t.Helper()
	if s.db == nil {
		s.t.Fatalf("shard %s has ended", s.id)
	}
	es = slices.Clone(es)
	for i := range es {
		s.receive(&es[i])
		if es[i].Topic != es[0].Topic {
			s.t.Fatalf("shard %s: a batch holds messages of topics %s and %s, and none does", s.id, es[0].TopicName(), es[i].TopicName())
		}
	}
	ahead := s.readAhead(es)
	if err := s.consumeAll(es); err != nil {
		return err
	}
	if ahead != nil {
		s.t.Errorf("Prefetch of shard %s for %d messages, all of which were consumed: %v%s", s.id, len(es), ahead, stack(ahead))
	}
	return nil
}

// readAhead calls Prefetch for messages, if there is something to it.
func (s *Shard) readAhead(es []topic.Envelope) error {
	p, ok := s.consumer.(consumer.Prefetcher)
	if !ok || len(es) < 2 {
		return nil
	}
	return s.db.ReadAhead(func() error { return call(func() error { return p.Prefetch(slices.Clone(es), s.handle) }) })
}

func (s *Shard) consumeAll(es []topic.Envelope) error {
	if c, ok := s.consumer.(consumer.BatchConsumer); ok && len(es) > 0 {
		err := s.publishing(func(p *topic.Publisher) error { return c.ConsumeBatch(es, s.handle, p) })
		if err != nil {
			s.Abort()
			return fmt.Errorf("consume batch of %d messages up to %s-%d at offset %d: %w", len(es), es[0].TopicName(), es[0].Partition, es[len(es)-1].Offset, err)
		}
		return nil
	}
	for _, e := range es {
		if err := s.publishing(func(p *topic.Publisher) error { return s.consumer.Consume(e, s.handle, p) }); err != nil {
			s.Abort()
			return fmt.Errorf("consume message %s-%d at offset %d with key %.60q: %w", e.TopicName(), e.Partition, e.Offset, e.Key, err)
		}
	}
	return nil
}

// receive makes a message one that the shard consumes next.
func (s *Shard) receive(e *topic.Envelope) {
	s.t.Helper()
	d := s.topics[e.TopicName()]
	if d == nil {
		s.t.Fatalf("shard %s does not consume topic %q", s.id, e.TopicName())
	}
	e.Topic, e.Partition = d, s.partition.Number
	e.Offset = max(e.Offset, s.positions[d.Name()])
	if e.Timestamp.IsZero() {
		e.Timestamp = s.now().Truncate(time.Millisecond)
	}
	s.positions[d.Name()] = e.Offset + 1
	s.open++
}

// publishing makes a call that may publish. An error that a scan met fails the
// call, like any other.
func (s *Shard) publishing(fn func(*topic.Publisher) error) error {
	s.handle.publishing = true
	defer func() { s.handle.publishing = false }()
	if err := call(func() error { return fn(s.handle.publisher) }); err != nil {
		return err
	}
	return s.db.Transaction().Err()
}

// Commit commits the open transaction, with Flush before. It does nothing if no
// message was consumed since the last one. An error fails the test: see
// TryCommit.
func (s *Shard) Commit() {
	s.t.Helper()
	if err := s.TryCommit(); err != nil {
		s.t.Fatalf("shard %s: %v%s", s.id, err, stack(err))
	}
}

// TryCommit is Commit for a Flush that may fail. An error has aborted the
// transaction, as Abort does.
func (s *Shard) TryCommit() error {
	s.t.Helper()
	if s.open == 0 {
		return nil
	}
	if err := s.publishing(func(p *topic.Publisher) error { return s.consumer.Flush(s.handle, p) }); err != nil {
		s.Abort()
		return fmt.Errorf("flush: %w", err)
	}
	if _, err := s.db.Seal(); err != nil {
		s.Abort()
		return err
	}
	if err := s.db.Apply(fmt.Appendf(nil, "commit %d", s.commits+1)); err != nil {
		s.t.Fatalf("shard %s: %v", s.id, err)
	}
	s.commits++
	s.published = append(s.published, s.handle.out...)
	s.handle.out, s.open = nil, 0
	for name, next := range s.positions {
		s.committed[name] = next
	}
	return nil
}

// Abort does what becomes of a transaction that is aborted: what it stored and
// published is forgotten, HaltShard is called, the cache is nil, and InitShard
// is called. Offsets go on from the last commit, since its messages come again.
func (s *Shard) Abort() {
	s.t.Helper()
	s.drop()
	if err := s.halt(); err != nil {
		s.t.Errorf("shard %s: %v", s.id, err)
	}
	s.handle.cache = nil
	s.init()
}

// drop forgets the open transaction.
func (s *Shard) drop() {
	s.db.Abort()
	s.handle.out, s.open = nil, 0
	clear(s.positions)
	for name, next := range s.committed {
		s.positions[name] = next
	}
}

// Reopen ends the shard, as when it moves or its process restarts, and starts
// it again on the same store: what was committed is there, the open transaction
// and the cache are not.
func (s *Shard) Reopen() {
	s.t.Helper()
	if err := s.end(); err != nil {
		s.t.Errorf("end shard %s: %v", s.id, err)
	}
	s.begin()
}

// Commits returns how many transactions have committed.
func (s *Shard) Commits() int { return s.commits }

// Published returns the messages of a topic that committed transactions of the
// shard have published, in order. Tombstones are not among them:
// [PublishedEnvelopes] has everything.
func Published[T any](s *Shard, of topic.Of[T]) []T {
	s.t.Helper()
	return decode(s.t, of, PublishedEnvelopes(s, of))
}

// PublishedEnvelopes returns what committed transactions of the shard have
// published to a topic, in order. The partition is -1 where the key decides it,
// and the offset counts the topic's messages.
func PublishedEnvelopes(s *Shard, to Topic) []topic.Envelope {
	var all []topic.Envelope
	for _, e := range s.published {
		if e.TopicName() == to.Describe().Name() {
			e.Offset = int64(len(all))
			all = append(all, e)
		}
	}
	return all
}

// decode decodes what is not a tombstone.
func decode[T any](t testing.TB, of topic.Of[T], es []topic.Envelope) []T {
	t.Helper()
	var msgs []T
	for _, e := range es {
		msg, ok, err := of.Message(e)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			msgs = append(msgs, msg)
		}
	}
	return msgs
}

// call makes a call of user code. Its panic is an error.
func call(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &consumer.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return fn()
}
