package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ReaderConfig says what a reader sees.
type ReaderConfig struct {
	Committed bool // only what is committed, or was not written in a transaction

	// Topics are those that will be consumed. They are looked up together, when
	// Consume is called for the first of them.
	Topics []string

	// MaxWait is how long a broker holds a fetch that finds nothing. A
	// partition that is begun or resumed meanwhile waits for that. 0: 500 ms.
	MaxWait time.Duration

	// MaxBytes is how much a broker sends at once, or the first batch if that is
	// larger. 0: 16 MiB.
	MaxBytes int
}

// Reader reads partitions without a group and without transactions.
type Reader struct {
	reading
	cancel context.CancelFunc
}

// NewReader returns a reader that reads nothing yet.
func NewReader(cfg Config, rc ReaderConfig) (*Reader, error) {
	cfg = cfg.withDefaults()
	ctx, cancel := context.WithCancel(context.Background())
	cl, err := cfg.newClient(ctx, kgo.AlwaysRetryEOF())
	if err != nil {
		cancel()
		return nil, err
	}
	r := &Reader{cancel: cancel}
	r.reading.init(ctx, cl, fetchConfig{committed: rc.Committed, maxWait: rc.MaxWait, maxBytes: rc.MaxBytes, log: cfg.Logger}, rc.Topics)
	return r, nil
}

// Close ends the reader; a Poll that runs returns ErrClosed.
func (r *Reader) Close() {
	r.cancel()
	r.shut()
}

// reading is the half of a session that reads, and all of a reader. Consume,
// StopConsuming, Pause, Resume and Buffered may be called beside a Poll; there
// is one Poll at a time.
//
//	Consume ── leaders.go: who leads it? ──► fetcher.go: fetch, unpack ──► ready ── Poll
//	               ▲                              │
//	               └──── another leads it now ────┘
//
// Of each leader one answer at most is held, and the next is asked for once
// Poll has taken all of it.
type reading struct {
	cl     *kgo.Client
	life   context.Context // ends with Close
	config fetchConfig

	arrived chan struct{} // has room for one: there is something for Poll
	look    chan struct{} // has room for one: there is somebody to be looked up

	mu struct {
		sync.Mutex
		parts   map[topic.Partition]*consumed
		paused  map[topic.Partition]bool
		topics  map[string]*known
		leaders map[int32]*fetcher
		each    int         // see LimitPartition; 0: as configured
		ready   []*consumed // which have something for Poll, in the order in which it came
		failed  []error     // of whole topics, likewise
		failing map[topic.Partition]ReadFailure
		ended   bool // no goroutine is begun any more
	}
	running sync.WaitGroup // its goroutines
}

// consumed is a partition that is read, from Consume until the next or until
// StopConsuming: who holds on to one for longer sees by that that it is over.
type consumed struct {
	partition topic.Partition
	topic     *topic.Description
	next      int64 // the position: everything below was polled, or is not to be
	epoch     int32 // of the leader that wrote what is right below; -1 if unknown

	leader  *fetcher  // nil: to be looked up
	term    int32     // the leader's epoch
	asked   bool      // it is part of the fetch under way
	due     time.Time // when to look it up
	fails   int       // how often in a row it could not be fetched, or found
	unknown int       // how often in a row its topic was not known, which once was

	came *arrival // what Poll has not taken; nil for nothing
}

// arrival is what an answer brought of a partition.
type arrival struct {
	PartBatch          // of all of it
	messages  Messages // which are left
	epoch     int32    // like consumed's, after it
	err       error    // what comes after it
}

func (r *reading) init(life context.Context, cl *kgo.Client, config fetchConfig, topics []string) {
	r.life, r.cl, r.config = life, cl, config.withDefaults()
	r.arrived, r.look = make(chan struct{}, 1), make(chan struct{}, 1)
	r.mu.parts = make(map[topic.Partition]*consumed)
	r.mu.paused = make(map[topic.Partition]bool)
	r.mu.topics = make(map[string]*known)
	r.mu.leaders = make(map[int32]*fetcher)
	for _, name := range topics {
		r.mu.topics[name] = new(known)
	}
	r.running.Go(r.lookUp)
}

// shut closes the client, once life has ended, and waits for the goroutines.
func (r *reading) shut() {
	r.mu.Lock()
	r.mu.ended = true
	r.mu.Unlock()
	r.cl.Close()
	r.running.Wait()
}

// Consume starts reading the partition at the offset, or moves it there. What
// was fetched of it and not polled is dropped.
func (r *reading) Consume(d *topic.Description, p int32, offset int64) {
	c := &consumed{partition: topic.Partition{Topic: d.Name(), Number: p}, topic: d, next: offset, epoch: -1, term: -1}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopLocked(c.partition, true)
	r.mu.parts[c.partition] = c
	r.assignLocked(c)
}

