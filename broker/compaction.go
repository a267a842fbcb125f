package broker

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kbin"
)

// Compaction keeps, of the records with the same key, the last one. It goes
// over a partition's closed chunks from the first one on, up to the last stable
// offset; each chunk is read, and replaced by what is left of it in one op:
//
//	cleaned        dirty            active
//	├────┼────┤    ├────┼────┤      ├───
//	     └─ each rewritten, by what is last in the dirty ones
//
// What an aborted transaction wrote is dropped the first time. Tombstones and
// markers are dropped once the chunk was first gone over that long ago, so that
// whoever had read what they end has had time to see them.

// keysMax is how many keys one pass remembers; more take more passes.
const keysMax = 1 << 20

// compactAll compacts what is due.
func (b *Broker) compactAll(ctx context.Context, at int64) {
	b.mu.Lock()
	var due []*partition
	for _, p := range b.mu.partitions {
		if p.dirtyLocked(at) > 0 {
			due = append(due, p)
		}
	}
	b.mu.Unlock()
	slices.SortFunc(due, func(a, b *partition) int { return int(int64(a.id) - int64(b.id)) })
	for _, p := range due {
		if ctx.Err() != nil {
			return
		}
		switch err := b.compact(ctx, p, at); {
		case err == nil:
			p.compactFailed = ""
		case ctx.Err() == nil:
			if text := err.Error(); p.compactFailed != text { // said once, for it is tried again soon
				p.compactFailed = text
				b.config.Logger.Error("compact", "dir", b.dir, "partition", p.String(), "error", text)
			}
		}
	}
}

// dirtyLocked returns how many of the partition's chunks compaction is to go
// over: 0 if it is not worth it yet.
func (p *partition) dirtyLocked(at int64) (upTo int) {
	rules := p.topic.policy
	if !rules.compact || p.topic.deleted {
		return 0
	}
	var clean, dirty int64
	urgent := false
	for i, c := range p.chunks[:len(p.chunks)-1] {
		if c.next > p.visible.stable || c.cleaned == 0 && at-c.appended < rules.compactionLagMin {
			break
		}
		upTo = i + 1
		if c.cleaned == 0 {
			dirty += c.bytes
			urgent = urgent || at-c.appended > rules.compactionLagMax
		} else {
			clean += c.bytes
			urgent = urgent || c.batches > 0 && c.expires && at-c.cleaned > rules.deleteRetention
		}
	}
	if dirty+clean == 0 || !urgent && (dirty == 0 || float64(dirty)/float64(dirty+clean) < rules.dirtyRatio) {
		return 0
	}
	return upTo
}

// latest is the last offset of each key that a pass has seen, by a hash of the
// key that nobody can aim at.
type latest struct {
	seeds [2]maphash.Seed
	seen  map[[2]uint64]int64
}

