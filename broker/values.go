package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/blob"
	stored "github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"
)

// Big batches are read from the storage's files of values straight into the
// answer. The storage library reads each of them into memory that it gets from
// the system and fills with zeros, for a cache where a batch that is read once
// takes the place of what is read often, and from there it would be copied: for
// stored batches of 500 KB that was a third of what client and broker took
// together. Every value is checked by the same checksum, as it is read. Whatever
// is not as it is expected here is left to the library, which reads it or says
// what is wrong.

// directMin is the size of a batch from which on it is read so: to open a file
// takes as long as the library takes for some ten thousand bytes.
const directMin = 64 << 10

// directMax is how many files are open for it at a time. They are few, since the
// storage must never be without.
const directMax = 16

// direct reads values for one iterator, one after the other. Many of them lie in
// one file.
type direct struct {
	b      *Broker
	number uint64     // of the file that was opened last, or can't be read so
	file   *valueFile // nil if it can't
}

// read adds a value to what was read, or says that it is for the library to
// read.
func (d *direct) read(ctx context.Context, val pebble.LazyValue, to *blocks) (done bool) {
	if val.Fetcher == nil || val.Len() < directMin || val.Fetcher.BlobFileID == 0 {
		return false
	}
	if number := uint64(val.Fetcher.BlobFileID); number != d.number {
		d.close()
		d.number, d.file = number, d.b.openValues(ctx, number)
	}
	return d.file != nil && d.file.read(ctx, blob.DecodeHandleSuffix(val.ValueOrHandle), val.Len(), to) == nil
}

func (d *direct) close() {
	if d.file != nil {
		d.file.close()
		<-d.b.direct
	}
	d.file, d.number = nil, 0
}

// openValues opens a file of values, or returns nil if it is not to be read
// directly.
func (b *Broker) openValues(ctx context.Context, number uint64) *valueFile {
	select {
	case b.direct <- struct{}{}:
	default:
		return nil // there are many
	}
	f, err := b.openValueFile(ctx, number)
	if err != nil {
		<-b.direct
		return nil
	}
	return f
}

// valueFile is a file of values that is open.
type valueFile struct {
	from    objstorage.Readable
	index   stored.BufferHandle
	blocks  int
	offsets colblk.UnsafeUints // of the blocks, and of what is behind the last one
}

// errUnexpected is why a value or its file is left to the storage library.
var errUnexpected = errors.New("not as expected")

// A file of values begins with blocks of them, each a table with one column, and
// ends with a block that is their index. That has two columns: the first is empty
// unless the storage has written the file anew, without what was deleted, and the
// file holds the values of another one. The second is where the blocks begin.
const (
	indexHeader  = 4 // bytes: how many rows the first column has
	indexOffsets = 1 // the second column
	valueColumn  = 0 // of a block of values
)

// openValueFile opens the file in which the storage has put values under a
// number, which stays theirs.
func (b *Broker) openValueFile(ctx context.Context, number uint64) (_ *valueFile, err error) {
	name := filepath.Join(b.dir, dataDir, fmt.Sprintf("%06d%s", number, blobSuffix))
	f, err := b.config.fs.Open(name)
	if err != nil {
		return nil, err // it is gone if it was written anew
	}
	from, err := sstable.NewSimpleReadable(checkBlocks(f, name))
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	v := &valueFile{from: from}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errUnexpected, r)
		}
		if err != nil {
			v.close()
		}
	}()
	r, err := blob.NewFileReader(ctx, from, blob.FileReaderOptions{})
	if err != nil {
		return nil, err
	}
	if v.index, err = r.ReadIndexBlock(ctx, stored.NoReadEnv, nil); err != nil {
		return nil, err
	}
	index := v.index.BlockData()
	if moved := binary.LittleEndian.Uint32(index); moved != 0 {
		return nil, fmt.Errorf("%w: %d blocks of another file", errUnexpected, moved)
	}
	var d colblk.BlockDecoder
	d.Init(index, indexHeader)
	v.blocks = d.Rows()
	v.offsets = colblk.DecodeColumn(&d, indexOffsets, v.blocks+1, colblk.DataTypeUint, colblk.DecodeUnsafeUints)
	return v, nil
}

func (v *valueFile) close() {
	v.index.Release()
	_ = v.from.Close() // nothing was written
}

// read adds the value of so many bytes that is at a place.
func (v *valueFile) read(ctx context.Context, at blob.HandleSuffix, size int, to *blocks) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errUnexpected, r)
		}
	}()
	if uint64(at.BlockID) >= uint64(v.blocks) {
		return fmt.Errorf("%w: block %d of %d", errUnexpected, at.BlockID, v.blocks)
	}
	begin, end := v.offsets.At(int(at.BlockID)), v.offsets.At(int(at.BlockID)+1)
	if end < begin+uint64(size)+stored.TrailerLen || end > begin+uint64(size)+directMin {
		return fmt.Errorf("%w: a block from %d to %d for %d bytes", errUnexpected, begin, end, size)
	}
	room := to.room(int(end - begin))
	if err := v.from.ReadAt(ctx, room, int64(begin)); err != nil {
		return err
	}
	length := len(room) - stored.TrailerLen
	if how := stored.CompressionIndicator(room[length]); how != stored.NoCompressionIndicator {
		return fmt.Errorf("%w: it is compressed", errUnexpected)
	}
	var d colblk.BlockDecoder
	d.Init(room[:length], 0)
	if uint64(at.ValueID) >= uint64(d.Rows()) {
		return fmt.Errorf("%w: value %d of %d", errUnexpected, at.ValueID, d.Rows())
	}
	values := d.RawBytes(valueColumn)
	val := values.Slice(values.Offsets(int(at.ValueID)))
	if len(val) != size {
		return fmt.Errorf("%w: %d bytes, not %d", errUnexpected, len(val), size)
	}
	to.keep(room, val)
	return nil
}