// ConsumeID is Consume of the very topic that has the ID: should the cluster say
// that the name is that of another one, the partition ends with a
// *PartitionError that matches ErrUnknownTopic. It returns false, and the
// partition is read no further, while others are read of a topic that has the
// name and another ID. A broker that knows no IDs has all zeros, with which it
// is Consume.
func (r *reading) ConsumeID(d *topic.Description, id topic.ID, p int32, offset int64) bool {
	if id == (topic.ID{}) {
		r.Consume(d, p, offset)
		return true
	}
	c := &consumed{partition: topic.Partition{Topic: d.Name(), Number: p}, topic: d, next: offset, epoch: -1, term: -1}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopLocked(c.partition, true)
	if k := r.mu.topics[d.Name()]; k == nil || !k.seen || k.id != id {
		if k != nil && k.seen {
			for other := range r.mu.parts {
				if other.Topic == d.Name() {
					return false
				}
			}
		}
		r.mu.topics[d.Name()] = &known{id: id, seen: true}
	}
	r.mu.parts[c.partition] = c
	r.assignLocked(c)
	return true
}

// StopConsuming stops reading the partitions. What was fetched of them and not
// polled is dropped.
func (r *reading) StopConsuming(parts ...topic.Partition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range parts {
		r.stopLocked(p, false)
		delete(r.mu.failing, p)
	}
}

// stopLocked stops reading a partition. If it comes again, the fetch under way
// that it is part of is not waited for.
func (r *reading) stopLocked(p topic.Partition, again bool) {
	c := r.mu.parts[p]
	if c == nil {
		return
	}
	delete(r.mu.parts, p)
	r.dropLocked(c)
	if c.leader != nil {
		c.leader.leaveLocked(c, again)
	}
}

// Pause stops fetching the partitions, until Resume, and keeps their positions.
// What was fetched of them and not polled is fetched again.
func (r *reading) Pause(parts ...topic.Partition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range parts {
		r.mu.paused[p] = true
		delete(r.mu.failing, p)
		// Of what no leader is asked for, nothing was fetched: what came is why.
		if c := r.mu.parts[p]; c != nil && c.leader != nil {
			r.dropLocked(c)
		}
	}
}

// Resume ends a Pause.
func (r *reading) Resume(parts ...topic.Partition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range parts {
		delete(r.mu.paused, p)
		if c := r.mu.parts[p]; c != nil && c.leader != nil {
			signal(c.leader.wake)
		}
	}
}

// LimitPartition says how much a broker sends of one partition at once, from its
// next fetch on, or the first batch if that is larger. At first that is 1 MiB.
func (r *reading) LimitPartition(bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.each = max(1, min(bytes, r.config.maxBytes))
}

// dropLocked forgets what came and was not polled.
func (r *reading) dropLocked(c *consumed) {
	if c.came == nil {
		return
	}
	c.came.messages.Recycle()
	r.mu.ready = slices.DeleteFunc(r.mu.ready, func(o *consumed) bool { return o == c })
	r.takenLocked(c)
}

// takenLocked tells that nothing is left of what came.
func (r *reading) takenLocked(c *consumed) {
	c.came = nil
	if c.leader != nil {
		c.leader.takenLocked()
	}
}

// Buffered is how many messages were fetched and not polled.
func (r *reading) Buffered() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.mu.ready {
		n += c.came.messages.Len()
	}
	return n
}

// Poll empties into and fills it with up to max messages. It waits until there
// is something, or ctx ends, whose error it then returns. What it brings of a
// partition may be no message and a position alone, which has passed markers,
// aborted messages, or batches that compaction has left without one.
//
// An error may come with a batch, which holds good. A partition that an
// *OffsetRangeError or a *PartitionError names is read no further until Consume
// is called for it again.
func (r *reading) Poll(ctx context.Context, max int, into *Batch) error {
	into.Reset()
	return r.each(ctx, max, func(p PartBatch, m Messages) {
		for i := range m.Len() {
			into.Envelopes = append(into.Envelopes, m.At(i))
		}
		into.Parts = append(into.Parts, p)
		into.Bytes += m.size()
		m.Recycle()
	})
}

// Fetch is Poll for whoever keeps the messages, and makes envelopes of them
// one at a time.
func (r *reading) Fetch(ctx context.Context, max int) (*Fetched, error) {
	f := new(Fetched)
	err := r.each(ctx, max, func(p PartBatch, m Messages) {
		part := FetchedPart{PartBatch: p, Messages: m, Bytes: m.size()}
		f.Parts = append(f.Parts, part)
		f.Count += part.Count
		f.Bytes += part.Bytes
	})
	return f, err
}

