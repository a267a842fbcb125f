package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/topic"
)

// queueDemo is one run of the demo of a work queue.
//
//	feed ┐
//	kill ├ until every message was handled with success, or is a dead letter
//	read ┘
//	drain the processes ──► redrive the dead letters
//	start repaired processes ──► read until every message was handled with success
//	drain ──► read to the end ──► compare with the rule
type queueDemo struct {
	*demo
	watch *queueWatcher
}

// queuePartitions is how many partitions the topics of a run have.
const queuePartitions = 8

func newQueueDemo(cfg demoConfig, v *view) (*queueDemo, error) {
	d, err := newDemo(cfg, v)
	if err != nil {
		return nil, err
	}
	d.application = strings.Replace(d.application, "demo", "demo-queue", 1)
	return &queueDemo{demo: d}, nil
}

func (q *queueDemo) run(ctx context.Context, stdin io.Reader) (out outcome, err error) {
	in, err := q.readInput(ctx, stdin)
	if err != nil {
		if ctx.Err() != nil {
			return &queueResult{Interrupted: true}, nil
		}
		return nil, err
	}
	if err := q.makeDir(); err != nil {
		return nil, err
	}
	well := false
	defer func() { err = errors.Join(err, q.removeDir(err == nil && well)) }()
	if err := q.connectQueue(ctx); err != nil {
		if ctx.Err() != nil {
			well = true
			return &queueResult{Interrupted: true}, nil
		}
		return nil, err
	}
	defer func() { err = errors.Join(err, q.disconnectQueue()) }()
	work := q.supervised(ctx, q.standing, func(ctx context.Context) error { return q.stages(ctx, in) })
	q.view.end()
	if work != nil && ctx.Err() == nil && !errors.As(work, new(*stalled)) {
		return nil, work
	}
	interrupted := ctx.Err() != nil
	if interrupted {
		q.view.say("interrupted: draining")
	}
	r, err := q.judgeQueue(int64(len(in.events)), interrupted, errors.Join(q.drain(), unless(interrupted, work)))
	if err != nil {
		return nil, err
	}
	well = r.Verified || interrupted
	return r, nil
}

func unless(interrupted bool, err error) error {
	if interrupted {
		return nil
	}
	return err
}

// connectQueue reaches the broker, creates the topics, starts to watch them, and
// makes the processes.
func (q *queueDemo) connectQueue(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, q.disconnectQueue())
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	watched := queueTopics(q.application)[:queueWatched]
	if err := q.reach(ctx, queuePartitions, watched...); err != nil {
		return err
	}
	if q.watch, err = newQueueWatcher(q.kafka, q.cfg.seed, watched); err != nil {
		return err
	}
	q.read(q.watch.tail)
	if q.feeder, err = newFeeder(q.kafka, watched[0], q.cfg.rate); err != nil {
		return err
	}
	for _, name := range []string{"a", "b"} {
		if err := q.addProcess(child{instance: name}, q.child(name, false).args()); err != nil {
			return err
		}
	}
	return nil
}

func (q *queueDemo) child(instance string, repaired bool) queueChild {
	return queueChild{application: q.application, instance: instance, brokers: q.broker.addresses, seed: q.cfg.seed, repaired: repaired}
}

// queueTopics are the topics of a run; the first queueWatched of them are
// watched, and made by the demo.
func queueTopics(application string) []string {
	letters := messaging.DeadLetterTopic(application, queueConsumer)
	names := []string{queueInput(application), queueReceipts(application), letters, messaging.RedriveTopic(application, queueConsumer), messaging.OutcomesTopic(letters)}
	for i := range queueTiers {
		names = append(names, messaging.RetryTopic(application, queueConsumer, i+1))
	}
	return names
}

const queueWatched = 4

// disconnectQueue ends the processes, deletes what the run has made on a Kafka,
// and lets go of the broker.
func (q *queueDemo) disconnectQueue() error {
	return q.letGo(messaging.Group(q.application, queueConsumer), queueTopics(q.application)...)
}

func (q *queueDemo) standing() standing {
	s := q.queueSnapshot()
	return standing{s, s.audit.acked + s.audit.settled() + s.audit.returned, s.audit.settled(), s.total}
}

