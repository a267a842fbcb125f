package cli

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pawlstream/pawl/broker"
	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// servedTime is much longer than anything takes.
const servedTime = time.Minute

// served is pawl serve in a process of its own.
type served struct {
	t      *testing.T
	cmd    *exec.Cmd
	addr   string // that it advertises
	listen string
	admin  string
	ended  chan struct{}

	mu struct {
		sync.Mutex
		stderr bytes.Buffer
	}
}

// Write takes what the process says on standard error.
func (s *served) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.stderr.Write(p)
}

func (s *served) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.stderr.String()
}

// serving starts pawl serve, and waits until it has said where it listens.
func serving(t *testing.T, dir string, args ...string) *served {
	t.Helper()
	s := &served{t: t, ended: make(chan struct{})}
	s.cmd = exec.Command(os.Args[0], append([]string{"serve", "--dir", dir, "--listen", "127.0.0.1:0"}, args...)...)
	s.cmd.Stderr = s
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	lines := make(map[string]string)
	scan := bufio.NewScanner(stdout)
	for scan.Scan() {
		name, value, _ := strings.Cut(scan.Text(), " ")
		if lines[name] = strings.TrimSpace(value); name == "admin" {
			break
		}
	}
	s.listen, _, _ = strings.Cut(lines["listening"], " ")
	s.addr, s.admin = lines["advertised"], lines["admin"]
	go func() {
		defer close(s.ended)
		// How it ended is in its state.
		_ = s.cmd.Wait()
	}()
	if s.admin == "" {
		<-s.ended
		t.Fatalf("pawl serve has not begun:\n%s", s.said())
	}
	return s
}

// kill ends the process as kill -9 does.
func (s *served) kill() {
	// It may have ended.
	_ = s.cmd.Process.Kill()
	<-s.ended
}

// stop asks the process to end, and returns its status.
func (s *served) stop(sig syscall.Signal) int {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
	select {
	case <-s.ended:
	case <-time.After(servedTime):
		s.t.Fatalf("pawl serve has not ended in %v:\n%s", servedTime, s.said())
	}
	return s.cmd.ProcessState.ExitCode()
}

