package broker

import (
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// readCounter counts the bytes that are read from files.
type readCounter struct {
	vfs.FS
	bytes atomic.Int64
}

func (c *readCounter) Unwrap() vfs.FS { return c.FS }

func (c *readCounter) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := c.FS.Open(name, opts...)
	if err != nil {
		return nil, err
	}
	return &countedFile{f, c}, nil
}

type countedFile struct {
	vfs.File
	c *readCounter
}

func (f *countedFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	f.c.bytes.Add(int64(n))
	return n, err
}

func (f *countedFile) ReadAt(p []byte, at int64) (int, error) {
	n, err := f.File.ReadAt(p, at)
	f.c.bytes.Add(int64(n))
	return n, err
}
