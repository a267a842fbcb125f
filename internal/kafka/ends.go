package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/pawlstream/pawl/topic"
)

// StableEnds returns the last stable offset of each partition that can be asked
// for it, beside the errors of the others: one that has no leader keeps back
// nothing of the rest.
func (a *Admin) StableEnds(ctx context.Context, parts ...topic.Partition) (map[topic.Partition]int64, error) {
	ends := make(map[topic.Partition]int64, len(parts))
	if len(parts) == 0 {
		return ends, nil
	}
	var errs []error
	for _, shard := range a.cl.RequestSharded(ctx, listOffsetsRequest(StableEnd, parts)) {
		if shard.Err != nil {
			errs = append(errs, fmt.Errorf("list offsets: %w", classed(shard.Err)))
			continue
		}
		resp, ok := shard.Resp.(*kmsg.ListOffsetsResponse)
		if !ok {
			errs = append(errs, fmt.Errorf("offsets were asked for, and answered with %T", shard.Resp))
			continue
		}
		for _, t := range resp.Topics {
			for _, rp := range t.Partitions {
				p := topic.Partition{Topic: t.Topic, Number: rp.Partition}
				if err := kerr.ErrorForCode(rp.ErrorCode); err != nil {
					errs = append(errs, fmt.Errorf("list offsets of %s: %w", p, classed(err)))
				} else if rp.Offset >= 0 {
					ends[p] = rp.Offset
				}
			}
		}
	}
	return ends, errors.Join(errs...)
}
