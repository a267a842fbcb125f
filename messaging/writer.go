package messaging

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/internal/kafka"
)

// job is a message to be written elsewhere before it is settled here.
type job struct {
	d     *delivery
	tier  int // to which stream, or tierLetters
	hop   int
	due   time.Time     // zero: keep what it has
	delay time.Duration // until due, as asked for
	left  time.Duration // how long it waits after that
	anew  bool          // it goes to the topic that it is in, before that lets go of it
	retry bool          // it has failed; else it only follows one of its key
	large bool          // it was refused for its size
	at    int64         // where it was written; -1: unknown
}

// tierLetters stands for the dead-letter topic.
const tierLetters = -1

// Where jobs go. The two don't wait for each other.
const (
	toTopics  = 0 // the delay topics
	toLetters = 1 // the dead letters, which may be on another cluster
)

// The writers' limits.
const (
	writeMax        = 500 // messages at once
	writeBackoffMin = 100 * time.Millisecond
	writeBackoffMax = 5 * time.Second
)

// jobLocked has a message written. It is settled once that is confirmed.
func (p *partition) jobLocked(j *job) {
	to := toTopics
	if j.tier == tierLetters {
		to = toLetters
	}
	p.mu.jobs[to] = append(p.mu.jobs[to], j)
	select {
	case p.writes[to] <- struct{}{}:
	default:
	}
}

// write writes what is to be written, until the partition is fenced. What can't
// be written is tried again for as long as that: until it is confirmed the
// message stays unsettled.
func (p *partition) write(to int) {
	ctx, cancel := context.WithCancel(context.Background())
	var watch sync.WaitGroup
	defer watch.Wait()
	watch.Go(func() { // gone is not the handlers' context, which ends before it
		<-p.gone
		cancel()
	})
	backoff := writeBackoffMin
	for {
		jobs := p.takeJobs(to)
		if len(jobs) == 0 {
			select {
			case <-p.writes[to]:
			case <-p.gone:
				return
			}
			continue
		}
		err := p.writeJobs(ctx, to, jobs)
		if err == nil {
			backoff = writeBackoffMin
			continue
		}
		select {
		case <-time.After(backoff):
		case <-p.gone:
			return
		}
		backoff = min(2*backoff, writeBackoffMax)
	}
}

func (p *partition) takeJobs(to int) []*job {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(len(p.mu.jobs[to]), writeMax)
	jobs := append([]*job(nil), p.mu.jobs[to][:n]...)
	p.mu.jobs[to] = p.mu.jobs[to][n:]
	p.mu.writing += n
	return jobs
}

// writeJobs writes messages and settles those that are confirmed. The others
// are to be written again: one that is refused holds up no others.
func (p *partition) writeJobs(ctx context.Context, to int, jobs []*job) error {
	at, refused, err := p.publish(ctx, to, jobs)
	for i := range at {
		jobs[i].at = at[i]
	}
	switch {
	case err != nil:
		p.written(to, nil, jobs, err)
		return err
	case refused == nil:
		p.written(to, jobs, nil, nil)
		return nil
	}
	var done, left []*job
	for i, j := range jobs {
		if refused[i] == nil {
			done = append(done, j)
		} else {
			left, err = append(left, j), refused[i]
			j.large = errors.Is(err, ErrTooLarge)
		}
	}
	p.written(to, done, left, err)
	return err
}

func (p *partition) publish(ctx context.Context, to int, jobs []*job) (at []int64, refused []error, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.w.cfg.WriteTimeout)
	defer cancel()
	recs := make([]kafka.Record, len(jobs))
	p.mu.Lock()
	for i, j := range jobs {
		recs[i] = p.recordLocked(j)
	}
	p.mu.Unlock()
	invariants.Crash("messaging-write-before")
	producer := p.w.producer
	if to == toLetters {
		producer = p.w.letters
	}
	if slices.ContainsFunc(jobs, func(j *job) bool { return j.large }) {
		// A producer that has once asked what a topic takes holds on to that.
		// Meanwhile somebody may have seen to it that the topic takes more.
		fresh, err := kafka.NewProducer(p.w.clusterOf(to))
		if err != nil {
			return nil, nil, err
		}
		defer fresh.Close()
		producer = fresh
	}
	at, refused, err = producer.PublishEach(ctx, recs...)
	if err == nil && refused == nil {
		invariants.Crash("messaging-write-after")
	}
	return at, refused, err
}

// recordLocked returns the message as it is written: as it was read, with
// Pawl's headers after its own.
func (p *partition) recordLocked(j *job) kafka.Record {
	h := p.historyLocked(j.d)
	h.hop = j.hop
	r := kafka.Record{Key: j.d.key, Value: j.d.value}
	if j.tier == tierLetters {
		h.due, h.delay, h.left, h.hop = 0, 0, 0, 0
		r.Topic, r.Partition = p.w.cfg.DeadLetters.Topic, p.id.Number%int32(p.w.letterPartitions.Load())
	} else {
		if j.retry {
			h.due, h.delay, h.left = j.due.UnixMilli()+1, j.delay.Milliseconds()+1, j.left.Milliseconds() // never early
		}
		r.Topic, r.Partition = p.mu.streams[j.tier].id.Topic, p.id.Number
	}
	r.Headers = h.headers(j.d.headers)
	return r
}

// written takes what became of jobs.
func (p *partition) written(to int, done, left []*job, err error) {
	p.mu.Lock()
	p.mu.writing -= len(done) + len(left)
	if p.mu.phase == phaseFenced {
		p.mu.Unlock()
		return
	}
	for _, j := range done {
		j.d.answerLocked(nil)
		switch {
		case j.tier == tierLetters:
			p.w.metrics.deadLetter(j.d.past.reason)
			p.log.Warn("dead letter", "offset", j.d.origin(), "key", quote(j.d.key), "reason", j.d.past.reason, "error", j.d.past.err)
			p.settleLocked(j.d)
		default:
			switch {
			case j.anew:
			case j.retry:
				p.w.metrics.retriedLater.Add(1)
			default:
				p.w.metrics.followed.Add(1)
			}
			p.movedLocked(j)
		}
	}
	if err == nil {
		p.mu.failing[to], p.mu.failingErr[to] = time.Time{}, nil
	} else {
		if p.mu.failing[to].IsZero() {
			p.mu.failing[to] = time.Now()
			p.log.Error("write "+[2]string{"retries", "dead letters"}[to], "messages", len(left), "error", err)
		}
		p.mu.failingErr[to] = err
		p.w.metrics.writeFailures.Add(1)
		for _, j := range left {
			j.d.answerLocked(err)
		}
		p.mu.jobs[to] = append(left, p.mu.jobs[to]...)
	}
	p.afterLocked()
}
