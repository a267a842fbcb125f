// Package consumer runs stateful consumers of partitioned topics, exactly
// once.
//
// Each partition of a consumed topic gets a shard: a goroutine with a database
// of its own. What a shard stores, what it publishes and how far it has read
// become visible together or not at all, whatever crashes meanwhile.
//
// A program implements [Consumer], and may implement [Outputs], [BatchConsumer],
// [Prefetcher], [TimerConsumer], [Filterer], [TableFilterer], [ShardIniter],
// [ShardHalter] and [OptionsIniter] beside it. [Run] runs it; package pawl turns it
// into a whole program with flags, signals and metrics; package consumertest tests
// it without a broker.
//
// Several processes of one application share the partitions among them. A
// shard's state is kept in its database, and in a compacted changelog topic
// from which any process can restore it.
//
// How it works is told by start.go and commit.go: how a shard comes to be the
// only owner of its state, and how a transaction commits.
package consumer
