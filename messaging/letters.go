package messaging

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// LettersConfig says which dead letters are meant: those of a consumer, or
// those in a topic.
type LettersConfig struct {
	Cluster     cluster.Cluster // where the dead letters are
	Application string
	Consumer    string
	Topic       string // default: <application>.<consumer>.dlq
	Logger      *slog.Logger
}

// Letters works with the dead letters of one topic.
//
// Every method looks at the letters that are there when it is called, and ends
// with them: one that comes while it works, of its own doing or not, is for the
// next call. What became of a letter is a record in a compacted topic beside
// them. It is written in one transaction with the redriven message: so within
// a cluster each letter is redriven exactly once, also when a redrive is ended
// by a crash and begun again, or two are begun at once.
type Letters struct {
	cfg   LettersConfig
	kc    kafka.Config
	admin *kafka.Admin
}

// OpenLetters returns the dead letters. It connects to nothing yet.
func OpenLetters(cfg LettersConfig) (*Letters, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	var errs []error
	if cfg.Topic == "" {
		if cfg.Application == "" || cfg.Consumer == "" {
			errs = append(errs, errors.New("neither a topic of dead letters is named, nor an application and a consumer"))
		}
		cfg.Topic = DeadLetterTopic(cfg.Application, cfg.Consumer)
	}
	if err := topic.CheckName(cfg.Topic); err != nil {
		errs = append(errs, err)
	}
	if err := cfg.Cluster.Validate(); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("dead letters: %w", err)
	}
	l := &Letters{cfg: cfg, kc: kafka.Config{Cluster: cfg.Cluster, ClientID: "pawl-dlq", Logger: cfg.Logger}}
	admin, err := kafka.NewAdmin(l.kc)
	if err != nil {
		return nil, fmt.Errorf("dead letters: %w", err)
	}
	l.admin = admin
	return l, nil
}

// Close ends the connections.
func (l *Letters) Close() { l.admin.Close() }

// Topic returns the name of the topic of dead letters.
func (l *Letters) Topic() string { return l.cfg.Topic }

// bounds is what there is to look at.
type bounds struct {
	id       topic.ID
	from, to map[topic.Partition]int64
}

// now returns the letters that are there now.
func (l *Letters) now(ctx context.Context) (bounds, error) {
	infos, err := l.admin.Topics(ctx, l.cfg.Topic)
	if err != nil {
		return bounds{}, err
	}
	info, ok := infos[l.cfg.Topic]
	if !ok {
		return bounds{}, fmt.Errorf("topic %s: %w: no message was set aside there yet, or the application or the consumer has another name", l.cfg.Topic, ErrUnknownTopic)
	}
	b := bounds{id: info.ID}
	parts := make([]topic.Partition, info.Partitions)
	for i := range parts {
		parts[i] = topic.Partition{Topic: l.cfg.Topic, Number: int32(i)}
	}
	if b.from, err = l.admin.Offsets(ctx, kafka.Earliest, parts...); err != nil {
		return b, err
	}
	b.to, err = l.admin.Offsets(ctx, kafka.StableEnd, parts...)
	return b, err
}

// size is how many letters there are at most.
func (b bounds) size() (n int64) {
	for p, to := range b.to {
		n += to - b.from[p]
	}
	return n
}

// outcomes returns what became of letters.
func (l *Letters) outcomes(ctx context.Context, dlq topic.ID) (map[letterID]Outcome, error) {
	all := make(map[letterID]Outcome)
	name := OutcomesTopic(l.cfg.Topic)
	infos, err := l.admin.Topics(ctx, name)
	if err != nil {
		return nil, err
	}
	info, ok := infos[name]
	if !ok {
		return all, nil // nothing was done yet
	}
	parts := make([]topic.Partition, info.Partitions)
	for i := range parts {
		parts[i] = topic.Partition{Topic: name, Number: int32(i)}
	}
	from, err := l.admin.Offsets(ctx, kafka.Earliest, parts...)
	if err != nil {
		return nil, err
	}
	to, err := l.admin.Offsets(ctx, kafka.StableEnd, parts...)
	if err != nil {
		return nil, err
	}
	for e, err := range l.read(ctx, from, to) {
		if err != nil {
			return nil, fmt.Errorf("read what became of dead letters: %w", err)
		}
		id, o, ok := parseOutcome(dlq, e.Key, e.Value)
		switch {
		case !ok:
		case e.Value == nil:
			delete(all, id)
		default:
			all[id] = o
		}
	}
	return all, nil
}

// read returns what partitions hold, one after the other, in order.
func (l *Letters) read(ctx context.Context, from, to map[topic.Partition]int64) iter.Seq2[topic.Envelope, error] {
	return func(yield func(topic.Envelope, error) bool) {
		parts := slices.SortedFunc(maps.Keys(to), topic.Partition.Compare)
		for _, p := range parts {
			if !l.readPartition(ctx, p, from[p], to[p], yield) {
				return
			}
		}
	}
}

