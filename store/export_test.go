package store

import "github.com/cockroachdb/pebble/v2/vfs"

// WithFS makes a database use a file system of the test's.
func WithFS(c Config, fs vfs.FS) Config {
	c.fs = fs
	return c
}
