package broker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/blob"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Files of values need looking at before the storage library does: one that it
// can't make sense of is an error that it panics on, in goroutines of its own
// too, which would end the process. So it is given another kind of error, by
// which only those fail who want a value of that file.

const blobSuffix = ".blob"

// Open opens a file to read it.
func (d *disk) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if strings.HasSuffix(name, blobSuffix) {
		if err := checkBlob(d.FS, name); err != nil {
			return nil, err
		}
	}
	f, err := d.FS.Open(name, opts...)
	if err != nil {
		return nil, err
	}
	return checkBlocks(f, name), nil
}

// checkBlob looks at the end of a file of values, where it says what it is.
func checkBlob(fs vfs.FS, name string) error {
	f, err := fs.Open(name)
	if err != nil {
		return err
	}
	from, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	r, err := blob.NewFileReader(context.Background(), from, blob.FileReaderOptions{})
	if err != nil {
		// The library's own error would be known as one of corruption.
		return errors.Join(fmt.Errorf("%w: %s: %v", ErrCorrupt, name, err), from.Close())
	}
	return r.Close()
}

// checkBlobs makes sure, while nothing is written yet, that there are as many
// files of values as the storage counts, and says which of them are damaged.
func (b *Broker) checkBlobs() error {
	names, err := b.config.fs.List(filepath.Join(b.dir, dataDir))
	if err != nil {
		return err
	}
	found := 0
	for _, name := range names {
		if !strings.HasSuffix(name, blobSuffix) {
			continue
		}
		found++
		switch err := checkBlob(b.config.fs, filepath.Join(b.dir, dataDir, name)); {
		case errors.Is(err, os.ErrNotExist):
			found-- // the storage has just removed it
		case err != nil:
			b.config.Logger.Warn("this file can't be read: it is damaged, or a crash left it unfinished, and nothing in it is needed", "dir", b.dir, "error", err)
		}
	}
	if want := int(b.db.Metrics().BlobFiles.LiveCount); found < want {
		return fmt.Errorf("%w: %d files of values are there, of %d", ErrCorrupt, found, want)
	}
	return nil
}
