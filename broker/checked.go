package broker

import (
	"encoding/binary"
	"fmt"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2"
	stored "github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// checkedFile is a file of blocks, each with a checksum at its end, which are
// checked as they are read. The storage library does so too, but where a checksum
// is wrong it tries which of some 300,000 bits may have flipped, and takes the
// sum of the whole block for each: of a block of 1 MB that is half a minute at
// full load, of which nothing can be stopped and for which every reader of the
// block waits. So it is never shown such a block.
type checkedFile struct {
	vfs.File
	name string
}

// checkedMin is the size of a read that is one of a block. Smaller ones are of
// what is at the end of a file, or of blocks for which the search takes no time.
const checkedMin = 4 << 10

// checkBlocks makes a file's blocks be checked, if it is one that has some.
func checkBlocks(f vfs.File, name string) vfs.File {
	switch filepath.Ext(name) {
	case blobSuffix, tableSuffix:
		return checkedFile{f, filepath.Base(name)}
	}
	return f
}

const tableSuffix = ".sst"

// ReadAt reads a block as it was written, or says that it is another.
func (f checkedFile) ReadAt(p []byte, at int64) (n int, err error) {
	n, err = f.File.ReadAt(p, at)
	if err != nil || len(p) < checkedMin {
		return n, err
	}
	var sum stored.Checksummer
	sum.Init(stored.ChecksumTypeCRC32c)
	size := len(p) - stored.TrailerLen
	if got, want := sum.Checksum(p[:size], p[size]), binary.LittleEndian.Uint32(p[size+1:]); got != want {
		// It is an error of corruption to the library too.
		return 0, fmt.Errorf("%w: %s: the checksum of the %d bytes at %d is %08x, not %08x (%w)", ErrCorrupt, f.name, len(p), at, got, want, pebble.ErrCorruption)
	}
	return n, nil
}
