package broker

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// dataDir is the part of the directory that is the storage library's.
const dataDir = "data"

// formatFile says, outside the storage, of which version all of it is, so that
// an older program can say so before it opens anything.
const formatFile = "format"

// storageFormat is the format of the storage library's files. Raising it needs
// a release that has read the new one before.
const storageFormat = pebble.FormatValueSeparation

// storageOptions are what the measurements say: values are written once to the
// log and once to a file of their own, and no compaction writes them again.
func (b *Broker) storageOptions() *pebble.Options {
	memtable := uint64(min(64<<20, max(4<<20, b.config.Memory/16)))
	o := &pebble.Options{
		FS:                          b.disk,
		FormatMajorVersion:          storageFormat,
		MemTableSize:                memtable,
		MemTableStopWritesThreshold: 4,
		CacheSize:                   b.config.Memory / 4,
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       1000,
		LBaseMaxBytes:               256 << 20,
		MaxOpenFiles:                b.files.storage,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
		FlushDelayDeleteRange:       time.Second,
		FlushSplitBytes:             64 << 20,
		Logger:                      storageLogger{b},
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) {
				b.config.Logger.Warn("storage: a write in the background is tried again", "dir", b.dir, "error", err.Error())
			},
			WriteStallBegin: func(pebble.WriteStallBeginInfo) { b.latency.stalls.Add(1) },
			// By default it is fatal. Whoever reads what is damaged is told so, and
			// all the rest goes on.
			DataCorruption: func(info pebble.DataCorruptionInfo) {
				if _, said := b.damagedFiles.LoadOrStore(info.Path, nil); !said {
					b.config.Logger.Error("a file is damaged", "dir", b.dir, "file", info.Path, "error", info.Details.Error())
				}
			},
		},
	}
	for i := range o.TargetFileSizes {
		o.TargetFileSizes[i] = 64 << 20
	}
	o.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionNone })
	o.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
		return pebble.ValueSeparationPolicy{
			Enabled: true, MinimumSize: 1024, MaxBlobReferenceDepth: 1000,
			RewriteMinimumAge: 30 * time.Second, TargetGarbageRatio: 0.3,
		}
	}
	return o
}

// storageLogger is where the storage library logs. What it takes for fatal
// stops the broker, and never the process.
type storageLogger struct{ b *Broker }

func (l storageLogger) Infof(format string, args ...any) {
	l.b.config.Logger.Debug("storage: "+fmt.Sprintf(format, args...), "dir", l.b.dir)
}

func (l storageLogger) Errorf(format string, args ...any) {
	l.b.config.Logger.Warn("storage: "+fmt.Sprintf(format, args...), "dir", l.b.dir)
}

// Fatalf is called where the storage library does not know how to go on. It
// returns, to a library whose writes go nowhere from here on.
func (l storageLogger) Fatalf(format string, args ...any) {
	l.b.fail(fmt.Errorf("%w: %s", ErrFatal, fmt.Sprintf(format, args...)))
}

// storageError says in the package's words why the storage does not open.
func storageError(err error) error {
	text := err.Error()
	switch {
	case pebble.IsCorruptionError(err):
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	case strings.Contains(text, "written in unknown format") || strings.Contains(text, "format major version"):
		return fmt.Errorf("%w: %w", ErrNewerFormat, err)
	case strings.Contains(text, "name from file"):
		return fmt.Errorf("%w: they say that they are of another kind: %w", ErrCorrupt, err)
	case errors.Is(err, os.ErrNotExist), errors.Is(err, pebble.ErrDBNotPristine), strings.Contains(text, "object size mismatch"):
		// It looks for files that its other files name, and for their sizes.
		return fmt.Errorf("%w: a file is missing or cut short: %w", ErrCorrupt, err)
	}
	return fmt.Errorf("open the storage: %w", err)
}

// checkFormat reads the version of the data, or writes it into a directory that
// holds none.
func checkFormat(fs vfs.FS, dir string) error {
	name := filepath.Join(dir, formatFile)
	f, err := fs.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return writeFormat(fs, dir)
	}
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(f, 64))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	switch {
	case err != nil || n < 1:
		return fmt.Errorf("%w: %s holds %q", ErrCorrupt, name, text)
	case n > formatVersion:
		return fmt.Errorf("%w: they have format %d, this one reads up to %d", ErrNewerFormat, n, formatVersion)
	}
	return nil
}

// writeFormat writes the version so that it is there whole or not at all.
func writeFormat(fs vfs.FS, dir string) error {
	name := filepath.Join(dir, formatFile)
	f, err := fs.Create(name+".new", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%d\n", formatVersion)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := fs.Rename(name+".new", name); err != nil {
		return err
	}
	return syncDir(fs, dir)
}
