// Package broker is a single-node, durable broker that speaks the Kafka
// protocol. It is embedded in a program, which reaches it over an in-memory
// connection, or served on a port for others; everything it holds is in one
// directory, which survives kill -9 and power cuts.
//
// How it works, in one picture:
//
//	connection ─► decide and stage (one lock, no I/O) ─► round ─► one synced write ─► applied ─► answered
//	                                                       ▲ what others stage meanwhile joins the next round
//
// A request is decided on and staged under the one lock of the state. The
// staged changes of all connections go to disk in rounds, each one atomic,
// synced write. Only then do they become visible: the high watermark moves,
// waiting fetches wake, and the answer is sent. A round that can't be written
// stops the broker, so that what was staged and is not on disk is never seen.
package broker
