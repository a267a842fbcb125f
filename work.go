package pawl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/admin"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/messaging"
)

// Work runs a handler of the messages of a topic as this process's program, as
// [Main] does consumers, and does not return:
//
//	func main() { pawl.Work("orders", messaging.JSON(send)) }
//
// The topic is a work queue: what the handler returns acks each message, has it
// retried, or sets it aside as a dead letter. Package messaging says how. All
// processes of an application and a consumer share the messages.
//
// With no brokers named, Work starts one within the process, as Main does, and
// makes the topic there; with brokers named, the topic must exist, and no state
// directory is needed.
func Work(topic string, handler messaging.Handler, opts ...WorkOption) {
	runProcess(newQueue(topic, handler, opts))
}

// A WorkOption is what [Work] is told that no flag can say.
type WorkOption func(*messaging.Config)

// Traced gives each call of the handler a span of the provider: see
// [messaging.Config].
func Traced(by trace.TracerProvider) WorkOption {
	return func(c *messaging.Config) { c.TracerProvider = by }
}

// RunWork runs a handler as [Work] does, within a process that has more to do,
// as [Run] runs consumers.
func RunWork(ctx context.Context, o Options, topic string, handler messaging.Handler, opts ...WorkOption) int {
	p := program{Options: o, body: newQueue(topic, handler, opts)}
	return p.run(ctx)
}

// queue is the body of a program that works on a queue.
type queue struct {
	workSettings
	topic   string
	handler messaging.Handler
}

func newQueue(topic string, handler messaging.Handler, opts []WorkOption) *queue {
	q := &queue{topic: topic, handler: handler}
	for _, set := range opts {
		set(&q.Config)
	}
	return q
}

func (q *queue) general() general { return general{q.process, q.memory} }

// serve runs the worker, with a broker if none is named, and the admin API
// beside it.
func (q *queue) serve(ctx context.Context, p *program) (err error) {
	registry := newRegistry()
	q.Topic, q.Logger, q.Registerer = q.topic, p.log, registry
	var own *within
	if len(q.Cluster.Brokers) == 0 {
		// What is wrong is found before there is a broker, with a directory.
		elsewhere := q.Config
		elsewhere.Cluster.Brokers = []string{"localhost:9092"}
		if _, err := messaging.New(elsewhere, q.handler); err != nil {
			return q.explain(err, workFields)
		}
		if own, err = q.embedded.start(ctx, p, q.stateDir, q.DrainTimeout, registry); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, own.close()) }() // after everything that uses it
		q.Cluster = own.Cluster()
		if err := q.createTopic(ctx); err != nil {
			return err
		}
		own.say(p, q.stateDir)
		alive, cancel := own.alive(ctx)
		defer cancel()
		ctx = alive
	}
	p.warnOfPlainPasswords(q.Cluster)
	w, err := messaging.New(q.Config, q.handler)
	if err != nil {
		return q.explain(err, workFields)
	}
	source := admin.Source{
		Ready:    func() error { return ready(ctx, w.Health) },
		Status:   func() admin.Status { return queueStatusOf(w.Stats(), q.Instance, ready(ctx, w.Health)) },
		Gatherer: registry,
		Logger:   p.log,
		Token:    string(q.adminToken),
		Application: &admin.Application{
			Topology: func() admin.Topology { return q.topology(w) },
			Pause: func(_ string, pause bool) error {
				if pause {
					w.Pause()
				} else {
					w.Resume()
				}
				return nil
			},
			Level: &p.level,
		},
	}
	if own != nil {
		own.show(&source)
	}
	port, err := openPort(ctx, q.admin, source)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, port.close()) }()
	if own != nil {
		if err := own.announce(port.addr); err != nil {
			return err
		}
		held := make(chan struct{})
		close(held) // with the broker's directory
		port.announce(q.stateDir, held)
	}
	w.Announce(reachable(port.addr))
	return w.Run(ctx)
}

// topology says what the program works on, as the admin API shows it.
func (q *queue) topology(w *messaging.Worker) admin.Topology {
	st := w.Stats()
	letters := q.DeadLetters.Topic
	if letters == "" {
		letters = st.Group + ".dlq"
	}
	return admin.Topology{Paused: st.Paused, Sets: []admin.Set{{Name: st.Consumer, Topics: []string{st.Topic}, DeadLetters: letters, Outputs: []string{}}}}
}

// startTime bounds how long the topic on the broker within the process takes.
const startTime = 10 * time.Second

// createTopic makes the topic on the broker within the process, unless it is
// there from an earlier run.
func (q *queue) createTopic(ctx context.Context) error {
	a, err := kafka.NewAdmin(kafka.Config{Cluster: q.Cluster, ClientID: q.Application, Logger: q.Logger})
	if err != nil {
		return err
	}
	defer a.Close()
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if _, err := a.CreateTopic(ctx, kafka.TopicSpec{Name: q.topic, Partitions: q.partitions}); err != nil {
		return fmt.Errorf("make the topic %q: %w", q.topic, err)
	}
	return nil
}

// queueStatusOf returns the worker's status as the admin API shows it, with why
// the program is not ready, or nil.
func queueStatusOf(from messaging.Stats, instance string, unready error) admin.Status {
	st := admin.Status{
		Application: from.Application, Instance: instance, Version: consumer.Version,
		Joined: from.Joined, Generation: from.Generation, Shards: []admin.Shard{},
	}
	st.Ready, st.Unready = unreadyOf(unready)
	q := &admin.Queue{
		Consumer: from.Consumer, Topic: from.Topic, Group: from.Group, Paused: from.Paused, Breaker: from.Breaker,
		Acked: from.Acked, Failed: from.Failed, RetriedNow: from.RetriedNow, RetriedLater: from.RetriedLater,
		DeadLetters: from.DeadLetters, Redelivered: from.Redelivered, Partitions: make([]admin.QueuePartition, 0, len(from.Partitions)),
	}
	if !from.BreakerOpen.IsZero() {
		q.BreakerOpen = from.BreakerOpen.UTC()
	}
	if from.BreakerErr != nil {
		q.BreakerError = from.BreakerErr.Error()
	}
	for _, p := range from.Partitions {
		to := admin.QueuePartition{
			Partition: p.Partition, Phase: p.Phase, Reason: p.Reason, Since: p.Since,
			Committed: p.Committed, Position: p.Position, Lag: p.Lag,
			InFlight: p.InFlight, Backlog: p.Backlog, Delayed: p.Delayed, Held: p.Held, Full: p.Full,
		}
		if o := p.Oldest; o != nil {
			to.Oldest = &admin.Oldest{Offset: o.Offset, Key: o.Key, Attempt: o.Attempt, Since: o.Since, Handed: o.Handed}
		}
		q.Partitions = append(q.Partitions, to)
	}
	st.Queue = q
	return st
}
