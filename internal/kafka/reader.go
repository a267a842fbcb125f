package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ReaderConfig says what a reader sees.
type ReaderConfig struct {
	Committed bool // only what is committed, or was not written in a transaction

	// Topics are those that will be consumed. A topic that is not named is looked
	// up when Consume is called for it, which may take a second more.
	Topics []string

	// MaxWait is how long a broker holds a fetch that finds nothing. A
	// partition that is begun or resumed meanwhile waits for that. 0: 5 s.
	MaxWait time.Duration
}

// Reader reads partitions without a group and without transactions.
type Reader struct {
	reading
	cancel context.CancelFunc
}

// NewReader returns a reader that reads nothing yet.
func NewReader(cfg Config, rc ReaderConfig) (*Reader, error) {
	cfg = cfg.withDefaults()
	level := kgo.ReadUncommitted()
	if rc.Committed {
		level = kgo.ReadCommitted()
	}
	ctx, cancel := context.WithCancel(context.Background())
	opts := append(readOptions(rc.Topics, 0, 0), kgo.FetchIsolationLevel(level))
	if rc.MaxWait > 0 {
		opts = append(opts, kgo.FetchMaxWait(rc.MaxWait))
	}
	cl, err := cfg.newClient(ctx, opts...)
	if err != nil {
		cancel()
		return nil, err
	}
	r := &Reader{cancel: cancel}
	r.reading.init(cl)
	return r, nil
}

// Close ends the reader; a Poll that runs returns ErrClosed.
func (r *Reader) Close() {
	r.cancel()
	r.cl.Close()
}

const (
	fetchMaxWait           = 500 * time.Millisecond
	fetchMaxBytes          = 16 << 20
	fetchMaxPartitionBytes = 1 << 20
)

// readOptions returns the options of a client that reads. It knows the topics
// from its first look at the cluster: where a partition of another one is added
// while a look is under way that does not ask for its topic, the library takes
// the partition for one that does not exist, and comes back to it a second later.
func readOptions(topics []string, maxBytes, maxPartitionBytes int) []kgo.Opt {
	known := make(map[string]map[int32]kgo.Offset, len(topics))
	for _, name := range topics {
		known[name] = nil // no partition of it, so far
	}
	if maxBytes <= 0 {
		maxBytes = fetchMaxBytes
	}
	if maxPartitionBytes <= 0 {
		maxPartitionBytes = fetchMaxPartitionBytes
	}
	return []kgo.Opt{
		kgo.ConsumePartitions(known),
		kgo.KeepControlRecords(), // so that positions pass markers
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		// A partition that is added, or moved, is not fetched before the fetch
		// under way has been answered.
		kgo.FetchMaxWait(fetchMaxWait),
		kgo.FetchMaxBytes(int32(maxBytes)),
		kgo.FetchMaxPartitionBytes(int32(min(maxPartitionBytes, maxBytes))),
		kgo.AlwaysRetryEOF(),
	}
}

// reading is the half of a session that reads, and all of a reader. Consume,
// StopConsuming and Buffered may be called beside a Poll; there is one Poll at
// a time.
type reading struct {
	cl *kgo.Client
	mu struct {
		sync.Mutex
		parts map[topic.Partition]*consumed
	}
}

type consumed struct {
	topic *topic.Description
	from  int64 // where it was started
	next  int64 // the offset after the last record that was polled; 0 before there is one
}

func (r *reading) init(cl *kgo.Client) {
	r.cl = cl
	r.mu.parts = make(map[topic.Partition]*consumed)
}

// Consume starts reading the partition at the offset, or moves it there. What
// was fetched of it and not polled is dropped.
func (r *reading) Consume(d *topic.Description, p int32, offset int64) {
	r.StopConsuming(topic.Partition{Topic: d.Name(), Number: p})
	r.mu.Lock()
	r.mu.parts[topic.Partition{Topic: d.Name(), Number: p}] = &consumed{topic: d, from: offset}
	r.mu.Unlock()
	r.cl.AddConsumePartitions(map[string]map[int32]kgo.Offset{d.Name(): {p: kgo.NewOffset().At(offset)}})
}

// StopConsuming stops reading the partitions. What was fetched of them and not
// polled is dropped.
func (r *reading) StopConsuming(parts ...topic.Partition) {
	gone := make(map[string][]int32)
	r.mu.Lock()
	for _, p := range parts {
		if r.mu.parts[p] != nil {
			delete(r.mu.parts, p)
			gone[p.Topic] = append(gone[p.Topic], p.Number)
		}
	}
	r.mu.Unlock()
	if len(gone) > 0 {
		r.cl.RemoveConsumePartitions(gone)
	}
}

// Pause stops fetching the partitions, until Resume, and keeps their positions.
// What was fetched of them and not polled is fetched again.
func (r *reading) Pause(parts ...topic.Partition) { r.cl.PauseFetchPartitions(byTopic(parts)) }

// Resume ends a Pause.
func (r *reading) Resume(parts ...topic.Partition) { r.cl.ResumeFetchPartitions(byTopic(parts)) }

func byTopic(parts []topic.Partition) map[string][]int32 {
	numbers := make(map[string][]int32)
	for _, p := range parts {
		numbers[p.Topic] = append(numbers[p.Topic], p.Number)
	}
	return numbers
}

