package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// tail reads topics from their beginning, read committed, as long as a run
// takes. All that a demo knows of a run, it knows from here.
type tail struct {
	reader *kafka.Reader
	take   func(*topic.Envelope) // called with the lock held, with each message

	mu struct {
		sync.Mutex
		next    map[topic.Partition]int64
		changed chan struct{} // closed, and replaced, when something was read
		err     error         // why nothing more is read
	}
}

func newTail(cfg kafka.Config, take func(*topic.Envelope)) (*tail, error) {
	reader, err := kafka.NewReader(cfg, kafka.ReaderConfig{Committed: true})
	if err != nil {
		return nil, err
	}
	t := &tail{reader: reader, take: take}
	t.mu.next = make(map[topic.Partition]int64)
	t.mu.changed = make(chan struct{})
	return t, nil
}

// watch adds topics, which exist and have so many partitions.
func (t *tail) watch(partitions int32, names ...string) {
	for _, name := range names {
		for p := range partitions {
			t.mu.Lock()
			t.mu.next[topic.Partition{Topic: name, Number: p}] = 0
			t.mu.Unlock()
			t.reader.Consume(topic.Bytes(name).Description, p, 0)
		}
	}
}

// pollMax is how many messages are read at once.
const pollMax = 5_000

// run reads until ctx ends.
func (t *tail) run(ctx context.Context) {
	var batch kafka.Batch
	for {
		err := t.reader.Poll(ctx, pollMax, &batch)
		if ctx.Err() != nil {
			return
		}
		t.mu.Lock()
		for i := range batch.Envelopes {
			t.take(&batch.Envelopes[i])
		}
		for _, p := range batch.Parts {
			t.mu.next[p.Partition] = p.Next
		}
		if err != nil {
			t.mu.err = fmt.Errorf("read what the run has committed: %w", err)
		}
		close(t.mu.changed)
		t.mu.changed = make(chan struct{})
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// await waits until condition holds, which is called with the lock held, after
// everything that is read.
func (t *tail) await(ctx context.Context, condition func() bool) error {
	for {
		t.mu.Lock()
		ok, changed, err := condition(), t.mu.changed, t.mu.err
		t.mu.Unlock()
		switch {
		case ok:
			return nil
		case err != nil:
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// awaitEnds waits until everything that is there now is read.
func (t *tail) awaitEnds(ctx context.Context, admin *kafka.Admin) error {
	ends, err := admin.Offsets(ctx, kafka.End, t.partitions()...)
	if err != nil {
		return err
	}
	return t.awaitOffsets(ctx, ends)
}

// awaitOffsets waits until everything below the offsets is read.
func (t *tail) awaitOffsets(ctx context.Context, ends map[topic.Partition]int64) error {
	behind := func() (ps []string) {
		for p, end := range ends {
			if t.mu.next[p] < end {
				ps = append(ps, fmt.Sprintf("%s at %d of %d", p, t.mu.next[p], end))
			}
		}
		return ps
	}
	err := t.await(ctx, func() bool { return len(behind()) == 0 })
	if err != nil && ctx.Err() != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		return fmt.Errorf("read all that is committed: %s: %w", strings.Join(behind(), ", "), err)
	}
	return err
}

// partitions are all that is watched.
func (t *tail) partitions() []topic.Partition {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.mu.next))
}
