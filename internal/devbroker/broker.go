// Package devbroker is an in-process broker for development and tests. It
// keeps everything in memory, and stands behind a network of its own that can
// be cut, frozen and delayed, and that can lose replies. It works in virtual
// time.
package devbroker

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/twmb/franz-go/pkg/kfake"
)

// Config says what broker to start.
type Config struct {
	Listen   string            // HOST:PORT to listen on for other programs; empty: in memory only
	Logger   *slog.Logger      // of the broker; silent if nil
	Settings map[string]string // broker settings by Kafka's names
}

// Broker is one broker and the network around it.
type Broker struct {
	cluster *kfake.Cluster
	net     *network
	addr    string
	tcp     net.Listener
	outside sync.WaitGroup // what carries connections from outside
	marks   atomic.Uint64
}

// inMemory is the address of a broker that listens nowhere.
const inMemory = "in-process:9092"

// never is how long the broker waits before it compacts or deletes anything:
// its compaction drops committed values.
const never = 100 * 365 * 24 * time.Hour

// Start starts a broker.
func Start(cfg Config) (*Broker, error) {
	b := &Broker{net: newNetwork(), addr: inMemory}
	if cfg.Listen != "" {
		l, err := net.Listen("tcp", cfg.Listen)
		if err != nil {
			return nil, fmt.Errorf("listen for other programs: %w", err)
		}
		b.tcp, b.addr = l, reachable(l.Addr())
	}
	settings := map[string]string{"log.cleaner.backoff.ms": strconv.FormatInt(never.Milliseconds(), 10)}
	maps.Copy(settings, cfg.Settings)
	opts := []kfake.Opt{
		kfake.NumBrokers(1),
		kfake.ClusterID("pawl-dev"),
		kfake.DefaultNumPartitions(1),
		kfake.SleepOutOfOrder(),
		kfake.BrokerConfigs(settings),
		kfake.ListenFn(func(string, string) (net.Listener, error) {
			return &listener{net: b.net, addr: address(b.addr)}, nil
		}),
	}
	if cfg.Logger != nil {
		opts = append(opts, kfake.WithLogger(logger{cfg.Logger}))
	}
	c, err := kfake.NewCluster(opts...)
	if err != nil {
		b.net.close()
		if b.tcp != nil {
			err = fmt.Errorf("%w (listening on %s)", err, b.addr)
			if cerr := b.tcp.Close(); cerr != nil {
				err = fmt.Errorf("%w; %w", err, cerr)
			}
		}
		return nil, fmt.Errorf("start the in-process broker: %w", err)
	}
	b.cluster = c
	if b.tcp != nil {
		b.outside.Go(b.serve)
	}
	return b, nil
}

// reachable returns the address that clients are told: a listener on every
// interface is reached at localhost.
func reachable(a net.Addr) string {
	host, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}

// Cluster says how to reach the broker from this process.
func (b *Broker) Cluster() cluster.Cluster { return b.Host("local") }

// Host says how to reach the broker from a host of the given name, whose
// network can be cut, frozen and delayed on its own.
func (b *Broker) Host(name string) cluster.Cluster {
	return cluster.Cluster{
		Brokers: []string{b.addr},
		Dial: func(ctx context.Context, _, to string) (net.Conn, error) {
			return b.net.dial(ctx, name, to)
		},
	}
}

// Addr is the address that other programs reach the broker at, or empty.
func (b *Broker) Addr() string {
	if b.tcp == nil {
		return ""
	}
	return b.addr
}

// Cut breaks the host's connections and lets it make no new ones until Heal.
func (b *Broker) Cut(host string) { b.net.change(host, func(h *hostState) { h.cut = true }) }

// Heal ends a Cut.
func (b *Broker) Heal(host string) { b.net.change(host, func(h *hostState) { h.cut = false }) }

// Freeze holds every byte from and to the host until Thaw. Nothing breaks.
func (b *Broker) Freeze(host string) { b.net.change(host, func(h *hostState) { h.frozen = true }) }

// Thaw ends a Freeze.
func (b *Broker) Thaw(host string) { b.net.change(host, func(h *hostState) { h.frozen = false }) }

// Delay makes every request from and every reply to the host take that long.
func (b *Broker) Delay(host string, d time.Duration) {
	b.net.change(host, func(h *hostState) { h.delay = d })
}

// Close ends the broker and every connection to it. What it held is gone.
func (b *Broker) Close() {
	b.net.close()
	if b.tcp != nil {
		// Closing only ends Accept; there is nothing to do about an error.
		_ = b.tcp.Close()
	}
	b.cluster.Close()
	b.outside.Wait()
}

// serve carries connections from outside into the network.
func (b *Broker) serve() {
	for {
		c, err := b.tcp.Accept()
		if err != nil {
			return
		}
		b.outside.Go(func() { b.carry(c) })
	}
}

func (b *Broker) carry(c net.Conn) {
	defer c.Close()
	in, err := b.net.dial(context.Background(), "tcp", b.addr)
	if err != nil {
		return
	}
	b.outside.Go(func() {
		// Either end's close ends both copies; who closed knows why.
		_, _ = io.Copy(in, c)
		_ = in.Close()
	})
	_, _ = io.Copy(c, in)
	_ = in.Close()
}

// logger passes the broker's log lines on.
type logger struct{ *slog.Logger }

func (l logger) Logf(level kfake.LogLevel, msg string, args ...any) {
	at := slog.LevelDebug
	switch level {
	case kfake.LogLevelError:
		at = slog.LevelError
	case kfake.LogLevelWarn:
		at = slog.LevelWarn
	case kfake.LogLevelInfo:
		at = slog.LevelDebug // it speaks of every request at this level
	}
	if l.Enabled(context.Background(), at) {
		l.Log(context.Background(), at, fmt.Sprintf(msg, args...))
	}
}
