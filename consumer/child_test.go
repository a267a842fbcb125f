package consumer_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pawlstream/pawl/broker"
	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// Tests that kill processes run this test binary again, as a process of the
// application: the witness.

func TestMain(m *testing.M) {
	if spec := os.Getenv("PAWL_TEST_WITNESS"); spec != "" {
		if err := runWitness(spec); err != nil {
			fmt.Fprintln(os.Stderr, "witness:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// witnessSpec is what a witness process is told.
type witnessSpec struct {
	Brokers     string
	Prefix      string // of the topics
	Application string
	Instance    string
	Dir         string
	Transaction time.Duration // the transaction timeout
	Session     time.Duration
	Padding     int // bytes that each key's state has besides its count
	Disk        int // bytes that the state directory's own file system has; 0: it has none of its own
	Drain       time.Duration
	Clerk       bool // it is a clerk in place of a witness
	Descriptors int  // file descriptors that it may have open at first; 0: as many as the system lets it
}

// witness publishes, for each message, where it was and how many of its key
// have come: an output from which every lost or repeated message shows.
type witness struct {
	in      topic.Of[string]
	out     topic.Of[testimony]
	padding int
}

// testimony is what the witness publishes for a message.
type testimony struct {
	Partition int32
	Offset    int64
	Key       string
	Count     int64
}

var seen = store.NewTable("seen", store.String, store.Bytes)

func newWitness(prefix string, padding int) *witness {
	return &witness{
		in:      topic.String(prefix + "in").With(topic.Partitions(witnessPartitions)),
		out:     topic.JSON(prefix+"out", topic.KeyedBy(func(t testimony) string { return t.Key })).With(topic.Partitions(2)),
		padding: padding,
	}
}

const (
	witnessPartitions = 3
	processPatience   = 40 * time.Second // far more than a process of these tests takes
)

func (w *witness) Topics() []*topic.Description  { return []*topic.Description{w.in.Description} }
func (w *witness) Outputs() []*topic.Description { return []*topic.Description{w.out.Description} }

func (w *witness) Consume(e topic.Envelope, s consumer.Shard, p *topic.Publisher) error {
	old, _, err := seen.Get(s.Transaction(), string(e.Key))
	if err != nil {
		return err
	}
	n := int64(1)
	if len(old) >= 8 {
		n += int64(binary.BigEndian.Uint64(old))
	}
	val := make([]byte, 8+w.padding)
	binary.BigEndian.PutUint64(val, uint64(n))
	if err := seen.Put(s.Transaction(), string(e.Key), val); err != nil {
		return err
	}
	return w.out.Publish(p, testimony{e.Partition, e.Offset, string(e.Key), n})
}

func (w *witness) Flush(consumer.Shard, *topic.Publisher) error { return nil }

// runWitness is the process: it ends when its standard input does.
func runWitness(spec string) error {
	var s witnessSpec
	if err := json.Unmarshal([]byte(spec), &s); err != nil {
		return err
	}
	if s.Disk > 0 {
		if err := mountDisk(s.Dir, s.Disk); err != nil {
			return fmt.Errorf("%w: %w", errNoDisk, err)
		}
	}
	if s.Descriptors > 0 {
		if err := allowDescriptors(os.Getpid(), s.Descriptors); err != nil {
			return err
		}
	}
	var c consumer.Consumer = newWitness(s.Prefix, s.Padding)
	if s.Clerk {
		c = newClerk(s.Prefix)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return consumer.Run(ctx, consumer.Config{
		Application: s.Application, Instance: s.Instance, StateDir: s.Dir, Cluster: cluster.Cluster{Brokers: strings.Split(s.Brokers, ",")},
		TransactionTimeout: s.Transaction, SessionTimeout: s.Session, FlushInterval: time.Second, Memory: 64 << 20,
		CommitInterval: 20 * time.Millisecond, DrainTimeout: cmp.Or(s.Drain, 20*time.Second),
	}, c)
}

// process is a witness process that runs.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	log   string // the name of its log file
	ended chan error
}

// startWitness starts a process, with crash as PAWL_CRASH.
func startWitness(t *testing.T, s witnessSpec, crash string) *process {
	t.Helper()
	spec, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.CreateTemp(t.TempDir(), s.Instance+"-*.log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p := &process{cmd: exec.Command(os.Args[0]), log: log.Name(), ended: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), "PAWL_TEST_WITNESS="+string(spec), "PAWL_CRASH="+crash)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if s.Disk > 0 {
		ownMounts(p.cmd.SysProcAttr)
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	t.Cleanup(func() {
		p.cmd.Process.Signal(syscall.SIGCONT)
		p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			text, err := os.ReadFile(p.log)
			if err != nil {
				t.Log(err)
			}
			t.Logf("log of %s (PAWL_CRASH=%q):\n%s", s.Instance, crash, text)
		}
	})
	return p
}

// drain closes the process's standard input and waits for its end.
func (p *process) drain(t *testing.T) {
	t.Helper()
	p.stdin.Close()
	if err := p.wait(t); err != nil {
		t.Errorf("process ended with %v", err)
	}
}

// awaitRunning waits until so many shards run in the process, as its log says.
func (p *process) awaitRunning(t *testing.T, shards int) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(processPatience); ; <-tick.C {
		text, err := os.ReadFile(p.log)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(string(text), " INFO running ") >= shards {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d shards do not run in %v:\n%s", shards, processPatience, text)
		}
	}
}

// wait waits for the process to end.
func (p *process) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-p.ended:
		p.ended <- err // for the next who asks
		return err
	case <-time.After(time.Minute):
		t.Fatalf("process %d does not end", p.cmd.Process.Pid)
		return nil
	}
}

// killed says whether the process was ended by SIGKILL.
func killed(err error) bool {
	exit, ok := err.(*exec.ExitError)
	if !ok {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// stage is a broker with the witness's topics, and what was published there.
type stage struct {
	cluster cluster.Cluster
	brokers string
	spec    witnessSpec
	w       *witness
	want    map[string]int64 // messages by key
	total   int
	keys    int // how many keys they have
}

// onBrokers runs a test on the broker that a program has by default, which keeps
// everything on disk, and on the Kafka that PAWL_TEST_KAFKA names, if it does.
// (The broker in memory is what every test in virtual time runs on.)
func onBrokers(t *testing.T, test func(t *testing.T, brokers string)) {
	t.Run("broker", func(t *testing.T) {
		b, err := broker.Open(t.TempDir(), broker.Config{Listen: "127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := b.Close(); err != nil {
				t.Errorf("close the broker: %v", err)
			}
		})
		test(t, b.ListenAddr())
	})
	if brokers := os.Getenv("PAWL_TEST_KAFKA"); brokers != "" {
		t.Run("kafka", func(t *testing.T) { test(t, brokers) })
	}
}

// onKafka runs a test on the Kafka that PAWL_TEST_KAFKA names: for what only a
// real one can show.
func onKafka(t *testing.T, test func(t *testing.T, brokers string)) {
	brokers := os.Getenv("PAWL_TEST_KAFKA")
	if brokers == "" {
		t.Skip("needs a real Kafka: PAWL_TEST_KAFKA names none") // make kafka-test starts one
	}
	t.Run("kafka", func(t *testing.T) { test(t, brokers) })
}

func newStage(t *testing.T, brokers string) *stage {
	t.Helper()
	id := fmt.Sprintf("w%d", time.Now().UnixNano())
	s := &stage{
		cluster: cluster.Cluster{Brokers: []string{brokers}}, brokers: brokers, want: make(map[string]int64), keys: 17,
		spec: witnessSpec{Brokers: brokers, Prefix: id + "-", Application: id, Transaction: 10 * time.Second, Session: 6 * time.Second},
	}
	s.w = newWitness(s.spec.Prefix, 0)
	admin := s.admin(t)
	for _, d := range []*topic.Description{s.w.in.Description, s.w.out.Description} {
		if _, err := admin.CreateTopic(t.Context(), kafka.TopicSpec{Name: d.Name(), Partitions: d.Partitions()}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := admin.DeleteTopics(ctx, s.w.in.Name(), s.w.out.Name(), consumer.ChangelogTopic(id, s.w.in.Name())); err != nil {
			t.Log(err)
		}
	})
	return s
}

func (s *stage) admin(t *testing.T) *kafka.Admin {
	t.Helper()
	admin, err := kafka.NewAdmin(s.config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	return admin
}

func (s *stage) config() kafka.Config {
	return kafka.Config{Cluster: s.cluster, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

// as returns the spec of one instance, with a state directory of its own.
func (s *stage) as(t *testing.T, instance string) witnessSpec {
	spec := s.spec
	spec.Instance = instance
	spec.Dir = filepath.Join(t.TempDir(), instance)
	return spec
}

// publish publishes n messages of a few keys.
func (s *stage) publish(t *testing.T, n int) {
	t.Helper()
	p, err := kafka.NewProducer(s.config())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var recs []kafka.Record
	for range n {
		key := fmt.Sprintf("k%03d", s.total%s.keys)
		s.total++
		s.want[key]++
		recs = append(recs, kafka.Record{Topic: s.w.in.Name(), Partition: -1, Key: []byte(key), Value: []byte("x")})
	}
	if err := p.Publish(t.Context(), recs...); err != nil {
		t.Fatal(err)
	}
}

// testimonies reads the committed output, until it holds n or more, or until
// the time is up.
func (s *stage) testimonies(t *testing.T, n int, patience time.Duration) []testimony {
	t.Helper()
	r, err := kafka.NewReader(s.config(), kafka.ReaderConfig{Committed: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for p := range s.w.out.Partitions() {
		r.Consume(s.w.out.Description, int32(p), 0)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var got []testimony
	var batch kafka.Batch
	for len(got) < n {
		batch.Reset()
		if err := r.Poll(ctx, 1000, &batch); err != nil {
			if ctx.Err() != nil {
				break
			}
			t.Fatal(err)
		}
		for _, e := range batch.Envelopes {
			m, ok, err := s.w.out.Message(e)
			if err != nil || !ok {
				t.Fatalf("output at %d: %v, %v", e.Offset, ok, err)
			}
			got = append(got, m)
		}
	}
	return got
}

// publishUntil publishes, a few messages at a time, until the process ends.
func (s *stage) publishUntil(t *testing.T, p *process) {
	t.Helper()
	for range 1000 {
		select {
		case err := <-p.ended:
			p.ended <- err
			return
		default:
			s.publish(t, 7)
		}
	}
}

// verify waits for all that was published, and checks that every message has
// exactly one testimony, and that each key's counts go from 1 to the number of
// its messages, in order.
func (s *stage) verify(t *testing.T) {
	t.Helper()
	got := s.testimonies(t, s.total, processPatience)
	type position struct {
		partition int32
		offset    int64
	}
	times := make(map[position]int)
	counts := make(map[string]int64)
	for _, m := range got {
		times[position{m.Partition, m.Offset}]++
		if m.Count != counts[m.Key]+1 {
			t.Errorf("key %s: count %d came after %d", m.Key, m.Count, counts[m.Key])
		}
		counts[m.Key] = m.Count
	}
	for p, n := range times {
		if n != 1 {
			t.Errorf("message %+v has %d testimonies", p, n)
		}
	}
	if len(times) != s.total {
		t.Errorf("%d messages have a testimony, want %d", len(times), s.total)
	}
	for key, want := range s.want {
		if counts[key] != want {
			t.Errorf("key %s: count %d, want %d", key, counts[key], want)
		}
	}
}

// verifyStores checks the counts in the databases of one state directory,
// which no process holds.
func (s *stage) verifyStores(t *testing.T, spec witnessSpec) {
	t.Helper()
	dirs, err := os.ReadDir(filepath.Join(spec.Dir, spec.Application))
	if err != nil {
		t.Fatal(err)
	}
	counts := make(map[string]int64)
	for _, d := range dirs {
		owner, err := store.Open(store.Config{Dir: filepath.Join(spec.Dir, spec.Application, d.Name()), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := changelog.ParsePosition(owner.Meta()); err != nil {
			t.Error(err)
		}
		err = owner.DB().View(func(tx *store.Transaction) error {
			for key, val := range seen.All(tx) {
				counts[key] += int64(binary.BigEndian.Uint64(val))
			}
			return tx.Err()
		})
		if err != nil {
			t.Error(err)
		}
		if err := owner.Close(); err != nil {
			t.Error(err)
		}
	}
	for key, want := range s.want {
		if counts[key] != want {
			t.Errorf("stored count of %s is %d, want %d", key, counts[key], want)
		}
	}
}
