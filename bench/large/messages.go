package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// patience is how long anything may take.
const patience = 3 * time.Minute

// took is how long a process took from its start to the first answer to a
// probe that was sent before, and to one of every shard.
type took struct{ first, all time.Duration }

// startAndProbe sends a probe to each partition, starts a process, and waits
// until all have been answered. To a broker that starts with the process they
// are sent as soon as it takes them.
func (p *program) startAndProbe(ctx context.Context) (t took, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	sent := p.sendProbes(ctx)
	if !p.within {
		if err := <-sent; err != nil {
			return t, err
		}
	}
	begun := time.Now()
	if err := p.start(); err != nil {
		return t, err
	}
	if t.first, err = p.answers(ctx, begun, 1); err != nil {
		return t, err
	}
	if t.all, err = p.answers(ctx, begun, p.shards-1); err != nil {
		return t, err
	}
	if p.within {
		err = <-sent
	}
	return t, err
}

// probe sends a probe to each partition, and waits until all are answered: then
// all that was sent before has been processed.
func (p *program) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := <-p.sendProbes(ctx); err != nil {
		return err
	}
	_, err := p.answers(ctx, time.Now(), p.shards)
	return err
}

// sendProbes sends a probe to each partition. All of them have gone when its
// result comes.
func (p *program) sendProbes(ctx context.Context) <-chan error {
	p.probes++
	result := make(chan error, p.shards)
	var left atomic.Int64
	left.Store(int64(p.shards))
	for part := range p.shards {
		p.client.Produce(ctx, &kgo.Record{Topic: p.input, Partition: int32(part), Key: fmt.Appendf(nil, "%s%d-%d", probing, p.probes, part), Value: []byte("?")}, func(_ *kgo.Record, err error) {
			if n := left.Add(-1); err != nil || n == 0 {
				result <- err
			}
		})
	}
	return result
}

// answers waits for so many more answers to the probes that were sent last, and
// returns when since the last of them came.
func (p *program) answers(ctx context.Context, since time.Time, n int) (time.Duration, error) {
	last := fmt.Sprintf("%s%d-", probing, p.probes)
	for n > 0 {
		fetches := p.client.PollRecords(ctx, 1)
		select {
		case err := <-p.ended:
			p.ended <- err
			log, _ := os.ReadFile(p.logged)
			return 0, fmt.Errorf("the process ended: %w; it said:\n%s", err, log[max(0, len(log)-4<<10):])
		default:
		}
		if ctx.Err() != nil {
			log, _ := os.ReadFile(p.logged)
			return 0, fmt.Errorf("%d answers are missing: %w; the process said:\n%s", n, ctx.Err(), log[max(0, len(log)-4<<10):])
		}
		for r := range fetches.RecordsAll() {
			if len(r.Key) > len(last) && string(r.Key[:len(last)]) == last {
				n--
			}
		}
	}
	return time.Since(since), nil
}

// fill sends so many messages of 100 bytes: of each key one, and after them of
// keys at random.
func (p *program) fill(ctx context.Context, keys, messages int) error {
	failed := make(chan error, 1)
	random := rand.New(rand.NewPCG(1, 2))
	// Keys in no order, each once: the step has no factor in common with any
	// number of keys that is no multiple of it.
	const step = 7_368_787
	for i := range messages {
		key := i * step % keys
		if i >= keys {
			key = random.IntN(keys)
		}
		if err := p.send(ctx, key, random, failed); err != nil {
			return err
		}
	}
	return p.flushed(ctx, failed)
}

func (p *program) send(ctx context.Context, key int, random *rand.Rand, failed chan error) error {
	value := make([]byte, 100)
	for i := 0; i+8 <= len(value); i += 8 {
		n := random.Uint64()
		for j := range 8 {
			value[i+j] = byte(n >> (8 * j))
		}
	}
	p.client.Produce(ctx, &kgo.Record{Topic: p.input, Partition: int32(key % p.shards), Key: fmt.Appendf(nil, "k%09d", key), Value: value}, func(_ *kgo.Record, err error) {
		if err != nil {
			select {
			case failed <- err:
			default:
			}
		}
	})
	return ctx.Err()
}

func (p *program) flushed(ctx context.Context, failed chan error) error {
	if err := p.client.Flush(ctx); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return fmt.Errorf("send messages: %w", err)
	default:
		return nil
	}
}

// trickleAndKill sends 2,000 messages a second of keys at random for a second,
// and kills the process in the middle of them.
func (p *program) trickleAndKill(ctx context.Context) error {
	failed := make(chan error, 1)
	random := rand.New(rand.NewPCG(uint64(p.starts), 2))
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 100 {
		for range 20 {
			if err := p.send(ctx, random.IntN(p.keys), random, failed); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := p.kill(); err != nil {
		return err
	}
	if p.within {
		return nil // what it has not taken comes when it is back
	}
	return p.flushed(ctx, failed)
}
