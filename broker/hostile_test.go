package broker

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func listening() Config {
	c := quiet()
	c.Listen = "127.0.0.1:0"
	return c
}

func size(n uint32, rest ...byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, n), rest...)
}

// What is not Kafka costs its connection, and nothing else.
func TestB6HostileBytes(t *testing.T) {
	k := start(t, listening())
	k.create("out", 1)
	hello := kmsg.NewRequestFormatter().AppendRequest(nil, kmsg.NewPtrApiVersionsRequest(), 1)
	for name, bytes := range map[string][]byte{
		"HTTP":                []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		"TLS":                 {22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3},
		"4 GiB":               size(1<<32-1, make([]byte, 100)...),
		"2 GiB":               size(1<<31-1, make([]byte, 100)...),
		"nothing":             size(0),
		"seven bytes":         size(7, make([]byte, 7)...),
		"an unknown key":      size(8, 0x7f, 0xff, 0, 0, 0, 0, 0, 0),
		"a negative key":      size(8, 0xff, 0xff, 0, 0, 0, 0, 0, 0),
		"an unknown version":  size(8, 0, 3, 0x7f, 0xff, 0, 0, 0, 0),
		"no client ID":        size(8, 0, 3, 0, 4, 0, 0, 0, 0),
		"a huge list":         size(14, 0, 3, 0, 1, 0, 0, 0, 0, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff),
		"a huge metadata":     size(requestMax+1, 0, 3, 0, 1, 0, 0, 0, 0),
		"a produce of lists":  append(size(1<<20, 0, 0, 0, 9, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0, 0x80, 0x80, 0x3f), make([]byte, 1<<20-17)...),
		"cut short after key": size(100, 0, 0, 0, 9)[:8],
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", k.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write(bytes); err != nil && !errors.Is(err, net.ErrClosed) && !isReset(err) {
				t.Fatal(err)
			}
			if name == "cut short after key" {
				return // it is waited for, in time
			}
			if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if n, err := io.Copy(io.Discard, conn); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the broker answered %d bytes, %v; want the connection closed", n, err)
			}
			ok, err := net.Dial("tcp", k.Addr())
			if err != nil {
				t.Fatalf("the broker is gone: %v", err)
			}
			defer ok.Close()
			if _, err := ok.Write(hello); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(ok, make([]byte, 8)); err != nil {
				t.Errorf("the broker answers nobody any more: %v", err)
			}
		})
	}
}

func isReset(err error) bool {
	return strings.Contains(err.Error(), "reset") || strings.Contains(err.Error(), "broken pipe")
}

