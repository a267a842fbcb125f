package pawl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlstream/pawl"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/devbroker"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// output is what a program writes, as it comes. Whoever waits for a line is
// told when it is there.
type output struct {
	mu struct {
		sync.Mutex
		text bytes.Buffer
	}
	more chan struct{}
}

func newOutput() *output { return &output{more: make(chan struct{}, 1)} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	n, err := o.mu.text.Write(p)
	o.mu.Unlock()
	select {
	case o.more <- struct{}{}:
	default: // whoever waits looks at all of it
	}
	return n, err
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.text.String()
}

// patience is how long a test waits for what takes a moment.
const patience = 30 * time.Second

// wait waits until the output holds n matches, and returns them.
func (o *output) wait(t *testing.T, pattern string, n int) [][]string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	late := time.After(patience)
	for {
		if found := re.FindAllStringSubmatch(o.String(), -1); len(found) >= n {
			return found
		}
		select {
		case <-o.more:
		case <-late:
			t.Fatalf("%q did not come %d times in %v; the output is:\n%s", pattern, n, patience, o)
		}
	}
}

// running is a program that runs in this process.
type running struct {
	t              *testing.T
	stdout, stderr *output
	stop           context.CancelFunc
	ended          chan int
}

func start(t *testing.T, args []string, consumers ...consumer.Consumer) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{t, newOutput(), newOutput(), cancel, make(chan int, 1)}
	o := pawl.Options{Name: "/usr/local/bin/Word_Count", Args: append([]string{"--log-format=json"}, args...), Env: []string{"HOME=" + t.TempDir()}, Stdout: r.stdout, Stderr: r.stderr}
	go func() { r.ended <- pawl.Run(ctx, o, consumers...) }()
	return r
}

// status stops the program and returns its exit status.
func (r *running) status() int {
	r.t.Helper()
	r.stop()
	return r.wait()
}

// wait waits for the program to end by itself.
func (r *running) wait() int {
	r.t.Helper()
	select {
	case s := <-r.ended:
		return s
	case <-time.After(patience):
		r.t.Fatalf("the program has not ended in %v:\n%s", patience, r.stderr)
		return 0
	}
}

// url returns the address of the admin API.
func (r *running) url() string {
	r.t.Helper()
	return r.stderr.wait(r.t, `"url":"([^"]*)"`, 1)[0][1]
}

