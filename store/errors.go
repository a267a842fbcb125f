package store

import "errors"

var (
	// ErrFenced is what a shard's reads and writes answer once the shard is no
	// longer this process's to change.
	ErrFenced = errors.New("shard is fenced")
	// ErrSealed answers a write to a transaction that is being committed.
	ErrSealed = errors.New("transaction is sealed")
	// ErrReadOnly answers a write to the transaction of a View, and to a shard's
	// while its code reads ahead.
	ErrReadOnly = errors.New("transaction is read-only")
	// ErrNoMerge answers a Merge without Options.Merge.
	ErrNoMerge = errors.New("no merge function: set Options.Merge")
	// ErrDirectFull answers a direct write when too many wait for a commit.
	ErrDirectFull = errors.New("too many direct writes wait for a commit")
	// ErrClosed is what everything answers after Close, and after the end of
	// the View that a transaction belonged to.
	ErrClosed = errors.New("database is closed")
	// ErrInUse says that another opener, of this process or another, has the
	// database open.
	ErrInUse = errors.New("database is in use")
	// ErrCorrupt says that the files of a database, or a record in it, can't be
	// what was written. The database is to be discarded and restored.
	ErrCorrupt = errors.New("database is corrupt")
	// ErrNewerFormat says that a later version of this package wrote the
	// database. It is not touched.
	ErrNewerFormat = errors.New("database has a newer format")
	// ErrFatal says that the storage library met what it can't go on after. The
	// database is marked for discard and does nothing more.
	ErrFatal = errors.New("database met a fatal error")
	// ErrInterrupted says that waiting for disk space was given up, by
	// Interrupt. The database stands on disk as if power had been cut.
	ErrInterrupted = errors.New("waiting for disk space was interrupted")
)
