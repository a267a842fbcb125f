// Package consumertest tests programs that use package consumer.
//
// [NewShard] is a unit test's shard: a real store, no broker, one message at a
// time.
//
// [Start] is a whole cluster in the process of the test: a broker and
// processes, whose network can be cut and frozen, and which can be stopped,
// crashed and started again. In a bubble of testing/synctest it runs in virtual
// time, in which a rebalance of minutes takes milliseconds. That needs the
// build tag synctests; without the tag such a test is skipped, and says so.
// Outside a bubble it runs in real time.
package consumertest
