package pawl_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// authority signs certificates, which it writes to files.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.sign("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// sign makes a key and a certificate, in the files NAME.pem and NAME.key.
func (a *authority) sign(name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	check := func(err error) {
		a.t.Helper()
		if err != nil {
			a.t.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	template.SerialNumber, template.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	check(err)
	cert, err := x509.ParseCertificate(der)
	check(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	check(err)
	check(os.WriteFile(a.file(name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	check(os.WriteFile(a.file(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	return cert, key
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// server returns the configuration of a server with a certificate for an
// address and a name, which wants one of its clients.
func (a *authority) server(host string) *tls.Config {
	a.t.Helper()
	a.sign("server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{host}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	pair, err := tls.LoadX509KeyPair(a.file("server.pem"), a.file("server.key"))
	if err != nil {
		a.t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(a.cert)
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert}
}

// A program reaches brokers over TLS, with a certificate of its own, and says
// what is wrong when it does not.
func TestTLS(t *testing.T) {
	ca, stranger := newAuthority(t), newAuthority(t)
	b, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(ca.server("kafka.example")), kfake.SeedTopics(2, "words", "totals"), kfake.SleepOutOfOrder())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	ca.sign("client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	addr := b.ListenAddrs()[0]
	trust := []string{"--brokers", addr, "--tls-ca", ca.file("ca.pem")}
	pair := []string{"--tls-cert", ca.file("client.pem"), "--tls-key", ca.file("client.key")}
	with := func(args ...[]string) []string {
		all := []string{"--state-dir", t.TempDir()}
		for _, a := range args {
			all = append(all, a...)
		}
		return all
	}

	for _, name := range [][]string{nil, {"--tls-server-name", "kafka.example"}} {
		p := start(t, with(trust, pair, name), counter{})
		p.stderr.wait(t, `"msg":"running"`, 2)
		if status := p.status(); status != 0 {
			t.Errorf("exit status %d, want 0:\n%s", status, p.stderr)
		}
	}

	for _, tt := range []struct {
		name string
		args []string
		want []string
	}{
		{"no TLS to a TLS port", with([]string{"--brokers", addr}), []string{"connect to broker " + addr, "without TLS", "the port seems to speak TLS"}},
		{"nobody's certificate", with([]string{"--brokers", addr, "--tls"}, pair), []string{"with TLS", "signed by nobody who is trusted here"}},
		{"another's certificate", with([]string{"--brokers", addr, "--tls-ca", stranger.file("ca.pem")}, pair), []string{"signed by nobody who is trusted here"}},
		{"certificate for another host", with(trust, pair, []string{"--tls-server-name", "other.example"}), []string{"certificate is for another host", "other.example"}},
		{"no client certificate", with(trust), []string{"with TLS", "client certificate"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, stdout, stderr := program(t, tt.args, nil, counter{})
			checkStartError(t, status, stdout, stderr, tt.want)
		})
	}
	t.Run("key of another certificate", func(t *testing.T) {
		status, _, stderr := program(t, with(trust, []string{"--tls-cert", ca.file("client.pem"), "--tls-key", ca.file("ca.key")}), nil, counter{})
		if status != 2 {
			t.Errorf("status %d, want 2: %s", status, stderr)
		}
	})
}
