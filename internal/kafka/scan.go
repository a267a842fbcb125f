package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/pawlstream/pawl/topic"
)

// Span is a part of a partition: from one offset up to another, which is not
// in it.
type Span struct {
	Partition topic.Partition
	From, To  int64
}

// NoEnd is the To of a span that goes on with the partition.
const NoEnd = math.MaxInt64

// scanIdle is how long a scan waits for messages before it looks whether there
// is any left: at the end of a span may be markers, or what was aborted, or
// batches that compaction has emptied.
const scanIdle = 500 * time.Millisecond

// scanPoll is how many messages are read at once.
const scanPoll = 1000

// Scan reads spans, and calls found with the messages of each fetch: those of
// a partition in order, and together with those of others. next is the offset
// after them, by partition that the fetch brought anything of. It returns when
// all spans are read, when found returns an error, or when ctx ends.
func Scan(ctx context.Context, cfg Config, rc ReaderConfig, spans []Span, found func(es []topic.Envelope, next map[topic.Partition]int64) error) error {
	s := scan{left: make(map[topic.Partition]*scanned)}
	for _, span := range spans {
		if span.From < span.To {
			s.left[span.Partition] = &scanned{next: span.From, to: span.To, topic: topic.Bytes(span.Partition.Topic).Description}
		}
	}
	if len(s.left) == 0 {
		return nil
	}
	if rc.MaxWait == 0 {
		rc.MaxWait = scanIdle
	}
	r, err := NewReader(cfg, rc)
	if err != nil {
		return err
	}
	defer r.Close()
	s.reader = r
	for p, in := range s.left {
		r.Consume(in.topic, p.Number, in.next)
	}
	return s.run(ctx, found)
}

type scan struct {
	reader *Reader
	left   map[topic.Partition]*scanned // spans that are not read to their end
}

type scanned struct {
	topic    *topic.Description
	next, to int64
}

func (s *scan) run(ctx context.Context, found func([]topic.Envelope, map[topic.Partition]int64) error) error {
	var batch Batch
	for len(s.left) > 0 {
		wait, cancel := context.WithTimeout(ctx, 2*scanIdle)
		batch.Reset()
		err := s.reader.Poll(wait, scanPoll, &batch)
		idle := wait.Err() != nil
		cancel()
		es, next := s.take(&batch)
		if len(next) > 0 {
			if err := found(es, next); err != nil {
				return err
			}
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case idle && (err == nil || errors.Is(err, context.DeadlineExceeded)):
			if err := s.passEmpty(ctx); err != nil {
				return err
			}
		case err != nil:
			return err
		}
	}
	return nil
}

// take returns what of a batch lies in the spans, and how far they are read.
func (s *scan) take(b *Batch) (es []topic.Envelope, next map[topic.Partition]int64) {
	next = make(map[topic.Partition]int64)
	at := 0
	for _, p := range b.Parts {
		part := b.Envelopes[at : at+p.Count]
		at += p.Count
		in := s.left[p.Partition]
		if in == nil {
			continue // fetched before it was left off
		}
		for _, e := range part {
			if e.Offset >= in.next && e.Offset < in.to {
				es = append(es, e)
			}
		}
		if p.Next > in.next {
			in.next = min(p.Next, in.to)
			next[p.Partition] = in.next
		}
		s.leave(p.Partition)
	}
	return es, next
}

// leave leaves a span off that is read to its end.
func (s *scan) leave(p topic.Partition) {
	if in := s.left[p]; in != nil && in.next >= in.to {
		delete(s.left, p)
		s.reader.StopConsuming(p)
	}
}

// passEmpty passes what holds no messages.
func (s *scan) passEmpty(ctx context.Context) error {
	for p, in := range s.left {
		if in.to == NoEnd {
			continue // nobody waits for its end
		}
		next, err := s.reader.NextOffset(ctx, p, in.next)
		if err != nil {
			if Transient(err) {
				continue
			}
			return err
		}
		if next > in.next {
			in.next = min(next, in.to)
			s.reader.Consume(in.topic, p.Number, in.next)
			s.leave(p)
		}
	}
	return nil
}

// LastRecords returns the last committed record with the given key of each
// partition that has one. It reads partitions from their ends on backwards, so
// it is quick where the key is written often.
func (a *Admin) LastRecords(ctx context.Context, key []byte, parts ...topic.Partition) (map[topic.Partition]topic.Envelope, error) {
	fail := func(err error) (map[topic.Partition]topic.Envelope, error) {
		return nil, fmt.Errorf("look for the last records %q: %w", key, err)
	}
	starts, err := a.Offsets(ctx, Earliest, parts...)
	if err != nil {
		return fail(err)
	}
	unread, err := a.Offsets(ctx, StableEnd, parts...) // by partition: what is below is not read yet
	if err != nil {
		return fail(err)
	}
	last := make(map[topic.Partition]topic.Envelope)
	const first, growth = 500, 8
	for size := int64(first); ; size *= growth {
		var spans []Span
		for _, p := range parts {
			if _, ok := last[p]; !ok && unread[p] > starts[p] {
				spans = append(spans, Span{p, max(starts[p], unread[p]-size), unread[p]})
				unread[p] = spans[len(spans)-1].From
			}
		}
		if len(spans) == 0 {
			return last, nil
		}
		err := Scan(ctx, a.cfg, ReaderConfig{Committed: true}, spans, func(es []topic.Envelope, _ map[topic.Partition]int64) error {
			for _, e := range es {
				if string(e.Key) == string(key) {
					last[topic.Partition{Topic: e.TopicName(), Number: e.Partition}] = e
				}
			}
			return nil
		})
		if err != nil {
			return fail(err)
		}
	}
}
