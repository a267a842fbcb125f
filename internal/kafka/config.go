package kafka

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Config says how to reach a cluster and under which name.
type Config struct {
	Cluster  cluster.Cluster
	ClientID string       // shown in the brokers' logs; "pawl" if empty
	Logger   *slog.Logger // slog.Default() if nil
}

// dialTimeout bounds one attempt to connect to one broker.
const dialTimeout = 10 * time.Second

// metadataMinAge is the least time between two looks at the cluster's
// metadata. After a commit a broker may answer a produce request with
// CONCURRENT_TRANSACTIONS, upon which the library waits for such a look: by its
// default, for five seconds.
const metadataMinAge = 20 * time.Millisecond

// metadataMaxAge is how old the knowledge of leaders and partition counts may
// become.
const metadataMaxAge = 30 * time.Second

func (c Config) withDefaults() Config {
	if c.ClientID == "" {
		c.ClientID = "pawl"
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// newClient makes a client of the cluster. Its requests end with ctx.
func (c Config) newClient(ctx context.Context, opts ...kgo.Opt) (*kgo.Client, error) {
	if err := c.Cluster.Validate(); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	all := []kgo.Opt{
		kgo.WithContext(ctx),
		kgo.SeedBrokers(c.Cluster.Brokers...),
		kgo.ClientID(c.ClientID),
		kgo.WithLogger(clientLog{c.Logger}),
		kgo.DialTimeout(dialTimeout),
		kgo.MetadataMinAge(metadataMinAge),
		kgo.MetadataMaxAge(metadataMaxAge),
		kgo.DisableClientMetrics(),
	}
	// The library takes either a dialer or a TLS configuration; with both, TLS
	// goes over what the dialer opened.
	switch {
	case c.Cluster.Dial != nil && c.Cluster.TLS != nil:
		all = append(all, kgo.Dialer(c.dialTLS))
	case c.Cluster.Dial != nil:
		all = append(all, kgo.Dialer(c.Cluster.Dial))
	case c.Cluster.TLS != nil:
		all = append(all, kgo.DialTLSConfig(c.Cluster.TLS))
	}
	if m := mechanism(c.Cluster.SASL); m != nil {
		all = append(all, kgo.SASL(m))
	}
	return kgo.NewClient(append(all, opts...)...)
}

func mechanism(s cluster.SASL) sasl.Mechanism {
	switch s.Mechanism {
	case cluster.Plain:
		return plain.Auth{User: s.Username, Pass: string(s.Password)}.AsMechanism()
	case cluster.ScramSHA256:
		return scram.Auth{User: s.Username, Pass: string(s.Password)}.AsSha256Mechanism()
	case cluster.ScramSHA512:
		return scram.Auth{User: s.Username, Pass: string(s.Password)}.AsSha512Mechanism()
	case cluster.OAuthBearer:
		return bearer(s)
	}
	return nil
}

// clientLog passes the library's log on. What it calls information it says
// for every transaction, so that is detail here.
type clientLog struct{ *slog.Logger }

func (l clientLog) Level() kgo.LogLevel {
	ctx := context.Background()
	switch {
	case l.Enabled(ctx, slog.LevelDebug):
		return kgo.LogLevelInfo
	case l.Enabled(ctx, slog.LevelWarn):
		return kgo.LogLevelWarn
	case l.Enabled(ctx, slog.LevelError):
		return kgo.LogLevelError
	}
	return kgo.LogLevelNone
}

func (l clientLog) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	at := slog.LevelDebug
	switch level {
	case kgo.LogLevelError:
		at = slog.LevelError
	case kgo.LogLevelWarn:
		at = slog.LevelWarn
	}
	l.Logger.Log(context.Background(), at, msg, keyvals...)
}

// tlsFor returns the TLS configuration for a broker.
func tlsFor(c *tls.Config, host string) *tls.Config {
	c = c.Clone()
	if c.ServerName == "" {
		c.ServerName = host
	}
	return c
}
