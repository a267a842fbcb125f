package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// input describes the messages of a topic, which are the same in every run.
type input struct {
	name     string
	keys     int
	once     bool    // each key comes once, in an order that scatters them
	zipf     float64 // exponent of the distribution of keys; 0 is uniform
	messages int     // 0 for one that is written while it is consumed
}

func (in input) topic() string { return fmt.Sprintf("peers.%s.%d", in.name, in.messages) }

// valueBytes is the length of a message's value: its number in eight bytes,
// then zeros.
const valueBytes = 100

// next returns a function that draws the messages' keys one by one.
func (in input) next() func() int {
	if in.once {
		// The step is a prime that does not divide the number of keys.
		const step = 2_654_435_761
		i := 0
		return func() int { i++; return i * step % in.keys }
	}
	r := rand.New(rand.NewPCG(1, 2))
	if in.zipf == 0 {
		return func() int { return r.IntN(in.keys) }
	}
	z := rand.NewZipf(r, in.zipf, 1, uint64(in.keys-1))
	return func() int { return int(z.Uint64()) }
}

// appendKey appends the key with a number, in ten bytes.
func appendKey(dst []byte, key int) []byte { return fmt.Appendf(dst, "k%09d", key) }

// keyNumber returns the number of a key, or an error if none of ours looks
// like it.
func keyNumber(key []byte) (int, error) {
	if len(key) != 10 || key[0] != 'k' {
		return 0, fmt.Errorf("key %q: want k and nine digits", key)
	}
	n := 0
	for _, c := range key[1:] {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("key %q: want k and nine digits", key)
		}
		n = 10*n + int(c-'0')
	}
	return n, nil
}

// fill makes the workload's input, if another workload has not.
func (b bench) fill(ctx context.Context, w workload) error {
	if w.rate > 0 {
		return nil // each run has an input of its own
	}
	cl, err := b.client(kgo.MaxBufferedRecords(200_000), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerBatchMaxBytes(64<<10), kgo.ProducerLinger(5*time.Millisecond), kgo.RequiredAcks(kgo.AllISRAcks()))
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	topics, err := adm.ListTopics(ctx, w.input.topic())
	if err != nil {
		return err
	}
	if topics.Has(w.input.topic()) {
		return nil
	}
	if err := createTopic(ctx, adm, w.input.topic()); err != nil {
		return err
	}
	var failed firstError
	next := w.input.next()
	for i := range w.input.messages {
		value := make([]byte, valueBytes)
		binary.BigEndian.PutUint64(value, uint64(i))
		cl.Produce(ctx, &kgo.Record{Topic: w.input.topic(), Key: appendKey(nil, next()), Value: value}, func(_ *kgo.Record, err error) { failed.note(err) })
	}
	if err := cl.Flush(ctx); err != nil {
		return err
	}
	return failed.err()
}

// firstError keeps the first error of many. Safe for concurrent use.
type firstError struct {
	mu struct {
		sync.Mutex
		err error
	}
}

func (f *firstError) note(err error) {
	if err == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.err == nil {
		f.mu.err = err
	}
}

func (f *firstError) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.err
}

func (b bench) client(opts ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(opts, kgo.SeedBrokers(b.broker))...)
}

// createTopic makes a topic, and returns when the broker shows it to clients,
// which is a moment after it has answered.
func createTopic(ctx context.Context, adm *kadm.Client, name string) error {
	r, err := adm.CreateTopic(ctx, partitions, 1, nil, name)
	if err == nil {
		err = r.Err
	}
	for err == nil {
		var topics kadm.TopicDetails
		if topics, err = adm.ListTopics(ctx, name); topics.Has(name) {
			return nil
		}
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(sampling):
		}
	}
	return fmt.Errorf("create topic %s: %w", name, err)
}
