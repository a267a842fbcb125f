package store

import (
	"errors"
	"fmt"
)

// Options tune a shard's database. What correctness rests on (the write-ahead
// log, the order of keys, the format on disk) is not among them. A zero field
// means its default.
type Options struct {
	// MemTableSize bounds, in bytes, what the database gathers in memory before
	// it writes a table file. Default 16 MiB, or less if the budget that the
	// process's databases share has no room for that.
	MemTableSize int64
	// BlockSize is the size in bytes of the blocks that table files are read
	// in. Default 8 KiB.
	BlockSize int
	// Compression of blocks on disk. Default Snappy.
	Compression Compression
	// FilterBits is the size, per key, of the filters that tell of most absent
	// keys without reading a block. Default 10; negative for no filters.
	FilterBits int
	// TableCache bounds, in bytes, what the shard's Tables keep at hand: three
	// quarters of it decoded values, and a quarter filters that tell of absent
	// keys, once many lookups have found nothing. Default 32 MiB.
	TableCache int64
	// Merge makes a key's new value of the one that it has, nil if it has none,
	// and an operand, for Transaction.Merge and DB.Merge. It must change neither
	// and depend on nothing else. Without it they answer ErrNoMerge.
	Merge func(key, val, operand []byte) ([]byte, error)
}

// Compression is how blocks are stored on disk.
type Compression string

const (
	Snappy        Compression = "snappy"
	NoCompression Compression = "none"
)

const (
	memTableDefault   = 16 << 20
	memTableFloor     = 256 << 10 // below it a database mostly flushes
	blockDefault      = 8 << 10
	filterBitsDefault = 10
	tableCacheDefault = 32 << 20
)

func (o Options) withDefaults() Options {
	if o.MemTableSize == 0 {
		o.MemTableSize = memTableDefault
	}
	if o.BlockSize == 0 {
		o.BlockSize = blockDefault
	}
	if o.Compression == "" {
		o.Compression = Snappy
	}
	if o.FilterBits == 0 {
		o.FilterBits = filterBitsDefault
	}
	if o.TableCache == 0 {
		o.TableCache = tableCacheDefault
	}
	return o
}

func (o Options) validate() error {
	var errs []error
	if o.MemTableSize < memTableFloor || o.MemTableSize > 1<<30 {
		errs = append(errs, fmt.Errorf("MemTableSize %d: want %d to %d", o.MemTableSize, memTableFloor, 1<<30))
	}
	if o.BlockSize < 512 || o.BlockSize > 1<<20 {
		errs = append(errs, fmt.Errorf("BlockSize %d: want 512 to %d", o.BlockSize, 1<<20))
	}
	if o.Compression != Snappy && o.Compression != NoCompression {
		errs = append(errs, fmt.Errorf("Compression %q: want %q or %q", o.Compression, Snappy, NoCompression))
	}
	if o.FilterBits > 64 {
		errs = append(errs, fmt.Errorf("FilterBits %d: want at most 64", o.FilterBits))
	}
	if o.TableCache < 0 {
		errs = append(errs, fmt.Errorf("TableCache %d: want bytes", o.TableCache))
	}
	return errors.Join(errs...)
}

// ReadOptions bound a scan. A nil pointer means everything, in key order.
type ReadOptions struct {
	// Lower and Upper bound the keys: at least Lower, below Upper. Nil is no
	// bound.
	Lower, Upper []byte
	// Reverse scans from the highest key to the lowest.
	Reverse bool
	// Limit ends the scan after so many keys. Zero is no limit.
	Limit int
	// Snapshot is the state that DB.Scan and DB.Count read; nil means the one
	// there is when they begin. A transaction has a state of its own, and
	// refuses one.
	Snapshot *Snapshot
}
