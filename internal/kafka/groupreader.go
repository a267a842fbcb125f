package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// GroupReaderConfig says what a group reader reads.
type GroupReaderConfig struct {
	Group     string
	Topics    []string
	Start     At   // where a partition starts that the group has committed nothing for
	Committed bool // only what is committed, or was not written in a transaction
}

// GroupReader reads topics as a member of a group: the partitions that the
// group gives it, from where the group has come.
//
//	NewGroupReader ── Poll ── Commit ── Poll ── Commit … Close
//
// One goroutine calls its methods. Between a Poll and the next no partition is
// taken away, so that what a Poll brought can be committed before the next.
type GroupReader struct {
	cl     *kgo.Client
	cfg    GroupReaderConfig
	cancel context.CancelFunc

	mu struct {
		sync.Mutex
		positions map[topic.Partition]int64 // of the partitions that it has
		joined    bool
	}
}

// NewGroupReader returns a reader that is on its way to be a member.
func NewGroupReader(cfg Config, gc GroupReaderConfig) (*GroupReader, error) {
	cfg = cfg.withDefaults()
	level := kgo.ReadUncommitted()
	if gc.Committed {
		level = kgo.ReadCommitted()
	}
	g := &GroupReader{cfg: gc}
	g.mu.positions = make(map[topic.Partition]int64)
	ctx, cancel := context.WithCancel(context.Background())
	cl, err := cfg.newClient(ctx,
		kgo.KeepControlRecords(), // so that positions pass markers
		kgo.AlwaysRetryEOF(),
		kgo.FetchMaxWait(fetchMaxWait),
		kgo.FetchIsolationLevel(level),
		kgo.ConsumerGroup(gc.Group),
		kgo.ConsumeTopics(gc.Topics...),
		// As Java's consumers have them, so that a group can have both.
		kgo.Balancers(kgo.CooperativeStickyBalancer(), kgo.RangeBalancer()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.mu.joined = true
		}),
		kgo.OnPartitionsRevoked(g.gone),
		kgo.OnPartitionsLost(g.gone),
		kgo.AdjustFetchOffsetsFn(g.start),
	)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("join group %s: %w", gc.Group, err)
	}
	g.cl, g.cancel = cl, cancel
	return g, nil
}

// start says where the partitions start that the group gives this member. The
// library has looked up what is committed.
func (g *GroupReader) start(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	var fresh []topic.Partition
	positions := make(map[topic.Partition]int64)
	for name, parts := range offsets {
		for n, o := range parts {
			p := topic.Partition{Topic: name, Number: n}
			if at := o.EpochOffset().Offset; at >= 0 {
				positions[p] = at
				continue
			}
			fresh = append(fresh, p)
		}
	}
	found, err := listOffsets(ctx, g.cl, g.cfg.Start, fresh...)
	if err != nil {
		return nil, fmt.Errorf("look up where group %s starts: %w", g.cfg.Group, err)
	}
	for p, at := range found {
		positions[p] = at
		offsets[p.Topic][p.Number] = kgo.NewOffset().At(at)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.Copy(g.mu.positions, positions)
	return offsets, nil
}

func (g *GroupReader) gone(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, parts := range lost {
		for _, n := range parts {
			delete(g.mu.positions, topic.Partition{Topic: name, Number: n})
		}
	}
}

// Positions returns up to where the partitions are read that this member has,
// and whether the group has given it any yet, be it none.
func (g *GroupReader) Positions() (positions map[topic.Partition]int64, joined bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.mu.positions), g.mu.joined
}

// Poll waits for messages, until ctx ends, whose error it then returns. next
// is the offset after them, by partition.
func (g *GroupReader) Poll(ctx context.Context, max int) (es []topic.Envelope, next map[topic.Partition]int64, err error) {
	g.cl.AllowRebalance()
	fs := g.cl.PollRecords(ctx, max)
	next = make(map[topic.Partition]int64)
	var errs []error
	fs.EachError(func(name string, n int32, err error) {
		if name != "" {
			err = &PartitionError{Partition: topic.Partition{Topic: name, Number: n}, Err: readError(err)}
		} else {
			err = readError(err)
		}
		errs = append(errs, err)
	})
	descriptions := make(map[string]*topic.Description)
	fs.EachRecord(func(rec *kgo.Record) {
		p := topic.Partition{Topic: rec.Topic, Number: rec.Partition}
		next[p] = rec.Offset + 1
		if rec.Attrs.IsControl() {
			return
		}
		d := descriptions[rec.Topic]
		if d == nil {
			d = topic.Bytes(rec.Topic).Description
			descriptions[rec.Topic] = d
		}
		e := topic.Envelope{Topic: d, Partition: rec.Partition, Offset: rec.Offset, Key: rec.Key, Value: rec.Value, Timestamp: exactTime(rec.Timestamp)}
		if len(rec.Headers) > 0 {
			e.Headers = headersOf(rec)
		}
		es = append(es, e)
	})
	g.mu.Lock()
	for p, at := range next {
		if _, ok := g.mu.positions[p]; ok {
			g.mu.positions[p] = at
		}
	}
	g.mu.Unlock()
	return es, next, errors.Join(errs...)
}

// exactTime undoes what the library does to a timestamp: it makes nanoseconds
// of it, which wrap around for times beyond the years 1678 to 2262, such as
// those that somebody stamped in microseconds. A million is 15625 times 2 to the
// 6th, and so all but the highest 6 bits of the milliseconds can be told.
func exactTime(t time.Time) time.Time {
	ms := uint64(t.UnixNano()) >> 6 * inverse15625
	return time.UnixMilli(int64(ms<<6) >> 6)
}

// inverse15625 times 15625 is 1, modulo 2 to the 64th.
const inverse15625 = 0x790fb65668c26139

// NextOffset is that of a Reader: it passes what holds no messages.
func (g *GroupReader) NextOffset(ctx context.Context, p topic.Partition, at int64) (int64, error) {
	next, err := nextOffset(ctx, g.cl, p, at)
	if err != nil {
		return 0, fmt.Errorf("look for the next offset of %s after %d: %w", p, at, err)
	}
	return next, nil
}

// Commit commits offsets for the group.
func (g *GroupReader) Commit(ctx context.Context, next map[topic.Partition]int64) error {
	if len(next) == 0 {
		return nil
	}
	offsets := make(map[string]map[int32]kgo.EpochOffset)
	for p, at := range next {
		if offsets[p.Topic] == nil {
			offsets[p.Topic] = make(map[int32]kgo.EpochOffset)
		}
		offsets[p.Topic][p.Number] = kgo.EpochOffset{Epoch: -1, Offset: at}
	}
	var failed error
	g.cl.CommitOffsetsSync(ctx, offsets, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		failed = err
		if err != nil {
			return
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil && failed == nil {
					failed = err
				}
			}
		}
	})
	if failed != nil {
		return fmt.Errorf("commit offsets of group %s: %w", g.cfg.Group, classed(failed))
	}
	return nil
}

// Close leaves the group.
func (g *GroupReader) Close(ctx context.Context) error {
	g.cl.AllowRebalance()
	err := g.cl.LeaveGroupContext(ctx)
	g.cancel()
	g.cl.Close()
	if err != nil {
		return fmt.Errorf("leave group %s: %w", g.cfg.Group, classed(err))
	}
	return nil
}
