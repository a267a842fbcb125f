// Package kafka is the one wrapper of the Kafka client library: connections,
// transactions, reading, group membership, administration and classes of
// error. No exported name shows a type of that library.
//
// A [Session] is the producer and reader of one shard. A [Member] is one
// process in a consumer group, which it uses for membership and assignment
// alone. An [Admin] looks at topics, offsets and transactions and creates what
// is missing. A [Producer] and a [Reader] are for tools.
package kafka
