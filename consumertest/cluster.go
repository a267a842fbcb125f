package consumertest

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/clock"
	"github.com/pawlstream/pawl/internal/devbroker"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// Cluster is a broker and processes, all in the process of the test, behind a
// network that the test rules over. Each process is named by the test, has a
// directory, and is reached over a host of its own. It ends with the test, and
// all processes with it.
//
// Its methods belong to the goroutine of the test. What goes wrong with the
// cluster itself fails the test.
type Cluster struct {
	t      testing.TB
	bubble bool
	broker *devbroker.Broker
	admin  *kafka.Admin
	dir    string // of the processes' directories

	app      application     // that StartProcess starts
	producer *kafka.Producer // made when it is needed
	spread   map[string]int  // of each topic: where the next message without a key goes

	mu struct {
		sync.Mutex
		processes []*process              // in order of their first start
		lives     map[string]int          // of each process: how often it has crashed
		clocks    map[string]*clock.Clock // of each process's machine, once it is asked for
		broken    map[string]bool         // hosts that are cut or frozen
		requests  map[hostRequest]int     // that the broker was sent
	}
}

// application is what a process of [Start] runs.
type application struct {
	cfg       consumer.Config
	consumers []consumer.Consumer
}

type hostRequest struct {
	host string
	key  int16
}

// An Option changes the cluster that is made.
type Option func(*devbroker.Config)

// BrokerSetting sets a setting of the broker by Kafka's name for it.
func BrokerSetting(name, value string) Option {
	return func(c *devbroker.Config) {
		c.Settings = maps.Clone(c.Settings)
		if c.Settings == nil {
			c.Settings = make(map[string]string)
		}
		c.Settings[name] = value
	}
}

// kitHost is the host of the test's own clients.
const kitHost = "test"

// callTimeout bounds a call of the test's to the broker, which answers at once.
const callTimeout = time.Minute

// Start starts a cluster and in it one process, "p1", with the consumer. Zero
// fields of cfg are filled in: the application is "test", and instance, state
// directory, cluster and log are those of the process. The topics of the
// consumer and its outputs are created, with cfg.CreateTopics partitions, or
// one, where their descriptions do not say.
//
// In a bubble without the build tag synctests it skips the test.
func Start(t testing.TB, c consumer.Consumer, cfg consumer.Config, opts ...Option) *Cluster {
	t.Helper()
	cl := NewCluster(t, opts...)
	cl.startFirst(cfg, c)
	return cl
}

// StartWith is Start with several consumers in the process.
func StartWith(t testing.TB, cfg consumer.Config, consumers ...consumer.Consumer) *Cluster {
	t.Helper()
	cl := NewCluster(t)
	cl.startFirst(cfg, consumers...)
	return cl
}

func (c *Cluster) startFirst(cfg consumer.Config, consumers ...consumer.Consumer) {
	c.t.Helper()
	c.app = application{cfg, consumers}
	c.StartProcess("p1")
}

// NewCluster starts a cluster without a process: see [Cluster.Run] and
// [Cluster.StartApp].
func NewCluster(t testing.TB, opts ...Option) *Cluster {
	t.Helper()
	c := &Cluster{t: t, bubble: inBubble(), spread: make(map[string]int)}
	if c.bubble && !virtual {
		t.Skip(wantsTag) // without it locks are not ones of virtual time
	}
	c.mu.lives, c.mu.broken = make(map[string]int), make(map[string]bool)
	c.mu.requests = make(map[hostRequest]int)
	c.dir = t.TempDir()
	var cfg devbroker.Config
	for _, opt := range opts {
		opt(&cfg)
	}
	broker, err := devbroker.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.broker = broker
	t.Cleanup(c.close)
	broker.OnRequest(c.sent)
	if c.admin, err = kafka.NewAdmin(c.kafka()); err != nil {
		t.Fatal(err)
	}
	return c
}

// close ends the processes, all at once, and then the broker.
func (c *Cluster) close() {
	c.mu.Lock()
	processes := slices.Clone(c.mu.processes)
	broken := slices.Collect(maps.Keys(c.mu.broken))
	c.mu.Unlock()
	for _, host := range broken {
		// So that they end soon. Those that have crashed stay cut.
		c.broker.Heal(host)
		c.broker.Thaw(host)
	}
	for _, p := range processes {
		p.cancel()
	}
	for _, p := range processes {
		<-p.done
		if p.err != nil && !p.crashed.Load() && !p.seen {
			c.t.Errorf("process %s: %v", p.name, p.err)
		}
	}
	c.closeProducer()
	if c.admin != nil {
		c.admin.Close()
	}
	c.broker.Close()
}

// Host says how to reach the broker from a host of the given name, for a
// client of the test's own. The host of a process has its name.
func (c *Cluster) Host(name string) cluster.Cluster { return c.broker.Host(name) }

