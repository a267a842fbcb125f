package store

import (
	"context"
	"errors"
)

// WriteOptions go with a direct write. There is nothing to choose: it is never
// synced on its own, and reaches the changelog with the shard's next commit. A
// nil pointer is as good.
type WriteOptions struct{}

var errDirect = errors.New("direct writes are not there yet")

// Put sets a key's value past the transaction.
func (d *DB) Put(key, val []byte, _ *WriteOptions) error { return errDirect }

// Delete removes a key past the transaction.
func (d *DB) Delete(key []byte, _ *WriteOptions) error { return errDirect }

// DeleteRange removes the keys from lo on, below hi, past the transaction.
func (d *DB) DeleteRange(lo, hi []byte, _ *WriteOptions) error { return errDirect }

// Merge merges into a key's value past the transaction.
func (d *DB) Merge(key, operand []byte, _ *WriteOptions) error { return errDirect }

// Sync waits until what was written directly before it is committed.
func (d *DB) Sync(ctx context.Context) error { return errDirect }

// DirectWrites holds a value when direct writes wait for a commit.
func (o *Owner) DirectWrites() <-chan struct{} { return nil }

// DirectBytes returns how many bytes of direct writes wait for a commit.
func (o *Owner) DirectBytes() int64 { return 0 }