// stallLimit is how long a reader waits below the end for what may be hidden
// there: markers, and what compaction left nothing of.
const stallLimit = 2 * time.Second

func (l *Letters) readPartition(ctx context.Context, p topic.Partition, next, end int64, yield func(topic.Envelope, error) bool) bool {
	if next >= end {
		return true
	}
	r, err := kafka.NewReader(l.kc, kafka.ReaderConfig{Committed: true})
	if err != nil {
		return yield(topic.Envelope{}, err)
	}
	defer r.Close()
	r.Consume(topic.Bytes(p.Topic).Description, p.Number, next)
	for next < end {
		var batch kafka.Batch // a new one: what is in it is kept
		poll, cancel := context.WithTimeout(ctx, stallLimit)
		err := r.Poll(poll, 5000, &batch)
		cancel()
		for _, e := range batch.Envelopes {
			if e.Offset >= end {
				break
			}
			if !yield(e, nil) {
				return false
			}
		}
		for _, b := range batch.Parts {
			next = max(next, b.Next)
		}
		if err == nil {
			continue
		}
		var gone *kafka.OffsetRangeError
		switch {
		case ctx.Err() != nil:
			return yield(topic.Envelope{}, ctx.Err())
		case errors.As(err, &gone):
			next = max(next, gone.Earliest) // retention is at work
			r.Consume(topic.Bytes(p.Topic).Description, p.Number, next)
		case errors.Is(err, context.DeadlineExceeded):
			at, err := r.NextOffset(ctx, p, next)
			if err != nil {
				return yield(topic.Envelope{}, err)
			}
			if at > next {
				next = at
				r.Consume(topic.Bytes(p.Topic).Description, p.Number, next)
			}
		default:
			return yield(topic.Envelope{}, err)
		}
	}
	return true
}

// List returns the letters that fit, partition after partition, each in order.
func (l *Letters) List(ctx context.Context, q Query) iter.Seq2[Letter, error] {
	return func(yield func(Letter, error) bool) {
		b, err := l.now(ctx)
		if err != nil {
			yield(Letter{}, fmt.Errorf("list dead letters: %w", err))
			return
		}
		outcomes, err := l.outcomes(ctx, b.id)
		if err != nil {
			yield(Letter{}, fmt.Errorf("list dead letters: %w", err))
			return
		}
		for letter, err := range l.list(ctx, q, b, outcomes) {
			if !yield(letter, err) {
				return
			}
		}
	}
}

func (l *Letters) list(ctx context.Context, q Query, b bounds, outcomes map[letterID]Outcome) iter.Seq2[Letter, error] {
	from, to := maps.Clone(b.from), maps.Clone(b.to)
	for p := range to {
		if q.Partition != nil && p.Number != *q.Partition {
			delete(to, p)
			continue
		}
		from[p] = max(from[p], q.From)
		if q.To > 0 {
			to[p] = min(to[p], q.To)
		}
	}
	return func(yield func(Letter, error) bool) {
		if len(to) == 0 {
			yield(Letter{}, fmt.Errorf("topic %s has %d partitions, and no partition %d: %w", l.cfg.Topic, len(b.to), *q.Partition, ErrNoLetter))
			return
		}
		for e, err := range l.read(ctx, from, to) {
			if err != nil {
				yield(Letter{}, fmt.Errorf("read dead letters: %w", err))
				return
			}
			letter := newLetter(e)
			if o, ok := outcomes[letterID{e.Partition, e.Offset}]; ok {
				letter.Outcome = &o
			}
			if q.fits(&letter) && !yield(letter, nil) {
				return
			}
		}
	}
}

// ErrNoLetter says that there is no such dead letter.
var ErrNoLetter = errors.New("there is no such dead letter")

// Show returns one letter.
func (l *Letters) Show(ctx context.Context, partition int32, offset int64) (Letter, error) {
	for letter, err := range l.List(ctx, Query{Partition: &partition, From: offset, To: offset + 1, Settled: true}) {
		return letter, err
	}
	return Letter{}, fmt.Errorf("dead letter %s-%d at offset %d: %w", l.cfg.Topic, partition, offset, ErrNoLetter)
}

// Export writes the letters that fit, one JSON object a line, and returns how
// many.
func (l *Letters) Export(ctx context.Context, q Query, to io.Writer) (n int, err error) {
	enc := json.NewEncoder(to)
	enc.SetEscapeHTML(false)
	for letter, err := range l.List(ctx, q) {
		if err != nil {
			return n, err
		}
		if err := enc.Encode(letter); err != nil {
			return n, fmt.Errorf("export dead letters: %w", err)
		}
		n++
	}
	return n, nil
}