func newLatest() *latest {
	return &latest{[2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, make(map[[2]uint64]int64)}
}

func (l *latest) hash(key []byte) [2]uint64 {
	return [2]uint64{maphash.Bytes(l.seeds[0], key), maphash.Bytes(l.seeds[1], key)}
}

func (l *latest) note(key []byte, offset int64) {
	h := l.hash(key)
	if at, ok := l.seen[h]; !ok || at < offset {
		l.seen[h] = offset
	}
}

// superseded says whether there is a later record of a key.
func (l *latest) superseded(key []byte, offset int64) bool {
	at, ok := l.seen[l.hash(key)]
	return ok && at > offset
}

// compact makes one pass over a partition.
func (b *Broker) compact(ctx context.Context, p *partition, at int64) error {
	b.mu.Lock()
	chunks := slices.Clone(p.chunks[:p.dirtyLocked(at)])
	rules := p.topic.policy
	b.mu.Unlock()
	if len(chunks) == 0 {
		return nil
	}
	keys := newLatest()
	upTo := 0
	for i, c := range chunks {
		if c.cleaned == 0 {
			if len(keys.seen) >= keysMax {
				break
			}
			if err := b.noteKeys(ctx, p, c, keys); err != nil {
				return fmt.Errorf("read the keys of chunk %d: %w", c.base, err)
			}
		}
		upTo = i + 1
	}
	for _, c := range chunks[:upTo] {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		expired := c.cleaned > 0 && at-c.cleaned > rules.deleteRetention
		left, err := b.filter(ctx, p, c, keys, expired)
		if err != nil {
			return fmt.Errorf("rewrite chunk %d: %w", c.base, err)
		}
		if left.chunk.cleaned == 0 {
			left.chunk.cleaned = at
		}
		round := b.replace(p, c, left)
		if err := b.durable(round); err != nil {
			return err
		}
		invariants.Crash("broker-compacted")
	}
	return nil
}

// noteKeys notes the keys of a chunk's records, but not of aborted ones.
func (b *Broker) noteKeys(ctx context.Context, p *partition, c chunk, keys *latest) error {
	gone, err := b.abortedIn(p, c)
	if err != nil {
		return err
	}
	_, err = b.scan(p, c.base, c.next, func(bt batch) (bool, error) {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if bt.control() || gone.has(bt) {
			return false, nil
		}
		return false, eachRecord(bt, keepKey, func(r *recordReader) error {
			if r.hasKey {
				keys.note(r.key, r.offset)
			}
			return nil
		})
	})
	return err
}

// abortedSet is aborted transactions, by producer.
type abortedSet map[int64][]aborted

func (s abortedSet) has(bt batch) bool {
	if !bt.transactional() {
		return false
	}
	for _, a := range s[bt.producer] {
		if a.first <= bt.base() && bt.last() <= a.last {
			return true
		}
	}
	return false
}

// abortedIn returns the aborted transactions that may have records in a chunk.
func (b *Broker) abortedIn(p *partition, c chunk) (s abortedSet, err error) {
	s = make(abortedSet)
	it, err := b.db.NewIter(&pebble.IterOptions{
		LowerBound: offsetKey(prefixAborted, p.id, c.base),
		UpperBound: after(partitionKey(prefixAborted, p.id)),
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		val, err := it.ValueAndErr()
		if err != nil {
			return nil, err
		}
		a, err := decodeAborted(val)
		if err != nil {
			return nil, err
		}
		if a.first < c.next {
			s[a.producer] = append(s[a.producer], a)
		}
		if a.stable >= c.next {
			break
		}
	}
	return s, it.Error()
}

func eachRecord(bt batch, k keep, fn func(*recordReader) error) error {
	r, err := bt.open()
	if err != nil {
		return err
	}
	defer r.release()
	for {
		switch err := r.next(k); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		if err := fn(r); err != nil {
			return err
		}
	}
}

// remains is what is left of a chunk.
type remains struct {
	chunk   chunk
	batches []batch
	markers []int64 // of aborted transactions, that are not left
	same    bool    // nothing was dropped
}

// filter reads a chunk and keeps what compaction keeps.
func (b *Broker) filter(ctx context.Context, p *partition, c chunk, keys *latest, expired bool) (left remains, err error) {
	gone, err := b.abortedIn(p, c)
	if err != nil {
		return left, err
	}
	left.chunk, left.same = c, true
	left.chunk.bytes, left.chunk.batches, left.chunk.maxTime, left.chunk.expires = 0, 0, noTime, false
	_, err = b.scan(p, c.base, c.next, func(bt batch) (bool, error) {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		kept := bt
		switch {
		case bt.control():
			if expired {
				kept.records = 0
				left.markers = append(left.markers, bt.last())
			} else {
				left.chunk.expires = true
			}
		case gone.has(bt):
			kept.records = 0
		default:
			tombstones := false
			if kept, tombstones, err = keepLatest(bt, keys, expired); err != nil {
				return false, err
			}
			left.chunk.expires = left.chunk.expires || tombstones
		}
		if kept.records != bt.records {
			left.same = false
		}
		if kept.records == 0 {
			return false, nil
		}
		kept.raw = bytes.Clone(kept.raw)
		left.batches = append(left.batches, kept)
		left.chunk.bytes += int64(len(kept.raw))
		left.chunk.batches++
		left.chunk.maxTime = max(left.chunk.maxTime, kept.maxTime)
		return false, nil
	})
	return left, err
}

// keepLatest drops the records of a batch that are superseded, and tombstones
// that have expired. The others keep their offsets, and the batch its bounds.
func keepLatest(bt batch, keys *latest, expired bool) (kept batch, tombstones bool, err error) {
	var records []byte
	kept = bt
	kept.records, kept.maxTime = 0, noTime
	err = eachRecord(bt, keepRaw, func(r *recordReader) error {
		if r.hasKey && (keys.superseded(r.key, r.offset) || expired && !r.hasValue) {
			return nil
		}
		tombstones = tombstones || !r.hasValue
		records = kbin.AppendVarint(records, int32(len(r.raw)))
		records = append(records, r.raw...)
		kept.records++
		kept.maxTime = max(kept.maxTime, r.time)
		return nil
	})
	if err != nil || kept.records == 0 {
		return kept, tombstones, err
	}
	if kept.records == bt.records {
		return bt, tombstones, nil
	}
	if bt.appendTime() {
		kept.maxTime = bt.maxTime
	}
	if records, err = pack(bt.codec(), records); err != nil {
		return kept, tombstones, err
	}
	return appendBatch(nil, bt.base(), kept, records), tombstones, nil
}

// pack compresses records.
func pack(codec int8, records []byte) ([]byte, error) {
	var out bytes.Buffer
	var w io.WriteCloser
	switch codec {
	case codecNone:
		return records, nil
	case codecSnappy:
		return s2.EncodeSnappy(nil, records), nil
	case codecGzip:
		w = gzip.NewWriter(&out)
	case codecLZ4:
		w = lz4.NewWriter(&out)
	case codecZstd:
		z, err := zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(zstdWindow))
		if err != nil {
			return nil, err
		}
		w = z
	default:
		return nil, fmt.Errorf("%w: codec %d", ErrCorrupt, codec)
	}
	_, err := w.Write(records)
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil // all of it is there once it is closed
}

// replace stages what is left of a chunk in its place, unless something else
// has changed there.
func (b *Broker) replace(p *partition, c chunk, left remains) *round {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(p.chunks, func(o chunk) bool { return o.base == c.base })
	if p.topic.deleted || i < 0 || p.chunks[i] != c || p.start > c.base && !left.same {
		return nil
	}
	var o op
	if !left.same {
		o.removeRange(offsetKey(prefixBatch, p.id, c.base), offsetKey(prefixBatch, p.id, c.next))
		for _, bt := range left.batches {
			o.set(offsetKey(prefixBatch, p.id, bt.last()), bt.raw)
		}
		for _, at := range left.markers {
			o.remove(offsetKey(prefixAborted, p.id, at))
		}
		b.reclaim(p)
		b.mu.recents.dropLocked(p)
	}
	if left.chunk.batches == 0 {
		o.remove(offsetKey(prefixChunk, p.id, c.base))
		p.chunks = slices.Delete(slices.Clone(p.chunks), i, i+1)
	} else {
		p.chunks[i] = left.chunk
		o.set(offsetKey(prefixChunk, p.id, c.base), encodeChunk(left.chunk))
	}
	return b.stageLocked(&o)
}
