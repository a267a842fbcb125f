// Package store is a shard's embedded key-value store: an ordered map of bytes
// on disk, with typed tables on top, that changes only as a whole.
//
// # Transactions
//
// A shard's code reads and writes through its Transaction, raw keys with Put
// and Get, named and typed ones with a Table. What it writes stays in memory
// until the shard commits. Then one list of changes, sorted by key and one for
// each key, goes to the shard's changelog and, once committed there, to the
// database in one batch together with the position that it leads to. Nothing
// uncommitted ever reaches the database, so there is nothing to undo: an abort
// forgets what is in memory.
//
// Timers are part of the transaction like keys are. A Table may have a TTL, after
// which its entries expire, and codecs of older versions.
//
// # Direct writes
//
// A write through the DB goes past the transaction: everyone sees it at once, an
// abort leaves it, and the next commit logs it. Until then it is in memory alone,
// above the database, and a crash loses it.
//
// # Durability
//
// The database keeps no log of its own: the changelog is the log. What a crash
// costs is what was not flushed, state and position together, and it comes back
// from the changelog. Owner.Unflushed says how much that would be, Owner.Flush
// ends it, and Owner.Close flushes first.
//
// # Owners and readers
//
// Open returns the Owner, which belongs to the one goroutine that runs the
// shard. The code of the shard sees its Transaction and its DB. The DB may be
// read from any goroutine at any time: it shows what is committed.
//
// # What goes wrong
//
// A write to a full disk waits until there is space (Config.OnDiskFull tells),
// or until Owner.Interrupt; so does one to a read-only disk, and what finds no
// file descriptor. Another error of a read, or of a write that nobody waits for,
// is told by Owner.Failing: the database is to be closed and opened anew. A fatal
// error of the storage library never ends the process: the database is marked
// for discard, the next Open removes it, and the shard is restored from its
// changelog.
package store