// Buffered is how many records were fetched and not polled, markers included.
func (r *reading) Buffered() int { return int(r.cl.BufferedFetchRecords()) }

// Poll empties into and fills it with up to max records, markers included. It
// waits until there is something, or ctx ends, whose error it then returns.
//
// An error may come with a batch, which holds good. A partition that an
// *OffsetRangeError or a *PartitionError names is read no further until Consume
// is called for it again.
func (r *reading) Poll(ctx context.Context, max int, into *Batch) error {
	for {
		err := r.poll(ctx, max, into)
		if err != nil || len(into.Parts) > 0 {
			return err
		}
		// All that came was of partitions that are no longer read.
	}
}

func (r *reading) poll(ctx context.Context, max int, into *Batch) error {
	into.Reset()
	return r.each(ctx, max, func(p PartBatch, m Messages, bytes int) {
		for i := range m.recs {
			into.Envelopes = append(into.Envelopes, m.At(i))
		}
		into.Parts = append(into.Parts, p)
		into.Bytes += bytes
		m.Recycle()
	})
}

// Fetch is Poll for whoever keeps the messages, and makes envelopes of them
// one at a time.
func (r *reading) Fetch(ctx context.Context, max int) (*Fetched, error) {
	for {
		f := new(Fetched)
		err := r.each(ctx, max, func(p PartBatch, m Messages, bytes int) {
			f.Parts = append(f.Parts, FetchedPart{p, m, bytes})
			f.Count += p.Count
			f.Bytes += bytes
		})
		if err != nil || len(f.Parts) > 0 {
			return f, err
		}
		// All that came was of partitions that are no longer read.
	}
}

// each polls up to max records, and calls found for each partition that has
// any.
func (r *reading) each(ctx context.Context, max int, found func(p PartBatch, m Messages, bytes int)) error {
	fs := r.cl.PollRecords(ctx, max)
	var errs []error
	for i := range fs {
		for j := range fs[i].Topics {
			t := &fs[i].Topics[j]
			for k := range t.Partitions {
				if err := r.take(ctx, t.Topic, &t.Partitions[k], found); err != nil {
					errs = append(errs, err)
				}
			}
		}
	}
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return errors.Join(errs...)
}

// take hands on what a fetch brought of one partition.
func (r *reading) take(ctx context.Context, name string, fp *kgo.FetchPartition, found func(p PartBatch, m Messages, bytes int)) error {
	if name == "" { // the library's way to answer for the whole client
		return readError(fp.Err)
	}
	p := topic.Partition{Topic: name, Number: fp.Partition}
	r.mu.Lock()
	c := r.mu.parts[p]
	r.mu.Unlock()
	pb := PartBatch{Partition: p, HighWatermark: fp.HighWatermark, StableEnd: fp.LastStableOffset, LogStart: fp.LogStartOffset}
	if c != nil && len(fp.Records) > 0 {
		bytes, data := 0, fp.Records[:0] // without markers
		for _, rec := range fp.Records {
			if rec.Offset < c.from {
				continue
			}
			pb.Next = rec.Offset + 1
			if rec.Attrs.IsControl() {
				continue
			}
			bytes += sizeOf(rec)
			data = append(data, rec)
		}
		pb.Count = len(data)
		if pb.Next > 0 {
			c.next = pb.Next // there is one Poll at a time
			found(pb, Messages{topic: c.topic, recs: data}, bytes)
		}
	}
	switch {
	case fp.Err == nil:
		return nil
	case fp.Partition < 0: // all of the topic
		r.StopConsuming(r.partsOf(name)...)
		return &PartitionError{Partition: p, Err: readError(fp.Err)}
	case c == nil:
		return nil // no longer read: nobody asks
	}
	r.StopConsuming(p)
	if errors.Is(fp.Err, kerr.OffsetOutOfRange) {
		return r.outOfRange(ctx, p, max(c.from, c.next))
	}
	return &PartitionError{Partition: p, Err: readError(fp.Err)}
}

func (r *reading) partsOf(name string) (ps []topic.Partition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.mu.parts {
		if p.Topic == name {
			ps = append(ps, p)
		}
	}
	return ps
}

// outOfRange says what the partition holds in place of the offset.
func (r *reading) outOfRange(ctx context.Context, p topic.Partition, at int64) error {
	earliest, err := listOffsets(ctx, r.cl, Earliest, p)
	if err != nil {
		return &PartitionError{Partition: p, Err: fmt.Errorf("offset %d is out of range: look up what is there: %w", at, err)}
	}
	end, err := listOffsets(ctx, r.cl, End, p)
	if err != nil {
		return &PartitionError{Partition: p, Err: fmt.Errorf("offset %d is out of range: look up what is there: %w", at, err)}
	}
	return &OffsetRangeError{Partition: p, Offset: at, Earliest: earliest[p], End: end[p]}
}

// readError gives an error of a fetch its class.
func readError(err error) error {
	switch {
	case errors.Is(err, kgo.ErrClientClosed):
		return ErrClosed
	case isUnknownTopic(err):
		return fmt.Errorf("%w: %w", ErrUnknownTopic, err)
	case isUnauthorized(err):
		return fmt.Errorf("%w: %w", ErrUnauthorized, err)
	}
	return err
}
