package messaging

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/internal/kafka"
)

// Options say how letters are redriven or discarded.
type Options struct {
	DryRun bool    // only count
	Rate   float64 // letters a second; 0: as fast as it goes
	Why    string  // goes into the record of what became of each

	// MaxRedrives is how often a message may come back; those that have are
	// left. 0: 10.
	MaxRedrives int

	// To is where letters are redriven to: a topic, in place of that by which
	// they come back to the consumer that they failed in, and it alone.
	To string

	// ToCluster is the cluster of that topic, where it is another one than that
	// of the letters. Each is then redriven at least once, not exactly once.
	ToCluster *cluster.Cluster

	// Progress, when set, is called now and then, and at the end.
	Progress func(Progress)
}

// Progress says how far a redrive or a discard is.
type Progress struct {
	Looked int64 // at so many letters
	Of     int64 // there are so many, at most
	Result
}

// Result says what became of the letters that fit.
type Result struct {
	Moved  int // redriven or discarded
	Failed int // could not be, and are still there
	Capped int // came back too often already, and are still there
	Err    error
}

const (
	letterBatch      = 100 // letters in a transaction
	defaultRedrives  = 10
	sessionTries     = 5
	letterTimeout    = 30 * time.Second // of one transaction
	letterTries      = time.Second
	partitionUnknown = -1
)

// Redrive sends the letters that fit back. The result counts them; the error
// says why it ended before the last, or that letters failed.
func (l *Letters) Redrive(ctx context.Context, q Query, o Options) (Result, error) {
	return l.settle(ctx, q, o, Redriven)
}

// Discard records of the letters that fit that nothing is to become of them.
func (l *Letters) Discard(ctx context.Context, q Query, o Options) (Result, error) {
	return l.settle(ctx, q, o, Discarded)
}

// settlement is one run of Redrive or Discard.
type settlement struct {
	*Letters
	o       Options
	action  string
	bounds  bounds
	session *kafka.Session
	target  *kafka.Producer
	made    map[string]bool // topics that are known to exist
	res     Result
	looked  int64
	pace    limiter
}

func (l *Letters) settle(ctx context.Context, q Query, o Options, action string) (Result, error) {
	q.Settled = false
	if o.MaxRedrives == 0 {
		o.MaxRedrives = defaultRedrives
	}
	s := &settlement{Letters: l, o: o, action: action, made: make(map[string]bool), pace: limiter{every: o.Rate}}
	var err error
	if s.bounds, err = l.now(ctx); err != nil {
		return s.res, fmt.Errorf("%s: %w", verb(action), err)
	}
	defer s.close()
	if err := s.known(ctx); err != nil {
		return s.res, fmt.Errorf("%s: %w", verb(action), err)
	}
	err = s.run(ctx, q)
	s.progress()
	switch {
	case err != nil:
		return s.res, fmt.Errorf("%s: %w", verb(action), err)
	case s.res.Failed > 0:
		return s.res, fmt.Errorf("%s: %s: %w", verb(action), howMany(s.res.Failed), s.res.Err)
	}
	return s.res, nil
}

func howMany(failed int) string {
	if failed == 1 {
		return "1 letter could not be"
	}
	return fmt.Sprintf("%d letters could not be", failed)
}

// known says whether there is the topic that letters are to go to. Found out
// letter by letter, it would be said as often as there are letters, and not at
// all by a dry run.
func (s *settlement) known(ctx context.Context) error {
	if s.o.To == "" || s.o.ToCluster != nil || s.action != Redriven {
		return nil
	}
	infos, err := s.admin.Topics(ctx, s.o.To)
	if err != nil {
		return err
	}
	if _, ok := infos[s.o.To]; !ok {
		return fmt.Errorf("topic %s, which letters would go to: %w", s.o.To, ErrUnknownTopic)
	}
	return nil
}

func verb(action string) string {
	if action == Discarded {
		return "discard dead letters"
	}
	return "redrive dead letters"
}

func (s *settlement) close() {
	if s.session != nil {
		s.session.Close()
	}
	if s.target != nil {
		s.target.Close()
	}
}