func (c *Cluster) kafka() kafka.Config {
	return kafka.Config{Cluster: c.broker.Host(kitHost), ClientID: "consumertest", Logger: logger(c.t)}
}

func (c *Cluster) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), callTimeout)
}

// Advance lets the time pass. In a bubble that is virtual time, and everything
// that happens at its end has happened when it returns.
func (c *Cluster) Advance(d time.Duration) {
	time.Sleep(d) // virtual time, in a bubble
	c.rest()
}

// rest waits, in a bubble, until nothing moves.
func (c *Cluster) rest() {
	if c.bubble {
		synctest.Wait()
	}
}

// Until waits until holds returns true, which it asks again and again, and
// fails the test if that takes five minutes. What says what is waited for.
func (c *Cluster) Until(what string, holds func() bool) {
	c.t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		c.bury()
		if time.Now().After(deadline) {
			c.t.Fatalf("waited %v for %s\n%s", patience, what, c.dump())
		}
		time.Sleep(pollInterval) // virtual in a bubble; elsewhere nothing tells but asking
	}
}

const (
	patience     = 5 * time.Minute
	pollInterval = 10 * time.Millisecond
)

// CreateTopic creates a topic with the given number of partitions, or as many
// as its description says for 0. One that exists is left as it is.
func (c *Cluster) CreateTopic(of Topic, partitions int) {
	c.t.Helper()
	d := of.Describe()
	if partitions == 0 {
		partitions = max(d.Partitions(), 1)
	}
	ctx, cancel := c.context()
	defer cancel()
	if _, err := c.admin.CreateTopic(ctx, kafka.TopicSpec{Name: d.Name(), Partitions: partitions, Settings: d.Settings()}); err != nil {
		c.t.Fatal(err)
	}
}

// DeleteTopic deletes a topic, by name, with all it holds.
func (c *Cluster) DeleteTopic(name string) {
	c.t.Helper()
	ctx, cancel := c.context()
	defer cancel()
	c.closeProducer() // it would look for the topic that was
	if err := c.admin.DeleteTopics(ctx, name); err != nil {
		c.t.Fatal(err)
	}
}

// AddPartitions raises a topic's number of partitions to total.
func (c *Cluster) AddPartitions(name string, total int) {
	c.t.Helper()
	ctx, cancel := c.context()
	defer cancel()
	c.closeProducer() // it would not look for more partitions for a while
	if err := c.admin.CreatePartitions(ctx, name, total); err != nil {
		c.t.Fatal(err)
	}
}

// Trim deletes what a partition holds before an offset.
func (c *Cluster) Trim(name string, partition int32, before int64) {
	c.t.Helper()
	ctx, cancel := c.context()
	defer cancel()
	if err := c.admin.DeleteRecords(ctx, topic.Partition{Topic: name, Number: partition}, before); err != nil {
		c.t.Fatal(err)
	}
}

// Clean makes a partition look as if compaction had left nothing of the messages
// from an offset up to another, which is the partition's end or comes before it.
func (c *Cluster) Clean(name string, partition int32, from, to int64) {
	c.broker.Clean(topic.Partition{Topic: name, Number: partition}, from, to)
}

// SetTopic changes a setting of a topic, by Kafka's name for it.
func (c *Cluster) SetTopic(name, setting, value string) {
	c.t.Helper()
	ctx, cancel := c.context()
	defer cancel()
	if err := c.admin.SetTopicSetting(ctx, name, setting, value); err != nil {
		c.t.Fatal(err)
	}
}

// createTopics creates what an application consumes and publishes to.
func (c *Cluster) createTopics(app application) {
	c.t.Helper()
	for _, cons := range app.consumers {
		topics := slices.Clone(cons.Topics())
		if o, ok := cons.(consumer.Outputs); ok {
			topics = append(topics, o.Outputs()...)
		}
		for _, d := range topics {
			n := d.Partitions()
			if n == 0 {
				n = max(app.cfg.CreateTopics, 1)
			}
			c.CreateTopic(d, n)
		}
	}
}

// partitions returns a topic's partitions, in order.
func (c *Cluster) partitions(name string) []topic.Partition {
	c.t.Helper()
	ctx, cancel := c.context()
	defer cancel()
	infos, err := c.admin.Topics(ctx, name)
	if err != nil {
		c.t.Fatal(err)
	}
	info, ok := infos[name]
	if !ok {
		c.t.Fatalf("topic %s does not exist: see Cluster.CreateTopic", name)
	}
	parts := make([]topic.Partition, info.Partitions)
	for i := range parts {
		parts[i] = topic.Partition{Topic: name, Number: int32(i)}
	}
	return parts
}

// stateDir is the directory of one life of a process.
func (c *Cluster) stateDir(name string, life int) string {
	base := c.dir
	if life > 0 {
		name = fmt.Sprintf("%s#%d", name, life)
	}
	return filepath.Join(base, name)
}
