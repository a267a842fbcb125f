package messaging

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/topic"
)

// ClientConfig says which clusters there are, and for each application what it
// consumes and where its dead letters go.
type ClientConfig struct {
	// Clusters by a name of their own, by which applications refer to them.
	Clusters map[string]cluster.Cluster

	// Applications by their names.
	Applications map[string]Application

	Logger     *slog.Logger          // default: slog.Default()
	Registerer prometheus.Registerer // where metrics are registered while consumers run; nil: nowhere

	// TracerProvider, when set, gives each call of Publish a span, and each
	// attempt at a message: see Config.TracerProvider.
	TracerProvider trace.TracerProvider
}

// Application says what an application consumes and publishes.
type Application struct {
	Topic   string // its topic
	Cluster string // the cluster of the topic and of its delay topics

	// Codec, when set, encodes what the application's producer publishes and
	// gives messages their keys. Its name does not matter.
	Codec *topic.Description

	// Where dead letters go. Default: <application>.<consumer>.dlq on Cluster.
	DeadLetterTopic   string
	DeadLetterCluster string

	// Options are the other settings of its consumers. Cluster, Topic,
	// Application, Consumer and DeadLetters.Topic and Cluster are not set here.
	Options Config
}

// client is the Client that NewClient makes.
type client struct{ cfg ClientConfig }