func (s *served) get(path string) (int, string) {
	s.t.Helper()
	resp, err := http.Get(s.admin + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func (s *served) cluster() cluster.Cluster { return cluster.Cluster{Brokers: []string{s.addr}} }

func quietly(c cluster.Cluster) kafka.Config {
	return kafka.Config{Cluster: c, ClientID: "test", Logger: slog.New(slog.DiscardHandler)}
}

// publish creates a topic of one partition, and publishes values to it.
func publish(t *testing.T, c cluster.Cluster, name string, values ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), servedTime)
	defer cancel()
	a, err := kafka.NewAdmin(quietly(c))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if _, err := a.CreateTopic(ctx, kafka.TopicSpec{Name: name, Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	p, err := kafka.NewProducer(quietly(c))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	recs := make([]kafka.Record, len(values))
	for i, v := range values {
		recs[i] = kafka.Record{Topic: name, Partition: 0, Value: []byte(v)}
	}
	if err := p.Publish(ctx, recs...); err != nil {
		t.Fatal(err)
	}
}

// consumed reads all that is in a topic of one partition.
func consumed(t *testing.T, c cluster.Cluster, name string) (values []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), servedTime)
	defer cancel()
	a, err := kafka.NewAdmin(quietly(c))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	part := topic.Partition{Topic: name, Number: 0}
	ends, err := a.Offsets(ctx, kafka.End, part)
	if err != nil {
		t.Fatal(err)
	}
	r, err := kafka.NewReader(quietly(c), kafka.ReaderConfig{Committed: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.Consume(topic.Bytes(name).Description, 0, 0)
	var batch kafka.Batch
	for next := int64(0); next < ends[part]; {
		if err := r.Poll(ctx, 1000, &batch); err != nil {
			t.Fatal(err)
		}
		for _, e := range batch.Envelopes {
			values = append(values, string(e.Value))
		}
		for _, p := range batch.Parts {
			next = p.Next
		}
	}
	return values
}

func numbered(n int) (values []string) {
	for i := range n {
		values = append(values, fmt.Sprintf("v%d", i))
	}
	return values
}

// What was acknowledged is there after kill -9, and after a stop by a signal;
// what the broker holds is shown.
func TestServe(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	s := serving(t, dir)
	want := numbered(100)
	publish(t, s.cluster(), "words", want...)
	s.kill()

	s = serving(t, dir)
	if got := consumed(t, s.cluster(), "words"); !slices.Equal(got, want) {
		t.Errorf("after kill -9 there are %d messages, %q, want %d", len(got), got, len(want))
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, body := s.get(path); status != 200 {
			t.Errorf("%s: %d %s, want 200", path, status, body)
		}
	}
	var shown broker.Snapshot
	if _, body := s.get("/v1/broker"); json.Unmarshal([]byte(body), &shown) != nil {
		t.Errorf("/v1/broker is no snapshot: %s", body)
	}
	if len(shown.Topics) != 1 || shown.Topics[0].Name != "words" || shown.Topics[0].Partitions[0].End != 100 || shown.Dir != dir || shown.Advertised != s.addr {
		t.Errorf("/v1/broker shows %+v, want topic words with 100 messages in %s at %s", shown, dir, s.addr)
	}
	var doc struct {
		Components struct {
			Schemas map[string]struct{ Properties map[string]any }
		}
	}
	if _, body := s.get("/v1/openapi.json"); json.Unmarshal([]byte(body), &doc) != nil {
		t.Errorf("/v1/openapi.json is no document: %s", body)
	}
	for schema, property := range map[string]string{"BrokerSnapshot": "cluster_id", "BrokerPartition": "unreadable", "BrokerOffset": "lag", "BrokerTransaction": "timeout_seconds"} {
		if doc.Components.Schemas[schema].Properties[property] == nil {
			t.Errorf("/v1/openapi.json has no %s of %s: %v", property, schema, doc.Components.Schemas)
		}
	}
	_, body := s.get("/metrics")
	for _, line := range []string{`pawl_broker_partition_end_offset{partition="0",topic="words"} 100`, "pawl_broker_disk_full 0", "go_goroutines "} {
		if !strings.Contains(body, "\n"+line) {
			t.Errorf("/metrics has no %q:\n%s", line, body)
		}
	}
	if status, _ := s.get("/v1/status"); status != 404 {
		t.Errorf("/v1/status of a process without an application: %d, want 404", status)
	}
	if status := s.stop(syscall.SIGTERM); status != 0 {
		t.Errorf("exit status %d, want 0:\n%s", status, s.said())
	}
	if _, err := os.Stat(filepath.Join(dir, "admin.json")); !os.IsNotExist(err) {
		t.Errorf("the admin port's file is there after the end: %v", err)
	}

	s = serving(t, dir)
	if got := consumed(t, s.cluster(), "words"); !slices.Equal(got, want) {
		t.Errorf("after a stop there are %d messages, %q, want %d", len(got), got, len(want))
	}
	if status := s.stop(syscall.SIGINT); status != 0 {
		t.Errorf("exit status %d, want 0:\n%s", status, s.said())
	}
}

// A second process is told who has the directory, and disturbs nothing.
func TestServeTwice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serving(t, dir)
	publish(t, s.cluster(), "words", "a")
	status, stdout, stderr := pawl("serve", "--dir", dir, "--listen", "127.0.0.1:0")
	if want := fmt.Sprintf("the directory is in use by another broker: process %d on ", s.cmd.Process.Pid); status != exitError || stdout != "" || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("status %d, stdout %q, stderr %q; want %d and one line with %q", status, stdout, stderr, exitError, want)
	}
	if got := consumed(t, s.cluster(), "words"); !slices.Equal(got, []string{"a"}) {
		t.Errorf("the first broker has %q, want a", got)
	}
}