// stages is the run itself.
func (q *queueDemo) stages(ctx context.Context, in *input) error {
	total := int64(len(in.events))
	for _, p := range q.processes {
		if err := p.start(); err != nil {
			return err
		}
	}
	q.enter("working")
	q.feeder.allow(total, 0, total)
	g, workCtx := errgroup.WithContext(ctx)
	g.Go(func() error { return q.feeder.feed(workCtx, in.events) })
	g.Go(func() error { return q.killWorkers(workCtx, total) })
	g.Go(func() error {
		return q.watch.await(workCtx, func(a *queueAudit) bool { return a.inputs >= total && a.settled() >= total })
	})
	if err := g.Wait(); err != nil {
		return err
	}
	if err := q.awaitSettled(ctx); err != nil {
		return err
	}
	if err := q.drain(); err != nil {
		return err
	}
	if err := q.watch.awaitEnds(ctx, q.admin); err != nil {
		return err
	}
	if err := q.redrive(ctx); err != nil {
		return err
	}
	for _, p := range q.processes {
		p.args = q.child(p.child.instance, true).args()
		if err := p.start(); err != nil {
			return err
		}
	}
	q.enter("repaired")
	if err := q.watch.await(ctx, func(a *queueAudit) bool { return a.returned >= a.letters && a.lost() == 0 }); err != nil {
		return err
	}
	return q.awaitSettled(ctx)
}

// settledPoll is how often the group's offsets are looked at.
const settledPoll = 50 * time.Millisecond

// awaitSettled waits until the group has committed everything. A receipt is
// read before its message is settled: a drain that comes between the two leaves
// the message to the next process.
func (q *queueDemo) awaitSettled(ctx context.Context) error {
	for {
		n, err := q.unsettled(ctx)
		if err != nil || n == 0 {
			return err
		}
		if err := pause(ctx, settledPoll, nil); err != nil {
			return err
		}
	}
}

// stayDownTime is how long a victim that stays down does so: until the group
// counts it as gone, and the other has worked alone for a while.
const stayDownTime = demoSession + takeoverShown

// killWorkers makes the planned kills, each as the work has come so far.
func (q *queueDemo) killWorkers(ctx context.Context, total int64) error {
	for _, s := range planStrikes(q.cfg.seed, q.cfg.kills, q.cfg.brokerKills, total, len(q.processes)) {
		if err := q.watch.await(ctx, func(a *queueAudit) bool { return a.settled() >= s.at }); err != nil {
			return err
		}
		if s.broker {
			if err := q.strikeBroker(ctx); err != nil {
				return err
			}
			continue
		}
		victim := q.processes[s.victim]
		_, pid := victim.now()
		if err := victim.kill(); err != nil {
			return err
		}
		q.mu.Lock()
		q.mu.kills++
		q.mu.Unlock()
		what := "it restarts at once"
		if s.stays {
			what = "it stays down, and the other takes over"
		}
		q.view.say("kill -9 of process %s (pid %d) as it works; %s", victim.child.instance, pid, what)
		if s.stays {
			if err := pause(ctx, stayDownTime, nil); err != nil {
				return err
			}
		}
		if err := victim.start(); err != nil {
			return err
		}
	}
	return nil
}

// redrive sends all dead letters back.
func (q *queueDemo) redrive(ctx context.Context) error {
	q.enter("redriving")
	letters, err := messaging.OpenLetters(messaging.LettersConfig{Cluster: q.kafka.Cluster, Application: q.application, Consumer: queueConsumer, Logger: q.log})
	if err != nil {
		return err
	}
	defer letters.Close()
	res, err := letters.Redrive(ctx, messaging.Query{}, messaging.Options{Why: "the handler is repaired"})
	if err != nil {
		return err
	}
	q.view.say("%s redriven; the handler is repaired", count(int64(res.Moved), "dead letter"))
	return nil
}

