package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// validate reads all of a workload's output, read committed, and returns how
// many messages it has, or what is wrong with it.
func (b bench) validate(ctx context.Context, w workload, output string) (int, error) {
	var c checker
	switch w.program {
	case "count":
		c = &countChecker{last: make(map[string]int64)}
	case "map":
		c = &mapChecker{seen: make([]bool, w.input.messages)}
	}
	if err := b.readCommitted(ctx, output, c.check); err != nil {
		return 0, fmt.Errorf("read the output: %w", err)
	}
	return c.result(int64(w.input.messages))
}

// checker looks at each message of an output, those of a partition in order.
type checker interface {
	check(key, value []byte) error
	result(inputs int64) (outputs int, err error)
}

// countChecker checks counts: a key's grow, and the last ones add up to the
// input.
type countChecker struct {
	last    map[string]int64
	sum     int64
	outputs int
}

func (c *countChecker) check(key, value []byte) error {
	if len(value) != 8 {
		return fmt.Errorf("the count of %s has %d bytes: want 8", key, len(value))
	}
	n := int64(binary.BigEndian.Uint64(value))
	last := c.last[string(key)]
	if n <= last {
		return fmt.Errorf("the count of %s goes from %d to %d", key, last, n)
	}
	c.last[string(key)] = n
	c.sum += n - last
	c.outputs++
	return nil
}

func (c *countChecker) result(inputs int64) (int, error) {
	if c.sum != inputs {
		return 0, fmt.Errorf("the last counts add up to %d: want %d", c.sum, inputs)
	}
	return c.outputs, nil
}

// mapChecker checks mapped messages: each number comes once, with the value
// that the map makes of it.
type mapChecker struct {
	seen    []bool
	outputs int
}

var inverted = bytes.Repeat([]byte{0xff}, valueBytes-8)

func (m *mapChecker) check(_, value []byte) error {
	if len(value) != valueBytes || !bytes.Equal(value[8:], inverted) {
		return fmt.Errorf("an output is %x: want eight bytes, then %d inverted ones", value, valueBytes-8)
	}
	n := binary.BigEndian.Uint64(value)
	if n >= uint64(len(m.seen)) || m.seen[n] {
		return fmt.Errorf("number %d came twice, or was never sent", n)
	}
	m.seen[n] = true
	m.outputs++
	return nil
}

func (m *mapChecker) result(inputs int64) (int, error) {
	if int64(m.outputs) != inputs {
		return 0, fmt.Errorf("%d of %d messages were put out", m.outputs, inputs)
	}
	return m.outputs, nil
}

// readCommitted hands each message of a topic to a function, up to the last
// stable offset of now.
func (b bench) readCommitted(ctx context.Context, name string, check func(key, value []byte) error) error {
	// The last message of a partition is often a transaction's marker: without
	// those, no end would be seen.
	cl, err := b.client(kgo.ConsumeTopics(name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	if err != nil {
		return err
	}
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListCommittedOffsets(ctx, name)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return err
	}
	open := make(map[int32]int64)
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			open[o.Partition] = o.Offset
		}
	})
	for len(open) > 0 {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		for r := range fetches.RecordsAll() {
			end, ok := open[r.Partition]
			if !ok {
				continue
			}
			if !r.Attrs.IsControl() {
				if err := check(r.Key, r.Value); err != nil {
					return fmt.Errorf("partition %d, offset %d: %w", r.Partition, r.Offset, err)
				}
			}
			if r.Offset+1 >= end {
				delete(open, r.Partition)
			}
		}
	}
	return nil
}