// NewClient returns a client. It connects to nothing yet. Its error lists
// everything that is wrong with the configuration.
func NewClient(cfg ClientConfig) (Client, error) {
	cfg.Clusters, cfg.Applications = maps.Clone(cfg.Clusters), maps.Clone(cfg.Applications)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	c := &client{cfg}
	var errs []error
	if len(cfg.Applications) == 0 {
		errs = append(errs, errors.New("no applications are named"))
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Clusters)) {
		if err := cfg.Clusters[name].Validate(); err != nil {
			errs = append(errs, fmt.Errorf("cluster %s: %w", name, err))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Applications)) {
		a := cfg.Applications[name]
		var wrong []error
		for what, of := range map[string]string{"cluster": a.Cluster, "cluster of the dead letters": a.DeadLetterCluster} {
			if _, ok := cfg.Clusters[of]; !ok && (of != "" || what == "cluster") {
				wrong = append(wrong, fmt.Errorf("%s %q: want one of %s", what, of, strings.Join(slices.Sorted(maps.Keys(cfg.Clusters)), ", ")))
			}
		}
		o := a.Options
		if len(o.Cluster.Brokers) > 0 || o.Topic != "" || o.Application != "" || o.Consumer != "" || o.DeadLetters.Topic != "" || o.DeadLetters.Cluster != nil {
			wrong = append(wrong, errors.New("its options name a cluster, topic, application, consumer or dead letters, which the application itself does"))
		}
		if err := c.options(name).withDefaults().validate(); err != nil {
			wrong = append(wrong, err)
		}
		if len(wrong) > 0 {
			slices.SortFunc(wrong, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
			errs = append(errs, fmt.Errorf("application %s: %w", name, errors.Join(wrong...)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("messaging: %w", err)
	}
	return c, nil
}

// config returns the configuration of a consumer.
func (c *client) config(app, consumer string) Config {
	a := c.cfg.Applications[app]
	cfg := a.Options
	cfg.Cluster, cfg.Topic, cfg.Application, cfg.Consumer = c.cfg.Clusters[a.Cluster], a.Topic, app, consumer
	cfg.DeadLetters.Topic = a.DeadLetterTopic
	if a.DeadLetterCluster != "" && a.DeadLetterCluster != a.Cluster {
		other := c.cfg.Clusters[a.DeadLetterCluster]
		cfg.DeadLetters.Cluster = &other
	}
	if cfg.Logger == nil {
		cfg.Logger = c.cfg.Logger
	}
	if cfg.Registerer == nil {
		cfg.Registerer = c.cfg.Registerer
	}
	if cfg.TracerProvider == nil {
		cfg.TracerProvider = c.cfg.TracerProvider
	}
	return cfg
}

// options is the configuration of an application's consumers with clusters that
// are right, for what is wrong beside them: each cluster is looked at by itself.
func (c *client) options(app string) Config {
	right := cluster.Cluster{Brokers: []string{"localhost:9092"}}
	cfg := c.config(app, "consumer")
	cfg.Cluster = right
	if cfg.DeadLetters.Cluster != nil {
		cfg.DeadLetters.Cluster = &right
	}
	return cfg
}

func (c *client) known(app string) error {
	if _, ok := c.cfg.Applications[app]; !ok {
		return fmt.Errorf("messaging: application %q is not configured: want one of %s", app, strings.Join(slices.Sorted(maps.Keys(c.cfg.Applications)), ", "))
	}
	return nil
}

func (c *client) NewConsumer(appName, consumerName string) (Consumer, error) {
	if err := c.known(appName); err != nil {
		return nil, err
	}
	if consumerName == "" {
		return nil, fmt.Errorf("messaging: consumer of application %s: it has no name", appName)
	}
	return newConsumer(c.config(appName, consumerName))
}

func (c *client) NewProducer(appName string) (Producer, error) {
	if err := c.known(appName); err != nil {
		return nil, err
	}
	a := c.cfg.Applications[appName]
	return newProducer(c.cfg.Clusters[a.Cluster], a.Topic, a.Codec, appName, c.cfg.Logger, cmp.Or[trace.TracerProvider](a.Options.TracerProvider, c.cfg.TracerProvider))
}

// channelConsumer is a Consumer: a worker whose handler sends messages to a
// channel. One goroutine does so: messages are taken out of their order by
// nobody, and the channel holds none.
type channelConsumer struct {
	w        *Worker
	messages chan Message
	stopping chan struct{} // closed by Stop

	mu struct {
		sync.Mutex
		started, stopped bool
		cancel           context.CancelFunc
		done             chan struct{} // closed when the worker has ended
	}
	sending sync.WaitGroup
}

func newConsumer(cfg Config) (*channelConsumer, error) {
	c := &channelConsumer{messages: make(chan Message), stopping: make(chan struct{})}
	cfg.Concurrency = 1
	cfg.HandlerTimeout = 0 // whoever reads the channel keeps the time
	w, err := New(cfg, c.send)
	if err != nil {
		return nil, err
	}
	c.w = w
	return c, nil
}

// errLeft is what a handler returns that has done nothing with its message.
var errLeft = errors.New("the message was not handled")

func (c *channelConsumer) send(ctx context.Context, d Delivery) error {
	c.mu.Lock()
	if c.mu.stopped {
		c.mu.Unlock()
		return errLeft
	}
	c.sending.Add(1)
	c.mu.Unlock()
	defer c.sending.Done()
	select {
	case c.messages <- d:
		return Later
	case <-ctx.Done():
	case <-c.stopping:
	}
	return errLeft
}

func (c *channelConsumer) Messages() <-chan Message { return c.messages }

// Stats returns how the consumer is: see [Worker.Stats].
func (c *channelConsumer) Stats() Stats { return c.w.Stats() }

// Health returns what keeps the consumer from its work: see [Worker.Health].
func (c *channelConsumer) Health() error { return c.w.Health() }

// Pause sends nothing more to the channel until Resume, but for the one message
// that may wait there.
func (c *channelConsumer) Pause() { c.w.Pause() }

// Resume ends a Pause.
func (c *channelConsumer) Resume() { c.w.Resume() }

var (
	_ Inspector = (*channelConsumer)(nil)
	_ Inspector = (*Worker)(nil)
)

func (c *channelConsumer) Start() error {
	c.mu.Lock()
	if c.mu.started || c.mu.stopped {
		err := ErrStarted
		if c.mu.stopped {
			err = ErrClosed
		}
		c.mu.Unlock()
		return fmt.Errorf("start consumer %s: %w", c.w.group, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.mu.started, c.mu.cancel, c.mu.done = true, cancel, make(chan struct{})
	done := c.mu.done
	c.mu.Unlock()
	closed, err := c.w.open(ctx)
	if err != nil || closed == nil {
		close(done)
		if err == nil {
			err = fmt.Errorf("start consumer %s: %w", c.w.group, ErrClosed)
		}
		return err
	}
	go func() {
		defer close(done)
		defer closed()
		if err := c.w.serve(ctx); err != nil {
			c.w.log.Error("the consumer can't go on", "error", err)
			c.finish()
		}
	}()
	return nil
}

// finish ends the channel.
func (c *channelConsumer) finish() {
	c.mu.Lock()
	if c.mu.stopped {
		c.mu.Unlock()
		return
	}
	c.mu.stopped = true
	c.mu.Unlock()
	close(c.stopping)
	c.sending.Wait()
	close(c.messages)
}

func (c *channelConsumer) Stop() {
	c.mu.Lock()
	started, cancel, done := c.mu.started, c.mu.cancel, c.mu.done
	c.mu.Unlock()
	if !started {
		return
	}
	c.finish()
	cancel()
	<-done
}
