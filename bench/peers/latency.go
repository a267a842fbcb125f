package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// percentiles are of latencies, in milliseconds.
type percentiles struct{ p50, p99, p999 float64 }

func percentilesOf(all []time.Duration) *percentiles {
	slices.Sort(all)
	at := func(permille int) float64 {
		return all[min(len(all)-1, len(all)*permille/1000)].Seconds() * 1000
	}
	return &percentiles{at(500), at(990), at(999)}
}

// live keeps when each message was due to be sent, and finds how long it took
// until a count came that includes it. A count of n includes the first n
// messages of its key, so that those whose own count was merged into a later
// one are measured too. Safe for concurrent use.
type live struct {
	mu struct {
		sync.Mutex
		keys    []sentKey
		sent    int
		counted int
		took    []time.Duration // of the measured ones, in no order
	}
}

// sentKey is what is known of a key.
type sentKey struct {
	due     []due // its messages that are in no count yet
	counted int64 // and those that are
}

// due is when a message was to be sent, and whether it is measured.
type due struct {
	at       time.Time
	measured bool
}

func newLive(keys int) *live {
	l := &live{}
	l.mu.keys = make([]sentKey, keys)
	return l
}

// send notes a message before it is sent.
func (l *live) send(key int, d due) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := &l.mu.keys[key]
	k.due = append(k.due, d)
	l.mu.sent++
}

// receive notes a count.
func (l *live) receive(key int, n int64, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := &l.mu.keys[key]
	fresh := n - k.counted
	if fresh <= 0 || fresh > int64(len(k.due)) {
		return fmt.Errorf("the count of key %d goes from %d to %d, and %d messages were sent", key, k.counted, n, k.counted+int64(len(k.due)))
	}
	for _, d := range k.due[:fresh] {
		if d.measured {
			l.mu.took = append(l.mu.took, now.Sub(d.at))
		}
	}
	k.due, k.counted = k.due[fresh:], n
	l.mu.counted += int(fresh)
	return nil
}

// outstanding returns how many messages were sent that are in no count yet.
func (l *live) outstanding() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.sent - l.mu.counted
}

// settling is how long the last messages may take.
const settling = 30 * time.Second

// latency sends messages at the workload's rate while a peer counts them, and
// receives the counts.
func (b bench) latency(ctx context.Context, w workload, p peer) (f figures, err error) {
	s, err := b.open(ctx, w, p)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	producer, err := b.client(kgo.ProducerLinger(0), kgo.MaxBufferedRecords(1_000_000), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.RequiredAcks(kgo.AllISRAcks()))
	if err != nil {
		return f, err
	}
	defer producer.Close()
	receiver, err := b.client(kgo.ConsumeTopics(s.output), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return f, err
	}
	defer receiver.Close()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-s.ended:
			cancel(errors.Join(errors.New("the process ended by itself"), s.end()))
		case <-ctx.Done():
		}
	}()
	l := newLive(w.input.keys)
	received := make(chan struct{})
	go func() {
		defer close(received)
		if err := receive(ctx, receiver, l); err != nil {
			cancel(err)
		}
	}()
	defer func() { cancel(nil); <-received }()

	warm, measured := int(float64(w.rate)*b.warmUp.Seconds()), int(float64(w.rate)*b.measured.Seconds())
	var m meter
	var before, after usage
	send := func(key int, d due) {
		l.send(key, d)
		producer.Produce(ctx, &kgo.Record{Topic: s.input, Key: appendKey(nil, key), Value: make([]byte, valueBytes)}, func(_ *kgo.Record, err error) {
			if err != nil {
				cancel(fmt.Errorf("send a message: %w", err))
			}
		})
	}
	send(0, due{at: time.Now()})
	if err := settle(ctx, l); err != nil { // the program has started
		return f, fmt.Errorf("start: %w; it said:\n%s", err, s.stderr.text())
	}
	next := w.input.next()
	begun := time.Now()
	for i := range warm + measured {
		// Open loop: a message is due when it is due, whatever came back. One
		// that is sent late is measured from when it was due.
		at := begun.Add(time.Duration(i) * time.Second / time.Duration(w.rate))
		if wait := time.Until(at); wait > 0 {
			time.Sleep(wait) // real time: open loop, a message is sent when it is due
		}
		if ctx.Err() != nil {
			return f, context.Cause(ctx)
		}
		if i == warm {
			if m, err = b.newMeter(); err != nil {
				return f, err
			}
			if before, err = s.usage(); err != nil {
				return f, err
			}
		}
		send(next(), due{at: at, measured: i >= warm})
	}
	if after, err = s.usage(); err != nil {
		return f, err
	}
	f = figures{messages: measured, seconds: time.Since(m.begun).Seconds(), cpu: (after.cpu - before.cpu).Seconds(), peak: after.peak}
	if err := m.read(&f, after.cpu-before.cpu); err != nil {
		return f, err
	}
	if err := settle(ctx, l); err != nil {
		return f, fmt.Errorf("%w; it said:\n%s", err, s.stderr.text())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.mu.took) != measured {
		return f, fmt.Errorf("%d latencies were measured: want %d", len(l.mu.took), measured)
	}
	f.latency = percentilesOf(l.mu.took)
	return f, nil
}

// settle waits until every message that was sent is in a count.
func settle(ctx context.Context, l *live) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settling, fmt.Errorf("no count includes it within %v", settling))
	defer cancel()
	tick := time.NewTicker(sampling)
	defer tick.Stop()
	for {
		missing := l.outstanding()
		if missing == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d messages wait for a count: %w", missing, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// receive notes the counts that come, until ctx ends.
func receive(ctx context.Context, cl *kgo.Client, l *live) error {
	for {
		fetches := cl.PollFetches(ctx)
		now := time.Now()
		if ctx.Err() != nil {
			return nil
		}
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("receive counts: %w", err)
		}
		for r := range fetches.RecordsAll() {
			key, err := keyNumber(r.Key)
			if err != nil {
				return err
			}
			if len(r.Value) != 8 {
				return fmt.Errorf("the count of key %d has %d bytes: want 8", key, len(r.Value))
			}
			if err := l.receive(key, int64(binary.BigEndian.Uint64(r.Value)), now); err != nil {
				return err
			}
		}
	}
}
