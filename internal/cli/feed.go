package cli

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/pawlstream/pawl/internal/kafka"
)

// feeder publishes the input at a pace, and no further than its gate.
type feeder struct {
	producer *kafka.Producer
	topic    string
	rate     int // events a second; 0: as fast as it goes

	mu struct {
		sync.Mutex
		gate       int64         // events that may be fed
		step, most int64         // of allowMore
		moved      chan struct{} // closed, and replaced, when the gate moves
		fed        int64
	}
}

func newFeeder(cfg kafka.Config, topic string, rate int) (*feeder, error) {
	p, err := kafka.NewProducer(cfg)
	if err != nil {
		return nil, err
	}
	f := &feeder{producer: p, topic: topic, rate: rate}
	f.mu.moved = make(chan struct{})
	return f, nil
}

// allow moves the gate: so many events may be fed altogether, and by steps of
// allowMore up to most.
func (f *feeder) allow(events, step, most int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.step, f.mu.most = max(step, 1), most
	f.moveLocked(events)
}

// allowMore moves the gate by a step, unless it is as far as it may go.
func (f *feeder) allowMore() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.gate >= f.mu.most {
		return false
	}
	f.moveLocked(min(f.mu.gate+f.mu.step, f.mu.most))
	return true
}

func (f *feeder) moveLocked(gate int64) {
	f.mu.gate = gate
	close(f.mu.moved)
	f.mu.moved = make(chan struct{})
}

// allowed is how many events may be fed so far.
func (f *feeder) allowed() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.gate
}

// fed is how many events were fed, and acknowledged.
func (f *feeder) fed() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.fed
}

const (
	feedTick  = 20 * time.Millisecond // between two batches
	feedBatch = 2_000                 // events at most in one
)

// feed publishes the events, keyed by path, each its line as it is.
func (f *feeder) feed(ctx context.Context, events []event) error {
	records := make([]kafka.Record, 0, feedBatch)
	pace := pacer{rate: f.rate}
	for sent := 0; sent < len(events); {
		f.mu.Lock()
		room, moved := f.mu.gate-int64(sent), f.mu.moved
		f.mu.Unlock()
		n, wait := pace.due(time.Now(), room)
		n = min(n, len(events)-sent)
		if n == 0 {
			if err := pause(ctx, wait, moved); err != nil {
				return err
			}
			continue
		}
		records = records[:0]
		for _, e := range events[sent : sent+n] {
			records = append(records, kafka.Record{Topic: f.topic, Partition: -1, Key: e.key, Value: e.line})
		}
		if err := f.producer.Publish(ctx, records...); err != nil {
			return fmt.Errorf("feed events %d to %d: %w", sent+1, sent+n, err)
		}
		sent += n
		pace.sent(n)
		f.mu.Lock()
		f.mu.fed = int64(sent)
		f.mu.Unlock()
	}
	return nil
}

// pause waits for the time, or until the channel is closed.
func pause(ctx context.Context, d time.Duration, early <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-early:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pacer decides how many events are due. A feed that was held up goes on at
// its rate: it does not catch up.
type pacer struct {
	rate    int // events a second; 0: no limit
	last    time.Time
	allowed float64
}

// due returns how many events may be sent now, of those there is room for, and
// how long to wait if it is none.
func (p *pacer) due(now time.Time, room int64) (n int, wait time.Duration) {
	most := int(min(room, feedBatch))
	if p.rate == 0 {
		return max(most, 0), feedTick
	}
	if !p.last.IsZero() {
		p.allowed += now.Sub(p.last).Seconds() * float64(p.rate)
	}
	p.last = now
	burst := max(2, float64(p.rate)/4) // a quarter of a second, for a broker that was slow to answer
	p.allowed = min(p.allowed, burst)
	if most <= 0 || p.allowed < 1 {
		return 0, max(feedTick, time.Duration((1-p.allowed)/float64(p.rate)*float64(time.Second)))
	}
	return min(most, int(p.allowed)), feedTick
}

// sent says that so many were sent.
func (p *pacer) sent(n int) {
	if p.rate > 0 {
		p.allowed -= float64(n)
	}
}
