package kafka

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/devbroker"
	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// certificate returns a server's side of TLS for 127.0.0.1 and the pool that
// trusts it.
func certificate(t *testing.T) (*tls.Config, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, pool
}

func fake(t *testing.T, opts ...kfake.Opt) string {
	t.Helper()
	c, err := kfake.NewCluster(append(opts, kfake.NumBrokers(1))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c.ListenAddrs()[0]
}

// Whatever is wrong with a connection, the error names the broker, what was
// tried and what is likely wrong, and holds no secret.
func TestConnectErrors(t *testing.T) {
	server, pool := certificate(t)
	trusting := &tls.Config{RootCAs: pool}
	const password = "s3cret-pass"
	sasl := func(mechanism, password string) cluster.SASL {
		return cluster.SASL{Mechanism: mechanism, Username: "ann", Password: cluster.Secret(password)}
	}
	d, err := devbroker.Start(devbroker.Config{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	plain := d.Addr()
	secure := fake(t, kfake.TLS(server))
	users := fake(t, kfake.EnableSASL(), kfake.Superuser(cluster.ScramSHA256, "ann", password), kfake.Superuser(cluster.Plain, "ann", password))
	both := fake(t, kfake.TLS(server), kfake.EnableSASL(), kfake.Superuser(cluster.ScramSHA512, "ann", password))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })

	type attempt struct {
		name    string
		cluster cluster.Cluster
		want    string // in what is likely wrong; empty: no error
	}
	attempts := []attempt{
		{"plain", cluster.Cluster{Brokers: []string{plain}}, ""},
		{"TLS", cluster.Cluster{Brokers: []string{secure}, TLS: trusting}, ""},
		{"SCRAM-SHA-256", cluster.Cluster{Brokers: []string{users}, SASL: sasl(cluster.ScramSHA256, password)}, ""},
		{"PLAIN", cluster.Cluster{Brokers: []string{users}, SASL: sasl(cluster.Plain, password)}, ""},
		{"TLS and SCRAM-SHA-512", cluster.Cluster{Brokers: []string{both}, TLS: trusting, SASL: sasl(cluster.ScramSHA512, password)}, ""},
		{"second broker answers", cluster.Cluster{Brokers: []string{closed, plain}}, ""},
		{"nothing listens", cluster.Cluster{Brokers: []string{closed}}, "nothing listens there"},
		{"unknown host", cluster.Cluster{Brokers: []string{"no-such-host.invalid:9092"}}, "can't be resolved"},
		{"TLS to a plain port", cluster.Cluster{Brokers: []string{plain}, TLS: trusting}, "does not seem to speak TLS"},
		{"plain to a TLS port", cluster.Cluster{Brokers: []string{secure}}, "seems to speak TLS"},
		{"certificate not trusted", cluster.Cluster{Brokers: []string{secure}, TLS: &tls.Config{}}, "signed by nobody who is trusted"},
		{"certificate of another host", cluster.Cluster{Brokers: []string{secure}, TLS: &tls.Config{RootCAs: pool, ServerName: "elsewhere"}}, "another host name"},
		{"SASL missing", cluster.Cluster{Brokers: []string{users}}, "seems to want SASL"},
		{"wrong password", cluster.Cluster{Brokers: []string{users}, SASL: sasl(cluster.ScramSHA256, "wrong"+password)}, "password is wrong"},
		{"wrong password, PLAIN", cluster.Cluster{Brokers: []string{users}, SASL: sasl(cluster.Plain, "wrong"+password)}, "password is wrong"},
		{"no answer", cluster.Cluster{Brokers: []string{silent.Addr().String()}}, "no answer"},
	}
	if real := os.Getenv("PAWL_TEST_KAFKA"); real != "" { // a plain port; the in-process broker takes any SASL handshake
		real := []string{real}
		attempts = append(attempts,
			attempt{"real, plain", cluster.Cluster{Brokers: real}, ""},
			attempt{"real, TLS to a plain port", cluster.Cluster{Brokers: real, TLS: trusting}, "does not seem to speak TLS"},
			attempt{"real, SASL not wanted", cluster.Cluster{Brokers: real, SASL: sasl(cluster.Plain, "wrong"+password)}, "takes no SASL"},
		)
	}
	for _, tc := range attempts {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			a, err := NewAdmin(Config{Cluster: tc.cluster, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			err = a.Check(ctx, false)
			if tc.want == "" {
				if err != nil {
					t.Errorf("Check: %v, want no error", err)
				}
				return
			}
			ce := (*ConnectError)(nil)
			if !errors.As(err, &ce) {
				t.Fatalf("Check: %v, want a ConnectError", err)
			}
			if got, want := ce.Broker, tc.cluster.Brokers[0]; got != want {
				t.Errorf("the error names broker %s, want %s", got, want)
			}
			if !strings.Contains(ce.Likely, tc.want) {
				t.Errorf("likely wrong: %q, want it to say %q (%v)", ce.Likely, tc.want, err)
			}
			if strings.Contains(err.Error(), password) {
				t.Errorf("the error holds the password: %v", err)
			}
		})
	}
}

func TestOldBroker(t *testing.T) {
	for name, versions := range map[string]*kversion.Versions{
		"3.9": kversion.V3_9_0(),
		"4.0": kversion.V4_0_0(),
	} {
		a, err := NewAdmin(Config{Cluster: cluster.Cluster{Brokers: []string{fake(t, kfake.MaxVersions(versions))}}, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if got, want := errors.Is(a.Check(t.Context(), false), ErrOldBroker), name < "4"; got != want {
			t.Errorf("%s is too old: %v, want %v (%v)", name, got, want, a.Check(t.Context(), false))
		}
		if err := a.Check(t.Context(), true); err != nil {
			t.Errorf("%s, old brokers allowed: %v", name, err)
		}
	}

	// New, with the old way of transactions still in force.
	addr := fake(t)
	a, err := NewAdmin(Config{Cluster: cluster.Cluster{Brokers: []string{addr}}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	req := kmsg.NewPtrUpdateFeaturesRequest()
	u := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
	u.Feature, u.MaxVersionLevel, u.UpgradeType = "transaction.version", 1, 2
	req.FeatureUpdates = append(req.FeatureUpdates, u)
	if _, err := req.RequestWith(t.Context(), a.cl); err != nil {
		t.Fatal(err)
	}
	if err := a.Check(t.Context(), false); !errors.Is(err, ErrOldBroker) || !strings.Contains(err.Error(), "transaction.version 1") {
		t.Errorf("transaction.version 1: %v, want ErrOldBroker that says so", err)
	}
}

// A client whose password is wrong, or was changed, asks now and then and not
// in a hot loop, and fencing says what is wrong.
func TestWrongPasswordIsNotRetriedHot(t *testing.T) {
	addr := fake(t, kfake.EnableSASL(), kfake.Superuser(cluster.ScramSHA256, "ann", "right"))
	var dials atomic.Int32
	cfg := Config{Logger: slog.New(slog.DiscardHandler), Cluster: cluster.Cluster{
		Brokers: []string{addr},
		SASL:    cluster.SASL{Mechanism: cluster.ScramSHA256, Username: "ann", Password: "wr0ng"},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	r, err := NewReader(cfg, ReaderConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s, err := NewSession(cfg, SessionConfig{TransactionalID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		r.Consume(topic.Bytes("in").Description, 0, 0)
		var b Batch
		if err := r.Poll(ctx, 1, &b); err == nil {
			t.Error("a reader with a wrong password read something")
		}
	})
	_, err = s.Fence(ctx)
	if err == nil || strings.Contains(err.Error(), "wr0ng") {
		t.Errorf("fence: %v, want an error without the password", err)
	}
	wg.Wait()
	if n := dials.Load(); n > 60 {
		t.Errorf("%d connections within a second, want a few", n)
	} else {
		t.Logf("%d connections within a second; fence: %v", n, err)
	}
}