// judgeQueue reads to the end, and compares. work is what went wrong before.
func (q *queueDemo) judgeQueue(total int64, interrupted bool, work error) (*queueResult, error) {
	ctx, cancel := context.WithTimeout(context.Background(), judgeTime)
	defer cancel()
	if err := q.watch.awaitEnds(ctx, q.admin); err != nil {
		return nil, err
	}
	unsettled, err := q.unsettled(ctx)
	if err != nil {
		return nil, err
	}
	r := &queueResult{Interrupted: interrupted}
	q.watch.look(func(a *queueAudit) {
		r.Messages, r.Acked, r.Retried, r.DeadLettered = a.inputs, a.acked, a.retried, a.deadLettered
		r.Redriven, r.Redelivered = a.redriven, a.redelivered
		r.want = a.want()
		if !interrupted {
			r.Lost = a.lost()
			r.wrong = a.verdict(total)
			r.wrong.want("messages that the group has not settled", unsettled, 0)
		}
	})
	if work != nil {
		r.wrong.add("%v", work)
	}
	q.mu.Lock()
	r.Kills, r.BrokerKills = q.mu.kills, q.mu.brokerKills
	q.mu.Unlock()
	r.Verified = !interrupted && r.wrong.count == 0
	r.Seconds = math.Round(time.Since(q.began).Seconds()*10) / 10
	return r, nil
}

// unsettled is how many messages of the input, of the delay topics and of those
// that came back the group has not settled, as its committed offsets have it.
func (q *queueDemo) unsettled(ctx context.Context) (n int64, err error) {
	committed, err := q.admin.Committed(ctx, messaging.Group(q.application, queueConsumer))
	if err != nil {
		return 0, err
	}
	names := []string{queueInput(q.application)}
	for i := range queueTiers {
		names = append(names, messaging.RetryTopic(q.application, queueConsumer, i+1))
	}
	infos, err := q.admin.Topics(ctx, names...)
	if err != nil {
		return 0, err
	}
	var parts []topic.Partition
	for name, info := range infos {
		for p := range int32(info.Partitions) {
			parts = append(parts, topic.Partition{Topic: name, Number: p})
		}
	}
	ends, err := q.admin.Offsets(ctx, kafka.End, parts...)
	if err != nil {
		return 0, err
	}
	// What follows the last message that came back is the end of a transaction.
	q.watch.look(func(a *queueAudit) {
		for p, next := range a.returnedTo {
			ends[topic.Partition{Topic: messaging.RedriveTopic(q.application, queueConsumer), Number: p}] = next
		}
	})
	for p, end := range ends {
		n += max(0, end-committed[p].Offset)
	}
	return n, nil
}

// queueResult is what a run comes to.
type queueResult struct {
	Messages     int64   `json:"messages"`
	Acked        int64   `json:"acked"`
	Retried      int64   `json:"retried"`
	DeadLettered int64   `json:"dead_lettered"`
	Redriven     int64   `json:"redriven"`
	Redelivered  int64   `json:"redelivered"`
	Lost         int64   `json:"lost"`
	Kills        int     `json:"kills"`
	BrokerKills  int     `json:"broker_kills"`
	Seconds      float64 `json:"seconds"`
	Verified     bool    `json:"verified"`
	Interrupted  bool    `json:"interrupted,omitempty"`

	want  queueWant
	wrong findings
}

func (r *queueResult) findings() findings { return r.wrong }

func (r *queueResult) writeJSON(w io.Writer) error {
	if err := json.NewEncoder(w).Encode(r); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}

// writeText prints the counts, beside those that the rule makes.
func (r *queueResult) writeText(w io.Writer) error {
	rows := []struct {
		name      string
		got, want int64
	}{
		{"acked", r.Acked, r.Messages},
		{"retried", r.Retried, r.want.retried},
		{"dead-lettered", r.DeadLettered, r.want.deadLettered},
		{"redriven", r.Redriven, r.want.deadLettered},
		{"lost", r.Lost, 0},
	}
	s := fmt.Sprintf("\n%-22s %12s %12s\n", "", "read", "by the rule")
	for _, row := range rows {
		s += fmt.Sprintf("%-22s %12s %12s\n", row.name, thousands(row.got), thousands(row.want))
	}
	s += fmt.Sprintf("%-22s %12s\n%-22s %12s\n%-22s %12d\n%-22s %12d\n%-22s %12.1f\n\n", "messages", thousands(r.Messages), "redelivered", thousands(r.Redelivered), "kills", r.Kills, "kills of the broker", r.BrokerKills, "seconds", r.Seconds)
	switch {
	case r.Interrupted:
		s += "interrupted: the counts are those of what was done until then\n"
	case r.Verified:
		s += "verified: every message was settled, retried as often as the rule says, and handled\nin the order of its key; those that were dead letters were redriven, and none is lost\n"
	default:
		s += "NOT verified\n"
	}
	if _, err := io.WriteString(w, s); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}
