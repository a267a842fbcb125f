package messaging_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/topic"
)

// stage is what a body of the suite has: a topic somewhere, workers that it
// starts, stops and crashes, and what they were given. It waits for what is to
// come, and never for a time.
type stage struct {
	t *testing.T
	place
	app        string
	work       topic.Of[string]
	partitions int32
	admin      *kafka.Admin
	account    *account

	mu struct {
		sync.Mutex
		programs []*program
		handled  []given
		from     int // of these, since the last forget
		ids      map[string]topic.ID
	}
}

// given is one call of a handler.
type given struct {
	handled
	epoch  messaging.Epoch
	stream topic.Partition
	at     int64 // the offset there
}

func newStage(t *testing.T, p place, partitions int) *stage {
	t.Helper()
	s := &stage{t: t, place: p, app: fmt.Sprintf("m%d", time.Now().UnixNano()), partitions: int32(partitions)}
	s.work = topic.String(s.app + ".work")
	s.mu.ids = make(map[string]topic.ID)
	admin, err := kafka.NewAdmin(s.config("stage"))
	if err != nil {
		t.Fatal(err)
	}
	s.admin = admin
	t.Cleanup(s.close)
	s.create(s.work.Name(), partitions)
	s.account = newAccount(s, p.look)
	return s
}

// config says how to reach the brokers from a host.
func (s *stage) config(host string) kafka.Config {
	return kafka.Config{Cluster: s.cluster(host), Logger: slog.New(slog.DiscardHandler)}
}

// close ends all programs and removes what the stage has made.
func (s *stage) close() {
	defer s.admin.Close()
	s.account.stop()
	s.account.done.Wait()
	for _, p := range s.all() {
		if err := p.stop(); err != nil && !p.gone.Load() {
			s.t.Errorf("%s: %v", p.name, err)
		}
	}
	if !s.shared {
		return
	}
	var mine []string
	s.ask("list topics", func(ctx context.Context) error {
		all, err := s.admin.Topics(ctx)
		for name := range all {
			if strings.HasPrefix(name, s.app+".") {
				mine = append(mine, name)
			}
		}
		return err
	})
	s.ask("delete the topics", func(ctx context.Context) error { return s.admin.DeleteTopics(ctx, mine...) })
}

// ask asks the brokers something: again where they are being killed.
func (s *stage) ask(what string, fn func(ctx context.Context) error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), s.patience)
	defer cancel()
	for {
		err := fn(ctx)
		if err == nil {
			return
		}
		if s.calm || !kafka.Transient(err) || ctx.Err() != nil {
			s.t.Fatalf("%s: %v", what, err)
		}
	}
}

// until waits until holds returns true.
func (s *stage) until(what string, holds func() bool) {
	s.t.Helper()
	deadline := time.NewTimer(s.patience)
	defer deadline.Stop()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for !holds() {
		select {
		case <-again.C:
		case <-deadline.C:
			for _, p := range s.running() {
				s.t.Logf("%s: %+v, health %v", p.name, p.w.Stats(), p.w.Health())
			}
			s.t.Fatalf("waited %v for %s; committed %v, handled %d", s.patience, what, s.commits(), len(s.calls()))
		}
	}
}

func (s *stage) create(name string, partitions int) {
	s.t.Helper()
	s.ask("create "+name, func(ctx context.Context) error {
		// What is published may be older than any retention.
		_, err := s.admin.CreateTopic(ctx, kafka.TopicSpec{Name: name, Partitions: partitions, Settings: map[string]string{"retention.ms": "-1"}})
		return err
	})
}

// group is the name of the workers' group; of its topics begin with it.
func (s *stage) group() string { return messaging.Group(s.app, "worker") }

func (s *stage) letterTopic() string { return messaging.DeadLetterTopic(s.app, "worker") }