// each waits for something, and calls found with up to max messages of it, by
// partition.
func (r *reading) each(ctx context.Context, max int, found func(p PartBatch, m Messages)) error {
	for {
		some, errs := r.take(ctx, max, found)
		switch {
		case len(errs) == 1:
			return errs[0]
		case len(errs) > 0:
			return errors.Join(errs...)
		case some:
			return nil
		}
		select {
		case <-r.arrived:
		case <-ctx.Done():
			return ctx.Err()
		case <-r.life.Done():
			return ErrClosed
		}
	}
}

// piece is what a poll takes of a partition.
type piece struct {
	part     PartBatch
	messages Messages
}

// take hands on what has come.
func (r *reading) take(ctx context.Context, max int, found func(p PartBatch, m Messages)) (some bool, errs []error) {
	pieces, gone, errs := r.takePieces(max)
	for _, p := range pieces {
		found(p.part, p.messages)
	}
	for _, g := range gone {
		if err := r.explain(ctx, g); err != nil {
			errs = append(errs, err)
		}
	}
	return len(pieces) > 0, errs
}

// failed is a partition that can't be read on, and why.
type failed struct {
	*consumed
	err error
}

// takePieces returns what has come, and the partitions that can't be read on.
func (r *reading) takePieces(max int) (pieces []piece, gone []failed, errs []error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	errs, r.mu.failed = r.mu.failed, nil
	for len(r.mu.ready) > 0 && (max > 0 || r.mu.ready[0].came.messages.Len() == 0) {
		c := r.mu.ready[0]
		came := c.came
		part, m := came.PartBatch, came.messages
		whole := m.Len() <= max
		if !whole {
			m, came.messages = m.split(max)
			part.Next = m.Offset(m.Len()-1) + 1
		}
		part.Count = m.Len()
		max -= part.Count
		if part.Next > c.next {
			c.next = part.Next
			pieces = append(pieces, piece{part, m})
		} else {
			m.Recycle()
		}
		if !whole {
			c.epoch = -1 // of what is within, no epoch is known
			break
		}
		c.epoch = came.epoch
		r.mu.ready = r.mu.ready[1:]
		r.takenLocked(c)
		if came.err != nil {
			gone = append(gone, failed{c, came.err})
			if c.leader != nil {
				c.leader.leaveLocked(c, false)
			}
			c.came = new(arrival) // nobody looks for it until it is explained
		}
	}
	if len(r.mu.ready) == 0 {
		r.mu.ready = nil
	}
	return pieces, gone, errs
}

// explain returns the error that a partition has ended with. There is none if it
// goes on, or if it was stopped or moved meanwhile.
func (r *reading) explain(ctx context.Context, f failed) error {
	inRange, why := r.diagnose(ctx, f)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.mu.parts[f.partition] != f.consumed:
		return nil
	case ctx.Err() != nil: // what was found out is worth nothing: the next poll tries
		f.came = nil
		r.readyLocked(f.consumed, &arrival{epoch: -1, err: f.err})
		return nil
	case inRange:
		f.came, f.epoch = nil, -1
		r.failLocked(f.consumed, why)
		return nil
	}
	r.stopLocked(f.partition, false)
	r.failingLocked(f.partition, why)
	return why
}

// diagnose says what is wrong with a partition that can't be read on. A broker
// may say that an offset is out of range which is not: one that has just become
// the leader, or is behind it.
func (r *reading) diagnose(ctx context.Context, f failed) (inRange bool, why error) {
	lost := (*lostEndError)(nil)
	if !errors.Is(f.err, kerr.OffsetOutOfRange) && !errors.As(f.err, &lost) {
		return false, &PartitionError{Partition: f.partition, Err: readError(f.err)}
	}
	e := &OffsetRangeError{Partition: f.partition, Offset: f.next}
	earliest, err := listOffsets(ctx, r.cl, Earliest, f.partition)
	if err == nil {
		e.Earliest = earliest[f.partition]
		if lost != nil {
			e.End = max(lost.end, e.Earliest)
			return false, e
		}
		var end map[topic.Partition]int64
		end, err = listOffsets(ctx, r.cl, End, f.partition)
		e.End = end[f.partition]
	}
	if err != nil {
		return false, &PartitionError{Partition: f.partition, Err: fmt.Errorf("offset %d is out of range: look up what is there: %w", f.next, err)}
	}
	return e.Earliest <= f.next && f.next <= e.End, e
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

// signal makes a channel with room for one ready, if it is not.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
