package consumer

import (
	"context"
	"time"

	"github.com/pawlstream/pawl/topic"
)

// tail finds out whether there is anything left to consume where a fetch brings
// nothing from below the end of the input, so that the shard does not lag for
// ever.
type tail struct {
	since   time.Time       // when the shard first stood below an end with nothing to do; zero if it does not
	asking  bool            // an answer is on its way
	answers chan tailAnswer // has room for one
}

// tailAnswer says that there is no message of a partition from one offset up to
// another.
type tailAnswer struct {
	partition topic.Partition
	at, next  int64
	err       error
}

// tailPatience is how long a fetch may take to bring what is there, before it is
// asked whether there is anything. A broker holds a fetch for half of it at most.
const tailPatience = time.Second

// lookPast asks where the next message may be, if the shard has stood below the
// end of its input with nothing to do. It returns when it is to be called again
// at the latest, or the zero time.
func (r *incarnation) lookPast(now time.Time) time.Time {
	t := &r.tail
	p, ok := r.below()
	if t.asking || !ok || r.pace.working || r.pace.draining || r.pace.consumed > 0 || r.backlog.queued > 0 {
		t.since = time.Time{}
		return time.Time{}
	}
	if t.since.IsZero() {
		t.since = now
	}
	if due := t.since.Add(tailPatience); now.Before(due) {
		return due
	}
	t.asking = true
	at := r.backlog.positions[p]
	ctx, cancel := context.WithTimeout(r.handle.ctx, r.s.app.cfg.SessionTimeout)
	go func() {
		defer cancel()
		next, err := r.session.NextOffset(ctx, p, at)
		t.answers <- tailAnswer{partition: p, at: at, next: next, err: err}
	}()
	return time.Time{}
}

// below returns a partition that is not consumed up to its end, as last heard of.
func (r *incarnation) below() (topic.Partition, bool) {
	for p, end := range r.ends {
		if r.backlog.positions[p] < end {
			return p, true
		}
	}
	return topic.Partition{}, false
}

// passed takes the answer. The offset that it leads to is committed with the
// next transaction, or when nothing else happens.
func (r *incarnation) passed(a tailAnswer) {
	r.tail.asking, r.tail.since = false, time.Time{}
	if a.err != nil {
		r.log.Debug("look for the next message", "partition", a.partition.String(), "offset", a.at, "error", a.err)
		return // it is asked again
	}
	if r.backlog.queued == 0 && r.backlog.positions[a.partition] == a.at && a.next > a.at {
		r.backlog.positions[a.partition] = a.next
		r.s.observe(r)
	}
}