func (r *running) get(path string) (int, string) {
	r.t.Helper()
	resp, err := http.Get(r.url() + path)
	if err != nil {
		r.t.Fatalf("GET %s: %v", path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatalf("GET %s: %v", path, err)
	}
	return resp.StatusCode, string(body)
}

// wordCounter is counter, and tells what its Flush publishes.
type wordCounter struct {
	counter
	totals chan Total
}

func newWordCounter() wordCounter { return wordCounter{totals: make(chan Total, 100)} }

func (c wordCounter) Flush(s consumer.Shard, p *topic.Publisher) error {
	for word, n := range counts.Changes(s.Transaction()) {
		c.totals <- Total{word, n.New}
	}
	return c.counter.Flush(s, p)
}

func (c wordCounter) next(t *testing.T) Total {
	t.Helper()
	select {
	case total := <-c.totals:
		return total
	case <-time.After(patience):
		t.Fatalf("no total came in %v", patience)
		return Total{}
	}
}

// nextOf returns the next total of a word, after those of others.
func (c wordCounter) nextOf(t *testing.T, word string) Total {
	t.Helper()
	for {
		if total := c.next(t); total.Word == word {
			return total
		}
	}
}

// broker starts a broker that programs of other processes reach, with topics
// of two partitions.
func broker(t *testing.T, topics ...string) (b *devbroker.Broker, publish func(topic string, keys ...string)) {
	t.Helper()
	b, err := devbroker.Start(devbroker.Config{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	cfg := kafka.Config{Cluster: b.Cluster()}
	createTopics(t, cfg, topics...)
	return b, publisher(t, cfg)
}

// createTopics creates those of the topics that are missing, with two
// partitions.
func createTopics(t *testing.T, cfg kafka.Config, topics ...string) {
	t.Helper()
	admin, err := kafka.NewAdmin(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	for _, name := range topics {
		if _, err := admin.CreateTopic(t.Context(), kafka.TopicSpec{Name: name, Partitions: 2}); err != nil {
			t.Fatal(err)
		}
	}
}

// publisher returns a function that publishes messages that are keys alone.
func publisher(t *testing.T, cfg kafka.Config) func(topic string, keys ...string) {
	t.Helper()
	p, err := kafka.NewProducer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return func(topic string, keys ...string) {
		t.Helper()
		var recs []kafka.Record
		for _, k := range keys {
			recs = append(recs, kafka.Record{Topic: topic, Partition: -1, Key: []byte(k), Value: []byte{}})
		}
		if err := p.Publish(t.Context(), recs...); err != nil {
			t.Fatal(err)
		}
	}
}

// A program consumes, says how it is, drains when it is told to stop, and goes
// on where it was.
func TestProgram(t *testing.T) {
	t.Run("in process", func(t *testing.T) {
		b, publish := broker(t, "words", "totals")
		testProgram(t, b.Addr(), "word-count", publish)
	})
	if addr := os.Getenv("PAWL_TEST_KAFKA"); addr != "" {
		t.Run("kafka", func(t *testing.T) {
			cfg := kafka.Config{}
			cfg.Cluster.Brokers = []string{addr}
			createTopics(t, cfg, "words", "totals")
			testProgram(t, addr, fmt.Sprintf("word-count-%d", time.Now().UnixNano()), publisher(t, cfg))
		})
	}
}

func testProgram(t *testing.T, addr, application string, publish func(topic string, keys ...string)) {
	dir := filepath.Join(t.TempDir(), "state")
	word := application // which no run before has published
	args := []string{"--brokers", addr, "--application", application, "--state-dir", dir, "--session-timeout=6s"}

	c := newWordCounter()
	p := start(t, args, c)
	publish("words", word)
	if got, want := c.nextOf(t, word), (Total{word, 1}); got != want {
		t.Errorf("total %v, want %v", got, want)
	}
	p.stderr.wait(t, `"msg":"running"`, 2)
	p.stderr.wait(t, "the changelog is on one broker alone", 1)
	if status, body := p.get("/readyz"); status != 200 {
		t.Errorf("/readyz: %d %s, want 200", status, body)
	}
	if status, body := p.get("/healthz"); status != 200 {
		t.Errorf("/healthz: %d %s, want 200", status, body)
	}
	_, body := p.get("/metrics")
	for _, want := range []string{"go_goroutines ", "process_cpu_seconds_total ", `pawl_shards_running{application="` + application + `"} 2`} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics has no %q", want)
		}
	}
	var st struct {
		Application string
		Ready       bool
		Shards      []struct{ ID, Phase string }
	}
	_, body = p.get("/v1/status")
	if err := json.Unmarshal([]byte(body), &st); err != nil {
		t.Fatal(err)
	}
	want := "{" + application + ` true [{words-000 running} {words-001 running}]}`
	if got := fmt.Sprint(st); got != want {
		t.Errorf("/v1/status is %s, want %s", got, want)
	}
	file, err := os.ReadFile(filepath.Join(dir, "admin"))
	if got, want := "http://"+string(file), p.url()+"\n"; err != nil || got != want {
		t.Errorf("the state directory says the admin API is at %q, %v, want %q", got, err, want)
	}
	if status := p.status(); status != 0 {
		t.Errorf("exit status %d, want 0:\n%s", status, p.stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "admin")); !os.IsNotExist(err) {
		t.Errorf("the admin file is there after the end: %v", err)
	}

	c = newWordCounter()
	p = start(t, args, c)
	publish("words", word)
	if got, want := c.nextOf(t, word), (Total{word, 2}); got != want {
		t.Errorf("total after a restart %v, want %v", got, want)
	}
	if status := p.status(); status != 0 {
		t.Errorf("exit status %d, want 0:\n%s", status, p.stderr)
	}
}

// With no brokers named a program has its own, which others reach where it
// listens. What it holds and the state are there at the next start.
func TestProgramWithoutBrokers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	args := []string{"--listen", "127.0.0.1:0", "--partitions", "3", "--state-dir", dir}
	for round := range int64(2) {
		c := newWordCounter()
		p := start(t, args, c)
		cfg := kafka.Config{}
		cfg.Cluster.Brokers = []string{p.stderr.wait(t, `"listen":"([^"]*)"`, 1)[0][1]}
		p.stderr.wait(t, `"msg":"running"`, 3)
		publisher(t, cfg)("words", "a", "b")
		if round == 0 {
			p.stderr.wait(t, `"msg":"topic created".*"topic":"totals"`, 1)
		}
		for _, word := range []string{"a", "b"} {
			if got, want := readTotal(t, cfg, 3, word, round), (Total{word, round + 1}); got != want {
				t.Errorf("at start %d total %d of %s is %v, want %v", round, round, word, got, want)
			}
		}
		if s := p.stderr.String(); strings.Contains(s, "on one broker alone") {
			t.Errorf("it warns that its own broker is one:\n%s", s)
		}
		if _, body := p.get("/v1/broker"); !strings.Contains(body, `"name": "word-count.words.changelog"`) {
			t.Errorf("/v1/broker does not show the changelog:\n%s", body)
		}
		if _, body := p.get("/metrics"); !strings.Contains(body, `pawl_broker_partition_end_offset{partition="2",topic="words"}`) {
			t.Errorf("/metrics does not show the broker:\n%s", body)
		}
		if round == 0 {
			status, _, stderr := program(t, append(slices.Clone(args), "--drain=100ms"), nil, counter{})
			checkStartError(t, status, "", stderr, []string{"open broker " + dir, "in use by another broker", fmt.Sprintf("process %d on", os.Getpid())})
		}
		if status := p.status(); status != 0 {
			t.Errorf("exit status %d, want 0:\n%s", status, p.stderr)
		}
	}
}

// readTotal returns the nth total of a word that is committed, of a topic with
// so many partitions.
func readTotal(t *testing.T, cfg kafka.Config, partitions int32, word string, n int64) Total {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := kafka.NewReader(cfg, kafka.ReaderConfig{Committed: true, Topics: []string{"totals"}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for p := range partitions {
		r.Consume(totals.Description, p, 0)
	}
	for {
		var got kafka.Batch
		if err := r.Poll(ctx, 100, &got); err != nil {
			t.Fatalf("read total %d of %s: %v", n, word, err)
		}
		for _, e := range got.Envelopes {
			total, _, err := totals.Message(e)
			if err != nil {
				t.Fatal(err)
			}
			if total.Word == word {
				if n--; n < 0 {
					return total
				}
			}
		}
	}
}

// A program that is told nothing keeps its state where the system has what
// programs keep.
func TestDefaultStateDir(t *testing.T) {
	home, set := t.TempDir(), t.TempDir()
	for _, tt := range []struct {
		env  []string
		want string
	}{
		{[]string{"HOME=" + home}, filepath.Join(home, ".local", "state", "pawl", "word-count")},
		{[]string{"HOME=" + home, "XDG_STATE_HOME=" + set}, filepath.Join(set, "pawl", "word-count")},
		{[]string{"HOME=" + home, "XDG_STATE_HOME=relative"}, filepath.Join(home, ".local", "state", "pawl", "word-count")},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		stderr, ended := newOutput(), make(chan int, 1)
		go func() {
			ended <- pawl.Run(ctx, pawl.Options{Name: "word-count", Args: []string{"--log-format=json"}, Env: tt.env, Stdout: stderr, Stderr: stderr}, counter{})
		}()
		if got := stderr.wait(t, `"state":"([^"]*)"`, 1)[0][1]; got != tt.want {
			t.Errorf("with %q the state is in %s, want %s", tt.env, got, tt.want)
		}
		cancel()
		if status := next(t, ended, "end"); status != 0 {
			t.Errorf("exit status %d, want 0:\n%s", status, stderr)
		}
	}
	stderr := newOutput()
	status := pawl.Run(t.Context(), pawl.Options{Name: "word-count", Stdout: stderr, Stderr: stderr}, counter{})
	if want := "word-count: no state directory is set, and there is no HOME to have one in: set --state-dir\n"; status != 2 || !strings.HasPrefix(stderr.String(), want) {
		t.Errorf("without a home: status %d, %s\nwant 2 and %s", status, stderr, want)
	}
}

// A program that was told to stop before it was ready ends well too.
func TestStopAtStart(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := start(t, []string{"--brokers", l.Addr().String(), "--state-dir", t.TempDir()}, counter{})
	if status, body := p.get("/readyz"); status != 503 {
		t.Errorf("/readyz of a program that is starting: %d %s, want 503", status, body)
	}
	if status := p.status(); status != 0 {
		t.Errorf("exit status %d, want 0:\n%s", status, p.stderr)
	}
}

// A state directory that has lost its broker's data holds state of topics that
// are gone: it is not taken for that of the new ones.
func TestStateOutlivesBroker(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		c := newWordCounter()
		p := start(t, []string{"--listen", "127.0.0.1:0", "--partitions=1", "--state-dir", dir}, c)
		cfg := kafka.Config{}
		cfg.Cluster.Brokers = []string{p.stderr.wait(t, `"listen":"([^"]*)"`, 1)[0][1]}
		p.stderr.wait(t, `"msg":"running"`, 1)
		publisher(t, cfg)("words", "a")
		if got, want := c.next(t), (Total{"a", 1}); got != want {
			t.Errorf("total %v, want %v", got, want)
		}
		if status := p.status(); status != 0 {
			t.Errorf("exit status %d, want 0:\n%s", status, p.stderr)
		}
		if err := os.RemoveAll(filepath.Join(dir, "broker.data")); err != nil {
			t.Fatal(err)
		}
	}
}

// A drain ends at its deadline also when the broker is gone, or is there and
// answers nothing.
func TestDrainWithoutBroker(t *testing.T) {
	const outside = "tcp" // what the broker's network calls those who come by its port
	for name, fail := range map[string]func(*devbroker.Broker){
		"gone":   (*devbroker.Broker).Close,
		"frozen": func(b *devbroker.Broker) { b.Freeze(outside) },
	} {
		t.Run(name, func(t *testing.T) {
			b, publish := broker(t, "words", "totals")
			c := newWordCounter()
			p := start(t, []string{"--brokers", b.Addr(), "--state-dir", t.TempDir(), "--drain=500ms"}, c)
			p.stderr.wait(t, `"msg":"running"`, 2)
			publish("words", "a")
			c.next(t)
			fail(b)
			began := time.Now()
			status := p.status()
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("the drain took %v, want its 500ms and little more:\n%s", took, p.stderr)
			}
			if status != 0 {
				t.Errorf("exit status %d, want 0:\n%s", status, p.stderr)
			}
		})
	}
}