func TestServeFlags(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "users")
	if err := os.WriteFile(file, []byte("ann:secret\nbob\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, []byte("# nobody\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	on := []string{"--dir", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0"}
	for _, tt := range []struct {
		args   []string
		status int
		want   string
	}{
		{nil, exitUsage, "--dir is not set: name the directory of the broker's data"},
		{append(on, "now"), exitUsage, `unexpected argument "now"`},
		{append(on, "--lisen=x"), exitUsage, "unknown flag --lisen: did you mean --listen?"},
		{append(on, "--listen=9092"), exitUsage, `--listen "9092": want HOST:PORT, such as 127.0.0.1:9092`},
		{append(on, "--listen=0.0.0.0:0"), exitUsage, "--listen 0.0.0.0:0: others can reach this address, and nobody has to say who they are: set --users"},
		{append(on, "--listen=:0"), exitUsage, "--listen :0: others can reach this address"},
		{append(on, "--listen=[::]:0"), exitUsage, "--listen [::]:0: others can reach this address"},
		{append(on, "--listen=example.com:0"), exitUsage, "others can reach this address"},
		{append(on, "--advertise=0.0.0.0:9092"), exitUsage, `--advertise "0.0.0.0:9092": want a HOST:PORT that a client can connect to`},
		{append(on, "--advertise=kafka"), exitUsage, `--advertise "kafka": want a HOST:PORT`},
		{append(on, "--advertise=kafka:0"), exitUsage, `--advertise "kafka:0": want a HOST:PORT`},
		{append(on, "--tls-cert=x"), exitUsage, "--tls-cert and --tls-key go together"},
		{append(on, "--tls-client-ca=x"), exitUsage, "--tls-client-ca needs --tls-cert"},
		{append(on, "--tls-cert="+file, "--tls-key="+file), exitError, "--tls-cert " + file + " with --tls-key " + file},
		{append(on, "--set=x"), exitUsage, `--set "x": want NAME=VALUE`},
		{append(on, "--set=a=1", "--set=a=2"), exitUsage, "--set names a twice"},
		{append(on, "--admin=0.0.0.0:0"), exitUsage, "--admin 0.0.0.0:0: others can reach this address: set PAWL_ADMIN_TOKEN or --admin-token-file"},
		{append(on, "--log-level=loud"), exitUsage, `--log-level "loud": want debug, info, warn or error`},
		{append(on, "-o", "json"), exitUsage, "--output is for --print-config, which is not set"},
		{append(on, "--set=no.such.setting=1"), exitError, "no.such.setting"},
		{append(on, "--memory=x"), exitUsage, "want a size such as 64MiB"},
		{append(on, "--log-format=xml"), exitUsage, `--log-format "xml": want text or json`},
		{append(on, "--users="+file), exitError, "--users: " + file + " line 2: want NAME:PASSWORD"},
		{append(on, "--users="+empty), exitError, "--users: " + empty + " names nobody"},
		{append(on, "--users="+file+".gone"), exitError, "no such file"},
	} {
		status, stdout, stderr := pawl(append([]string{"serve"}, tt.args...)...)
		if status != tt.status || stdout != "" || !strings.Contains(stderr, tt.want) || strings.Contains(stderr, "secret") {
			t.Errorf("%q: status %d, stdout %q, stderr %q; want %d and %q", tt.args, status, stdout, stderr, tt.status, tt.want)
		}
		if _, err := os.Stat(on[1]); !os.IsNotExist(err) {
			t.Fatalf("%q has made the directory: %v", tt.args, err)
		}
	}
}

// A port that is taken is said to be, and the directory is given back.
func TestServePorts(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	for _, flag := range []string{"--listen", "--admin"} {
		status, _, stderr := pawl("serve", "--dir", dir, "--listen", "127.0.0.1:0", flag, taken.Addr().String(), "--log-level=error")
		if status != exitError || !strings.Contains(stderr, taken.Addr().String()+": bind: address already in use") {
			t.Errorf("%s: status %d, stderr %q, want %d and that the address is in use", flag, status, stderr, exitError)
		}
	}
	serving(t, dir)
}

// With --insecure everybody is let in; that the address which clients are told
// is of no use on other machines is said.
func TestServeInsecure(t *testing.T) {
	t.Parallel()
	s := serving(t, t.TempDir(), "--listen", "0.0.0.0:0", "--insecure")
	if got := hostOf(s.addr); got != "localhost" {
		t.Errorf("clients are told host %s, want localhost", got)
	}
	publish(t, s.cluster(), "words", "a")
	if status := s.stop(syscall.SIGTERM); status != 0 {
		t.Errorf("exit status %d, want 0:\n%s", status, s.said())
	}
	if want := "clients on other machines are told an address that they can't reach"; !strings.Contains(s.said(), want) {
		t.Errorf("standard error does not say %q:\n%s", want, s.said())
	}
}

// certificate makes a certificate for 127.0.0.1, which signs itself, in two
// files.
func certificate(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	dir := t.TempDir()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, pool = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), x509.NewCertPool()
	pool.AddCert(parsed)
	for name, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: text}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key, pool
}

