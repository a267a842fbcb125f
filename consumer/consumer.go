package consumer

import (
	"context"
	"time"

	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// ShardID names a shard: the co-partitioned set that it consumes, which is the
// topic's name unless one is declared, a hyphen, and the partition in three
// digits or more. It is the same for the application's whole life and on every
// process.
type ShardID string

// String returns the ID.
func (id ShardID) String() string { return string(id) }

// Shard is one partition's state and what belongs to it, as user code sees it.
// It is valid from InitShard to HaltShard. Except for Context and what
// Database says of itself, it is used from within the calls of the consumer,
// which are made one at a time.
type Shard interface {
	// ID returns the shard's name.
	ID() ShardID

	// Partition returns the consumed partition; of co-partitioned topics, the
	// first one's by name.
	Partition() topic.Partition

	// Cache returns what SetCache was last given: memory of the consumer's own
	// for this shard, never shared with another. It is dropped, and nil again
	// in InitShard, when a transaction is aborted and when the shard moves.
	Cache() any
	SetCache(any)

	// Database returns the committed state, and takes direct writes.
	Database() *store.DB

	// Transaction returns the open transaction. It reads its own writes, and
	// becomes visible together with the output and the offsets.
	Transaction() *store.Transaction

	// ReadOptions returns new options for a scan, to be narrowed.
	ReadOptions() *store.ReadOptions

	// WriteOptions returns new options for writes to Database, past the
	// transaction: they are seen at once, and are in the changelog with the next
	// commit.
	WriteOptions() *store.WriteOptions

	// Context ends when the shard is fenced, drained or failed.
	Context() context.Context
}

// Consumer is a program's logic for the messages of some topics. One value
// serves all shards of a process, and its methods are called for different
// shards at the same time: what belongs to a shard is kept in the shard.
type Consumer interface {
	// Topics returns the topics to consume. It is called once, at start.
	Topics() []*topic.Description

	// Consume handles one message. What it stores in the shard's transaction
	// and publishes becomes visible when that commits, all together or not at
	// all. An error, or a panic, fails the message: the transaction is aborted
	// and the policy for failures applied (see Config.OnFailure).
	Consume(topic.Envelope, Shard, *topic.Publisher) error

	// Flush is called before each commit that has something in it, and may
	// store and publish. Its error fails the transaction.
	Flush(Shard, *topic.Publisher) error
}

// BatchConsumer is implemented by a consumer that handles messages together, such
// as one that reads ahead for all of them. ConsumeBatch is called in place of
// Consume, with at least one message and at most 1,000, all of one partition, in
// order. What it stores and publishes is part of the same transaction as what
// other batches do, up to the next commit.
//
// Its error fails the batch as a whole: the transaction is aborted, and its
// messages come again in batches of one, each in a transaction of its own, until
// the one that fails is found. The limits of a transaction, in time and in bytes,
// are looked at between two batches.
//
// The slice, and raw keys, values and headers, end with the call.
type BatchConsumer interface {
	ConsumeBatch([]topic.Envelope, Shard, *topic.Publisher) error
}

// Prefetcher is implemented by a consumer with tables that hold more keys than
// memory does, if messages tell by themselves which keys they are about to use.
// Prefetch is given messages that are consumed next, and hands the keys to
// [store.Table.Prefetch], for each table: what is not at hand is then read in the
// order in which it is stored, not key by key in the order of the messages.
//
// It is a hint, whose only effect is on what is at hand. It is called with some
// messages at least and 2,000 at most, all of one partition, in order, and only
// while messages like them make the database look up keys: not where all keys are
// at hand or new, nor for a message that comes by itself, as one does that is
// consumed again after a failure. The messages may come again, or go to another
// process, before they are consumed.
//
// It is to do no more than read: a write to the transaction answers
// [store.ErrReadOnly], and nothing can be published. Its error, or a panic, fails
// no message: it is logged and counted, the messages are consumed without it, and
// it is called less for a while. So a message that can't be decoded is best met
// with a return of the error: its Consume decides what that means.
//
// The slice, and raw keys, values and headers, end with the call.
type Prefetcher interface {
	Prefetch([]topic.Envelope, Shard) error
}

// TimerConsumer is implemented by a consumer that sets timers, with
// [store.Transaction.SetTimer]. Fire is called for each timer at or after its
// time, in a transaction that removes the timer: what Fire stores and publishes
// becomes visible once, with the timer's removal. It may set the timer again. A
// transaction of timers holds no messages; several timers that are due share one,
// in order of their times.
//
// An error or a panic fails the timer, as it would a message: timers that failed
// together are fired again one per transaction, and the policy for failures is
// applied to the one that fails alone. A dead letter of a timer has its key, an
// empty value, and its time in the header pawl-timer.
type TimerConsumer interface {
	Fire(key []byte, at time.Time, s Shard, p *topic.Publisher) error
}

// Filterer is implemented by a consumer that lets go of state, or rewrites it, as
// time goes by. Filter is asked about each raw key of the committed state now and
// then, in a sweep that goes on between messages: remove says that the key is to
// go; otherwise a newVal that is not nil takes the place of its value. What it
// says becomes part of a transaction, and so leaves reads, changelog and copies
// alike. The level is 0. Its panic fails the shard.
type Filterer interface {
	Filter(level int, key, val []byte) (remove bool, newVal []byte)
}

// TableFilterer is Filterer for the entries of tables, whose keys and values are
// as the table's codecs have them. Entries that have outlived their table's
// [store.TTL] need none: they go by themselves.
type TableFilterer interface {
	FilterTable(level int, table string, key, val []byte) (remove bool, newVal []byte)
}

// Outputs is implemented by a consumer that publishes. The topics it returns
// are looked up at start, and created if their description, or
// Config.CreateTopics, says with how many partitions. A topic that is published
// to and not listed is looked up, and created likewise, at the first commit; if
// it is missing then, the message fails.
type Outputs interface {
	Outputs() []*topic.Description
}

// ShardIniter is implemented by a consumer that prepares something for each
// shard. InitShard is called after the state is restored, before the first
// Consume, and again after each transaction that was aborted. An error fails
// the shard, which backs off and starts again.
type ShardIniter interface {
	InitShard(Shard) error
}

// ShardHalter is implemented by a consumer that lets go of something when a
// shard ends. HaltShard is called once for every InitShard that was called,
// also after its error, a panic or a fence, and never beside Consume. No
// Consume, Flush or write to the changelog comes after it. It is not called
// for a Consume that outlives the time to stop.
type ShardHalter interface {
	HaltShard(Shard)
}

// OptionsIniter is implemented by a consumer that tunes its shards'
// databases. InitOptions is called before one opens.
type OptionsIniter interface {
	InitOptions(*store.Options)
}