func (s *stage) id(name string) topic.ID {
	s.t.Helper()
	s.mu.Lock()
	id, ok := s.mu.ids[name]
	s.mu.Unlock()
	if ok {
		return id
	}
	s.ask("look up "+name, func(ctx context.Context) error {
		infos, err := s.admin.Topics(ctx, name)
		id = infos[name].ID
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.ids[name] = id
	return id
}

// end is where a partition ends.
func (s *stage) end(p topic.Partition) (end int64) {
	s.t.Helper()
	s.ask("look up the end of "+p.String(), func(ctx context.Context) error {
		ends, err := s.admin.Offsets(ctx, kafka.End, p)
		end = ends[p]
		return err
	})
	return end
}

// commits is what the group has committed.
func (s *stage) commits() (all map[topic.Partition]kafka.Committed) {
	s.t.Helper()
	s.ask("look up what is committed", func(ctx context.Context) (err error) {
		all, err = s.account.look(ctx)
		return err
	})
	return all
}

// settled is what the group has committed as settled of a partition of the
// input.
func (s *stage) settled(partition int32) settled {
	s.t.Helper()
	c := s.commits()[topic.Partition{Topic: s.work.Name(), Number: partition}]
	above, err := messaging.SettledAbove(c, s.id(s.work.Name()), partition)
	if err != nil {
		s.t.Fatal(err)
	}
	return settled{c.Offset, above}
}

// saved waits until, of the first n messages of a partition, exactly those are
// committed as settled that was says.
func (s *stage) saved(partition int32, n int64, was func(offset int64) bool) {
	s.t.Helper()
	s.until("a commit of what was settled", func() bool {
		set := s.settled(partition)
		for o := range n {
			if set.has(o) != was(o) {
				return false
			}
		}
		return true
	})
}

// publish publishes values with a key to a partition.
func (s *stage) publish(partition int32, key string, values ...string) {
	s.t.Helper()
	outs := make([]topic.Out, len(values))
	for i, v := range values {
		outs[i] = topic.Out{Partition: partition, Key: []byte(key), Value: []byte(v)}
	}
	s.publishRecords(outs...)
}

func (s *stage) publishRecords(outs ...topic.Out) {
	s.t.Helper()
	p, err := kafka.NewProducer(s.config("stage"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer p.Close()
	recs := make([]kafka.Record, len(outs))
	for i, o := range outs {
		recs[i] = kafka.Record{Topic: s.work.Name(), Partition: o.Partition, Key: o.Key, Value: o.Value, Headers: o.Headers, Timestamp: o.Timestamp}
	}
	s.ask("publish", func(ctx context.Context) error {
		_, refused, err := p.PublishEach(ctx, recs...)
		for _, err := range refused {
			if err != nil {
				s.t.Fatal(err)
			}
		}
		return err // that the topic could not be asked what it takes: nothing was written
	})
}

// read returns the committed messages of a topic, partition after partition.
func (s *stage) read(name string) (all []topic.Envelope) {
	s.t.Helper()
	s.ask("read "+name, func(ctx context.Context) error {
		all = nil
		infos, err := s.admin.Topics(ctx, name)
		if err != nil {
			return err
		}
		parts := make([]topic.Partition, infos[name].Partitions)
		for i := range parts {
			parts[i] = topic.Partition{Topic: name, Number: int32(i)}
		}
		ends, err := s.admin.Offsets(ctx, kafka.StableEnd, parts...)
		if err != nil {
			return err
		}
		for _, p := range parts {
			err := kafka.Scan(ctx, s.config("stage"), kafka.ReaderConfig{Committed: true}, []kafka.Span{{Partition: p, To: ends[p]}},
				func(es []topic.Envelope, _ map[topic.Partition]int64) error {
					for _, e := range es {
						e.Key, e.Value = slices.Clone(e.Key), slices.Clone(e.Value) // they are only lent
						all = append(all, e)
					}
					return nil
				})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return all
}

// program is a worker that runs and can be stopped, or crash.
type program struct {
	name  string
	w     *messaging.Worker
	stop  func() error // waits for its end
	crash func()       // from this instant nothing that it does reaches a broker
	gone  atomic.Bool  // it has crashed
	ended atomic.Bool
}

var errGone = errors.New("this process has crashed")

// mortal returns how a program reaches the brokers, and what ends that.
func (s *stage) mortal(p *program) (cl cluster.Cluster, cut func()) {
	cl = s.cluster(p.name)
	dial := cl.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	var mu sync.Mutex
	var conns []net.Conn
	cl.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		if p.gone.Load() {
			return nil, errors.Join(errGone, c.Close())
		}
		conns = append(conns, c)
		return c, nil
	}
	return cl, func() {
		mu.Lock()
		defer mu.Unlock()
		p.gone.Store(true)
		for _, c := range conns {
			c.Close() // it may be closed already
		}
	}
}

// start starts a worker. The stage records what its handler is given.
func (s *stage) start(name string, cfg messaging.Config, h messaging.Handler) *program {
	s.t.Helper()
	p := &program{name: name}
	cl, cut := s.mortal(p)
	cfg.Cluster, cfg.Topic, cfg.Application, cfg.Consumer = cl, s.work.Name(), s.app, "worker"
	cfg.CommitInterval = cmp.Or(cfg.CommitInterval, 50*time.Millisecond)
	cfg.DrainTimeout = cmp.Or(cfg.DrainTimeout, 200*time.Millisecond)
	cfg.Logger = slog.New(slog.NewTextHandler(testWriter{s.t}, nil)).With("process", name)
	w, err := messaging.New(cfg, func(ctx context.Context, d messaging.Delivery) error {
		if p.gone.Load() {
			return errGone
		}
		s.record(p, d)
		return h(ctx, d)
	})
	if err != nil {
		s.t.Fatal(err)
	}
	p.w = w
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	p.stop = sync.OnceValue(func() error {
		cancel()
		err := <-done
		p.ended.Store(true)
		return err
	})
	p.crash = func() {
		cut()
		cancel()
	}
	s.mu.Lock()
	s.mu.programs = append(s.mu.programs, p)
	s.mu.Unlock()
	go func() { done <- w.Run(ctx) }() // close waits for it
	return p
}

func (s *stage) record(p *program, d messaging.Delivery) {
	e, stream, at := messaging.SourceOf(d)
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.gone.Load() {
		return // nobody sees what it does
	}
	s.mu.handled = append(s.mu.handled, given{handled{p.name, string(d.Value()), string(d.Key()), d.Partition(), d.Offset(), d.Attempt(), time.Now()}, e, stream, at})
}

func (s *stage) all() []*program {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mu.programs)
}

// running returns the programs that have neither crashed nor stopped.
func (s *stage) running() []*program {
	return slices.DeleteFunc(s.all(), func(p *program) bool { return p.gone.Load() || p.ended.Load() })
}

// ever returns all calls of handlers.
func (s *stage) ever() []given {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mu.handled)
}

// calls returns the calls since the last forget.
func (s *stage) calls() []given {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mu.handled[s.mu.from:])
}

func (s *stage) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.from = len(s.mu.handled)
}

// values returns how often each value was handled since the last forget.
func (s *stage) values() map[string]int {
	n := make(map[string]int)
	for _, c := range s.calls() {
		n[c.value]++
	}
	return n
}

// came checks which values were handled since the last forget: each once, or at
// least once where brokers are killed.
func (s *stage) came(want []string) {
	s.t.Helper()
	got := s.values()
	missing, extra, often := []string{}, []string{}, []string{}
	for _, v := range want {
		switch n := got[v]; {
		case n == 0:
			missing = append(missing, v)
		case n > 1 && s.calm:
			often = append(often, fmt.Sprintf("%s %d times", v, n))
		}
		delete(got, v)
	}
	extra = slices.AppendSeq(extra, maps.Keys(got))
	if len(missing)+len(extra)+len(often) > 0 {
		most := func(vs []string) []string { return vs[:min(len(vs), 10)] }
		s.t.Errorf("of %d values %d were not handled %.200q, %d others were %.200q, and %d more than once %.200q", len(want),
			len(missing), most(missing), len(extra), most(extra), len(often), most(often))
	}
}

// idle waits until everything that was published is settled, retries and all,
// and committed, by programs that run.
func (s *stage) idle() {
	s.t.Helper()
	s.until("everything to be settled", func() bool {
		// First what is committed, which may take long to be known, then the
		// programs: what has left the input by then is in their hands.
		committed := s.commits()
		for n := range s.partitions {
			if p := (topic.Partition{Topic: s.work.Name(), Number: n}); committed[p].Offset != s.end(p) {
				return false
			}
		}
		for p, c := range committed {
			if strings.HasPrefix(p.Topic, s.group()+".retry.") && c.Offset != s.end(p) {
				return false
			}
		}
		n := int32(0)
		for _, p := range s.running() {
			for _, st := range p.w.Stats().Partitions {
				if st.Backlog > 0 || st.InFlight > 0 || st.Held > 0 || st.Phase != "running" {
					return false
				}
				n++
			}
		}
		return n == s.partitions
	})
}

// letters opens the dead letters of the workers, from a host of their own.
func (s *stage) letters(cl cluster.Cluster) *messaging.Letters {
	s.t.Helper()
	l, err := messaging.OpenLetters(messaging.LettersConfig{Cluster: cl, Application: s.app, Consumer: "worker", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(l.Close)
	return l
}

// desk keeps messages until a test settles them, by value. One that was settled
// and comes again, since the commit of it was lost, is acked at once.
type desk struct {
	s  *stage
	mu struct {
		sync.Mutex
		here  map[string]messaging.Delivery
		acked map[string]bool
	}
}

func (s *stage) desk() *desk {
	k := &desk{s: s}
	k.mu.here, k.mu.acked = make(map[string]messaging.Delivery), make(map[string]bool)
	return k
}

func (k *desk) handle(_ context.Context, d messaging.Delivery) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.here[string(d.Value())] = d
	if k.mu.acked[string(d.Value())] {
		return nil
	}
	return messaging.Later
}

func (k *desk) get(value string) messaging.Delivery {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mu.here[value]
}

func (k *desk) len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.mu.here)
}

// ack acks a message that is here.
func (k *desk) ack(value string) {
	k.s.t.Helper()
	// Where brokers are killed its assignment may be over: then it comes again.
	if err := k.allow(value); err != nil && (k.s.calm || !isOver(err)) {
		k.s.t.Errorf("ack %s: %v", value, err)
	}
}

// allow acks a message if it is here, and when it comes.
func (k *desk) allow(value string) error {
	k.mu.Lock()
	k.mu.acked[value] = true
	d := k.mu.here[value]
	k.mu.Unlock()
	if d == nil {
		return nil
	}
	return d.Ack()
}

// isOver says whether a message can't be settled any more.
func isOver(err error) bool {
	return errors.Is(err, messaging.ErrFenced) || errors.Is(err, messaging.ErrSettled)
}
