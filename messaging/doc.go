// Package messaging makes work queues of Kafka topics: at least once, message
// by message. Each message is acked, retried later, or set aside as a dead
// letter, in any order, and none is lost.
//
// [Run] is the friendly form. A [Handler] is called for each message, and what
// it returns settles it:
//
//	err := messaging.Run(ctx, messaging.Config{
//		Cluster: c, Topic: "orders", Application: "shop", Consumer: "mailer",
//	}, messaging.JSON(func(ctx context.Context, o Order, d messaging.Delivery) error {
//		return send(ctx, o) // nil acks, an error retries
//	}))
//
// [Client], [Consumer], [Message] and [Producer] are the same as channels and
// methods: see [NewClient].
//
// # What at least once means
//
// A message is settled when its ack is in the window, or when its retry or its
// dead letter is confirmed written, and never before. What is settled is
// committed within Config.CommitInterval, also when it is settled out of order.
// After a crash the messages that were not settled at the last commit come
// again, and only these. So a handler may see a message again that it has
// handled: it must be able to bear that.
//
// # Names and formats
//
// With the application "shop" and the consumer "mailer":
//
//	shop.mailer                the consumer group
//	shop.mailer.retry.1 …      delay topics, one a tier, with the partitions of the input
//	shop.mailer.redrive        dead letters on their way back
//	shop.mailer.dlq            dead letters
//	shop.mailer.dlq.outcomes   what became of them; compacted
//
// A retried message keeps its key, value and headers byte for byte. What Pawl
// has to say of it is in headers whose names begin with "pawl-": see
// header.go. The offsets that are settled above the committed one are in the
// commit's metadata: see snapshot.go. Both formats are versioned and frozen.
package messaging