// A client that doesn't read its answers does not hold up others, nor more than
// the answers' memory.
func TestB6SlowReader(t *testing.T) {
	k := start(t, listening())
	k.create("out", 1)
	cl := k.client(manual())
	for range 30 {
		k.produceTo(cl, "out", 0, string(random(200<<10)))
	}
	id, err := k.topicID(cl, "out")
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		conn, err := net.Dial("tcp", k.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		req := kmsg.NewPtrFetchRequest()
		req.Version, req.MaxBytes, req.MinBytes, req.SessionEpoch = 13, 50<<20, 1, -1
		ft := kmsg.NewFetchRequestTopic()
		ft.TopicID = id
		fp := kmsg.NewFetchRequestTopicPartition()
		fp.PartitionMaxBytes, fp.CurrentLeaderEpoch = 50<<20, -1
		ft.Partitions = append(ft.Partitions, fp)
		req.Topics = append(req.Topics, ft)
		for i := range int32(10) {
			if _, err := conn.Write(kmsg.NewRequestFormatter().AppendRequest(nil, req, i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	waitFor(k.ctx, 200*time.Millisecond)
	if got := k.answers.used(); got > k.answers.total {
		t.Errorf("answers take %d bytes, more than %d", got, k.answers.total)
	}
	k.produceTo(cl, "out", 0, "still there")
}

// What the process of a broker takes stays near what it was given, however many
// clients don't read what they asked for or don't end what they began to say.
func TestB6ResidentMemory(t *testing.T) {
	const given = 64 << 20
	c := startChild(t, childSettings{Dir: t.TempDir(), Memory: given}, "")
	k := &kit{TB: t, ctx: t.Context(), child: c}
	k.create("out", 1)
	cl := k.client(manual(), kgo.ProducerBatchCompression(kgo.NoCompression()))
	for range 60 {
		k.produceTo(cl, "out", 0, string(random(400<<10)))
	}
	id, err := k.topicID(cl, "out")
	if err != nil {
		t.Fatal(err)
	}
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxBytes, req.MinBytes, req.SessionEpoch = 13, 50<<20, 1, -1
	fp := kmsg.NewFetchRequestTopicPartition()
	fp.PartitionMaxBytes, fp.CurrentLeaderEpoch = 50<<20, -1
	req.Topics = []kmsg.FetchRequestTopic{{TopicID: id, Partitions: []kmsg.FetchRequestTopicPartition{fp}}}
	slow := kmsg.NewRequestFormatter().AppendRequest(nil, req, 1)
	half := append(size(4<<20), make([]byte, 1<<20)...)
	var taken int64
	for i := range 200 {
		conn, err := net.Dial("tcp", c.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		what := slow
		if i%4 == 3 {
			what = half
		}
		// Of what the broker has no room for, not all is taken, or the connection
		// is closed.
		if err := conn.SetWriteDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(what); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			t.Fatal(err)
		}
		taken = max(taken, resident(t, c.cmd.Process.Pid))
	}
	t.Logf("%d MB are resident at most, of %d MB that were given", taken>>20, given>>20)
	if taken > 3*given {
		t.Errorf("%d bytes are resident, more than three times the %d that were given", taken, given)
	}
	k.produceTo(cl, "out", 0, "still there")
}

func (k *kit) outsider(t *testing.T, opts ...kgo.Opt) error {
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(k.Addr()), kgo.RetryTimeout(2 * time.Second), kgo.RequestRetries(0), kgo.DisableClientMetrics()}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	return cl.Ping(k.ctx)
}

func TestSASL(t *testing.T) {
	c := listening()
	c.Users = []User{{"ann", "secret"}, {"bob", "other"}}
	k := start(t, c)
	by := func(mechanism, user, password string) sasl.Mechanism {
		switch mechanism {
		case cluster.Plain:
			return plain.Auth{User: user, Pass: password}.AsMechanism()
		case cluster.ScramSHA256:
			return scram.Auth{User: user, Pass: password}.AsSha256Mechanism()
		}
		return scram.Auth{User: user, Pass: password}.AsSha512Mechanism()
	}
	for _, m := range mechanisms {
		if err := k.outsider(t, kgo.SASL(by(m, "ann", "secret"))); err != nil {
			t.Errorf("%s: %v", m, err)
		}
		for _, wrong := range [][2]string{{"ann", "other"}, {"bob", "secret"}, {"eve", "secret"}, {"", ""}} {
			if wrong[0] == "" && m != cluster.Plain {
				continue // the client refuses by itself
			}
			if err := k.outsider(t, kgo.SASL(by(m, wrong[0], wrong[1]))); err == nil {
				t.Errorf("%s: %q with the password %q is let in", m, wrong[0], wrong[1])
			}
		}
	}
	if err := k.outsider(t); err == nil {
		t.Error("a client that does not say who it is is let in")
	}
	if _, err := k.topicID(k.client(), "none"); err == nil || strings.Contains(err.Error(), "EOF") {
		t.Errorf("within the process no password is wanted: %v", err)
	}
}

func TestTLS(t *testing.T) {
	cert, pool := selfSigned(t)
	c := listening()
	c.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	k := start(t, c)
	if err := k.outsider(t, kgo.DialTLSConfig(&tls.Config{RootCAs: pool, ServerName: "localhost"})); err != nil {
		t.Errorf("with TLS: %v", err)
	}
	if err := k.outsider(t); err == nil {
		t.Error("without TLS a client is answered")
	}
}

func TestConfigValidate(t *testing.T) {
	for name, tt := range map[string]struct {
		c    Config
		want string // in the error; empty: none
	}{
		"nothing":                 {Config{}, ""},
		"loopback":                {Config{Listen: "127.0.0.1:0"}, ""},
		"everywhere":              {Config{Listen: "0.0.0.0:9092"}, "nobody has to say who they are"},
		"everywhere, by no host":  {Config{Listen: ":9092"}, "nobody has to say who they are"},
		"everywhere, insecure":    {Config{Listen: ":9092", Insecure: true}, ""},
		"everywhere, users":       {Config{Listen: ":9092", Users: []User{{"a", "b"}}}, ""},
		"not an address":          {Config{Listen: "here"}, "want HOST:PORT"},
		"advertised, not open":    {Config{Advertise: "h:1"}, "does not listen"},
		"a user without password": {Config{Users: []User{{"a", ""}}}, `user "a" has no password`},
		"a user twice":            {Config{Users: []User{{"a", "b"}, {"a", "c"}}}, "named twice"},
		"little memory":           {Config{Memory: 1}, "memory of 1 bytes"},
		"an unknown setting":      {Config{Settings: map[string]string{"log.retention": "1"}}, `setting "log.retention" is not known`},
		"a bad setting":           {Config{Settings: map[string]string{"log.retention.ms": "x"}}, "is not a number"},
		"hours":                   {Config{Settings: map[string]string{"log.retention.hours": "1"}}, ""},
	} {
		err := tt.c.withDefaults().validate()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// Whatever bytes come as a request, the broker answers or closes the connection.
func FuzzRequest(f *testing.F) {
	for key := range apis {
		req := kmsg.RequestForKey(key)
		req.SetVersion(apis[key].max)
		f.Add(kmsg.NewRequestFormatter().AppendRequest(nil, req, 1)[4:])
	}
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	k := start(f, quiet())
	k.create("out", 1)
	f.Fuzz(func(t *testing.T, body []byte) {
		conn, err := k.Cluster().Dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write(append(size(uint32(len(body))), body...)); err != nil {
			return
		}
		if err := conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Read(make([]byte, 4)) // an answer, the end, or nothing: a join may wait
		if err := k.Err(); err != nil {
			t.Fatalf("the broker stopped: %v", err)
		}
	})
}

func FuzzBatch(f *testing.F) {
	f.Add(rawBatch(1, 0, 0, true, "a", "b"))
	for codec := range int16(5) {
		h := batch{attributes: codec, lastDelta: 1, records: 2, producer: -1, epoch: -1, firstSeq: -1}
		packed, err := pack(int8(codec), encodeRecords("a", "b"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(appendBatch(nil, 0, h, packed).raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		in := incoming{resp: &kmsg.ProduceResponseTopicPartition{}, records: slices.Clone(raw), record: -1}
		in.check(policy{messageMax: 1 << 20, timeBefore: noMax, timeAfter: noMax}, now())
		bt, err := readBatch(raw)
		if err != nil {
			if in.failed == nil {
				t.Error("a batch without a header is taken")
			}
			return
		}
		bt.seal() // get past the checksum
		in = incoming{resp: &kmsg.ProduceResponseTopicPartition{}, records: bt.raw, record: -1}
		in.check(policy{messageMax: 1 << 20, timeBefore: noMax, timeAfter: noMax}, now())
		if in.failed != nil {
			return
		}
		n := int32(0)
		if err := eachRecord(in.batch, keepRaw, func(*recordReader) error { n++; return nil }); err != nil || n != in.batch.records {
			t.Errorf("a batch that was taken has %d records, says %d, %v", n, in.batch.records, err)
		}
	})
}

// Stored values are decoded or refused, and what is decoded is encoded again.
func FuzzDecode(f *testing.F) {
	p := newPartition(&topic{name: "t"}, 0, 1)
	p.next = 5
	f.Add(byte(0), p.encode())
	f.Add(byte(1), newProducerState(3).encode())
	f.Add(byte(2), committed{5, 0, "m", 7}.encode())
	f.Add(byte(3), aborted{1, 2, 3, 4}.encode())
	f.Add(byte(4), newTransaction("x").encode())
	f.Add(byte(5), encodeChunk(chunk{base: 1}))
	f.Add(byte(6), (&topic{name: "t", settings: map[string]string{"a": "b"}, partitions: []*partition{p}}).encode())
	f.Add(byte(7), (&group{members: map[string]*member{}, protocolType: "consumer"}).encode())
	f.Fuzz(func(t *testing.T, kind byte, val []byte) {
		var again []byte
		var err error
		switch kind % 8 {
		case 0:
			p := newPartition(&topic{}, 0, 0)
			if err = p.decode(val); err == nil {
				again = p.encode()
			}
		case 1:
			var s *producerState
			if s, err = decodeProducerState(val); err == nil {
				again = s.encode()
			}
		case 2:
			var c committed
			if c, err = decodeCommitted(val); err == nil {
				again = c.encode()
			}
		case 3:
			var a aborted
			if a, err = decodeAborted(val); err == nil {
				again = a.encode()
			}
		case 4:
			var x *transaction
			if x, err = decodeTransaction([]byte("xid"), val, func(uint32) *partition { return nil }); err == nil {
				again = x.encode()
			}
		case 5:
			var c chunk
			if c, err = decodeChunk(val); err == nil {
				again = encodeChunk(c)
			}
		case 6:
			var tp *topic
			if tp, err = decodeTopic(topicKey([16]byte{}), val); err == nil {
				again = tp.encode()
			}
		case 7:
			g := (&Broker{}).emptyGroup("g")
			if err = g.decode(val); err == nil {
				again = g.encode()
			}
		}
		if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewerFormat) {
			t.Errorf("kind %d: %v is neither corrupt nor newer", kind%8, err)
		}
		if err == nil && bytes.Equal(again, nil) {
			t.Errorf("kind %d: decoded, and nothing is encoded", kind%8)
		}
	})
}

func FuzzScram(f *testing.F) {
	f.Add([]byte("n,,n=ann,r=nonce"), []byte("c=biws,r=nonce,p=AAAA"))
	a := newAuthenticator([]User{{"ann", "secret"}})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		x := &scramExchange{hash: scramHash(cluster.ScramSHA256), users: a.scram[cluster.ScramSHA256]}
		if _, _, err := x.step(first); err != nil {
			return
		}
		if _, done, err := x.step(second); done && err == nil {
			t.Error("a proof by chance is taken")
		}
		if a.checkPlain(first) == nil && string(first) != "\x00ann\x00secret" && string(first) != "ann\x00ann\x00secret" {
			t.Errorf("%q is taken", first)
		}
	})
}