// reach returns why a client can't use the broker, or nil.
func reach(t *testing.T, c cluster.Cluster) error {
	t.Helper()
	a, err := kafka.NewAdmin(quietly(c))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ctx, cancel := context.WithTimeout(t.Context(), connectTime)
	defer cancel()
	return a.Check(ctx, false)
}

// Whoever connects must speak TLS and say who they are, by each mechanism; one
// who doesn't is told what is wrong.
func TestServeUsers(t *testing.T) {
	t.Parallel()
	cert, key, pool := certificate(t)
	users := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(users, []byte("# who may come\nann:right:with=colon,\nbob:other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serving(t, t.TempDir(), "--users", users, "--tls-cert", cert, "--tls-key", key)
	as := func(mechanism, name, password string) cluster.Cluster {
		c := s.cluster()
		c.TLS = &tls.Config{RootCAs: pool}
		c.SASL = cluster.SASL{Mechanism: mechanism, Username: name, Password: cluster.Secret(password)}
		return c
	}
	for _, mechanism := range []string{cluster.Plain, cluster.ScramSHA256, cluster.ScramSHA512} {
		if err := reach(t, as(mechanism, "ann", "right:with=colon,")); err != nil {
			t.Errorf("ann by %s: %v", mechanism, err)
		}
		for _, wrong := range [][2]string{{"ann", "other"}, {"eve", "other"}} {
			if err := reach(t, as(mechanism, wrong[0], wrong[1])); err == nil || !strings.Contains(err.Error(), "password is wrong") {
				t.Errorf("%s by %s with a wrong password: %v, want that it is wrong", wrong[0], mechanism, err)
			}
		}
	}
	anonymous := as("", "", "")
	if err := reach(t, anonymous); err == nil {
		t.Error("one who doesn't say who they are is let in")
	}
	if err := reach(t, s.cluster()); err == nil {
		t.Error("one who doesn't speak TLS is let in")
	}
	publish(t, as(cluster.ScramSHA512, "bob", "other"), "words", "a")
	if status := s.stop(syscall.SIGTERM); status != 0 {
		t.Errorf("exit status %d, want 0:\n%s", status, s.said())
	}
	if said := s.said(); !strings.Contains(said, "broker listens") || strings.Contains(said, "right:with") || strings.Contains(said, "other") {
		t.Errorf("the log shows a password, or nothing:\n%s", said)
	}
}

// With --tls-client-ca a certificate says who one is.
func TestServeClientCertificates(t *testing.T) {
	t.Parallel()
	cert, key, pool := certificate(t)
	s := serving(t, t.TempDir(), "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", cert, "--listen", "0.0.0.0:0", "--advertise", "127.0.0.1:9")
	_, port, err := net.SplitHostPort(s.listen)
	if err != nil {
		t.Fatal(err)
	}
	dial := func(certs ...tls.Certificate) error {
		conn, err := tls.Dial("tcp", "127.0.0.1:"+port, &tls.Config{RootCAs: pool, Certificates: certs})
		if err != nil {
			return err
		}
		defer conn.Close()
		// ApiVersions, version 0, correlation ID 7, without a client ID.
		if _, err := conn.Write([]byte{0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 255, 255}); err != nil {
			return err
		}
		_, err = io.ReadFull(conn, make([]byte, 8))
		return err
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	if err := dial(pair); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
	if err := dial(); err == nil {
		t.Error("one without a certificate is let in")
	}
}

func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	for _, tt := range []struct{ address, want string }{
		{l.Addr().String(), "^$"},
		{gone.Addr().String(), "^it can't be reached from here: .*refused"},
		{"no-such-host.invalid:9092", "^its host can't be resolved here: "},
		{"0123456789ab:9092", "^it is the name of a container"},
	} {
		if got := unreachable(t.Context(), tt.address, "0123456789ab"); !regexp.MustCompile(tt.want).MatchString(got) {
			t.Errorf("unreachable(%s) = %q, want %s", tt.address, got, tt.want)
		}
	}
}

// A copy, made while the broker runs or not, is what was there, and a broker
// starts from it.
func TestBackup(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	s := serving(t, dir)
	want := numbered(10)
	publish(t, s.cluster(), "words", want...)
	copies := t.TempDir()
	make := func(name string) {
		t.Helper()
		if status, stdout, stderr := pawl("backup", "--dir", dir, "--to", filepath.Join(copies, name)); status != exitOK || stderr != "" {
			t.Fatalf("pawl backup: status %d, stdout %q, stderr %q", status, stdout, stderr)
		}
	}
	make("running")
	publish(t, s.cluster(), "words", "later")
	status, _, stderr := pawl("backup", "--dir", dir, "--to", filepath.Join(copies, "running"))
	if status != exitError || !strings.Contains(stderr, "it is there already") {
		t.Errorf("a second backup to the same directory: status %d, stderr %q, want %d and that it is there already", status, stderr, exitError)
	}
	if status := s.stop(syscall.SIGTERM); status != 0 {
		t.Errorf("exit status %d, want 0:\n%s", status, s.said())
	}
	make("stopped")
	for name, want := range map[string][]string{"running": want, "stopped": append(want, "later")} {
		s := serving(t, filepath.Join(copies, name))
		if got := consumed(t, s.cluster(), "words"); !slices.Equal(got, want) {
			t.Errorf("copy %s holds %q, want %q", name, got, want)
		}
		s.kill()
	}
}

func TestBackupErrors(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		args   []string
		status int
		want   string
	}{
		{nil, exitUsage, "--dir is not set"},
		{[]string{"--dir", dir}, exitUsage, "--to is not set"},
		{[]string{"--dir", dir, "--to", dir + ".copy"}, exitError, "there is no broker's data"},
		{[]string{"--dir", filepath.Join(dir, "gone"), "--to", dir + ".copy"}, exitError, "there is no broker's data"},
	} {
		status, stdout, stderr := pawl(append([]string{"backup"}, tt.args...)...)
		if status != tt.status || stdout != "" || !strings.Contains(stderr, tt.want) {
			t.Errorf("%q: status %d, stdout %q, stderr %q; want %d and %q", tt.args, status, stdout, stderr, tt.status, tt.want)
		}
	}
	data := t.TempDir()
	if err := os.WriteFile(filepath.Join(data, brokerLock), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{data, filepath.Join(data, "copy")} {
		if status, _, stderr := pawl("backup", "--dir", data, "--to", to); status != exitError || !strings.Contains(stderr, "name a directory beside it") {
			t.Errorf("a copy of %s to %s: status %d, %s", data, to, status, stderr)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left in a directory that holds no data: %v, %v", left, err)
	}
}