func (s *settlement) progress() {
	if s.o.Progress != nil {
		s.o.Progress(Progress{Looked: s.looked, Of: s.bounds.size(), Result: s.res})
	}
}

// run goes through the letters, again from where it stands if its session ends.
func (s *settlement) run(ctx context.Context, q Query) error {
	failed := make(map[letterID]bool)
	for try := 1; ; try++ {
		outcomes, err := s.begin(ctx)
		if err == nil {
			err = s.pass(ctx, q, outcomes, failed)
			if err == nil {
				return nil
			}
		}
		var lost *sessionError
		if !errors.As(err, &lost) && !kafka.Transient(err) || ctx.Err() != nil || try >= sessionTries {
			return err
		}
		// What it had under way is committed or not: a new session ends it, and
		// what was committed says so.
		s.cfg.Logger.Warn(verb(s.action)+": again", "error", err)
		select {
		case <-time.After(letterTries):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sessionError is an error after which a new session is needed.
type sessionError struct{ err error }

func (e *sessionError) Error() string { return e.err.Error() }

func (e *sessionError) Unwrap() error { return e.err }

// begin makes what is missing, ends whatever another one has begun, and returns
// what became of letters so far.
func (s *settlement) begin(ctx context.Context) (map[letterID]Outcome, error) {
	if s.o.DryRun {
		return s.outcomes(ctx, s.bounds.id)
	}
	name := OutcomesTopic(s.cfg.Topic)
	if _, err := s.admin.CreateTopic(ctx, kafka.TopicSpec{Name: name, Partitions: 1, Settings: map[string]string{"cleanup.policy": "compact"}}); err != nil {
		return nil, err
	}
	if s.o.ToCluster != nil && s.target == nil {
		kc := s.kc
		kc.Cluster = *s.o.ToCluster
		p, err := kafka.NewProducer(kc)
		if err != nil {
			return nil, err
		}
		s.target = p
	}
	if s.session != nil {
		s.session.Close()
	}
	var err error
	if s.session, err = kafka.NewSession(s.kc, kafka.SessionConfig{TransactionalID: s.cfg.Topic + ".redrive"}); err != nil {
		return nil, err
	}
	fence, cancel := context.WithTimeout(ctx, letterTimeout)
	defer cancel()
	if _, err := s.session.Fence(fence); err != nil {
		return nil, err
	}
	return s.outcomes(ctx, s.bounds.id)
}

// pass goes through the letters once.
func (s *settlement) pass(ctx context.Context, q Query, outcomes map[letterID]Outcome, failed map[letterID]bool) error {
	s.res = Result{Moved: s.res.Moved, Failed: len(failed), Err: s.res.Err}
	if s.o.DryRun {
		s.res.Moved = 0 // what an earlier pass has counted is there still
	}
	s.looked = 0
	var batch []Letter
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		err := s.commit(ctx, batch, failed)
		batch = nil
		s.progress()
		return err
	}
	for letter, err := range s.list(ctx, q, s.bounds, outcomes) {
		if err != nil {
			return err
		}
		s.looked++
		id := letterID{letter.Partition, letter.Offset}
		switch {
		case failed[id]:
			continue
		case s.action == Redriven && letter.Redrives >= s.o.MaxRedrives:
			s.res.Capped++
			continue
		case s.o.DryRun:
			s.res.Moved++
			continue
		}
		if !s.pace.wait(ctx) {
			return ctx.Err()
		}
		batch = append(batch, letter)
		if len(batch) >= letterBatch || s.o.Rate > 0 && s.o.Rate < letterBatch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// commit settles letters in one transaction. One that is refused fails alone.
func (s *settlement) commit(ctx context.Context, batch []Letter, failed map[letterID]bool) error {
	for len(batch) > 0 {
		if s.action == Redriven && s.target != nil {
			if err := s.send(ctx, batch, failed); err != nil {
				return err
			}
			batch = slices.DeleteFunc(batch, func(l Letter) bool { return failed[letterID{l.Partition, l.Offset}] })
			if len(batch) == 0 {
				return nil
			}
		}
		recs, of, err := s.records(ctx, batch)
		if err != nil {
			return err
		}
		invariants.Crash("redrive-before")
		deadline, cancel := context.WithTimeout(ctx, letterTimeout)
		_, err = s.session.Commit(deadline, recs)
		cancel()
		if err == nil {
			invariants.Crash("redrive-after")
			s.res.Moved += len(batch)
			return nil
		}
		var refused *kafka.RecordError
		if !errors.As(err, &refused) {
			return &sessionError{err}
		}
		guilty := of[refused.Index]
		s.fail(batch[guilty], failed, refused)
		batch = slices.Delete(batch, guilty, guilty+1)
	}
	return nil
}

func (s *settlement) fail(l Letter, failed map[letterID]bool, err error) {
	failed[letterID{l.Partition, l.Offset}] = true
	s.res.Failed, s.res.Err = len(failed), err
	s.cfg.Logger.Warn(verb(s.action)+": a letter failed", "partition", l.Partition, "offset", l.Offset, "error", err)
}

// send publishes letters to another cluster, before what became of them is
// recorded in this one.
func (s *settlement) send(ctx context.Context, batch []Letter, failed map[letterID]bool) error {
	for _, l := range batch {
		rec, err := s.redriven(ctx, l)
		if err != nil {
			return err
		}
		deadline, cancel := context.WithTimeout(ctx, letterTimeout)
		err = s.target.Publish(deadline, rec)
		cancel()
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return ctx.Err()
		default:
			s.fail(l, failed, err)
		}
	}
	return nil
}

// records returns what settles letters, and of each record whose it is.
func (s *settlement) records(ctx context.Context, batch []Letter) (recs []kafka.Record, of []int, err error) {
	now := time.Now()
	for i, l := range batch {
		to := ""
		if s.action == Redriven {
			rec, err := s.redriven(ctx, l)
			if err != nil {
				return nil, nil, err
			}
			to = rec.Topic
			if s.target == nil {
				recs, of = append(recs, rec), append(of, i)
			}
		}
		value, err := json.Marshal(outcomeRecord{V: outcomesFormat, Action: s.action, At: now.UnixMilli(), Why: clean(s.o.Why, errorMax), To: to})
		if err != nil {
			return nil, nil, err
		}
		recs = append(recs, kafka.Record{Topic: OutcomesTopic(s.cfg.Topic), Partition: 0, Key: outcomeKey(s.bounds.id, letterID{l.Partition, l.Offset}), Value: value})
		of = append(of, i)
	}
	return recs, of, nil
}

// redriven returns a letter as it goes back: the message as it was, with its
// past, and all its attempts before it.
func (s *settlement) redriven(ctx context.Context, l Letter) (kafka.Record, error) {
	h := l.originalHistory
	if l.FromElsewhere {
		h.topic, h.partition, h.offset, h.timestamp = s.cfg.Topic, l.Partition, l.Offset, l.Time.UnixMilli()
	}
	h.attempts, h.hop, h.due, h.delay, h.left, h.reason = 0, 0, 0, 0, 0, ""
	h.redrives++
	rec := kafka.Record{Topic: s.o.To, Partition: partitionUnknown, Key: l.Key, Value: l.Value, Headers: h.headers(l.Headers)}
	if rec.Topic != "" {
		return rec, nil
	}
	group := h.group
	if group == "" {
		group = Group(s.cfg.Application, s.cfg.Consumer)
	}
	if group == "." {
		return rec, fmt.Errorf("dead letter %s-%d at offset %d does not say whose it is: say where to redrive it to", s.cfg.Topic, l.Partition, l.Offset)
	}
	rec.Topic, rec.Partition = group+".redrive", h.partition
	if s.made[rec.Topic] || s.target != nil {
		return rec, nil
	}
	infos, err := s.admin.Topics(ctx, rec.Topic)
	if err != nil {
		return rec, err
	}
	if _, ok := infos[rec.Topic]; !ok {
		return rec, fmt.Errorf("topic %s, by which dead letters come back to their consumer: %w", rec.Topic, ErrUnknownTopic)
	}
	s.made[rec.Topic] = true
	return rec, nil
}
